/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads. The daemon accepts at once and tells the rest by events, if it was asked to:
 *
 *   resolving > queued > loading > ready | failed | cancelled
 *
 * The operation only watches: freeing it, or losing the connection, ends nothing.
 */
#include "client/op.h"

#include "client/source.h"
#include "client/util.h"

#include <stdio.h>

#define LOAD_FLAGS (STREAMER_LOAD_DETACH | STREAMER_LOAD_WAIT | STREAMER_LOAD_NO_EVICT | STREAMER_LOAD_PIN)

struct streamer_op {
        struct streamer_op *next; /* in the client's list */
        struct streamer_client *client;
        uint64_t id;
        char *model;
        bool watched;
        uint64_t epoch; /* of the connection that brings its events */

        /* under the client's lock */
        streamer_progress progress;
        bool ended;
        int code; /* 0: ready */
        char *text;
        streamer_device_failure *failures; /* their strings are malloc'd */
        size_t n_failures;
};

static const char *const states[] = {"resolving", "queued", "loading", "ready", "failed", "cancelled"};

/* The constant that equals the event's state, so that it may outlive the event. */
static const char *state_of(const msgpack_object *event)
{
        for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
                if (object_str_eq(event, "state", states[i]))
                        return states[i];
        return NULL;
}

static char *copy_str(const msgpack_object *o, const char *key)
{
        const char *s;
        size_t len;
        return object_str(o, key, &s, &len) ? strndup(s, len) : strdup("");
}

/* As many as there is memory for: the last of them is not worth the others. */
static void take_failures(struct streamer_op *op, const msgpack_object *list)
{
        const char *code;
        size_t len;
        if (!list || list->type != MSGPACK_OBJECT_ARRAY)
                return;
        op->failures = calloc(list->via.array.size, sizeof(*op->failures));
        for (uint32_t i = 0; op->failures && i < list->via.array.size; i++) {
                const msgpack_object *o = &list->via.array.ptr[i];
                streamer_device_failure *f = &op->failures[op->n_failures];
                *f = (streamer_device_failure){copy_str(o, "device"), copy_str(o, "text"), STREAMER_EFAILED};
                if (object_str(o, "code", &code, &len))
                        f->err = code_from_wire(code, len);
                if (f->device && f->text) {
                        op->n_failures++;
                        continue;
                }
                free((void *)(uintptr_t)f->device);
                free((void *)(uintptr_t)f->text);
        }
}

/* Ready, but not everywhere. */
static void end_in_part(struct streamer_op *op)
{
        if (op->n_failures == 0)
                return;
        const streamer_device_failure *f = &op->failures[0];
        size_t size = strlen(f->device) + strlen(f->text) + 3;
        op->code = STREAMER_EFAILED;
        op->text = malloc(size);
        if (op->text)
                snprintf(op->text, size, "%s: %s", f->device, f->text);
}

static void end(struct streamer_op *op, const msgpack_object *event, const char *state)
{
        const char *s;
        size_t len;
        op->ended = true;
        take_failures(op, object_get(event, "failed"));
        if (strcmp(state, "ready") == 0) {
                end_in_part(op);
                return;
        }
        op->code = strcmp(state, "cancelled") == 0 ? STREAMER_ECANCELED : STREAMER_EFAILED;
        if (object_str(event, "code", &s, &len))
                op->code = code_from_wire(s, len);
        if (object_str(event, "text", &s, &len))
                op->text = strndup(s, len);
}

static void update(struct streamer_op *op, const msgpack_object *event)
{
        streamer_progress *p = &op->progress;
        const char *state = state_of(event);
        if (op->ended || !state)
                return;
        object_u64(event, "bytes", &p->bytes);
        object_u64(event, "total", &p->total);
        object_u64(event, "tensors", &p->tensors);
        object_u64(event, "tensors_total", &p->tensors_total);
        object_u64(event, "elapsed_ns", &p->elapsed_ns);
        object_u64(event, "generation", &p->generation);
        p->state = state;
        if (strcmp(state, "ready") == 0 || strcmp(state, "failed") == 0 || strcmp(state, "cancelled") == 0)
                end(op, event, state);
}

void op_event(struct streamer_client *c, const msgpack_object *event)
{
        uint64_t id;
        if (!object_u64(event, "op", &id))
                return;
        /* A daemon that was started anew may give the same numbers again. */
        for (struct streamer_op *op = c->ops; op; op = op->next)
                if (op->id == id && op->epoch == c->epoch)
                        update(op, event);
}

/* Lock held, while the reply is dispatched: the first event may be right behind it. */
static void accept_op(struct call *call, const msgpack_object *reply)
{
        struct streamer_op *op = call->arg;
        const char *model;
        size_t len;
        if (!object_u64(reply, "op", &op->id) || !object_str(reply, "model", &model, &len))
                return;
        op->model = strndup(model, len);
        op->epoch = op->client->epoch;
        op->next = op->client->ops;
        op->client->ops = op;
}

