/* SPDX-License-Identifier: Apache-2.0
 *
 * status, ps and metrics: the daemon, its leases and its counters. Their JSON is the daemon's reply.
 */
#include "client/streamerctl/columns.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- status ---- */

static const struct column device_columns[] = {
        {"DEVICE", "device", add_text, COLUMN_KEEP},
        {">BUDGET", "budget", add_size, 1},
        {">USED", "used", add_size, 2},
        {">FREE", "free", add_size, COLUMN_KEEP},
        {">PREFAULTED", "prefaulted", add_size, 4},
        {">QUARANTINED", "quarantined", add_size, 3},
        {"PAGES", "page_kind", add_text, 5},
        {"UUID", "uuid", add_text, 6},
};

static void add_load_state(struct table *t, const json_t *load, const char *key)
{
        table_addf(t, "%s%s", json_str(load, key), json_bool(load, "stalled") ? ", stalled" : "");
}

static void add_arrived(struct table *t, const json_t *load, const char *key)
{
        table_addf(t, "%" PRIu64 " of %" PRIu64, json_u64(load, key), json_u64(load, "tensors_total"));
}

static const struct column load_columns[] = {
        {"LOADING", "name", add_text, COLUMN_KEEP},
        {">GEN", "generation", add_number, 5},
        {"STATE", "state", add_load_state, COLUMN_KEEP},
        {">DONE", "bytes", add_size, 1},
        {">TOTAL", "total", add_size, 2},
        {">TENSORS", "tensors", add_arrived, 3},
        {">ELAPSED", "load_ns", add_time, 4},
};

/* Below its load, where there are several or it waits. */
static void add_targets(struct table *t, const json_t *load)
{
        const json_t *target, *targets = json_object_get(load, "targets");
        for (size_t i = 0; (target = json_array_get(targets, i)); i++) {
                char waits[HUMAN_MAX] = "";
                uint64_t waiting_ns = json_u64(target, "waiting_ns");
                if (json_array_size(targets) < 2 && waiting_ns == 0)
                        return;
                human_time(waits, waiting_ns);
                table_addf(t, "  %s", json_str(target, "device"));
                table_add(t, "");
                table_addf(t, "%s%s%s", json_str(target, "state"), waiting_ns > 0 ? " for " : "",
                           waiting_ns > 0 ? waits : "");
                table_add(t, "");
                add_size(t, target, "bytes");
                table_add(t, "");
                table_add(t, "");
        }
}

/* The name of a model to preload or restore; before its source is known, the source. */
static void add_desired_name(struct table *t, const json_t *row, const char *key)
{
        table_add(t, json_str(row, key)[0] ? json_str(row, key) : json_str(row, "source"));
}

/* A table of its own; nothing if there are no rows. */
static void print_more(const json_t *rows, const struct column *columns, size_t n, below_fn *below)
{
        if (json_array_size(rows) == 0)
                return;
        putchar('\n');
        columns_print(rows, columns, n, false, below);
}

static void print_desired(const json_t *rows, const char *title)
{
        const struct column columns[] = {{title, "name", add_desired_name, COLUMN_KEEP},
                                         {"STATE", "state", add_text, COLUMN_KEEP},
                                         {">TRIES", "tries", add_number, 2},
                                         {">RETRY IN", "retry_in_ns", add_time_or_nothing, 1},
                                         {"ERROR", "error", add_text, COLUMN_CUT}};
        print_more(rows, COLUMNS(columns), NULL);
}

/* Threads that hang are reported only if there are any. */
static void print_health(const json_t *status)
{
        char size[HUMAN_MAX], budget[HUMAN_MAX], longest[HUMAN_MAX];
        const json_t *cache = json_object_get(status, "host_cache"), *loop = json_object_get(status, "loop");
        uint64_t readers = json_u64(json_object_get(status, "ring"), "stuck");
        uint64_t workers = json_u64(json_object_get(status, "workers"), "stuck");
        if (json_u64(cache, "budget") > 0)
                printf("host cache %s of %s, %" PRIu64 " models\n", human_size(size, json_u64(cache, "used")),
                       human_size(budget, json_u64(cache, "budget")), json_u64(cache, "models"));
        const json_t *disk = json_object_get(status, "disk_cache");
        if (disk)
                printf("disk cache %s of %s, %" PRIu64 " entries (%s)\n", human_size(size, json_u64(disk, "used")),
                       human_size(budget, json_u64(disk, "budget")), json_u64(disk, "entries"), json_str(disk, "path"));
        if (readers + workers > 0)
                printf("blocked in storage that does not answer: %" PRIu64 " reader threads, %" PRIu64 " workers\n",
                       readers, workers);
        if (loop)
                printf("longest event loop iteration %s of processor time\n",
                       human_time(longest, json_u64(loop, "longest_cpu_ns")));
}

/* Devices that are configured as optional. */
static void print_absent(const json_t *absent)
{
        const json_t *device;
        for (size_t i = 0; (device = json_array_get(absent, i)); i++)
                printf("not used: %s: %s\n", json_str(device, "device"), json_str(device, "why"));
}

