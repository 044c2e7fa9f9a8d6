/* SPDX-License-Identifier: Apache-2.0
 *
 * load: starts the loads of all sources, then waits for one after another, with progress. --detach only starts
 * them; --dry-run only asks what each would need. An interrupt, or the end of --timeout, ends the waiting and no
 * load.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_MS 200

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal_number)
{
        interrupted = 1;
}

/* ---- the result ---- */

/* The devices that a load which is ready elsewhere did not reach; NULL if it reached all. */
static json_t *failures_json(const streamer_op *op)
{
        streamer_device_failure f = STREAMER_DEVICE_FAILURE_INIT;
        if (streamer_op_failure_count(op) == 0)
                return NULL;
        json_t *list = json_array();
        for (size_t i = 0; streamer_op_failure_get(op, i, &f) == 0; i++)
                json_array_append_new(list, json_pack("{s:s, s:s, s:s}", "device", f.device, "code",
                                                      streamer_error_name(f.err), "text", f.text));
        return list;
}

/* An error for each device; with --json one, since the result lists them. */
static void print_failures(const struct ctl *ctl, const streamer_op *op)
{
        streamer_device_failure f = STREAMER_DEVICE_FAILURE_INIT;
        for (size_t i = 0; streamer_op_failure_get(op, i, &f) == 0; i++)
                if (i == 0 || ctl->format != FORMAT_JSON)
                        ctl_error(ctl, f.err, streamer_op_model(op), "%s: %s", f.device, f.text);
}

/* NULL: none. */
static json_t *evictions_json(const streamer_op *op)
{
        streamer_eviction e = STREAMER_EVICTION_INIT;
        if (streamer_op_eviction_count(op) == 0)
                return NULL;
        json_t *list = json_array();
        for (size_t i = 0; streamer_op_eviction_get(op, i, &e) == 0; i++)
                json_array_append_new(list, json_pack("{s:s, s:I, s:s, s:I}", "name", e.model, "generation",
                                                      (json_int_t)e.generation, "device", e.device, "bytes",
                                                      (json_int_t)e.bytes));
        return list;
}

/* "streamerctl: m: evicted for it: a (1.0 GiB of host), b (2.0 GiB of host)". */
static void print_evictions(const streamer_op *op, const char *model)
{
        char size[HUMAN_MAX];
        streamer_eviction e = STREAMER_EVICTION_INIT;
        for (size_t i = 0; streamer_op_eviction_get(op, i, &e) == 0; i++) {
                fputs(i == 0 ? "streamerctl: " : ", ", stderr);
                if (i == 0) {
                        put_escaped(stderr, model);
                        fputs(": evicted for it: ", stderr);
                }
                put_escaped(stderr, e.model);
                fprintf(stderr, " (%s of %s)", human_size(size, e.bytes), e.device);
        }
        if (streamer_op_eviction_count(op) > 0)
                putc('\n', stderr);
}

/* What the load left out, by `show`. NULL: not known, or no memory. */
static json_t *notes_of(const struct ctl *ctl, const char *model)
{
        json_auto_t *reply = NULL;
        if (ask(ctl->client, "show", json_pack("{s:s}", "model", model), &reply) != 0)
                return NULL;
        return json_incref(json_array_get(json_object_get(reply, "models"), 0));
}

static void print_loaded(const struct ctl *ctl, const streamer_op *op, const streamer_progress *p)
{
        char size[HUMAN_MAX], rate[HUMAN_MAX];
        json_auto_t *notes = notes_of(ctl, p->name);
        const char *from = p->resident ? "resident" : json_str(notes, "from");
        /* Of a local file that was read itself it says nothing new. */
        bool named = from[0] != '\0' && (json_str(notes, "source")[0] != '/' || strcmp(from, "disk") == 0);
        const char *stale = json_bool(notes, "stale") ? ", may be stale" : "";
        if (!ctl->quiet && ctl->format != FORMAT_JSON) {
                print_notes(stderr, notes, p->name);
                print_evictions(op, p->name);
        }
        if (ctl->format == FORMAT_JSON) {
                json_auto_t *json = json_pack(
                        "{s:s, s:s, s:I, s:I, s:I, s:I, s:b, s:s*, s:O*, s:o*, s:o*, s:O*, s:O*, s:O*}", "name",
                        p->name, "state", "ready", "generation", (json_int_t)p->generation, "bytes",
                        (json_int_t)p->bytes, "tensors", (json_int_t)p->tensors, "load_ns", (json_int_t)p->load_ns,
                        "resident", p->resident, "from", from[0] != '\0' ? from : NULL, "stale",
                        json_object_get(notes, "stale"), "failed", failures_json(op), "evicted", evictions_json(op),
                        "left_out", json_object_get(notes, "left_out"), "missing_tensors",
                        json_object_get(notes, "missing_tensors"), "missing", json_object_get(notes, "missing"));
                ctl_print_json(json);
                return;
        }
        put_escaped(stdout, p->name);
        if (ctl->quiet)
                putchar('\n');
        else if (p->resident)
                printf("  generation %" PRIu64 "  already resident%s\n", p->generation, stale);
        else
                printf("  generation %" PRIu64 "  %s in %.2f s (%s)%s%s%s\n", p->generation, human_size(size, p->bytes),
                       (double)p->load_ns / 1e9, human_rate(rate, p->bytes, p->load_ns), named ? "  from " : "",
                       named ? from : "", stale);
}

