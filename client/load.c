/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_load(): the request, and the operation that the daemon's reply names.
 */
#include "client/args.h"
#include "client/op.h"
#include "client/source.h"
#include "client/util.h"

#define LOAD_FLAGS (STREAMER_LOAD_DETACH | STREAMER_LOAD_WAIT | STREAMER_LOAD_NO_EVICT | STREAMER_LOAD_PIN)

int load_options(const streamer_client *c, const char *call, const char *name, streamer_load_opts *to,
                 const streamer_load_opts *from)
{
        int rc = args_options(c, call, name, to, sizeof(*to), from) ?: args_flags(c, call, to->flags, LOAD_FLAGS);
        if (rc == 0 && to->n_devices > 0)
                rc = args_pointer(c, call, "devices", to->devices);
        for (size_t i = 0; rc == 0 && i < to->n_devices; i++)
                rc = args_text(c, call, "devices[i]", to->devices[i]);
        return rc;
}

void op_load_request(struct request *request, const streamer_load_opts *o, const char *source)
{
        *request = (struct request){.verb = VERB_load,
                                    .u.load = {.source = source,
                                               .name = o->name,
                                               .named_after = o->named_after,
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
                                               .watch = !(o->flags & STREAMER_LOAD_DETACH)}};
}

/* Lock held, while the reply is dispatched: the first event may follow it at once. */
static void accept_op(struct call *call, const msgpack_object *reply)
{
        struct streamer_op *op = call->arg;
        const char *name;
        size_t len;
        if (!object_u64(reply, "op", &op->id) || !object_str(reply, "name", &name, &len))
                return;
        op->model = strndup(name, len);
        if (op->model) /* an event would name it: the load would succeed, after a failure */
                op_link(op);
}

static int start(struct streamer_op *op, const streamer_load_opts *o)
{
        struct call call = {.accept = accept_op, .arg = op};
        struct request request;
        op_load_request(&request, o, op->source);
        op->watched = request.u.load.watch;
        int rc = channel_call(op->client, &request, &call, channel_deadline(op->client));
        if (rc != 0)
                return rc;
        bool no_memory = op->id != 0 && !op->model && object_get(&call.reply.unpacked.data, "name");
        call_deinit(&call);
        if (no_memory)
                return fail(op->client, STREAMER_ENOMEM, "no memory for an operation");
        return op->model ? 0 : fail(op->client, STREAMER_EPROTO, "load: the daemon's reply has no operation");
}

int streamer_load(streamer_client *client, const streamer_load_opts *opts, streamer_op **op)
{
        streamer_load_opts o = {0};
        cleanup_free char *source = NULL;
        int rc = args_client(client, "load")
                         ?: args_pointer(client, "load", "opts", opts)
                         ?: load_options(client, "load", "opts", &o, opts)
                         ?: args_text(client, "load", "source", o.source)
                         ?: args_pointer(client, "load", "op", op)
                         ?: source_resolve(o.source, &source, client->fault);
        struct streamer_op *made = rc == 0 ? op_new(client) : NULL;
        if (!made)
                return rc != 0 ? rc : STREAMER_ENOMEM;
        made->source = source;
        source = NULL;
        rc = start(made, &o);
        if (rc != 0) {
                streamer_op_free(made);
                return rc;
        }
        *op = made;
        return 0;
}
