/* SPDX-License-Identifier: Apache-2.0
 *
 * The next call restores a lost connection:
 *
 *   connect, with retries for a while > hello > subscribe, if the client had > reclaim each lease
 *   > replace the old socket by the new one
 *
 * This uses a separate channel, so that the old connection cannot interfere. Calls in flight have failed, since their
 * outcome is unknown, and operations are lost. A lease that the daemon no longer has is lost, too; a lease of a model
 * that is still loading receives its progress. The descriptor's number stays.
 */
#include "client/channel.h"

#include "client/lease.h"
#include "client/patience.h"
#include "client/util.h"
#include "proto/require.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

/* ---- dialling ---- */

static int dial(const struct streamer_client *c, bool patient, int64_t deadline, struct streamer_client **fresh)
{
        struct patience patience = patience_begin(deadline);
        for (;;) {
                int rc = channel_dial(c->path, patience.end, c->fault, fresh);
                int left_ms = ms_until(patience.end);
                if (rc == 0)
                        (*fresh)->timeout_ms = left_ms == 0 ? 1 : left_ms;
                if (rc == 0 || (rc != STREAMER_EUNREACHABLE && rc != STREAMER_ETIMEOUT && rc != STREAMER_ELIMIT))
                        return rc;
                if (!patient || !patience_pause(&patience))
                        return rc == STREAMER_ELIMIT ? rc : STREAMER_EUNREACHABLE;
        }
}

/* ---- leases ---- */

/* The lease itself may be detached meanwhile. */
struct claim {
        struct table_node by_token; /* in claims->by_token */
        struct lease_key key;
        uint64_t id;
        int code;     /* of the attempt */
        bool revoked; /* taken by force; what is mapped stays */
};

struct claims {
        struct claim *v;
        size_t n;
        struct table by_token; /* by the first digits of their tokens, which are random */
};

static uint64_t digits_of(const struct lease_key *key)
{
        uint64_t digits;
        memcpy(&digits, key->token, sizeof(digits));
        return digits;
}

static void claims_add(struct claims *claims, const struct lease_key *key, bool lost)
{
        struct claim *claim = &claims->v[claims->n++];
        *claim = (struct claim){.key = *key, .code = lost ? STREAMER_ELOST : 0};
        table_add(&claims->by_token, &claim->by_token, digits_of(key));
}

static void claims_deinit(struct claims *claims)
{
        table_deinit(&claims->by_token);
        free(claims->v);
}

/* Lock held. */
static int collect(const struct streamer_client *c, struct claims *claims)
{
        size_t n = 0;
        for (const struct streamer_lease *l = c->leases; l; l = l->next)
                n++;
        for (const struct detaching *d = c->detaching; d; d = d->next)
                n++;
        *claims = (struct claims){.v = calloc(n + 1, sizeof(*claims->v))};
        if (!claims->v)
                return STREAMER_ENOMEM;
        for (const struct streamer_lease *l = c->leases; l; l = l->next)
                claims_add(claims, &l->key, l->hold == HOLD_LOST);
        for (const struct detaching *d = c->detaching; d; d = d->next)
                claims_add(claims, &d->key, d->state == DETACH_LOST);
        return 0;
}

static int reclaim(struct streamer_client *fresh, struct claim *claim)
{
        struct call call = {0};
        struct request request = {.verb = VERB_reclaim,
                                  .u.reclaim = {.token = claim->key.token,
                                                .generation = claim->key.generation,
                                                .digest = claim->key.digest}};
        int rc = channel_call(fresh, &request, &call, channel_deadline(fresh));
        if (rc != 0)
                return rc;
        if (!object_u64(&call.reply.unpacked.data, "lease", &claim->id))
                rc = STREAMER_EPROTO;
        claim->revoked = object_str_eq(&call.reply.unpacked.data, "state", "revoked");
        call_deinit(&call);
        return rc;
}

/* Fails where the connection does; a lease that is refused is only lost. */
static int reclaim_all(struct streamer_client *fresh, struct claims *claims)
{
        for (size_t i = 0; i < claims->n; i++) {
                struct claim *claim = &claims->v[i];
                if (claim->code == 0)
                        claim->code = reclaim(fresh, claim);
                if (claim->code == STREAMER_EUNREACHABLE || claim->code == STREAMER_ETIMEOUT)
                        return claim->code;
        }
        return 0;
}

static const struct claim *find_claim(const struct claims *claims, const struct lease_key *key)
{
        for (struct table_node *node = table_find(&claims->by_token, digits_of(key)); node; node = table_next(node)) {
                const struct claim *claim = table_item(node, struct claim, by_token);
                if (memcmp(claim->key.token, key->token, sizeof(key->token)) == 0)
                        return claim;
        }
        return NULL;
}

/* Lock held: what was detached, also since the leases were collected, and which the daemon still holds. What is still
 * being unmapped has its detach sent by the thread that unmaps it. */
