/* SPDX-License-Identifier: Apache-2.0
 *
 * What an operation knows of its load: the daemon accepts at once and reports the rest by events, if it is asked
 * to. Freeing an operation, or losing the connection, ends no load.
 */
#include "client/op.h"

#include "client/args.h"
#include "client/lease.h"
#include "client/missing.h"
#include "client/source.h"
#include "client/util.h"
#include "proto/require.h"

#include <stdio.h>

static const char *const states[] = {"resolving", "queued", "loading", "ready", "failed", "cancelled", NULL};

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
                *f = (streamer_device_failure){
                        .device = copy_str(o, "device"), .text = copy_str(o, "text"), .err = STREAMER_EFAILED};
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

static void take_evictions(struct streamer_op *op, const msgpack_object *list)
{
        if (!list || list->type != MSGPACK_OBJECT_ARRAY)
                return;
        op->evictions = calloc(list->via.array.size, sizeof(*op->evictions));
        for (uint32_t i = 0; op->evictions && i < list->via.array.size; i++) {
                const msgpack_object *o = &list->via.array.ptr[i];
                streamer_eviction *e = &op->evictions[op->n_evictions];
                *e = (streamer_eviction){.model = copy_str(o, "name"), .device = copy_str(o, "device")};
                object_u64(o, "generation", &e->generation);
                object_u64(o, "bytes", &e->bytes);
                if (e->model && e->device) {
                        op->n_evictions++;
                        continue;
                }
                free((void *)(uintptr_t)e->model);
                free((void *)(uintptr_t)e->device);
        }
}

#define MAY(state) (1u << OP_##state)
static const unsigned op_states[] = {
        [OP_NEW] = MAY(LINKED) | MAY(OUT),
        [OP_LINKED] = MAY(ENDED) | MAY(OUT),
        [OP_ENDED] = MAY(OUT),
};
#undef MAY

void op_end(struct streamer_op *op, int code, const char *text, size_t len)
{
        change_state(op->state, OP_ENDED, op_states);
        op->code = code;
        op->text = len > 0 ? strndup(text, len) : NULL;
        readiness_add(op->client, &op->end_note);
}

/* Ready, on all devices or on some. */
static void end_ready(struct streamer_op *op)
{
        const streamer_device_failure *f = &op->failures[0];
        cleanup_free char *text = NULL;
        int len = op->n_failures > 0 ? asprintf(&text, "%s: %s", f->device, f->text) : 0;
        op_end(op, op->n_failures > 0 ? STREAMER_EFAILED : 0, text, len > 0 ? (size_t)len : 0);
}

static void end(struct streamer_op *op, const msgpack_object *event, const char *state)
{
        const char *code, *text = "";
        size_t code_len, text_len = 0;
        take_failures(op, object_get(event, "failed"));
        take_evictions(op, object_get(event, "evicted"));
        if (strcmp(state, "ready") == 0) {
                end_ready(op);
                return;
        }
        int rc = strcmp(state, "cancelled") == 0 ? STREAMER_ECANCELED : STREAMER_EFAILED;
        if (object_str(event, "code", &code, &code_len))
                rc = code_from_wire(code, code_len);
        object_str(event, "text", &text, &text_len);
        op_end(op, rc, text, text_len);
}

static void update(struct streamer_op *op, const msgpack_object *event)
{
        streamer_progress *p = &op->progress;
        const char *state = object_state(event, states);
        require(op->state == OP_LINKED);
        if (!state)
                return;
        object_u64(event, "bytes", &p->bytes);
        object_u64(event, "total", &p->total);
        object_u64(event, "tensors", &p->tensors);
        object_u64(event, "tensors_total", &p->tensors_total);
        object_u64(event, "load_ns", &p->load_ns);
        object_u64(event, "generation", &p->generation);
        object_u64(event, "restarts", &p->restarts);
        bool resident = false;
        p->resident = object_bool(event, "resident", &resident) && resident;
        p->state = state;
        if (strcmp(state, "ready") == 0 || strcmp(state, "failed") == 0 || strcmp(state, "cancelled") == 0)
                end(op, event, state);
}