void print_status(const struct ctl *ctl, const json_t *reply)
{
        char up[HUMAN_MAX], ring_size[HUMAN_MAX];
        const json_t *ring = json_object_get(reply, "ring");
        printf("streamerd %s, protocol %" PRIu64 ", up %s\n", json_str(reply, "version"), json_u64(reply, "protocol"),
               human_time(up, json_u64(reply, "uptime_ns")));
        bool refused = strcmp(json_str(ring, "pinned"), "refused") == 0;
        printf("staging ring %s, pages: %s%s, %" PRIu64 " threads%s%s\n",
               human_size(ring_size, json_u64(ring, "bytes")), json_str(ring, "page_kind"),
               refused ? " (not pinned: refused)" : "", json_u64(ring, "threads"),
               json_str(ring, "numa")[0] ? ", " : "", json_str(ring, "numa"));
        print_health(reply);
        putchar('\n');
        columns_print(json_object_get(reply, "devices"), COLUMNS(device_columns), false, NULL);
        print_absent(json_object_get(reply, "absent"));
        print_more(json_object_get(reply, "loads"), COLUMNS(load_columns), add_targets);
        print_desired(json_object_get(reply, "preload"), "PRELOAD");
        print_desired(json_object_get(reply, "restoring"), "RESTORING");
}

/* ---- metrics ---- */

void print_metrics(const struct ctl *ctl, const json_t *reply)
{
        fputs(json_str(reply, "text"), stdout);
}

/* ---- ps ---- */

#define CONTAINER_DIGITS 64 /* of an id */
#define CONTAINER_SHOWN 12

/* Of a process in a PID namespace that the daemon does not see, what the client says of itself. */
static void add_command(struct table *t, const json_t *lease, const char *key)
{
        const char *client = json_str(lease, "client");
        if (json_str(lease, key)[0])
                add_text(t, lease, key);
        else
                table_addf(t, "%.*s", (int)strcspn(client, " "), client);
}

/* The first digits, as the tools of container engines print and accept them. */
static void add_container(struct table *t, const json_t *lease, const char *key)
{
        const char *id = json_str(lease, key);
        bool digits = strlen(id) == CONTAINER_DIGITS && strspn(id, "0123456789abcdef") == CONTAINER_DIGITS;
        table_addf(t, "%.*s", digits ? CONTAINER_SHOWN : CONTAINER_DIGITS, id);
}

/* The last two are shown by -o wide alone. */
static const struct column lease_columns[] = {
        {">ID", "id", add_number, COLUMN_KEEP},
        {"MODEL", "model", add_text, COLUMN_KEEP},
        {">GEN", "generation", add_number, 6},
        {"DEVICE", "device", add_text, 5},
        {">PID", "pid", add_number, COLUMN_KEEP},
        {">UID", "uid", add_number, 2},
        {"COMMAND", "comm", add_command, 1},
        {"?CONTAINER", "container", add_container, 1},
        {">SIZE", "bytes", add_size, 4},
        {">AGE", "age_ns", add_time, 3},
        {"ORPHAN", "orphan", add_yes_no, 7},
        {"QUARANTINED", "quarantined", add_yes_no, 8},
        {"CLIENT", "client", add_text, COLUMN_KEEP},
        {"?POD", "pod", add_text, COLUMN_KEEP},
};
#define WIDE_LEASE_COLUMNS 2

/* By id, or by the model's name. */
static bool is_named(const json_t *lease, const char *arg)
{
        char id[24];
        snprintf(id, sizeof(id), "%" PRIu64, json_u64(lease, "id"));
        return strcmp(id, arg) == 0 || strcmp(json_str(lease, "model"), arg) == 0;
}

/* The leases of `all` that the arguments name, to `chosen`. An id that no lease has is an error; a model may have
 * none. */
static int choose(const struct ctl *ctl, const json_t *all, json_t *chosen)
{
        int rc = 0;
        for (size_t k = 0; k < ctl->n_args; k++) {
                size_t before = json_array_size(chosen);
                json_t *lease;
                for (size_t i = 0; (lease = json_array_get((json_t *)(uintptr_t)all, i)); i++)
                        if (is_named(lease, ctl->args[k]))
                                json_array_append(chosen, lease);
                bool is_id = strspn(ctl->args[k], "0123456789") == strlen(ctl->args[k]);
                if (json_array_size(chosen) == before && is_id)
                        rc = ctl_error(ctl, STREAMER_ENOENT, ctl->args[k], "no such lease");
        }
        return rc;
}

static void print_leases(const struct ctl *ctl, const json_t *leases)
{
        const json_t *lease;
        if (!ctl->quiet) {
                bool wide = ctl->format == FORMAT_WIDE;
                size_t n = sizeof(lease_columns) / sizeof(lease_columns[0]);
                columns_print(leases, lease_columns, wide ? n : n - WIDE_LEASE_COLUMNS, wide, NULL);
                return;
        }
        for (size_t i = 0; (lease = json_array_get(leases, i)); i++)
                printf("%" PRIu64 "\n", json_u64(lease, "id"));
}

int verb_ps(struct ctl *ctl)
{
        json_auto_t *reply = NULL, *leases = json_array();
        int rc = ctl_call(ctl, "ps", json_object(), NULL, &reply);
        if (rc != 0)
                return rc;
        if (ctl->n_args == 0)
                json_array_extend(leases, json_object_get(reply, "leases"));
        else if ((rc = choose(ctl, json_object_get(reply, "leases"), leases)) != 0)
                return rc;
        json_object_set(reply, "leases", leases);
        if (ctl->format == FORMAT_JSON)
                ctl_print_json(reply);
        else
                print_leases(ctl, leases);
        return 0;
}