static void print_detached(const struct ctl *ctl, const char *model)
{
        if (ctl->format == FORMAT_JSON) {
                json_auto_t *json = json_pack("{s:s}", "name", model);
                ctl_print_json(json);
        } else {
                ctl_print_name(model);
        }
}

/* ---- waiting ---- */

static int stop_waiting(const struct ctl *ctl, const char *model)
{
        if (!interrupted)
                return ctl_error(ctl, STREAMER_ETIMEOUT, model, "not ready after %.4g s; the load continues",
                                 ctl->timeout_ms / 1e3);
        ctl_error(ctl, STREAMER_ECANCELED, model, "interrupted; the load continues ('streamerctl cancel' ends it)");
        return EXIT_INTERRUPTED;
}

static void note_restart(const struct ctl *ctl, struct progress *bar, const streamer_progress *p, uint64_t *restarts)
{
        if (p->restarts == *restarts)
                return;
        *restarts = p->restarts;
        progress_clear(bar);
        if (ctl->quiet || ctl->format == FORMAT_JSON)
                return;
        fputs("streamerctl: ", stderr);
        put_escaped(stderr, p->name);
        fprintf(stderr, ": a file was replaced while it was read: the load began again (%" PRIu64 " of 3)\n",
                *restarts);
}

/* Neither a URL, a path, nor an id of the Hub, nor a file here: it may be meant as the name of a model. */
static bool is_word(const char *source)
{
        return !strpbrk(source, ":/") && !strchr(".~", source[0]) && access(source, F_OK) < 0;
}

/* A load of a path that was not meant fails where the daemon looked for it. */
static int explain_failure(const struct ctl *ctl, const char *source, int rc, const char *model)
{
        if (rc != STREAMER_EFAILED || !is_word(source))
                return ctl_fail(ctl, rc, model);
        return ctl_error(
                ctl, STREAMER_ENOENT, source,
                "no file ./%s, no resident model of that name (a path begins with /, ./ or ~/; hf://%s is of the Hub)",
                source, source);
}

static int watch(const struct ctl *ctl, const char *source, streamer_op *op)
{
        int rc, wait_ms;
        uint64_t restarts = 0;
        struct progress bar;
        streamer_progress p = {.struct_size = sizeof(p)};
        progress_init(&bar, ctl);
        while ((rc = streamer_op_wait(op, (wait_ms = ctl_left_ms(ctl, LOOK_MS)), &p)) == STREAMER_ETIMEOUT &&
               wait_ms > 0 && !interrupted) {
                note_restart(ctl, &bar, &p, &restarts);
                progress_show(&bar, &p);
        }
        note_restart(ctl, &bar, &p, &restarts);
        progress_clear(&bar);
        if (rc == STREAMER_ETIMEOUT)
                return stop_waiting(ctl, streamer_op_model(op));
        if (rc != 0 && streamer_op_failure_count(op) > 0)
                print_failures(ctl, op);
        else if (rc != 0)
                return explain_failure(ctl, source, rc, streamer_op_model(op));
        if (strcmp(p.state, "ready") == 0) /* on one device at least */
                print_loaded(ctl, op, &p);
        return streamer_exit_code(rc);
}

/* ---- starting ---- */

static unsigned load_flags(const struct ctl *ctl)
{
        return (ctl->detach ? STREAMER_LOAD_DETACH : 0) | (ctl->queue ? STREAMER_LOAD_WAIT : 0) |
               (ctl->no_evict ? STREAMER_LOAD_NO_EVICT : 0) | (ctl->pin ? STREAMER_LOAD_PIN : 0);
}

static bool is_resident(struct ctl *ctl, const char *model)
{
        json_auto_t *reply = NULL;
        if (ask(ctl->client, "show", json_pack("{s:s}", "model", model), &reply) != 0)
                return false;
        return strcmp(json_str(json_array_get(json_object_get(reply, "models"), 0), "state"), "failed") != 0;
}

/* A source that is none here, and the name of a resident model. */
static int refuse_name(struct ctl *ctl, const char *source)
{
        if (!is_word(source) || !is_resident(ctl, source))
                return 0;
        return ctl_error(ctl, STREAMER_ENOENT, source,
                         "no file ./%s; a resident model has this name (a path begins with /, ./ or ~/)", source);
}

static int start(struct ctl *ctl, const char *source, streamer_op **op)
{
        streamer_load_opts opts = {
                .struct_size = sizeof(opts),
                .source = source,
                .name = ctl->name,
                .devices = (const char *const *)ctl->devices,
                .n_devices = ctl->n_devices,
                .layout = ctl->layout,
                .pattern = ctl->pattern,
                .verify = ctl->verify,
                .flags = load_flags(ctl),
                .keep_alive_ms = ctl->keep_alive_ms,
                .drain_timeout_ms = ctl->drain_timeout_ms,
                .priority = (unsigned)ctl->priority,
        };
        int rc = refuse_name(ctl, source);
        if (rc != 0)
                return rc;
        rc = streamer_load(ctl->client, &opts, op);
        return rc != 0 ? ctl_fail(ctl, rc, ctl->name ? ctl->name : source) : 0;
}

