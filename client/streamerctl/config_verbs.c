/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs about the daemon's configuration: the caller's role and limits (whoami), the effective values (config), reload.
 */
#include "client/streamerctl/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- whoami ---- */

static void print_list(const char *title, const json_t *list)
{
        const json_t *item;
        if (!list)
                return;
        printf("%-12s", title);
        for (size_t i = 0; (item = json_array_get(list, i)); i++) {
                fputs(i > 0 ? ", " : "", stdout);
                put_escaped(stdout, json_string_value(item));
        }
        puts(json_array_size(list) == 0 ? "none" : "");
}

static void print_amount(const char *name, uint64_t amount)
{
        char text[HUMAN_MAX];
        if (strcmp(name, "bytes") == 0)
                fputs(human_size(text, amount), stdout);
        else
                printf("%" PRIu64, amount);
}

/* "3 of 16", or "3" where there is no limit. */
static void print_holdings(const json_t *holds, const json_t *limits)
{
        const char *name;
        const json_t *held;
        json_object_foreach((json_t *)holds, name, held)
        {
                printf("%-12s", name);
                print_amount(name, json_u64(holds, name));
                if (json_object_get(limits, name)) {
                        fputs(" of ", stdout);
                        print_amount(name, json_u64(limits, name));
                }
                putchar('\n');
        }
}

/* Those of which the user holds something. */
static void print_shares(const json_t *shares)
{
        const json_t *limits = json_object_get(shares, "limits"), *holds = json_object_get(shares, "holds"), *held;
        const char *name;
        json_object_foreach((json_t *)holds, name, held)
        {
                if (json_u64(holds, name) == 0)
                        continue;
                printf("%-12s%" PRIu64, name, json_u64(holds, name));
                if (json_object_get(limits, name))
                        printf(" of %" PRIu64, json_u64(limits, name));
                putchar('\n');
        }
}

void print_whoami(const struct ctl *ctl, const json_t *reply)
{
        printf("%-12s%" PRIu64 "\n%-12s%" PRIu64 "\n%-12s%s (", "uid", json_u64(reply, "uid"), "gid",
               json_u64(reply, "gid"), "role", json_str(reply, "role"));
        put_escaped(stdout, json_str(reply, "rule"));
        puts(")");
        print_list("roots", json_object_get(reply, "roots"));
        print_list("buckets", json_object_get(reply, "buckets"));
        print_holdings(json_object_get(reply, "holds"), json_object_get(reply, "limits"));
        print_shares(json_object_get(reply, "shares"));
}

/* ---- config ---- */

/* "default", "flag --root", "file /etc/streamerd/streamerd.yaml". */
static void add_origin(struct table *t, const json_t *row, const char *key)
{
        const char *from = json_str(row, "from");
        table_addf(t, "%s%s%s", json_str(row, key), from[0] ? " " : "", from);
}

static const struct column setting_columns[] = {{"KEY", "key", add_text, COLUMN_KEEP},
                                                {"VALUE", "value", add_text, COLUMN_CUT},
                                                {"ORIGIN", "origin", add_origin, COLUMN_CUT}};

void print_config(const struct ctl *ctl, const json_t *reply)
{
        columns_print(json_object_get(reply, "settings"), COLUMNS(setting_columns), ctl->format == FORMAT_WIDE, NULL);
}

/* ---- reload ---- */

void print_reload(const struct ctl *ctl, const json_t *reply)
{
        const char *restart = json_str(reply, "restart");
        printf("applied%s%s\n", restart[0] ? "; these need a restart: " : "", restart);
}
