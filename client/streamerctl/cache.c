/* SPDX-License-Identifier: Apache-2.0
 *
 * cache list, show, remove and verify: the entries of the daemon's disk cache.
 */
#include "client/streamerctl/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define SHORT_ID 12 /* digits of an id that are shown; -o wide shows all */

static void add_id(struct table *t, const json_t *entry, const char *key)
{
        table_addf(t, "%.*s", SHORT_ID, json_str(entry, key));
}

static void add_marks(struct table *t, const json_t *entry, const char *key)
{
        table_addf(t, "%s%s%s", json_bool(entry, "pinned") ? "pinned" : "",
                   json_bool(entry, "pinned") && json_bool(entry, "in_use") ? "," : "",
                   json_bool(entry, "in_use") ? "in use" : "");
}

static const struct column columns[] = {{"ID", "id", add_id, COLUMN_KEEP},
                                        {">SIZE", "bytes", add_size, COLUMN_KEEP},
                                        {">USED", "used_ns", add_time, COLUMN_KEEP},
                                        {"NAME", "name", add_text, COLUMN_KEEP}};

static const struct column wide_columns[] = {
        {"ID", "id", add_text, COLUMN_KEEP},         {">SIZE", "bytes", add_size, COLUMN_KEEP},
        {">USED", "used_ns", add_time, COLUMN_KEEP}, {">STORED", "stored_ns", add_time, COLUMN_KEEP},
        {"STATE", "pinned", add_marks, COLUMN_KEEP}, {"VERSION", "version", add_text, COLUMN_KEEP},
        {"NAME", "name", add_text, COLUMN_KEEP}};

static void print_quiet(const json_t *entries)
{
        const json_t *entry;
        for (size_t i = 0; (entry = json_array_get(entries, i)); i++)
                puts(json_str(entry, "id"));
}

static void show_entry(const json_t *entry)
{
        char size[HUMAN_MAX], age[HUMAN_MAX];
        printf("id          %s\nname        ", json_str(entry, "id"));
        put_escaped(stdout, json_str(entry, "name"));
        fputs("\nversion     ", stdout);
        put_escaped(stdout, json_str(entry, "version"));
        printf("\nsize        %s\n", human_size(size, json_u64(entry, "bytes")));
        printf("used        %s ago\n", human_time(age, json_u64(entry, "used_ns")));
        printf("stored      %s ago\n", human_time(age, json_u64(entry, "stored_ns")));
        if (json_bool(entry, "pinned"))
                puts("pinned      a pinned model has it");
        fputs("path        ", stdout);
        put_escaped(stdout, json_str(entry, "path"));
        putchar('\n');
}

static int list(struct ctl *ctl, const char *of, bool show)
{
        json_auto_t *reply = NULL;
        const json_t *entry;
        int rc = ctl_query(ctl, "cache", json_pack("{s:s*}", "of", of), NULL, &reply);
        if (!reply)
                return rc;
        const json_t *entries = json_object_get(reply, "entries");
        if (ctl->quiet)
                print_quiet(entries);
        else if (show)
                for (size_t i = 0; (entry = json_array_get(entries, i)); i++)
                        show_entry(entry);
        else if (ctl->format == FORMAT_WIDE)
                columns_print(entries, COLUMNS(wide_columns), true, NULL);
        else
                columns_print(entries, COLUMNS(columns), false, NULL);
        return 0;
}

static int remove_entries(struct ctl *ctl, const char *of)
{
        char size[HUMAN_MAX];
        json_auto_t *reply = NULL;
        int rc = ctl_query(ctl, "cache_remove", json_pack("{s:s}", "of", of), NULL, &reply);
        if (reply && !ctl->quiet)
                printf("removed %" PRIu64 " entries, %s\n", json_u64(reply, "removed"),
                       human_size(size, json_u64(reply, "bytes")));
        return rc;
}

static int verify_entries(struct ctl *ctl, const char *of)
{
        char size[HUMAN_MAX];
        const json_t *entry;
        json_auto_t *reply = NULL;
        int rc = ctl_call(ctl, "cache_verify", json_pack("{s:s*}", "of", of), NULL, &reply);
        if (rc != 0)
                return rc;
        const json_t *damaged = json_object_get(reply, "damaged");
        if (ctl->format == FORMAT_JSON)
                ctl_print_json(reply);
        else if (!ctl->quiet)
                printf("verified %" PRIu64 " entries, %s\n", json_u64(reply, "verified"),
                       human_size(size, json_u64(reply, "bytes")));
        for (size_t i = 0; (entry = json_array_get(damaged, i)); i++)
                rc = ctl_error(ctl, STREAMER_EFAILED, json_str(entry, "name"), "was damaged, and is removed: %s",
                               json_str(entry, "text"));
        return rc;
}

int verb_cache(struct ctl *ctl)
{
        const char *what = ctl->args[0], *of = ctl->n_args > 1 ? ctl->args[1] : NULL;
        bool removes = strcmp(what, "remove") == 0, shows = strcmp(what, "show") == 0;
        if (of ? of[0] == '\0' : removes || shows)
                return usage_error(ctl, "cache %s: names no entry", what);
        if (removes)
                return remove_entries(ctl, of);
        if (strcmp(what, "verify") == 0)
                return verify_entries(ctl, of);
        if (!shows && strcmp(what, "list") != 0)
                return usage_error(ctl, "cache: '%s' is not list, show, remove or verify", what);
        return list(ctl, of, shows);
}