/* Numbers are of one connection: a daemon that restarted may use them again. The events of an open also bear the
 * number of its request, and begin before its reply. */
static bool is_of(const struct streamer_op *op, const msgpack_object *event)
{
        uint64_t id, request;
        if (op->epoch != op->client->epoch || op->state != OP_LINKED)
                return false;
        if (op->opening)
                return object_u64(event, "request", &request) && request == op->opening->call.id;
        return object_u64(event, "op", &id) && id == op->id;
}

/* Of this number: an opening's is that of its request. */
static void update_all(struct streamer_client *c, const msgpack_object *event, uint64_t number, bool openings)
{
        struct table_node *next;
        for (struct table_node *node = table_find(&c->ops, number); node; node = next) {
                struct streamer_op *op = table_item(node, struct streamer_op, by_id);
                next = table_next(node);
                if ((op->opening != NULL) != openings || !is_of(op, event))
                        continue;
                if (!op->model)
                        op->model = copy_str(event, "name");
                update(op, event);
        }
}

void op_event(struct streamer_client *c, const msgpack_object *event)
{
        uint64_t number;
        if (object_u64(event, "op", &number))
                update_all(c, event, number, false);
        if (object_u64(event, "request", &number))
                update_all(c, event, number, true);
}

/* ---- life ---- */

struct streamer_op *op_new(struct streamer_client *c)
{
        struct streamer_op *op = calloc(1, sizeof(*op));
        if (!op) {
                fail(c, STREAMER_ENOMEM, "no memory for an operation");
                return NULL;
        }
        op->client = channel_ref(c);
        op->progress.state = states[0];
        return op;
}

void op_link(struct streamer_op *op)
{
        change_state(op->state, OP_LINKED, op_states);
        op->epoch = op->client->epoch;
        table_add(&op->client->ops, &op->by_id, op->opening ? op->opening->call.id : op->id);
}

/* Lock held: after this no list, no note and no reply leads to it. */
static void take_out(struct streamer_op *op)
{
        struct streamer_client *c = op->client;
        table_remove(&c->ops, &op->by_id);
        readiness_drop(c, &op->end_note);
        if (op->opening) {
                channel_end(c, &op->opening->call);
                readiness_drop(c, &op->opening->note);
        }
        change_state(op->state, OP_OUT, op_states);
}

/* A lease that was not returned is detached. */
static void opening_free(struct opening *o)
{
        if (o->state >= OPENING_REPLIED)
                call_deinit(&o->call);
        if (o->lease)
                lease_unref(o->lease);
        free(o);
}

/* Lock not held. */
static void op_free(struct streamer_op *op)
{
        require(op->state == OP_OUT);
        if (op->opening)
                opening_free(op->opening);
        free(op->source);
        free(op->model);
        for (size_t i = 0; i < op->n_failures; i++) {
                free((void *)(uintptr_t)op->failures[i].device);
                free((void *)(uintptr_t)op->failures[i].text);
        }
        free(op->failures);
        for (size_t i = 0; i < op->n_evictions; i++) {
                free((void *)(uintptr_t)op->evictions[i].model);
                free((void *)(uintptr_t)op->evictions[i].device);
        }
        free(op->evictions);
        free(op->text);
        free(op);
}

void streamer_op_free(streamer_op *op)
{
        if (!op)
                return;
        struct streamer_client *c = op->client;
        if (!channel_forked(c)) { /* there it is the parent's, and left */
                pthread_mutex_lock(&c->lock);
                take_out(op);
                pthread_mutex_unlock(&c->lock);
                op_free(op);
        }
        channel_unref(c);
}

/* ---- the calls ---- */

static int check_op(const streamer_op *op, const char *call)
{
        return args_pointer(NULL, call, "op", op) ?: channel_check(op->client);
}

static bool op_ended(const void *arg)
{
        return ((const struct streamer_op *)arg)->state == OP_ENDED;
}

