/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs that only ask: list, show, status, metrics, ps. Their JSON is the daemon's reply as it came; their
 * tables are columns, each of which picks a member of it.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"
#include "client/streamerctl/term.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- tables ---- */

/* A column, and how a row's member becomes its text. */
struct column {
        const char *title; /* as table_init() takes it */
        const char *key;
        void (*add)(struct table *table, const json_t *row, const char *key);
};

static void add_text(struct table *t, const json_t *row, const char *key)
{
        table_add(t, json_str(row, key));
}

static void add_number(struct table *t, const json_t *row, const char *key)
{
        table_addf(t, "%" PRIu64, json_u64(row, key));
}

static void add_size(struct table *t, const json_t *row, const char *key)
{
        char text[HUMAN_MAX];
        table_add(t, human_size(text, json_u64(row, key)));
}

static void add_time(struct table *t, const json_t *row, const char *key)
{
        char text[HUMAN_MAX];
        table_add(t, human_time(text, json_u64(row, key)));
}

static void add_yes(struct table *t, const json_t *row, const char *key)
{
        table_add(t, json_is_true(json_object_get(row, key)) ? "yes" : "no");
}

/* "host", or "cuda:0,cuda:1". */
static void add_devices(struct table *t, const json_t *model, const char *key)
{
        char text[200] = "";
        size_t i;
        const json_t *device;
        json_array_foreach(json_object_get(model, key), i, device)
        {
                size_t len = strlen(text);
                snprintf(text + len, sizeof(text) - len, "%s%s", i > 0 ? "," : "", json_str(device, "device"));
        }
        table_add(t, text);
}

/* "pinned", or how long it stays if nobody uses it. */
static void add_kept(struct table *t, const json_t *model, const char *key)
{
        char text[HUMAN_MAX];
        uint64_t left = json_u64(model, key);
        if (json_is_true(json_object_get(model, "pinned")))
                table_add(t, "pinned");
        else
                table_add(t, left > 0 ? human_time(text, left) : "");
}

static void add_shape(struct table *t, const json_t *tensor, const char *key)
{
        char text[200] = "[";
        size_t i;
        const json_t *dim;
        json_array_foreach(json_object_get(tensor, key), i, dim)
        {
                size_t len = strlen(text);
                snprintf(text + len, sizeof(text) - len, "%s%" JSON_INTEGER_FORMAT, i > 0 ? ", " : "",
                         json_integer_value(dim));
        }
        table_addf(t, "%s]", text);
}

#define PRIORITY_USUAL 100 /* of a load that asked for none */
#define COLUMNS_MAX 14
#define COLUMNS(columns) (columns), sizeof(columns) / sizeof((columns)[0])

/* What is below a row, in rows of its own; NULL: nothing. */
typedef void below_fn(struct table *table, const json_t *row);

static void print_rows(const json_t *rows, const struct column *columns, size_t n, bool whole, below_fn *below)
{
        const char *titles[COLUMNS_MAX];
        struct table t;
        size_t i;
        const json_t *row;
        for (size_t c = 0; c < n; c++)
                titles[c] = columns[c].title;
        table_init(&t, titles, n);
        t.whole = whole;
        json_array_foreach(rows, i, row)
        {
                for (size_t c = 0; c < n; c++)
                        columns[c].add(&t, row, columns[c].key);
                if (below)
                        below(&t, row);
        }
        table_print_deinit(&t);
}

/* Calls, and prints where the format is JSON: then *reply stays NULL. */
static int ask(struct ctl *ctl, const char *verb, json_t *args, const char *subject, json_t **reply)
{
        int rc = ctl_call(ctl, verb, args, subject, reply);
        if (rc == 0 && ctl->format == FORMAT_JSON) {
                ctl_print_json(*reply);
                json_decref(*reply);
                *reply = NULL;
        }
        return rc;
}

/* ---- list ---- */

static const struct column list_columns[] = {
        {"NAME", "name", add_text},          {"STATE", "state", add_text},       {">TENSORS", "tensors", add_number},
        {">SIZE", "bytes", add_size},        {"DEVICE", "devices", add_devices}, {">LEASES", "leases", add_number},
        {"KEPT", "expires_in_ns", add_kept},
};

