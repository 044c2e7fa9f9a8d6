/* SPDX-License-Identifier: Apache-2.0
 *
 * list, show and explain: models, their tensors, and what has become of them. Their JSON is the daemon's reply.
 */
#include "client/streamerctl/columns.h"
#include "client/streamerctl/term.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REDRAW_MS 1000
#define PRIORITY_USUAL 100 /* of a load that names none */

/* ---- cells ---- */

/* "host", or "cuda:0,cuda:1". */
static void add_devices(struct table *t, const json_t *model, const char *key)
{
        char text[200] = "";
        const json_t *device;
        for (size_t i = 0; (device = json_array_get(json_object_get(model, key), i)); i++) {
                size_t len = strlen(text);
                snprintf(text + len, sizeof(text) - len, "%s%s", i > 0 ? "," : "", json_str(device, "device"));
        }
        table_add(t, text);
}

/* "pinned", or how long the model stays without a lease; nothing where it stays until it is evicted. */
static void add_expiry(struct table *t, const json_t *model, const char *key)
{
        if (json_bool(model, "pinned"))
                table_add(t, "pinned");
        else
                add_time_or_nothing(t, model, key);
}

/* Why its load failed, on the model or on one of its devices. */
static void add_reason(struct table *t, const json_t *model, const char *key)
{
        const char *reason = json_str(model, key);
        const json_t *device;
        for (size_t i = 0; (device = json_array_get(json_object_get(model, "devices"), i)); i++)
                if (!reason[0])
                        reason = json_str(device, key);
        table_add(t, reason);
}

static void add_shape(struct table *t, const json_t *tensor, const char *key)
{
        char text[200] = "[";
        const json_t *dim;
        for (size_t i = 0; (dim = json_array_get(json_object_get(tensor, key), i)); i++) {
                size_t len = strlen(text);
                snprintf(text + len, sizeof(text) - len, "%s%" JSON_INTEGER_FORMAT, i > 0 ? ", " : "",
                         json_integer_value(dim));
        }
        table_addf(t, "%s]", text);
}

/* ---- list ---- */

static const struct column list_columns[] = {
        {"NAME", "name", add_text, COLUMN_KEEP},     {"STATE", "state", add_text, COLUMN_KEEP},
        {">TENSORS", "tensors", add_number, 5},      {">SIZE", "bytes", add_size, 1},
        {"DEVICE", "devices", add_devices, 3},       {">LEASES", "leases", add_number, 2},
        {"EXPIRES", "expires_in_ns", add_expiry, 4},
};

static const struct column list_wide_columns[] = {
        {"NAME", "name", add_text, COLUMN_KEEP},        {">GEN", "generation", add_number, COLUMN_KEEP},
        {"STATE", "state", add_text, COLUMN_KEEP},      {">TENSORS", "tensors", add_number, COLUMN_KEEP},
        {">SIZE", "bytes", add_size, COLUMN_KEEP},      {"DEVICE", "devices", add_devices, COLUMN_KEEP},
        {">LEASES", "leases", add_number, COLUMN_KEEP}, {"EXPIRES", "expires_in_ns", add_expiry, COLUMN_KEEP},
        {">IDLE", "idle_ns", add_time, COLUMN_KEEP},    {">LOAD", "load_ns", add_time, COLUMN_KEEP},
        {"TIER", "tier", add_text, COLUMN_KEEP},        {">PRIORITY", "priority", add_number, COLUMN_KEEP},
        {"FROM", "from", add_text, COLUMN_KEEP},        {"DIGEST", "digest", add_text, COLUMN_KEEP},
        {"SOURCE", "source", add_text, COLUMN_KEEP},    {"ERROR", "error", add_reason, COLUMN_KEEP},
};

_Static_assert(sizeof(list_wide_columns) / sizeof(list_wide_columns[0]) <= COLUMNS_MAX, "a table has more columns");

