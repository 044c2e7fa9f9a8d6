/* SPDX-License-Identifier: Apache-2.0
 *
 * Loading and attaching in one request. For a source it is a load that replies with a lease, on the generation
 * that it produces; for a name it is an attach to what serves or loads it. The request stays open until the model
 * can be attached to; its reply is accepted in whichever thread reads the socket, and the segments are mapped
 * by streamer_op_lease().
 */
#include "client/args.h"
#include "client/lease.h"
#include "client/op.h"
#include "client/source.h"
#include "client/util.h"
#include "proto/require.h"

#include <stdio.h>

struct open_args {
        streamer_open_opts open;
        streamer_load_opts load;
        streamer_attach_opts attach;
};

static int check_args(const streamer_client *c, const char *call, const char *source_or_name, struct open_args *to,
                      const streamer_open_opts *from)
{
        int rc = args_client(c, call)
                         ?: args_text(c, call, "source_or_name", source_or_name)
                         ?: args_options(c, call, "opts", &to->open, sizeof(to->open), from)
                         ?: load_options(c, call, "opts->load", &to->load, to->open.load)
                         ?: attach_options(c, call, "opts->attach", &to->attach, to->open.attach);
        if (rc == 0 && to->load.source)
                rc = fail(c, STREAMER_EINVAL, "%s: 'opts->load->source' must be NULL", call);
        if (rc == 0 && (to->load.flags & STREAMER_LOAD_DETACH))
                rc = fail(c, STREAMER_EINVAL, "%s: 'opts->load' must not have STREAMER_LOAD_DETACH", call);
        if (rc == 0 && to->attach.digest && strlen(to->attach.digest) != 32)
                rc = fail(c, STREAMER_EINVAL, "%s: 'opts->attach->digest' must have 32 hexadecimal digits", call);
        return rc;
}

/* ---- the request ---- */

/* Lock held, while the reply is dispatched. */
static void accept_lease(struct call *call, const msgpack_object *reply)
{
        struct streamer_op *op = call->arg;
        struct call accepted = {.arg = op->opening->lease};
        lease_accept(&accepted, reply);
}

/* Lock held. Of a name, the reply is all that is reported; of a source, events report the load. */
static void finish_open(struct call *call)
{
        struct streamer_op *op = call->arg;
        const msgpack_object *reply = &call->reply.unpacked.data;
        const char *code = "", *text = "";
        size_t code_len = 0, text_len = 0;
        bool ok = false, ended = op->state == OP_ENDED;
        require(op->opening->state == OPENING_REQUESTED);
        op->opening->state = OPENING_REPLIED;
        readiness_add(op->client, &op->opening->note);
        if (call->code != 0) {
                if (!ended)
                        op_end(op, call->code, CALL_LOST_FDS, strlen(CALL_LOST_FDS));
                return;
        }
        object_u64(reply, "generation", &op->progress.generation);
        object_bool(reply, "ok", &ok);
        if (ended || (ok && !op->opening->by_name))
                return;
        object_str(reply, "code", &code, &code_len);
        object_str(reply, "text", &text, &text_len);
        op->progress.state = ok ? "ready" : "failed";
        op_end(op, ok ? 0 : code_from_wire(code, code_len), text, text_len);
}

static void set_request(struct request *request, const struct open_args *args, const char *source, const char *name)
{
        if (source) {
                op_load_request(request, &args->load, source);
                request->u.load.attach = true;
                request->u.load.device = args->attach.device;
        } else {
                *request = (struct request){.verb = VERB_attach,
                                            .u.attach = {.model = name,
                                                         .device = args->attach.device,
                                                         .generation = args->attach.generation}};
        }
}

static bool is_accepted(const void *arg)
{
        const struct streamer_op *op = arg;
        return op->model || op->opening->state == OPENING_REPLIED;
}

