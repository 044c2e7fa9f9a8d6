/* SPDX-License-Identifier: Apache-2.0
 *
 * Passes each message on. A reply belongs to the call with its id; if that call has ended it is dropped, the
 * descriptors in it are closed and the lease in it is detached. An event belongs to its operation or lease;
 * other events are queued for streamer_event_next() once the client has subscribed, up to a limit.
 */
#include "client/channel.h"

#include "client/json_text.h"
#include "client/lease.h"
#include "client/op.h"
#include "client/util.h"
#include "proto/codes.h"
#include "proto/require.h"

#include <stdio.h>
#include <unistd.h>

/* ---- descriptors ---- */

static void count_fd(const msgpack_object *holder, uint64_t *n)
{
        uint64_t fd;
        if (object_u64(holder, "fd", &fd) && fd >= *n)
                *n = fd < UINT64_MAX ? fd + 1 : fd;
}

/* How many descriptors a reply refers to, in a map or in the list of segments: they are numbered from 0 within
 * their frame. */
static uint64_t fds_of(const msgpack_object *reply)
{
        uint64_t n = 0;
        const msgpack_object *segments = object_get(reply, "segments");
        for (uint32_t i = 0; i < reply->via.map.size; i++)
                count_fd(&reply->via.map.ptr[i].val, &n);
        if (segments && segments->type == MSGPACK_OBJECT_ARRAY)
                for (uint32_t i = 0; i < segments->via.array.size; i++)
                        count_fd(&segments->via.array.ptr[i], &n);
        return n;
}

/* Moves the first n descriptors that arrived to the call, or closes them where there is none. */
static void claim_fds(struct streamer_client *c, struct call *call, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                if (call)
                        call->fds[call->n_fds++] = c->fds[i];
                else
                        close(c->fds[i]);
        }
        c->n_fds -= n;
        memmove(c->fds, c->fds + n, c->n_fds * sizeof(c->fds[0]));
}

/* ---- replies ---- */

static struct call *call_of(const struct streamer_client *c, uint64_t id)
{
        struct call *call = table_item(table_find(&c->calls, id), struct call, by_id);
        return call && !call->done ? call : NULL;
}

/* A detach is confirmed, or refused: either way the daemon does not hold the lease for this client. */
static bool end_detaching(struct streamer_client *c, uint64_t id)
{
        struct detaching *found = table_item(table_find(&c->detach_ids, id), struct detaching, by_request);
        if (!found)
                return false;
        require(found->state == DETACH_SENT);
        detaching_free(c, found);
        return true;
}

void channel_give_back(struct streamer_client *c, const msgpack_object *reply)
{
        struct request detach = {.verb = VERB_detach}, abort = {.verb = VERB_publish_abort};
        if (object_u64(reply, "claim", &abort.u.publish_abort.claim))
                channel_post(c, &abort);
        if (object_u64(reply, "lease", &detach.u.detach.lease))
                channel_post(c, &detach);
}

/* An error with id 0 answers no request: it concerns the connection, and ends it. A connection over a limit fails with
 * that error; after any other the client may reconnect. */
static bool refuses_connection(const msgpack_object *reply, uint64_t id)
{
        return id == 0 && object_str_eq(reply, "code", code_wire(STREAMER_ELIMIT));
}

static void take_refusal(struct streamer_client *c, const msgpack_object *reply)
{
        const char *text = "";
        size_t text_len = 0;
        char copy[512];
        object_str(reply, "text", &text, &text_len);
        snprintf(copy, sizeof(copy), "%.*s", (int)text_len, text);
        channel_fail(c, STREAMER_ELIMIT, copy);
}

/* The lease in it is given back; the connection is as good as before. */
static void lose_reply(struct streamer_client *c, struct call *call, struct message *message)
{
        claim_fds(c, NULL, c->n_fds);
        channel_give_back(c, &message->unpacked.data);
        if (!call) {
                message_deinit(message);
                return;
        }
        call->code = STREAMER_EOS;
        call->reply = *message;
        call->done = true;
        if (call->finish)
                call->finish(call);
}