/* Tier and priority only if one of the models has another than the usual one. */
static void print_list(const json_t *models)
{
        struct column columns[COLUMNS_MAX];
        size_t n = sizeof(list_columns) / sizeof(list_columns[0]);
        bool tier = false, priority = false;
        const json_t *m;
        for (size_t i = 0; (m = json_array_get(models, i)); i++) {
                tier = tier || strcmp(json_str(m, "tier"), "host") == 0;
                priority = priority || json_u64(m, "priority") != PRIORITY_USUAL;
        }
        memcpy(columns, list_columns, sizeof(list_columns));
        if (tier)
                columns[n++] = (struct column){"TIER", "tier", add_text, 6};
        if (priority)
                columns[n++] = (struct column){">PRIORITY", "priority", add_number, 7};
        columns_print(models, columns, n, false, NULL);
}

static int list(struct ctl *ctl)
{
        json_auto_t *reply = NULL;
        int rc = ctl_query(ctl, "list", json_object(), NULL, &reply);
        if (!reply)
                return rc;
        const json_t *models = json_object_get(reply, "models");
        if (ctl->quiet)
                ctl_print_names(models);
        else if (ctl->format == FORMAT_WIDE)
                columns_print(models, COLUMNS(list_wide_columns), true, NULL);
        else
                print_list(models);
        return 0;
}

/* On a terminal the list is drawn over, and once a second, since it has times. Otherwise the next one follows. */
static int watch(struct ctl *ctl)
{
        char *event;
        bool terminal = isatty(STDOUT_FILENO) && ctl->format != FORMAT_JSON;
        int rc = streamer_subscribe(ctl->client, NULL);
        for (bool first = true; rc == 0; first = false) {
                if (terminal)
                        fputs("\033[H\033[2J", stdout);
                else if (!first && ctl->format != FORMAT_JSON)
                        putchar('\n');
                if ((rc = list(ctl)) != 0)
                        return rc;
                if (fflush(stdout) != 0)
                        return 1;
                rc = streamer_event_next(ctl->client, terminal ? REDRAW_MS : -1, &event);
                if (rc == 0)
                        free(event);
                rc = rc == STREAMER_ETIMEOUT ? 0 : rc;
        }
        return ctl_fail(ctl, rc, NULL);
}

int verb_list(struct ctl *ctl)
{
        return ctl->watch ? watch(ctl) : list(ctl);
}

/* ---- show ---- */

static void show_line(const char *title, const char *text)
{
        const char *colour = strcmp(title, "state") == 0 ? term_state(text) : "";
        if (!text[0])
                return;
        printf("%-11s %s", title, colour);
        put_escaped(stdout, text);
        puts(colour[0] ? term_plain() : "");
}

/* What is specific to one device: a rank and its digest, a failure, another state, a pin. */
static void show_replica(const json_t *m, const json_t *d)
{
        if (json_object_get(d, "rank"))
                printf(", rank %" PRIu64 " %s", json_u64(d, "rank"), json_str(d, "digest"));
        if (json_str(d, "state")[0] && strcmp(json_str(d, "state"), json_str(m, "state")) != 0)
                printf(", %s", json_str(d, "state"));
        if (json_array_size(json_object_get(m, "devices")) > 1 && json_bool(d, "pinned"))
                fputs(", pinned", stdout);
        if (json_str(d, "error")[0] && !json_str(m, "error")[0]) {
                fputs(": ", stdout);
                put_escaped(stdout, json_str(d, "error"));
        }
        putchar('\n');
}

/* In the order of the reply, which is theirs. */
static void show_stages(const json_t *stages)
{
        char text[HUMAN_MAX];
        const char *key, *separator = "stages      ";
        json_t *ns;
        json_object_foreach((json_t *)(uintptr_t)stages, key, ns)
        {
                printf("%s%.*s %s", separator, (int)(strlen(key) - strlen("_ns")), key,
                       human_time(text, (uint64_t)json_integer_value(ns)));
                separator = ", ";
        }
        if (json_object_size(stages) > 0)
                putchar('\n');
}