/* A load is accepted with its first event; the error of one that is not is the reply. */
static int start(struct streamer_op *op, struct request *request)
{
        struct streamer_client *c = op->client;
        struct call *call = &op->opening->call;
        int64_t deadline = channel_deadline(c);
        pthread_mutex_lock(&c->lock);
        int rc = channel_begin(c, request, call, deadline);
        if (rc == 0) {
                op->opening->state = OPENING_REQUESTED;
                op_link(op);
                rc = channel_wait(c, is_accepted, op, deadline);
        }
        if (rc == STREAMER_ETIMEOUT)
                channel_timed_out(c);
        bool failed = rc == 0 && op_has_failed(op);
        pthread_mutex_unlock(&c->lock);
        return failed ? op_failure(op) : rc;
}

static struct streamer_op *opening_new(struct streamer_client *c, const struct open_args *args, const char *name)
{
        struct streamer_op *op = op_new(c);
        if (!op)
                return NULL;
        op->watched = true;
        op->opening = calloc(1, sizeof(*op->opening));
        op->model = name ? strdup(name) : NULL;
        if (op->opening)
                op->opening->lease = lease_new(c, args->attach.flags);
        if (!op->opening || !op->opening->lease || (name && !op->model)) {
                fail(c, STREAMER_ENOMEM, "no memory for an operation");
                streamer_op_free(op);
                return NULL;
        }
        struct opening *o = op->opening;
        o->call = (struct call){.accept = accept_lease, .finish = finish_open, .arg = op};
        o->by_name = name != NULL;
        o->ready = (args->attach.flags & STREAMER_ATTACH_READY) != 0 || args->attach.digest;
        if (args->attach.digest)
                memcpy(o->digest, args->attach.digest, sizeof(o->digest) - 1);
        return op;
}

/* A URL, a path, or an identifier in the Hugging Face cache; else *source is NULL. */
static int find_source(const streamer_client *c, const char *source_or_name, char **source)
{
        if (source_is_name(source_or_name))
                return 0;
        return source_resolve(source_or_name, source, c->fault);
}

static int begin(streamer_client *c, const char *call, const char *source_or_name, const struct open_args *args,
                 streamer_op **op)
{
        cleanup_free char *source = NULL;
        struct request request;
        int rc = find_source(c, source_or_name, &source);
        if (rc != 0)
                return rc;
        if (source && args->attach.generation != 0)
                return fail(c, STREAMER_EINVAL, "%s: a generation can be required of a name only", call);
        struct streamer_op *made = opening_new(c, args, source ? NULL : source_or_name);
        if (!made)
                return STREAMER_ENOMEM;
        set_request(&request, args, source, source_or_name);
        made->source = source;
        source = NULL;
        rc = start(made, &request);
        if (rc != 0) {
                streamer_op_free(made);
                return rc;
        }
        *op = made;
        return 0;
}

int streamer_open_start(streamer_client *client, const char *source_or_name, const streamer_open_opts *opts,
                        streamer_op **op)
{
        struct open_args args = {0};
        return check_args(client, "open_start", source_or_name, &args, opts)
                         ?: args_pointer(client, "open_start", "op", op)
                         ?: begin(client, "open_start", source_or_name, &args, op);
}

/* ---- the lease ---- */

static bool can_return(const void *arg)
{
        const struct opening *o = ((const struct streamer_op *)arg)->opening;
        if (o->state != OPENING_REPLIED)
                return o->state == OPENING_RETURNED;
        return !lease_is_linked(o->lease) || !o->ready || o->lease->state != LEASE_LOADING;
}

/* Lock held. Events of a lease go on over a reconnection, the request does not. */
static int wait_lease(struct streamer_op *op, int64_t deadline)
{
        struct streamer_client *c = op->client;
        struct opening *o = op->opening;
        int rc = STREAMER_EUNREACHABLE;
        if (o->state != OPENING_REQUESTED || op->epoch == c->epoch)
                rc = channel_wait(c, can_return, op, deadline);
        if (rc == STREAMER_EUNREACHABLE && !c->closed)
                rc = fail(c, STREAMER_ELOST, "the connection was lost before there was a lease");
        if (rc == STREAMER_ETIMEOUT)
                fail(c, rc, "the model cannot be attached to yet");
        return rc;
}