static void detach_again(struct streamer_client *c, const struct claims *claims)
{
        for (struct detaching *d = c->detaching, *next; d; d = next) {
                const struct claim *claim = find_claim(claims, &d->key);
                bool held = claim && claim->code == 0, sent = d->state == DETACH_SENT;
                next = d->next;
                if (!held && sent) {
                        detaching_free(c, d);
                        continue;
                }
                if (!held)
                        d->state = DETACH_LOST;
                else
                        d->lease = claim->id;
                if (held && sent)
                        channel_post_detach(c, d);
        }
}

/* Lock held. One that was attached since cannot be: the connection was dead. */
static void settle(struct streamer_client *c, const struct claims *claims, const struct streamer_client *fresh)
{
        for (struct streamer_lease *l = c->leases; l; l = l->next) {
                const struct claim *claim = find_claim(claims, &l->key);
                if (!claim)
                        continue;
                if (claim->code != 0) {
                        lease_mark_lost(l);
                        continue;
                }
                require(l->hold == HOLD_HELD || l->hold == HOLD_REVOKED);
                lease_set_id(l, claim->id);
                if (claim->revoked)
                        lease_revoke(l);
        }
        for (const struct event *e = fresh->early; e; e = e->next)
                lease_event(c, &e->message.unpacked.data);
        detach_again(c, claims);
}

/* ---- the new connection ---- */

static int subscribe(struct streamer_client *fresh, const char *subject)
{
        struct request request = {.verb = VERB_subscribe, .u.subscribe = {.model = subject}};
        fresh->subscribed = true;
        return channel_request(fresh, &request, channel_deadline(fresh));
}

/* Lock held: no thread reads the old socket. False: no descriptor. */
static bool install(struct streamer_client *c, struct streamer_client *fresh)
{
        if (dup3(fresh->fd, c->fd, O_CLOEXEC) < 0)
                return false;
        for (size_t i = 0; i < c->n_fds; i++)
                close(c->fds[i]);
        memcpy(c->fds, fresh->fds, sizeof(c->fds));
        c->n_fds = fresh->n_fds;
        fresh->n_fds = 0;
        frame_reader_deinit(&c->in);
        c->in = fresh->in;
        frame_reader_init(&fresh->in);
        msgpack_sbuffer_clear(&c->out);
        if (c->last_id < fresh->last_id)
                c->last_id = fresh->last_id;
        channel_end(c, &c->hello);
        struct call hello = c->hello;
        c->hello = fresh->hello;
        fresh->hello = hello;
        free(c->dead_text);
        c->dead_text = NULL;
        c->dead = 0;
        c->epoch++;
        c->events_lost += c->subscribed; /* changes in between were not reported */
        readiness_update(c);
        return true;
}

/* Without the lock; what it needs of the client does not change while it revives. */
static int prepare(const struct streamer_client *c, bool patient, bool subscribed, int64_t deadline,
                   struct claims *claims, struct streamer_client **fresh)
{
        int rc = dial(c, patient, deadline, fresh);
        if (rc != 0)
                return rc;
        (*fresh)->making = true;
        if (subscribed)
                rc = subscribe(*fresh, c->subject);
        return rc ?: reclaim_all(*fresh, claims) ?: (*fresh)->dead;
}

static int revive(struct streamer_client *c, bool patient, int64_t deadline)
{
        struct streamer_client *fresh = NULL;
        struct claims claims = {0};
        while (c->reviving)
                pthread_cond_wait(&c->changed, &c->lock);
        if (!c->dead)
                return 0;
        /* A message was lost for lack of memory, which may be there for the next. */
        bool passing = c->dead == STREAMER_EUNREACHABLE || c->dead == STREAMER_ENOMEM;
        if (c->closed || !passing || !c->path)
                return channel_error(c);
        c->reviving = true;
        shutdown(c->fd, SHUT_RDWR); /* ends the poll() of a thread that has not noticed */
        while (c->pumping)
                pthread_cond_wait(&c->changed, &c->lock);
        bool subscribed = c->subscribed;
        int rc = collect(c, &claims);
        pthread_mutex_unlock(&c->lock);
        if (rc == 0)
                rc = prepare(c, patient, subscribed, deadline, &claims, &fresh);
        pthread_mutex_lock(&c->lock);
        if (rc == 0 && c->closed)
                rc = STREAMER_EUNREACHABLE;
        if (rc == 0 && !install(c, fresh))
                rc = STREAMER_EOS;
        if (rc == 0)
                settle(c, &claims, fresh);
        else
                fail(c, rc, "%s, and cannot be reached again", c->dead_text ? c->dead_text : "the connection was lost");
        c->reviving = false;
        pthread_cond_broadcast(&c->changed);
        claims_deinit(&claims);
        if (fresh)
                channel_unref(fresh);
        return rc;
}

int channel_ensure(struct streamer_client *c, bool patient, int64_t deadline)
{
        if (!c->dead && !c->pumping)
                channel_poll(c);
        return c->dead ? revive(c, patient, deadline) : 0;
}