static void take_reply(struct streamer_client *c, struct message *message, uint64_t id)
{
        const msgpack_object *reply = &message->unpacked.data;
        struct call *call = call_of(c, id);
        uint64_t n = fds_of(reply);
        if (call == NULL && refuses_connection(reply, id)) {
                take_refusal(c, reply);
                message_deinit(message);
                return;
        }
        if (n > c->n_fds && c->fds_lost) {
                lose_reply(c, call, message);
                return;
        }
        if (n > c->n_fds) {
                channel_fail(c, STREAMER_EPROTO, "the daemon named descriptors that did not come");
                message_deinit(message);
                return;
        }
        claim_fds(c, call, (size_t)n);
        if (!call) {
                if (!end_detaching(c, id))
                        channel_give_back(c, reply);
                message_deinit(message);
                return;
        }
        bool ok;
        if (call->accept && object_bool(reply, "ok", &ok) && ok)
                call->accept(call, reply);
        call->reply = *message;
        call->done = true;
        if (call->finish)
                call->finish(call);
}

/* Of a message: the value of this key in its map. */
static bool find_value(const void *data, size_t len, const char *key, struct value *v)
{
        struct bytes b = {data, (const unsigned char *)data + len};
        return bytes_next(&b, v) && v->kind == VALUE_MAP && bytes_find(&b, v->number, key) && bytes_next(&b, v);
}

bool channel_take(struct streamer_client *c, const void *data, size_t len)
{
        struct value v;
        if (c->n_takers == 0 || !find_value(data, len, "id", &v) || v.kind != VALUE_U64)
                return false;
        struct call *call = call_of(c, v.number);
        if (!call || !call->take || !find_value(data, len, "ok", &v) || v.kind != VALUE_BOOL || !v.number ||
            !call->take(call, data, len))
                return false;
        if (call->accept)
                call->accept(call, NULL);
        call->taken = call->done = true;
        if (call->finish)
                call->finish(call);
        return true;
}

/* ---- events ---- */

static void queue_event(struct streamer_client *c, struct message *message)
{
        struct event *e = NULL;
        /* After a loss nothing is queued until the reader has caught up, so that "lost" stands where
         * the gap is. */
        if (c->subscribed && c->events_lost == 0 && c->n_events < EVENTS_MAX)
                e = malloc(sizeof(*e));
        if (!e) {
                c->events_lost += c->subscribed;
                message_deinit(message);
                return;
        }
        *e = (struct event){.message = *message};
        *c->events_end = e;
        c->events_end = &e->next;
        c->n_events++;
}

/* At the most one for each lease, which may be taken while others are claimed. */
static void keep_early(struct streamer_client *c, struct message *message)
{
        struct event *e = malloc(sizeof(*e));
        if (!e) {
                channel_fail(c, STREAMER_EUNREACHABLE, "no memory for an event");
                message_deinit(message);
                return;
        }
        *e = (struct event){.next = c->early, .message = *message};
        c->early = e;
}

static void take_event(struct streamer_client *c, struct message *message)
{
        const msgpack_object *event = &message->unpacked.data;
        if (object_str_eq(event, "event", "op")) {
                op_event(c, event);
                message_deinit(message);
        } else if (object_str_eq(event, "event", "lease") && c->making) {
                keep_early(c, message);
        } else if (object_str_eq(event, "event", "lease")) {
                lease_event(c, event);
                message_deinit(message);
        } else {
                queue_event(c, message);
        }
}

void channel_dispatch(struct streamer_client *c, struct message *message)
{
        uint64_t id;
        const msgpack_object *map = &message->unpacked.data;
        if (object_get(map, "event")) {
                take_event(c, message);
        } else if (object_u64(map, "id", &id)) {
                take_reply(c, message, id);
        } else {
                channel_fail(c, STREAMER_EPROTO, "the daemon sent neither a reply nor an event");
                message_deinit(message);
        }
}