static int request_load(struct streamer_op *op, const streamer_load_opts *o, const char *source)
{
        struct call call = {.accept = accept_op, .arg = op};
        struct request request = {.verb = VERB_load,
                                  .u.load = {.source = source,
                                             .name = o->name,
                                             .devices = {(const char **)(uintptr_t)o->devices, o->n_devices},
                                             .layout = o->layout,
                                             .pattern = o->pattern,
                                             .verify = o->verify,
                                             .priority = o->priority,
                                             .wait = (o->flags & STREAMER_LOAD_WAIT) != 0,
                                             .no_evict = (o->flags & STREAMER_LOAD_NO_EVICT) != 0,
                                             .pin = (o->flags & STREAMER_LOAD_PIN) != 0,
                                             .keep_alive_ms = o->keep_alive_ms,
                                             .drain_timeout_ms = o->drain_timeout_ms,
                                             .watch = op->watched}};
        int rc = channel_call(op->client, &request, &call, channel_deadline(op->client));
        if (rc != 0)
                return rc;
        call_deinit(&call);
        return op->model ? 0 : fail(op->client, STREAMER_EPROTO, "load: the daemon's reply has no operation");
}

int streamer_load(streamer_client *client, const streamer_load_opts *opts, streamer_op **op)
{
        streamer_load_opts o;
        cleanup_free char *source = NULL;
        int rc = channel_check(client);
        if (rc != 0)
                return rc;
        if (!op || !options_copy(&o, sizeof(o), opts) || !o.source || (o.flags & ~LOAD_FLAGS))
                return fail(client, STREAMER_EINVAL, "load: an argument is missing, or an option is not known");
        rc = source_resolve(o.source, &source, client->serial);
        if (rc != 0)
                return rc;
        struct streamer_op *made = calloc(1, sizeof(*made));
        if (!made)
                return fail(client, STREAMER_ENOMEM, "load: no memory");
        made->client = channel_ref(client);
        made->watched = !(o.flags & STREAMER_LOAD_DETACH);
        made->progress.state = states[0];
        rc = request_load(made, &o, source);
        if (rc != 0) {
                streamer_op_free(made);
                return rc;
        }
        *op = made;
        return 0;
}

static bool op_ended(const void *arg)
{
        return ((const struct streamer_op *)arg)->ended;
}

/* Lock held. Its events came over a connection that is gone; the load itself may go on. */
static int wait_ended(struct streamer_op *op, int64_t deadline)
{
        struct streamer_client *c = op->client;
        int rc =
                op->epoch == c->epoch || op_ended(op) ? channel_wait(c, op_ended, op, deadline) : STREAMER_EUNREACHABLE;
        if (rc == STREAMER_EUNREACHABLE && !c->closed)
                rc = fail(c, STREAMER_ELOST, "the daemon is gone, and nobody watches the load");
        return rc;
}

/* As far as the caller's version of the struct reaches. */
static void copy_progress(const struct streamer_op *op, streamer_progress *to)
{
        streamer_progress p = op->progress;
        p.struct_size = to->struct_size;
        p.model = op->model;
        memcpy(to, &p, to->struct_size < sizeof(p) ? to->struct_size : sizeof(p));
}

int streamer_op_wait(streamer_op *op, int timeout_ms, streamer_progress *progress)
{
        struct streamer_client *c = op->client;
        int rc = channel_check(c);
        if (rc != 0)
                return rc;
        if (progress && progress->struct_size < sizeof(progress->struct_size))
                return fail(c, STREAMER_EINVAL, "progress: struct_size is not set");
        pthread_mutex_lock(&c->lock);
        if (op->watched)
                rc = wait_ended(op, deadline_in_ms(timeout_ms));
        else
                rc = fail(c, STREAMER_EINVAL, "a detached load is not watched");
        if (rc == 0 && op->code != 0)
                rc = fail(c, op->code, "%s", op->text ? op->text : code_text(op->code));
        else if (rc == STREAMER_ETIMEOUT)
                fail(c, rc, "the load goes on");
        if (progress)
                copy_progress(op, progress);
        pthread_mutex_unlock(&c->lock);
        return rc;
}

const char *streamer_op_model(const streamer_op *op)
{
        return op->model;
}

size_t streamer_op_failure_count(const streamer_op *op)
{
        struct streamer_client *c = op->client;
        pthread_mutex_lock(&c->lock);
        size_t n = op->n_failures;
        pthread_mutex_unlock(&c->lock);
        return n;
}

int streamer_op_failure_get(const streamer_op *op, size_t i, streamer_device_failure *failure)
{
        if (i >= streamer_op_failure_count(op))
                return STREAMER_ENOENT;
        *failure = op->failures[i];
        return 0;
}

static void unlink_op(struct streamer_op *op)
{
        struct streamer_client *c = op->client;
        pthread_mutex_lock(&c->lock);
        struct streamer_op **at = &c->ops;
        while (*at && *at != op)
                at = &(*at)->next;
        if (*at)
                *at = op->next;
        pthread_mutex_unlock(&c->lock);
}

void streamer_op_free(streamer_op *op)
{
        if (!op)
                return;
        if (!channel_forked(op->client))
                unlink_op(op);
        channel_unref(op->client);
        free(op->model);
        for (size_t i = 0; i < op->n_failures; i++) {
                free((void *)(uintptr_t)op->failures[i].device);
                free((void *)(uintptr_t)op->failures[i].text);
        }
        free(op->failures);
        free(op->text);
        free(op);
}