static const struct column list_wide_columns[] = {
        {"NAME", "name", add_text},          {">GEN", "generation", add_number},  {"STATE", "state", add_text},
        {">TENSORS", "tensors", add_number}, {">SIZE", "bytes", add_size},        {"DEVICE", "devices", add_devices},
        {">LEASES", "leases", add_number},   {"KEPT", "expires_in_ns", add_kept}, {">IDLE", "idle_ns", add_time},
        {">LOAD", "load_ns", add_time},      {"TIER", "tier", add_text},          {">PRIORITY", "priority", add_number},
        {"DIGEST", "digest", add_text},      {"SOURCE", "source", add_text},
};

_Static_assert(sizeof(list_wide_columns) / sizeof(list_wide_columns[0]) <= COLUMNS_MAX, "a table has more columns");

static bool any_in_host_cache(const json_t *models)
{
        size_t i;
        const json_t *m;
        json_array_foreach(models, i, m)
        {
                if (strcmp(json_str(m, "tier"), "host") == 0)
                        return true;
        }
        return false;
}

static bool any_of_priority(const json_t *models)
{
        size_t i;
        const json_t *m;
        json_array_foreach(models, i, m)
        {
                if (json_u64(m, "priority") != PRIORITY_USUAL)
                        return true;
        }
        return false;
}

/* Two columns more where they say something. */
static void print_list(const json_t *models)
{
        struct column columns[COLUMNS_MAX];
        size_t n = sizeof(list_columns) / sizeof(list_columns[0]);
        memcpy(columns, list_columns, sizeof(list_columns));
        if (any_in_host_cache(models))
                columns[n++] = (struct column){"TIER", "tier", add_text};
        if (any_of_priority(models))
                columns[n++] = (struct column){">PRIORITY", "priority", add_number};
        print_rows(models, columns, n, false, NULL);
}