/* The publisher, the base and the key. */
static void show_published(const json_t *published)
{
        const char *name;
        json_t *value;
        if (!published)
                return;
        printf("published   by uid %" PRIu64 "\n", json_u64(published, "uid"));
        show_line("base", json_str(published, "base"));
        json_object_foreach(json_object_get(published, "key"), name, value)
        {
                fputs("key         ", stdout);
                put_escaped(stdout, name);
                putchar('=');
                put_escaped(stdout, json_string_value(value));
                putchar('\n');
        }
}

/* "model.safetensors, mtp.safetensors"; nothing without a list. */
static void put_names(FILE *f, const json_t *names)
{
        const json_t *name;
        for (size_t i = 0; (name = json_array_get(names, i)); i++) {
                fputs(i > 0 ? ", " : "", f);
                put_escaped(f, json_string_value(name));
        }
}

static void begin_note(FILE *f, const char *model, const char *line, const char *warning)
{
        if (!model) {
                fputs(line, f);
                return;
        }
        fputs("streamerctl: ", f);
        put_escaped(f, model);
        fputs(warning, f);
}

void print_notes(FILE *f, const json_t *m, const char *model)
{
        uint64_t n = json_u64(m, "missing_tensors");
        const json_t *names = json_object_get(m, "left_out"), *tensors = json_object_get(m, "missing");
        if (json_array_size(names) > 0) {
                begin_note(f, model, "left out    ", ": left out, not part of the model: ");
                put_names(f, names);
                putc('\n', f);
        }
        if (n > 0) {
                begin_note(f, model, "missing     ", ": ");
                fprintf(f, "%" PRIu64 " tensor%s of the index %s in none of its files: ", n, n > 1 ? "s" : "",
                        n > 1 ? "are" : "is");
                put_names(f, tensors);
                fputs(n > json_array_size(tensors) ? ", ...\n" : "\n", f);
        }
}

void print_encryption(const char *title, const json_t *encryption)
{
        if (!encryption)
                return;
        printf("%s%s, %s ", title, json_str(encryption, "cipher"),
               json_array_size(json_object_get(encryption, "keys")) > 1 ? "keys" : "key");
        put_names(stdout, json_object_get(encryption, "keys"));
        fputs(", signed by ", stdout);
        put_escaped(stdout, json_str(encryption, "signer"));
        putchar('\n');
}

static void show_model(const json_t *m, bool wide)
{
        char text[HUMAN_MAX];
        const json_t *d;
        show_line("name", json_str(m, "name"));
        show_line("state", json_str(m, "state"));
        show_line("error", json_str(m, "error"));
        if (json_u64(m, "retry_in_ns") > 0)
                printf("tries       %" PRIu64 ", next in %s\n", json_u64(m, "tries"),
                       human_time(text, json_u64(m, "retry_in_ns")));
        show_line("source", json_str(m, "source"));
        show_line("digest", json_str(m, "digest"));
        show_published(json_object_get(m, "published"));
        print_encryption("encryption  ", json_object_get(m, "encryption"));
        if (strcmp(json_str(m, "tier"), "host") == 0)
                show_line("tier", "host: a load restores it");
        printf("generation  %" PRIu64 "\ntensors     %" PRIu64 "\nsize        %s\nleases      %" PRIu64 "%s\n",
               json_u64(m, "generation"), json_u64(m, "tensors"), human_size(text, json_u64(m, "bytes")),
               json_u64(m, "leases"), json_bool(m, "pinned") ? ", pinned" : "");
        for (size_t i = 0; (d = json_array_get(json_object_get(m, "devices"), i)); i++) {
                printf("device      %s, %s", json_str(d, "device"), human_size(text, json_u64(d, "bytes")));
                printf(", pages: %s", json_str(d, "page_kind"));
                if (json_u64(d, "small_page_bytes") > 0)
                        printf(" (%s in small pages)", human_size(text, json_u64(d, "small_page_bytes")));
                show_replica(m, d);
        }
        if (json_u64(m, "keep_alive_ns") > 0)
                printf("keep-alive  %s without a lease\n", human_time(text, json_u64(m, "keep_alive_ns")));
        if (json_u64(m, "expires_in_ns") > 0)
                printf("expires in  %s\n", human_time(text, json_u64(m, "expires_in_ns")));
        if (json_u64(m, "load_ns") > 0)
                printf("loaded in   %s%s%s%s\n", human_time(text, json_u64(m, "load_ns")),
                       json_str(m, "from")[0] ? ", from " : "", json_str(m, "from"),
                       json_bool(m, "stale") ? ", may be stale: its store could not be asked" : "");
        print_notes(stdout, m, NULL);
        if (wide)
                show_stages(json_object_get(m, "stages"));
}

