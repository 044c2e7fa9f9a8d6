/* SPDX-License-Identifier: Apache-2.0
 *
 * Verbs about models that are resident or loading: cancel, set-priority, keep-alive, pin, unpin, unload, verify.
 * Each makes one call for each model and prints the model's name and what became of it.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* ---- one call ---- */

int call_model(struct ctl *ctl, const char *verb, const char *model, json_t *args, json_t **reply)
{
        if (!args || json_object_set_new(args, "model", json_string(model)) < 0) {
                json_decref(args);
                return usage_not_utf8(ctl);
        }
        return ctl_call(ctl, verb, args, model, reply);
}

void print_done(const struct ctl *ctl, const char *model, const json_t *reply, const char *format, ...)
{
        va_list ap;
        if (ctl->format == FORMAT_JSON) {
                ctl_print_json(reply);
                return;
        }
        put_escaped(stdout, model);
        if (!ctl->quiet) {
                fputs("  ", stdout);
                va_start(ap, format);
                vprintf(format, ap);
                va_end(ap);
        }
        putchar('\n');
}

/* ---- verbs ---- */

static int act(struct ctl *ctl, const char *verb, const char *model, const char *done)
{
        json_auto_t *reply = NULL;
        int rc = call_model(ctl, verb, model, json_object(), &reply);
        if (rc == 0)
                print_done(ctl, model, reply, "%s", done);
        return rc;
}

int each_cancel(struct ctl *ctl, const char *model)
{
        return act(ctl, "cancel", model, "cancelled");
}

int each_pin(struct ctl *ctl, const char *model)
{
        return act(ctl, "pin", model, "pinned");
}

int each_unpin(struct ctl *ctl, const char *model)
{
        return act(ctl, "unpin", model, "unpinned");
}

int verb_set_priority(struct ctl *ctl)
{
        uint64_t priority;
        json_auto_t *reply = NULL;
        int rc = parse_priority(ctl, ctl->args[1], &priority);
        if (rc != 0)
                return rc;
        rc = call_model(ctl, "set_priority", ctl->args[0], json_pack("{s:I}", "priority", (json_int_t)priority),
                        &reply);
        if (rc == 0)
                print_done(ctl, ctl->args[0], reply, "priority %" PRIu64, json_u64(reply, "priority"));
        return rc;
}

int verb_keep_alive(struct ctl *ctl)
{
        char text[HUMAN_MAX];
        uint64_t ms = 0;
        json_auto_t *reply = NULL;
        bool usual = strcmp(ctl->args[1], "default") == 0;
        int rc = (usual ? 0 : parse_duration(ctl, ctl->args[1], &ms))
                         ?: call_model(ctl, "keep_alive", ctl->args[0],
                                       json_pack("{s:I}", "keep_alive_ms", (json_int_t)ms), &reply);
        if (rc != 0)
                return rc;
        uint64_t ns = json_u64(reply, "keep_alive_ns");
        print_done(ctl, ctl->args[0], reply, "keep-alive %s", ns > 0 ? human_time(text, ns) : "none");
        return 0;
}

/* "m  unloaded (the model stays as n)" */
static void print_unloaded(const struct ctl *ctl, const char *model, const json_t *reply)
{
        const char *stays_as = json_string_value(json_object_get(reply, "stays_as"));
        if (ctl->format == FORMAT_JSON) {
                ctl_print_json(reply);
                return;
        }
        put_escaped(stdout, model);
        if (!ctl->quiet)
                printf("  %s", json_str(reply, "state"));
        if (!ctl->quiet && stays_as) {
                fputs(" (the model stays as ", stdout);
                put_escaped(stdout, stays_as);
                putchar(')');
        }
        putchar('\n');
}