int verb_list(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        int rc = ask(ctl, "list", NULL, NULL, &reply);
        if (rc != 0 || !reply)
                return rc;
        const json_t *models = json_object_get(reply, "models");
        if (ctl->format == FORMAT_WIDE)
                print_rows(models, COLUMNS(list_wide_columns), true, NULL);
        else
                print_list(models);
        return 0;
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

/* What a device has of its own: a rank and its digest, a failure, another state, a pin. */
static void show_replica(const json_t *m, const json_t *d)
{
        if (json_object_get(d, "rank"))
                printf(", rank %" PRIu64 " %s", json_u64(d, "rank"), json_str(d, "digest"));
        if (json_str(d, "state")[0] && strcmp(json_str(d, "state"), json_str(m, "state")) != 0)
                printf(", %s", json_str(d, "state"));
        if (json_array_size(json_object_get(m, "devices")) > 1 && json_is_true(json_object_get(d, "pinned")))
                fputs(", pinned", stdout);
        if (json_str(d, "error")[0] && !json_str(m, "error")[0]) {
                fputs(": ", stdout);
                put_escaped(stdout, json_str(d, "error"));
        }
        putchar('\n');
}

static void show_model(const json_t *m)
{
        char text[HUMAN_MAX];
        size_t i;
        const json_t *d;
        show_line("name", json_str(m, "name"));
        show_line("state", json_str(m, "state"));
        show_line("error", json_str(m, "error"));
        if (json_u64(m, "retry_ns") > 0)
                printf("tried       %" PRIu64 " times, again in %s\n", json_u64(m, "tries"),
                       human_time(text, json_u64(m, "retry_ns")));
        show_line("source", json_str(m, "source"));
        show_line("digest", json_str(m, "digest"));
        if (strcmp(json_str(m, "tier"), "host") == 0)
                show_line("tier", "host: a load brings it back");
        printf("generation  %" PRIu64 "\ntensors     %" PRIu64 "\nsize        %s\nleases      %" PRIu64 "%s\n",
               json_u64(m, "generation"), json_u64(m, "tensors"), human_size(text, json_u64(m, "bytes")),
               json_u64(m, "leases"), json_is_true(json_object_get(m, "pinned")) ? ", pinned" : "");
        json_array_foreach(json_object_get(m, "devices"), i, d)
        {
                printf("device      %s, %s", json_str(d, "device"), human_size(text, json_u64(d, "bytes")));
                printf(", pages: %s", json_str(d, "page_kind"));
                show_replica(m, d);
        }
        if (json_u64(m, "keep_alive_ns") > 0)
                printf("kept alive  %s without a lease\n", human_time(text, json_u64(m, "keep_alive_ns")));
        if (json_u64(m, "expires_in_ns") > 0)
                printf("expires in  %s\n", human_time(text, json_u64(m, "expires_in_ns")));
        if (json_u64(m, "load_ns") > 0)
                printf("loaded in   %s\n", human_time(text, json_u64(m, "load_ns")));
}

#define NARROW_TENSORS 4 /* columns */
static const struct column tensor_columns[] = {
        {"TENSOR", "name", add_text},   {"DTYPE", "dtype", add_text},        {"SHAPE", "shape", add_shape},
        {">SIZE", "bytes", add_size},   {">SEGMENT", "segment", add_number}, {">OFFSET", "offset", add_number},
        {"DIGEST", "digest", add_text},
};

static void show_tensors(const json_t *tensors, bool wide)
{
        size_t n = sizeof(tensor_columns) / sizeof(tensor_columns[0]);
        print_rows(tensors, tensor_columns, wide ? n : NARROW_TENSORS, wide, NULL);
}

int verb_show(struct ctl *ctl)
{
        size_t i;
        const json_t *m;
        cleanup_json json_t *reply = NULL;
        cleanup_devices struct devices devices;
        int rc = devices_init_one(ctl, &devices);
        if (rc != 0)
                return rc;
        json_t *args = json_pack("{s:s, s:b, s:s*}", "model", ctl->args[0], "tensors", ctl->tensors, "device",
                                 devices.names[0]);
        if (!args)
                return usage_error(ctl, "show: the model's name is not valid UTF-8");
        rc = ask(ctl, "show", args, ctl->args[0], &reply);
        if (rc != 0 || !reply)
                return rc;
        json_array_foreach(json_object_get(reply, "models"), i, m)
        {
                show_model(m);
        }
        if (ctl->tensors) {
                putchar('\n');
                show_tensors(json_object_get(reply, "tensor_list"), ctl->format == FORMAT_WIDE);
        }
        return 0;
}

/* ---- status ---- */

static const struct column device_columns[] = {
        {"DEVICE", "device", add_text},   {">BUDGET", "budget", add_size}, {">USED", "used", add_size},
        {">FREE", "free", add_size},      {">SPARE", "spare", add_size},   {">QUARANTINED", "quarantined", add_size},
        {"PAGES", "page_kind", add_text}, {"UUID", "uuid", add_text},
};

static void add_load_state(struct table *t, const json_t *load, const char *key)
{
        table_addf(t, "%s%s%s", json_str(load, key),
                   json_is_true(json_object_get(load, "streamed")) ? ", in one stream" : "",
                   json_is_true(json_object_get(load, "stalled")) ? ", stalled" : "");
}

static void add_arrived(struct table *t, const json_t *load, const char *key)
{
        table_addf(t, "%" PRIu64 " of %" PRIu64, json_u64(load, key), json_u64(load, "tensors_total"));
}

static const struct column load_columns[] = {
        {"LOADING", "model", add_text},       {">GEN", "generation", add_number}, {"STATE", "state", add_load_state},
        {">DONE", "bytes", add_size},         {">TOTAL", "total", add_size},      {">TENSORS", "tensors", add_arrived},
        {">ELAPSED", "elapsed_ns", add_time},
};

/* Below its load, where there are several or it waits. */
static void add_targets(struct table *t, const json_t *load)
{
        size_t i;
        const json_t *target, *targets = json_object_get(load, "targets");
        json_array_foreach(targets, i, target)
        {
                char waits[HUMAN_MAX] = "";
                uint64_t waits_ns = json_u64(target, "waits_ns");
                if (json_array_size(targets) < 2 && waits_ns == 0)
                        return;
                human_time(waits, waits_ns);
                table_addf(t, "  %s", json_str(target, "device"));
                table_add(t, "");
                table_addf(t, "%s%s%s", json_str(target, "state"), waits_ns > 0 ? " for " : "",
                           waits_ns > 0 ? waits : "");
                table_add(t, "");
                add_size(t, target, "bytes");
                table_add(t, "");
                table_add(t, "");
        }
}

/* Of preload and again. */
static void add_wanted_name(struct table *t, const json_t *row, const char *key)
{
        table_add(t, json_str(row, key)[0] ? json_str(row, key) : json_str(row, "source"));
}

static void add_pause(struct table *t, const json_t *row, const char *key)
{
        char text[HUMAN_MAX];
        table_add(t, json_u64(row, key) > 0 ? human_time(text, json_u64(row, key)) : "");
}

/* A table of its own, where there is anything. */
static void print_more(const json_t *rows, const struct column *columns, size_t n, below_fn *below)
{
        if (json_array_size(rows) == 0)
                return;
        putchar('\n');
        print_rows(rows, columns, n, false, below);
}

static void print_wanted(const json_t *rows, const char *title)
{
        const struct column columns[] = {{title, "name", add_wanted_name},
                                         {"STATE", "state", add_text},
                                         {">TRIES", "tries", add_number},
                                         {">AGAIN IN", "retry_ns", add_pause},
                                         {"ERROR", "error", add_text}};
        print_more(rows, COLUMNS(columns), NULL);
}

/* How it is: what hangs is told where something does. */
static void print_health(const json_t *status)
{
        char size[HUMAN_MAX], budget[HUMAN_MAX], longest[HUMAN_MAX], own[HUMAN_MAX];
        const json_t *cache = json_object_get(status, "host_cache"), *loop = json_object_get(status, "loop");
        uint64_t readers = json_u64(json_object_get(status, "ring"), "stuck");
        uint64_t workers = json_u64(json_object_get(status, "workers"), "stuck");
        if (json_u64(cache, "budget") > 0)
                printf("host cache %s of %s, %" PRIu64 " models\n", human_size(size, json_u64(cache, "used")),
                       human_size(budget, json_u64(cache, "budget")), json_u64(cache, "models"));
        if (readers + workers > 0)
                printf("stuck in storage that does not answer: %" PRIu64 " reader threads, %" PRIu64 " workers\n",
                       readers, workers);
        if (loop)
                printf("longest stall of the loop %s, its own %s\n", human_time(longest, json_u64(loop, "longest_ns")),
                       human_time(own, json_u64(loop, "longest_own_ns")));
}

int verb_status(struct ctl *ctl)
{
        char up[HUMAN_MAX], ring_size[HUMAN_MAX];
        cleanup_json json_t *reply = NULL;
        int rc = ask(ctl, "status", NULL, NULL, &reply);
        if (rc != 0 || !reply)
                return rc;
        const json_t *ring = json_object_get(reply, "ring");
        printf("streamerd %s, protocol %" PRIu64 ", up %s\n", json_str(reply, "version"), json_u64(reply, "protocol"),
               human_time(up, json_u64(reply, "uptime_ns")));
        bool refused = strcmp(json_str(ring, "pinned"), "refused") == 0;
        printf("staging ring %s, pages: %s%s, %" PRIu64 " threads%s%s\n",
               human_size(ring_size, json_u64(ring, "bytes")), json_str(ring, "page_kind"),
               refused ? " (could not be pinned)" : "", json_u64(ring, "threads"),
               json_str(ring, "numa")[0] ? ", " : "", json_str(ring, "numa"));
        print_health(reply);
        putchar('\n');
        print_rows(json_object_get(reply, "devices"), COLUMNS(device_columns), false, NULL);
        print_more(json_object_get(reply, "loads"), COLUMNS(load_columns), add_targets);
        print_wanted(json_object_get(reply, "preload"), "PRELOAD");
        print_wanted(json_object_get(reply, "again"), "PINNED BEFORE");
        return 0;
}

/* ---- metrics ---- */

int verb_metrics(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        int rc = ask(ctl, "metrics", NULL, NULL, &reply);
        if (rc == 0 && reply)
                fputs(json_str(reply, "text"), stdout);
        return rc;
}

/* ---- ps ---- */

static const struct column lease_columns[] = {
        {">ID", "id", add_number},
        {"MODEL", "model", add_text},
        {">GEN", "generation", add_number},
        {"DEVICE", "device", add_text},
        {">PID", "pid", add_number},
        {">UID", "uid", add_number},
        {"COMMAND", "comm", add_text},
        {">SIZE", "bytes", add_size},
        {">AGE", "age_ns", add_time},
        {"ORPHAN", "orphan", add_yes},
        {"QUARANTINED", "quarantined", add_yes},
};

int verb_ps(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        int rc = ask(ctl, "ps", NULL, NULL, &reply);
        if (rc == 0 && reply)
                print_rows(json_object_get(reply, "leases"), COLUMNS(lease_columns), false, NULL);
        return rc;
}