#define NARROW_TENSORS 4 /* columns */
static const struct column tensor_columns[] = {
        {"TENSOR", "name", add_text, COLUMN_KEEP}, {"DTYPE", "dtype", add_text, 1},
        {"SHAPE", "shape", add_shape, 2},          {">SIZE", "bytes", add_size, 3},
        {">SEGMENT", "segment", add_number, 4},    {">OFFSET", "offset", add_number, 5},
        {"DIGEST", "digest", add_text, 6},
};

static void print_shown(const struct ctl *ctl, const json_t *reply)
{
        bool wide = ctl->format == FORMAT_WIDE;
        size_t n = sizeof(tensor_columns) / sizeof(tensor_columns[0]);
        const json_t *m, *tensors = json_object_get(reply, "tensor_list");
        if (ctl->quiet) {
                ctl_print_names(ctl->tensors ? tensors : json_object_get(reply, "models"));
                return;
        }
        for (size_t i = 0; (m = json_array_get(json_object_get(reply, "models"), i)); i++)
                show_model(m, wide);
        if (ctl->tensors) {
                putchar('\n');
                columns_print(tensors, tensor_columns, wide ? n : NARROW_TENSORS, wide, NULL);
        }
}

int each_show(struct ctl *ctl, const char *model)
{
        json_auto_t *reply = NULL;
        json_t *args;
        int rc = model_args(ctl, model, &args);
        if (rc != 0)
                return rc;
        json_object_set_new(args, "tensors", json_boolean(ctl->tensors));
        if (model != ctl->args[0] && ctl->format != FORMAT_JSON && !ctl->quiet)
                putchar('\n');
        rc = ctl_query(ctl, "show", args, model, &reply);
        if (reply)
                print_shown(ctl, reply);
        return rc;
}

/* ---- explain ---- */

static void print_explained(const char *model, const json_t *reply)
{
        char age[HUMAN_MAX];
        const json_t *row;
        for (size_t i = 0; (row = json_array_get(json_object_get(reply, "models"), i)); i++) {
                put_escaped(stdout, model);
                printf("  generation %" PRIu64 "  %s%s%s%s\n", json_u64(row, "generation"), json_str(row, "state"),
                       json_str(row, "from")[0] ? ", from " : "", json_str(row, "from"),
                       json_bool(row, "stale") ? ", may be stale" : "");
        }
        for (size_t i = 0; (row = json_array_get(json_object_get(reply, "ended"), i)); i++) {
                put_escaped(stdout, model);
                printf("  generation %" PRIu64 "  %s on %s %s ago%s", json_u64(row, "generation"),
                       json_str(row, "state"), json_str(row, "device"), human_time(age, json_u64(row, "age_ns")),
                       json_str(row, "text")[0] ? ": " : "");
                put_escaped(stdout, json_str(row, "text"));
                putchar('\n');
        }
}

int each_explain(struct ctl *ctl, const char *model)
{
        json_auto_t *reply = NULL;
        int rc = ctl_query(ctl, "show", json_pack("{s:s, s:b}", "model", model, "ended", 1), model, &reply);
        if (reply)
                print_explained(model, reply);
        return rc;
}
