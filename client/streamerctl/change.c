/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs that change models: load, cancel, unload; and the two that wait for them: wait, verify.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOOK_MS 200
#define PRIORITY_MAX 10000

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
        (void)signal_number;
        interrupted = 1;
}

static bool parse_priority(const char *text, uint64_t *priority)
{
        size_t len = strlen(text);
        if (len == 0 || len > 5 || strspn(text, "0123456789") != len)
                return false;
        *priority = strtoull(text, NULL, 10);
        return *priority >= 1 && *priority <= PRIORITY_MAX;
}

/* ---- load ---- */

/* What a load that ended as ready did not reach; NULL where it reached all. */
static json_t *failures_json(const streamer_op *op)
{
        streamer_device_failure f;
        if (streamer_op_failure_count(op) == 0)
                return NULL;
        json_t *list = json_array();
        for (size_t i = 0; streamer_op_failure_get(op, i, &f) == 0; i++)
                json_array_append_new(list, json_pack("{s:s, s:s}", "device", f.device, "text", f.text));
        return list;
}

/* A line for each device. */
static void tell_failures(const streamer_op *op)
{
        streamer_device_failure f;
        for (size_t i = 0; streamer_op_failure_get(op, i, &f) == 0; i++) {
                fputs("streamerctl: ", stderr);
                put_escaped(stderr, streamer_op_model(op));
                fprintf(stderr, ": %s: ", f.device);
                put_escaped(stderr, f.text);
                fputc('\n', stderr);
        }
}

static void print_loaded(const struct ctl *ctl, const streamer_op *op, const streamer_progress *p)
{
        char size[HUMAN_MAX], rate[HUMAN_MAX];
        if (ctl->format == FORMAT_JSON) {
                cleanup_json json_t *json = json_pack(
                        "{s:s, s:s, s:I, s:I, s:I, s:I, s:o*}", "model", p->model, "state", "ready", "generation",
                        (json_int_t)p->generation, "bytes", (json_int_t)p->bytes, "tensors", (json_int_t)p->tensors,
                        "elapsed_ns", (json_int_t)p->elapsed_ns, "failed", failures_json(op));
                ctl_print_json(json);
                return;
        }
        put_escaped(stdout, p->model);
        printf("  generation %" PRIu64 "  %s in %.2f s (%s)\n", p->generation, human_size(size, p->bytes),
               (double)p->elapsed_ns / 1e9, human_rate(rate, p->bytes, p->elapsed_ns));
}

static int watch(const struct ctl *ctl, streamer_op *op)
{
        int rc;
        struct progress bar;
        streamer_progress p = {.struct_size = sizeof(p)};
        progress_init(&bar, ctl->quiet || ctl->no_progress);
        while ((rc = streamer_op_wait(op, LOOK_MS, &p)) == STREAMER_ETIMEOUT && !interrupted)
                progress_show(&bar, &p);
        progress_clear(&bar);
        if (rc == STREAMER_ETIMEOUT) {
                fputs("streamerctl: ", stderr);
                put_escaped(stderr, p.model);
                fputs(": interrupted: the load goes on ('streamerctl cancel' ends it)\n", stderr);
                return EXIT_INTERRUPTED;
        }
        bool serves = strcmp(p.state, "ready") == 0; /* somewhere at least */
        if (rc != 0 && streamer_op_failure_count(op) > 0)
                tell_failures(op);
        else if (rc != 0)
                ctl_fail(ctl, rc, streamer_op_model(op));
        if (serves)
                print_loaded(ctl, op, &p);
        return streamer_exit_code(rc);
}

static void print_detached(const struct ctl *ctl, const char *model)
{
        if (ctl->format == FORMAT_JSON) {
                cleanup_json json_t *json = json_pack("{s:s}", "model", model);
                ctl_print_json(json);
        } else {
                put_escaped(stdout, model);
                putchar('\n');
        }
}

static unsigned load_flags(const struct ctl *ctl)
{
        return (ctl->detach ? STREAMER_LOAD_DETACH : 0) | (ctl->wait ? STREAMER_LOAD_WAIT : 0) |
               (ctl->no_evict ? STREAMER_LOAD_NO_EVICT : 0) | (ctl->pin ? STREAMER_LOAD_PIN : 0);
}