static int load(struct ctl *ctl)
{
        int rc = 0;
        struct sigaction action = {.sa_handler = on_interrupt};
        streamer_op **ops = calloc(ctl->n_args, sizeof(*ops));
        if (!ops)
                return ctl_error(ctl, STREAMER_ENOMEM, NULL, "out of memory");
        /* From here on the daemon may have the load, and an interrupt must say so. */
        if (!ctl->detach)
                sigaction(SIGINT, &action, NULL);
        for (size_t i = 0; i < ctl->n_args; i++) {
                int r = start(ctl, ctl->args[i], &ops[i]);
                rc = rc != 0 ? rc : r;
        }
        for (size_t i = 0; i < ctl->n_args; i++) {
                int r = 0;
                if (ops[i] && ctl->detach)
                        print_detached(ctl, streamer_op_model(ops[i]));
                else if (ops[i])
                        r = watch(ctl, ctl->args[i], ops[i]);
                rc = rc != 0 ? rc : r;
                streamer_op_free(ops[i]);
        }
        free(ops);
        return rc;
}

/* ---- dry run ---- */

static void print_admission(const json_t *plan)
{
        char size[HUMAN_MAX];
        const json_t *victim;
        const char *admission = json_str(plan, "admission");
        if (strcmp(admission, "fits") == 0)
                puts("  fits");
        else if (strcmp(admission, "waits") == 0)
                puts("  fits after memory that is being released is free");
        else if (strcmp(admission, "evicts") != 0)
                puts("  insufficient memory");
        for (size_t i = 0; (victim = json_array_get(json_object_get(plan, "evicts"), i)); i++) {
                fputs("  evicts   ", stdout);
                put_escaped(stdout, json_str(victim, "name"));
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
        if (json_bool(plan, "resident"))
                puts("  already resident");
        else
                print_admission(plan);
}

static void print_plan(const json_t *plan)
{
        char bytes[HUMAN_MAX];
        const json_t *device, *devices = json_object_get(plan, "devices");
        put_escaped(stdout, json_str(plan, "name"));
        print_count("  ", plan, "tensors");
        print_count(" in ", plan, "files");
        printf(", %s\n", human_size(bytes, json_u64(plan, "bytes")));
        print_encryption("  encrypted ", json_object_get(plan, "encryption"));
        if (!devices)
                print_plan_of(plan);
        for (size_t i = 0; (device = json_array_get(devices, i)); i++)
                print_plan_of(device);
        print_notes(stderr, plan, json_str(plan, "name"));
}

static bool is_refused(const json_t *plan)
{
        return !json_bool(plan, "resident") && strcmp(json_str(plan, "admission"), "blocked") == 0;
}

/* The code that the load would end with: replicas fail on their own, ranks together. */
static int outcome_of(const struct ctl *ctl, const json_t *plan)
{
        size_t refused = 0, n = json_array_size(json_object_get(plan, "devices"));
        for (size_t i = 0; i < n; i++)
                refused += is_refused(json_array_get(json_object_get(plan, "devices"), i));
        if (ctl->queue || (refused == 0 && (n > 0 || !is_refused(plan))))
                return 0;
        bool all = refused == n || (ctl->layout && strcmp(ctl->layout, "rank") == 0);
        return all ? STREAMER_ENOMEM : STREAMER_EFAILED;
}

static int dry_run(struct ctl *ctl, const char *source)
{
        json_auto_t *reply = NULL, *list = json_array();
        for (size_t i = 0; i < ctl->n_devices; i++)
                if (json_array_append_new(list, json_string(ctl->devices[i])) < 0)
                        return usage_not_utf8(ctl);
        json_t *args = json_pack("{s:s, s:b, s:O, s:s*, s:s*, s:s*, s:s*, s:b}", "source", source, "dry_run", 1,
                                 "devices", list, "name", ctl->name, "verify", ctl->verify, "layout", ctl->layout,
                                 "pattern", ctl->pattern, "no_evict", ctl->no_evict);
        int rc = ctl_call(ctl, "load", args, ctl->name ? ctl->name : source, &reply);
        if (rc != 0)
                return rc;
        if (ctl->format == FORMAT_JSON)
                ctl_print_json(reply);
        else if (ctl->quiet)
                ctl_print_name(json_str(reply, "name"));
        else
                print_plan(reply);
        rc = outcome_of(ctl, reply);
        return rc == 0 ? 0 : ctl_error(ctl, rc, json_str(reply, "name"), "the load would fail: insufficient memory");
}

int verb_load(struct ctl *ctl)
{
        if (ctl->name && ctl->n_args > 1)
                return usage_error(ctl, "--name: names one model; there are %zu sources", ctl->n_args);
        return ctl->dry_run ? ctl_each(ctl, dry_run) : load(ctl);
}