/* Lock held: the reply has no lease. */
static bool is_refused(const struct opening *o)
{
        return o->state == OPENING_REPLIED && !lease_is_linked(o->lease);
}

/* Lock not held: why there is no lease. A load that failed says more than its reply; one that was ready may have been
 * unloaded since. */
static int refusal(const struct streamer_op *op, bool failed)
{
        const struct streamer_client *c = op->client;
        return failed ? op_failure(op)
                      : call_outcome(c, &op->opening->call)
                                ?: fail(c, STREAMER_EPROTO, "attach: the daemon's reply has no valid lease");
}

/* Lock held: moves the lease to the caller, who alone maps it. */
static int take_lease(struct streamer_op *op, struct streamer_lease **lease)
{
        struct streamer_client *c = op->client;
        struct opening *o = op->opening;
        if (o->state == OPENING_RETURNED)
                return fail(c, STREAMER_EINVAL, "op_lease: the lease was returned before");
        require(o->state == OPENING_REPLIED && lease_is_linked(o->lease));
        *lease = o->lease;
        o->lease = NULL;
        o->state = OPENING_RETURNED;
        return 0;
}

static int check_ready(const struct opening *o, const struct streamer_lease *lease)
{
        if (o->ready && lease->state == LEASE_FAILED)
                return fail(lease->client, lease->code, "%s", lease->text ? lease->text : code_text(lease->code));
        if (o->digest[0] && strcasecmp(o->digest, lease->key.digest) != 0)
                return fail(lease->client, STREAMER_EDIGEST, "the model's digest is %s", lease->key.digest);
        return 0;
}

int streamer_op_lease(streamer_op *op, int timeout_ms, streamer_lease **lease)
{
        struct streamer_lease *taken = NULL;
        bool refused = false, failed = false;
        int rc = args_pointer(NULL, "op_lease", "op", op)
                         ?: channel_check(op->client)
                         ?: args_pointer(op->client, "op_lease", "lease", lease);
        if (rc == 0 && !op->opening)
                rc = fail(op->client, STREAMER_EINVAL, "op_lease: 'op' is of streamer_load(), not of an open");
        if (rc != 0)
                return rc;
        pthread_mutex_lock(&op->client->lock);
        rc = wait_lease(op, deadline_in_ms(timeout_ms));
        if (rc == 0) {
                readiness_drop(op->client, &op->opening->note);
                refused = is_refused(op->opening);
                failed = op_has_failed(op);
        }
        if (rc == 0 && !refused)
                rc = take_lease(op, &taken) ?: check_ready(op->opening, taken);
        pthread_mutex_unlock(&op->client->lock);
        if (refused)
                return refusal(op, failed);
        if (rc == 0)
                rc = lease_map(taken, &op->opening->call);
        if (taken)
                call_deinit(&op->opening->call); /* the operation may live on, without descriptors */
        if (rc == 0)
                *lease = taken;
        else if (taken)
                lease_unref(taken);
        return rc;
}

int streamer_open(streamer_client *client, const char *source_or_name, const streamer_open_opts *opts,
                  streamer_lease **lease)
{
        struct open_args args = {0};
        streamer_op *op;
        int rc =
                check_args(client, "open", source_or_name, &args, opts) ?: args_pointer(client, "open", "lease", lease);
        if (rc != 0)
                return rc;
        int timeout_ms = args.open.timeout_ms == 0 ? -1 : args.open.timeout_ms;
        int64_t deadline = deadline_in_ms(timeout_ms);
        rc = begin(client, "open", source_or_name, &args, &op);
        if (rc == 0) {
                rc = streamer_op_lease(op, ms_until(deadline), lease);
                streamer_op_free(op);
        }
        return rc;
}
