/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs that only ask: list, show, status, ps. Their JSON is the daemon's reply as it came; their
 * tables pick from it.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"
#include "client/streamerctl/term.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define COLUMNS(titles) (titles), sizeof(titles) / sizeof((titles)[0])

static void add_size(struct table *t, uint64_t bytes)
{
        char text[HUMAN_MAX];
        table_add(t, human_size(text, bytes));
}

static void add_time(struct table *t, uint64_t ns)
{
        char text[HUMAN_MAX];
        table_add(t, human_time(text, ns));
}

static void add_u64(struct table *t, const json_t *o, const char *key)
{
        table_addf(t, "%" PRIu64, json_u64(o, key));
}

/* "host", or "cuda:0,cuda:1". */
static void add_devices(struct table *t, const json_t *model)
{
        char text[200] = "";
        size_t i;
        const json_t *device;
        json_array_foreach(json_object_get(model, "devices"), i, device)
        {
                size_t len = strlen(text);
                snprintf(text + len, sizeof(text) - len, "%s%s", i > 0 ? "," : "", json_str(device, "device"));
        }
        table_add(t, text);
}

/* "pinned", or how long it stays if nobody uses it. */
static void add_kept(struct table *t, const json_t *model)
{
        char text[HUMAN_MAX];
        uint64_t left = json_u64(model, "expires_in_ns");
        if (json_is_true(json_object_get(model, "pinned")))
                table_add(t, "pinned");
        else
                table_add(t, left > 0 ? human_time(text, left) : "");
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

static void list_narrow(const json_t *models)
{
        static const char *const titles[] = {"NAME", "STATE", ">TENSORS", ">SIZE", "DEVICE", ">LEASES", "KEPT"};
        struct table t;
        size_t i;
        const json_t *m;
        table_init(&t, COLUMNS(titles));
        json_array_foreach(models, i, m)
        {
                table_add(&t, json_str(m, "name"));
                table_add(&t, json_str(m, "state"));
                add_u64(&t, m, "tensors");
                add_size(&t, json_u64(m, "bytes"));
                add_devices(&t, m);
                add_u64(&t, m, "leases");
                add_kept(&t, m);
        }
        table_print_deinit(&t);
}

static void list_wide(const json_t *models)
{
        static const char *const titles[] = {"NAME",    ">GEN", "STATE", ">TENSORS", ">SIZE",  "DEVICE",
                                             ">LEASES", "KEPT", ">IDLE", ">LOAD",    "DIGEST", "SOURCE"};
        struct table t;
        size_t i;
        const json_t *m;
        table_init(&t, COLUMNS(titles));
        t.whole = true;
        json_array_foreach(models, i, m)
        {
                table_add(&t, json_str(m, "name"));
                add_u64(&t, m, "generation");
                table_add(&t, json_str(m, "state"));
                add_u64(&t, m, "tensors");
                add_size(&t, json_u64(m, "bytes"));
                add_devices(&t, m);
                add_u64(&t, m, "leases");
                add_kept(&t, m);
                add_time(&t, json_u64(m, "idle_ns"));
                add_time(&t, json_u64(m, "load_ns"));
                table_add(&t, json_str(m, "digest"));
                table_add(&t, json_str(m, "source"));
        }
        table_print_deinit(&t);
}

int verb_list(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        int rc = ask(ctl, "list", NULL, NULL, &reply);
        if (rc != 0 || !reply)
                return rc;
        const json_t *models = json_object_get(reply, "models");
        if (ctl->format == FORMAT_WIDE)
                list_wide(models);
        else
                list_narrow(models);
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

/* What a device has of its own: a rank and its digest, a failure, another state. */
static void show_replica(const json_t *m, const json_t *d)
{
        if (json_object_get(d, "rank"))
                printf(", rank %" PRIu64 " %s", json_u64(d, "rank"), json_str(d, "digest"));
        if (json_str(d, "state")[0] && strcmp(json_str(d, "state"), json_str(m, "state")) != 0)
                printf(", %s", json_str(d, "state"));
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

static void add_shape(struct table *t, const json_t *tensor)
{
        char text[200] = "[";
        size_t i;
        const json_t *dim;
        json_array_foreach(json_object_get(tensor, "shape"), i, dim)
        {
                size_t len = strlen(text);
                snprintf(text + len, sizeof(text) - len, "%s%" JSON_INTEGER_FORMAT, i > 0 ? ", " : "",
                         json_integer_value(dim));
        }
        table_addf(t, "%s]", text);
}

static void show_tensors(const json_t *tensors, bool wide)
{
        static const char *const titles[] = {"TENSOR", "DTYPE", "SHAPE", ">SIZE", ">SEGMENT", ">OFFSET", "DIGEST"};
        struct table t;
        size_t i;
        const json_t *x;
        table_init(&t, titles, wide ? 7 : 4);
        t.whole = wide;
        json_array_foreach(tensors, i, x)
        {
                table_add(&t, json_str(x, "name"));
                table_add(&t, json_str(x, "dtype"));
                add_shape(&t, x);
                add_size(&t, json_u64(x, "bytes"));
                if (!wide)
                        continue;
                add_u64(&t, x, "segment");
                add_u64(&t, x, "offset");
                table_add(&t, json_str(x, "digest"));
        }
        table_print_deinit(&t);
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

static void status_devices(const json_t *devices)
{
        static const char *const titles[] = {"DEVICE", ">BUDGET", ">USED", ">FREE", ">QUARANTINED", "PAGES", "UUID"};
        struct table t;
        size_t i;
        const json_t *d;
        table_init(&t, COLUMNS(titles));
        json_array_foreach(devices, i, d)
        {
                table_add(&t, json_str(d, "device"));
                add_size(&t, json_u64(d, "budget"));
                add_size(&t, json_u64(d, "used"));
                add_size(&t, json_u64(d, "free"));
                add_size(&t, json_u64(d, "quarantined"));
                table_add(&t, json_str(d, "page_kind"));
                table_add(&t, json_str(d, "uuid"));
        }
        table_print_deinit(&t);
}

/* Below its load, where there are several or it waits. */
static void status_targets(struct table *t, const json_t *targets)
{
        size_t i;
        const json_t *target;
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
                add_size(t, json_u64(target, "bytes"));
                table_add(t, "");
                table_add(t, "");
        }
}

static void status_loads(const json_t *loads)
{
        static const char *const titles[] = {"LOADING", ">GEN", "STATE", ">DONE", ">TOTAL", ">TENSORS", ">ELAPSED"};
        struct table t;
        size_t i;
        const json_t *l;
        if (json_array_size(loads) == 0)
                return;
        putchar('\n');
        table_init(&t, COLUMNS(titles));
        json_array_foreach(loads, i, l)
        {
                table_add(&t, json_str(l, "model"));
                add_u64(&t, l, "generation");
                table_addf(&t, "%s%s%s", json_str(l, "state"),
                           json_is_true(json_object_get(l, "streamed")) ? ", in one stream" : "",
                           json_is_true(json_object_get(l, "stalled")) ? ", stalled" : "");
                add_size(&t, json_u64(l, "bytes"));
                add_size(&t, json_u64(l, "total"));
                table_addf(&t, "%" PRIu64 " of %" PRIu64, json_u64(l, "tensors"), json_u64(l, "tensors_total"));
                add_time(&t, json_u64(l, "elapsed_ns"));
                status_targets(&t, json_object_get(l, "targets"));
        }
        table_print_deinit(&t);
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
        printf("staging ring %s, pages: %s, %" PRIu64 " threads%s%s\n\n",
               human_size(ring_size, json_u64(ring, "bytes")), json_str(ring, "page_kind"), json_u64(ring, "threads"),
               json_str(ring, "numa")[0] ? ", " : "", json_str(ring, "numa"));
        status_devices(json_object_get(reply, "devices"));
        status_loads(json_object_get(reply, "loads"));
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

int verb_ps(struct ctl *ctl)
{
        static const char *const titles[] = {">ID",     "MODEL", ">GEN", "DEVICE", ">PID",       ">UID",
                                             "COMMAND", ">SIZE", ">AGE", "ORPHAN", "QUARANTINED"};
        struct table t;
        size_t i;
        const json_t *l;
        cleanup_json json_t *reply = NULL;
        int rc = ask(ctl, "ps", NULL, NULL, &reply);
        if (rc != 0 || !reply)
                return rc;
        table_init(&t, COLUMNS(titles));
        json_array_foreach(json_object_get(reply, "leases"), i, l)
        {
                add_u64(&t, l, "id");
                table_add(&t, json_str(l, "model"));
                add_u64(&t, l, "generation");
                table_add(&t, json_str(l, "device"));
                add_u64(&t, l, "pid");
                add_u64(&t, l, "uid");
                table_add(&t, json_str(l, "comm"));
                add_size(&t, json_u64(l, "bytes"));
                add_time(&t, json_u64(l, "age_ns"));
                table_add(&t, json_is_true(json_object_get(l, "orphan")) ? "yes" : "no");
                table_add(&t, json_is_true(json_object_get(l, "quarantined")) ? "yes" : "no");
        }
        table_print_deinit(&t);
        return 0;
}