static int load(const struct ctl *ctl, const struct devices *devices)
{
        streamer_op *op;
        uint64_t priority = 0;
        if (ctl->priority && !parse_priority(ctl->priority, &priority))
                return usage_error(ctl, "'%.100s' is no priority: 1 to 10000", ctl->priority);
        streamer_load_opts opts = {
                .struct_size = sizeof(opts),
                .source = ctl->args[0],
                .name = ctl->name,
                .devices = (const char *const *)devices->names,
                .n_devices = devices->n,
                .layout = ctl->layout,
                .pattern = ctl->pattern,
                .verify = ctl->verify,
                .flags = load_flags(ctl),
                .keep_alive_ms = ctl->keep_alive_ms,
                .drain_timeout_ms = ctl->drain_timeout_ms,
                .priority = (unsigned)priority,
        };
        /* From here on the daemon may have the load, and an interrupt must say so. */
        struct sigaction action = {.sa_handler = on_interrupt};
        if (!ctl->detach)
                sigaction(SIGINT, &action, NULL);
        int rc = streamer_load(ctl->client, &opts, &op);
        if (rc != 0)
                return ctl_fail(ctl, rc, ctl->name ? ctl->name : ctl->args[0]);
        if (ctl->detach)
                print_detached(ctl, streamer_op_model(op));
        else
                rc = watch(ctl, op);
        streamer_op_free(op);
        return rc;
}

static void print_room(const json_t *plan)
{
        char size[HUMAN_MAX];
        size_t i;
        const json_t *victim;
        const char *room = json_str(plan, "room");
        if (strcmp(room, "fits") == 0)
                puts("  it fits");
        else if (strcmp(room, "waits") == 0)
                puts("  it fits when what is being released is free");
        else if (strcmp(room, "evicts") != 0)
                puts("  it does not fit");
        json_array_foreach(json_object_get(plan, "evicts"), i, victim)
        {
                fputs("  evicts   ", stdout);
                put_escaped(stdout, json_str(victim, "model"));
                printf(", generation %" PRIu64 ", %s\n", json_u64(victim, "generation"),
                       human_size(size, json_u64(victim, "bytes")));
        }
}

/* "1 file", "3 files": the keys are plurals. */
static void print_count(const char *before, const json_t *plan, const char *key)
{
        uint64_t n = json_u64(plan, key);
        printf("%s%" PRIu64 " %.*s", before, n, (int)(strlen(key) - (n == 1)), key);
}

static void print_plan_of(const json_t *plan)
{
        char needed[HUMAN_MAX], free_bytes[HUMAN_MAX], budget[HUMAN_MAX], copied[HUMAN_MAX];
        printf("  device   %s: needs %s, %s free of %s\n", json_str(plan, "device"),
               human_size(needed, json_u64(plan, "needed")), human_size(free_bytes, json_u64(plan, "free")),
               human_size(budget, json_u64(plan, "budget")));
        print_count("  reading  ", plan, "blocks");
        print_count(" into ", plan, "segments");
        printf(", %s copied\n", human_size(copied, json_u64(plan, "copied_bytes")));
        if (json_is_true(json_object_get(plan, "resident")))
                puts("  it is resident already");
        else
                print_room(plan);
}

static void print_plan(const json_t *plan)
{
        bool streamed = json_is_true(json_object_get(plan, "streamed"));
        char bytes[HUMAN_MAX];
        size_t i;
        const json_t *device, *devices = json_object_get(plan, "devices");
        put_escaped(stdout, json_str(plan, "model"));
        print_count("  ", plan, "tensors");
        print_count(" in ", plan, "files");
        printf(", %s\n", human_size(bytes, json_u64(plan, "bytes")));
        if (streamed)
                puts("  its server knows no ranges: it is read in one stream");
        if (!devices)
                print_plan_of(plan);
        json_array_foreach(devices, i, device)
        {
                print_plan_of(device);
        }
}

static int dry_run(struct ctl *ctl, const struct devices *devices)
{
        cleanup_json json_t *reply = NULL;
        json_t *list = json_array();
        for (size_t i = 0; i < devices->n; i++)
                json_array_append_new(list, json_string(devices->names[i]));
        json_t *args = json_pack("{s:s, s:b, s:o, s:s*, s:s*, s:s*, s:s*, s:b}", "source", ctl->args[0], "dry_run", 1,
                                 "devices", list, "name", ctl->name, "verify", ctl->verify, "layout", ctl->layout,
                                 "pattern", ctl->pattern, "no_evict", ctl->no_evict);
        if (!args)
                return usage_error(ctl, "load: an argument is not valid UTF-8");
        int rc = ctl_call(ctl, "load", args, ctl->name ? ctl->name : ctl->args[0], &reply);
        if (rc != 0)
                return rc;
        if (ctl->format == FORMAT_JSON)
                ctl_print_json(reply);
        else
                print_plan(reply);
        return 0;
}