/* Lock held. If the connection that brought its events was lost, the load itself may go on. */
static int wait_ended(struct streamer_op *op, int64_t deadline)
{
        struct streamer_client *c = op->client;
        int rc =
                op->epoch == c->epoch || op_ended(op) ? channel_wait(c, op_ended, op, deadline) : STREAMER_EUNREACHABLE;
        if (rc == STREAMER_EUNREACHABLE && !c->closed)
                rc = fail(c, STREAMER_ELOST, "the connection was lost, and the load is no longer watched");
        return rc;
}

static void fill_progress(const struct streamer_op *op, streamer_progress *to)
{
        streamer_progress p = op->progress;
        p.name = op->model;
        args_fill(to, &p, sizeof(p));
}

int op_failure(const struct streamer_op *op)
{
        require(op->state == OP_ENDED && op->code != 0);
        const char *text = op->text ? op->text : code_text(op->code);
        if (op->code != STREAMER_ENOENT)
                return fail(op->client, op->code, "%s", text);
        cleanup_free char *near = op->source ? NULL : missing_model_hint(op->client, op->model, text);
        cleanup_free char *more = source_explain_missing(op->source ? NULL : op->model, op->source);
        return fail(op->client, op->code, "%s%s%s", text, near ? near : "", more ? more : "");
}

int streamer_op_wait(streamer_op *op, int timeout_ms, streamer_progress *progress)
{
        int rc = check_op(op, "op_wait");
        if (rc == 0 && progress)
                rc = args_out(op->client, "op_wait", "progress", progress);
        if (rc != 0)
                return rc;
        struct streamer_client *c = op->client;
        pthread_mutex_lock(&c->lock);
        if (op->watched)
                rc = wait_ended(op, deadline_in_ms(timeout_ms));
        else
                rc = fail(c, STREAMER_EINVAL, "op_wait: a load with STREAMER_LOAD_DETACH is not watched");
        if (rc == STREAMER_ETIMEOUT)
                fail(c, rc, "the load continues");
        if (progress)
                fill_progress(op, progress);
        if (op_ended(op))
                readiness_drop(c, &op->end_note);
        bool failed = rc == 0 && op_has_failed(op);
        pthread_mutex_unlock(&c->lock);
        return failed ? op_failure(op) : rc;
}

const char *streamer_op_model(const streamer_op *op)
{
        if (check_op(op, "op_model") != 0)
                return NULL;
        lock_scope(&op->client->lock);
        return op->model;
}

size_t streamer_op_failure_count(const streamer_op *op)
{
        if (check_op(op, "op_failure_count") != 0)
                return 0;
        lock_scope(&op->client->lock);
        return op->n_failures;
}

int streamer_op_failure_get(const streamer_op *op, size_t i, streamer_device_failure *failure)
{
        int rc = check_op(op, "op_failure_get") ?: args_out(op->client, "op_failure_get", "failure", failure);
        if (rc == 0 && i >= streamer_op_failure_count(op))
                rc = fail(op->client, STREAMER_ENOENT, "the load has no failure %zu", i);
        if (rc == 0)
                args_fill(failure, &op->failures[i], sizeof(*failure));
        return rc;
}

size_t streamer_op_eviction_count(const streamer_op *op)
{
        if (check_op(op, "op_eviction_count") != 0)
                return 0;
        lock_scope(&op->client->lock);
        return op->n_evictions;
}

int streamer_op_eviction_get(const streamer_op *op, size_t i, streamer_eviction *eviction)
{
        int rc = check_op(op, "op_eviction_get") ?: args_out(op->client, "op_eviction_get", "eviction", eviction);
        if (rc == 0 && i >= streamer_op_eviction_count(op))
                rc = fail(op->client, STREAMER_ENOENT, "the load evicted fewer than %zu models", i + 1);
        if (rc == 0)
                args_fill(eviction, &op->evictions[i], sizeof(*eviction));
        return rc;
}