static int unload(struct ctl *ctl, const char *model)
{
        json_auto_t *reply = NULL;
        json_t *args;
        int rc = model_args(ctl, model, &args);
        if (rc != 0)
                return rc;
        json_object_set_new(args, "drain", json_boolean(ctl->drain));
        json_object_set_new(args, "force", json_boolean(ctl->force));
        if (ctl->drain_timeout_ms > 0)
                json_object_set_new(args, "drain_timeout_ms", json_integer((json_int_t)ctl->drain_timeout_ms));
        rc = ctl_call(ctl, "unload", args, model, &reply);
        if (rc == 0)
                print_unloaded(ctl, model, reply);
        return rc;
}

/* A name that is resident is no pattern, whatever its characters. */
static bool selects(const char *word, const char *name)
{
        return strcmp(word, name) == 0 || (strpbrk(word, "*?[") && fnmatch(word, name, 0) == 0);
}

static bool is_selected(const struct ctl *ctl, const json_t *model)
{
        bool named = ctl->n_args == 0;
        for (size_t i = 0; i < ctl->n_args; i++)
                named = named || selects(ctl->args[i], json_str(model, "name"));
        bool idle = json_u64(model, "leases") == 0 && json_u64(model, "idle_ns") >= ctl->idle_ms * UINT64_C(1000000);
        return named && (ctl->idle_ms == 0 || idle);
}

static int unload_selected(struct ctl *ctl, const json_t *model)
{
        char size[HUMAN_MAX];
        const char *name = json_str(model, "name");
        if (!ctl->dry_run)
                return unload(ctl, name);
        json_auto_t *row =
                json_pack("{s:s, s:s, s:I, s:I}", "name", name, "state", "dry-run", "bytes",
                          (json_int_t)json_u64(model, "bytes"), "leases", (json_int_t)json_u64(model, "leases"));
        print_done(ctl, name, row, "would be unloaded: %s, %" PRIu64 " lease%s",
                   human_size(size, json_u64(model, "bytes")), json_u64(model, "leases"),
                   json_u64(model, "leases") == 1 ? "" : "s");
        return 0;
}

/* Each name once, though a name may have several generations. */
static int unload_matching(struct ctl *ctl)
{
        int rc;
        size_t n = 0;
        const json_t *model;
        const char *last = "";
        json_auto_t *reply = NULL;
        if ((rc = ctl_call(ctl, "list", json_object(), NULL, &reply)) != 0)
                return rc;
        for (size_t i = 0; (model = json_array_get(json_object_get(reply, "models"), i)); i++) {
                if (strcmp(json_str(model, "name"), last) == 0 || !is_selected(ctl, model))
                        continue;
                last = json_str(model, "name");
                int r = unload_selected(ctl, model);
                rc = rc != 0 ? rc : r;
                n++;
        }
        if (n == 0 && ctl->n_args > 0 && ctl->idle_ms == 0)
                return ctl_error(ctl, STREAMER_ENOENT, ctl->args[0], "no such model");
        return rc;
}

int verb_unload(struct ctl *ctl)
{
        bool pattern = ctl->all || ctl->idle_ms > 0 || ctl->dry_run;
        if (ctl->all && ctl->n_args > 0)
                return usage_error(ctl, "unload: --all takes no model");
        if (ctl->n_args == 0 && !ctl->all && ctl->idle_ms == 0)
                return usage_error(ctl, "unload: an argument is missing: MODEL, --all or --idle");
        for (size_t i = 0; i < ctl->n_args; i++)
                pattern = pattern || strpbrk(ctl->args[i], "*?[");
        return pattern ? unload_matching(ctl) : ctl_each(ctl, unload);
}

int each_verify(struct ctl *ctl, const char *model)
{
        char size[HUMAN_MAX];
        json_auto_t *reply = NULL;
        int rc = call_model(ctl, "verify", model, json_object(), &reply);
        if (rc == 0)
                print_done(ctl, model, reply, "ok  %" PRIu64 " tensors, %s  %s", json_u64(reply, "tensors"),
                           human_size(size, json_u64(reply, "bytes")), json_str(reply, "digest"));
        return rc;
}