int verb_load(struct ctl *ctl)
{
        cleanup_devices struct devices devices;
        int rc = devices_init(ctl, &devices);
        if (rc != 0)
                return rc;
        return ctl->dry_run ? dry_run(ctl, &devices) : load(ctl, &devices);
}

/* ---- the others: a call about one model ---- */

/* The reply as JSON, or the model's name with a word about it: the caller prints the rest. */
static int call_model(struct ctl *ctl, const char *verb, json_t *args, json_t **reply)
{
        const char *model = ctl->args[0];
        if (!args || json_object_set_new(args, "model", json_string(model)) < 0) {
                json_decref(args);
                return usage_error(ctl, "%s: the model's name is not valid UTF-8", verb);
        }
        int rc = ctl_call(ctl, verb, args, model, reply);
        if (rc == 0 && ctl->format == FORMAT_JSON)
                ctl_print_json(*reply);
        else if (rc == 0)
                put_escaped(stdout, model);
        return rc;
}

int verb_cancel(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        int rc = call_model(ctl, "cancel", json_object(), &reply);
        if (rc == 0 && ctl->format != FORMAT_JSON)
                puts("  cancelled");
        return rc;
}

int verb_set_priority(struct ctl *ctl)
{
        uint64_t priority;
        cleanup_json json_t *reply = NULL;
        if (!parse_priority(ctl->args[1], &priority))
                return usage_error(ctl, "'%.100s' is no priority: 1 to 10000", ctl->args[1]);
        int rc = call_model(ctl, "set_priority", json_pack("{s:I}", "priority", (json_int_t)priority), &reply);
        if (rc == 0 && ctl->format != FORMAT_JSON)
                printf("  priority %" PRIu64 "\n", json_u64(reply, "priority"));
        return rc;
}

static json_t *unload_args(const struct ctl *ctl, const char *device)
{
        json_t *args = json_pack("{s:b, s:b, s:s*}", "drain", ctl->drain, "force", ctl->force, "device", device);
        if (args && ctl->drain_timeout_ms > 0)
                json_object_set_new(args, "drain_timeout_ms", json_integer((json_int_t)ctl->drain_timeout_ms));
        return args;
}

static int pin(struct ctl *ctl, const char *verb)
{
        cleanup_json json_t *reply = NULL;
        int rc = call_model(ctl, verb, json_object(), &reply);
        if (rc == 0 && ctl->format != FORMAT_JSON)
                printf("  %sned\n", verb);
        return rc;
}

int verb_pin(struct ctl *ctl)
{
        return pin(ctl, "pin");
}

int verb_unpin(struct ctl *ctl)
{
        return pin(ctl, "unpin");
}

int verb_unload(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        cleanup_devices struct devices devices;
        int rc = devices_init_one(ctl, &devices);
        if (rc != 0)
                return rc;
        rc = call_model(ctl, "unload", unload_args(ctl, devices.names[0]), &reply);
        if (rc == 0 && ctl->format != FORMAT_JSON)
                printf("  %s\n", json_str(reply, "state"));
        return rc;
}

int verb_wait(struct ctl *ctl)
{
        cleanup_json json_t *reply = NULL;
        json_t *args = json_object();
        /* On the wire 0 means no limit: who asks for none gets the shortest. */
        if (ctl->timeout_ms >= 0)
                json_object_set_new(args, "timeout_ms", json_integer(ctl->timeout_ms > 0 ? ctl->timeout_ms : 1));
        int rc = call_model(ctl, "wait", args, &reply);
        if (rc == 0 && ctl->format != FORMAT_JSON)
                printf("  %s  generation %" PRIu64 "\n", json_str(reply, "state"), json_u64(reply, "generation"));
        return rc;
}

int verb_verify(struct ctl *ctl)
{
        char size[HUMAN_MAX];
        cleanup_json json_t *reply = NULL;
        int rc = call_model(ctl, "verify", json_object(), &reply);
        if (rc == 0 && ctl->format != FORMAT_JSON)
                printf("  ok  %" PRIu64 " tensors, %s  %s\n", json_u64(reply, "tensors"),
                       human_size(size, json_u64(reply, "bytes")), json_str(reply, "digest"));
        return rc;
}
