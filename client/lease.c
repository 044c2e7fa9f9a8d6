/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a lease: linked when the attach is answered, updated by events, taken out and unmapped when the
 * handle and the last DLPack capsule are released. Only then is the detach sent, since the daemon may use the
 * memory again at once. Until the daemon has confirmed it, the client keeps what it needs to claim the lease
 * after a reconnection and to detach it again.
 */
#include "client/lease.h"

#include "client/args.h"
#include "client/util.h"
#include "proto/require.h"

#include <sys/mman.h>

int lease_check(const struct streamer_lease *lease)
{
        int rc = channel_check(lease->client);
        if (rc == 0 && atomic_load(&lease->gone))
                rc = fail(lease->client, STREAMER_ELOST, "the memory was the daemon's, which has exited");
        return rc;
}

#define MAY(state) (1u << HOLD_##state)
static const unsigned holds[] = {
        [HOLD_NONE] = MAY(HELD) | MAY(ENDED),
        [HOLD_HELD] = MAY(REVOKED) | MAY(LOST) | MAY(ENDED),
        [HOLD_REVOKED] = MAY(LOST) | MAY(ENDED),
        [HOLD_LOST] = MAY(ENDED),
};
#undef MAY

static void change_hold(struct streamer_lease *lease, enum lease_hold to)
{
        change_state(lease->hold, to, holds);
}

void lease_link(struct streamer_lease *lease, uint64_t id)
{
        change_hold(lease, HOLD_HELD);
        list_add(lease->client->leases, lease);
        table_add(&lease->client->lease_ids, &lease->by_id, id);
}

void lease_set_id(struct streamer_lease *lease, uint64_t id)
{
        require(lease->hold == HOLD_HELD || lease->hold == HOLD_REVOKED);
        table_remove(&lease->client->lease_ids, &lease->by_id);
        table_add(&lease->client->lease_ids, &lease->by_id, id);
}

static void update_code(struct streamer_lease *lease, const msgpack_object *o)
{
        const char *s;
        size_t len;
        lease->code = object_str(o, "code", &s, &len) ? code_from_wire(s, len) : STREAMER_EFAILED;
        free(lease->text);
        lease->text = object_str(o, "text", &s, &len) ? strndup(s, len) : NULL;
}

void lease_update(struct streamer_lease *lease, const msgpack_object *o)
{
        const char *digest;
        size_t len;
        require(lease->hold == HOLD_HELD || lease->hold == HOLD_REVOKED);
        /* Once: the application may read it without the lock (streamer_digest). */
        if (lease->key.digest[0] == 0 && object_str(o, "digest", &digest, &len) && len == sizeof(lease->key.digest) - 1)
                memcpy(lease->key.digest, digest, len);
        if (object_str_eq(o, "state", "revoked")) {
                if (lease->hold == HOLD_HELD)
                        change_hold(lease, HOLD_REVOKED);
                update_code(lease, o);
                readiness_add(lease->client, &lease->change_note);
        } else if (object_str_eq(o, "state", "failed")) {
                lease->state = LEASE_FAILED;
                update_code(lease, o);
        } else if (object_str_eq(o, "state", "ready") || object_str_eq(o, "state", "draining")) {
                lease->state = LEASE_READY; /* one that drains has every tensor */
        }
}

/* A state of a later version leaves the lease as it is; more tensors, or another state, are worth a look. */
static void take_event(struct streamer_lease *lease, const msgpack_object *event)
{
        enum lease_state before = lease->state;
        lease_update(lease, event);
        if (lease->state != before || !lease->arrival.header || lease_has_arrivals(lease))
                readiness_add(lease->client, &lease->arrival_note);
}

void lease_event(struct streamer_client *c, const msgpack_object *event)
{
        uint64_t id;
        if (!object_u64(event, "lease", &id))
                return;
        struct streamer_lease *lease = table_item(table_find(&c->lease_ids, id), struct streamer_lease, by_id);
        if (lease)
                take_event(lease, event);
}

/* Lock held. What is mapped of it. */
static void lose_segment(struct streamer_lease *lease, struct mapping *mapping)
{
        if (!mapping->kind->outlives_daemon)
                atomic_store(&lease->gone, true);
        if (mapping->kind->forget)
                mapping->kind->forget(mapping);
}

int lease_reserve(struct streamer_lease *lease, size_t n_segments)
{
        require(!lease->segments && n_segments <= MANIFEST_MAX_SEGMENTS);
        if (n_segments > 0 && !(lease->segments = calloc(n_segments, sizeof(*lease->segments))))
                return fail(lease->client, STREAMER_ENOMEM, "no memory for a lease");
        lease->max_segments = n_segments;
        return 0;
}

void lease_add_segment(struct streamer_lease *lease)
{
        lock_scope(&lease->client->lock);
        require(lease_is_linked(lease) && lease->n_segments < lease->max_segments);
        struct mapping *mapping = &lease->segments[lease->n_segments++];
        if (lease->hold == HOLD_LOST)
                lose_segment(lease, mapping);
}

void lease_set_arrival_consume(struct streamer_lease *lease, const struct arrival *arrival)
{
        lock_scope(&lease->client->lock);
        require(lease_is_linked(lease) && !lease->arrival.header && arrival->log && arrival->seen);
        lease->arrival = *arrival;
}

void arrival_deinit(struct arrival *arrival)
{
        if (arrival->header)
                munmap((void *)(uintptr_t)arrival->header, arrival->size);
        free(arrival->seen);
}

void lease_mark_lost(struct streamer_lease *lease)
{
        if (lease->hold == HOLD_LOST)
                return;
        change_hold(lease, HOLD_LOST);
        /* The number may be another's by now: a daemon that was started anew begins again. */
        table_remove(&lease->client->lease_ids, &lease->by_id);
        readiness_add(lease->client, &lease->change_note);
        if (lease->state == LEASE_LOADING) {
                lease->state = LEASE_FAILED;
                lease->code = STREAMER_ELOST;
        }
        for (size_t i = 0; i < lease->n_segments; i++)
                lose_segment(lease, &lease->segments[i]);
}

void lease_revoke(struct streamer_lease *lease)
{
        if (lease->hold == HOLD_REVOKED)
                return;
        change_hold(lease, HOLD_REVOKED);
        lease->code = STREAMER_EREVOKED;
        readiness_add(lease->client, &lease->change_note);
}

int streamer_lease_check(streamer_lease *lease)
{
        int rc = args_lease(lease, "lease_check");
        if (rc != 0)
                return rc;
        struct streamer_client *c = lease->client;
        struct request request = {.verb = VERB_ping};
        rc = channel_request(c, &request, channel_deadline(c));
        if (rc == STREAMER_EUNREACHABLE) /* the daemon may go while it is asked: then the second ping finds it again */
                rc = channel_request(c, &request, channel_deadline(c));
        if (rc != 0)
                return rc;
        lock_scope(&c->lock);
        readiness_drop(c, &lease->change_note);
        if (lease->hold == HOLD_LOST)
                return fail(c, STREAMER_ELOST, "the daemon does not hold this lease any more");
        if (lease->hold == HOLD_REVOKED)
                return fail(c, lease->code, "%s", lease->text ?: code_text(lease->code));
        return 0;
}

/* ---- the end ---- */

struct streamer_lease *lease_ref(struct streamer_lease *lease)
{
        atomic_fetch_add(&lease->refs, 1);
        return lease;
}

/* Lock held: after this no list and no note of the client leads to the lease. Returns what stays for the daemon in its
 * place, in the client's list; NULL: the daemon holds nothing. */
static struct detaching *take_out(struct streamer_lease *lease)
{
        struct streamer_client *c = lease->client;
        struct detaching *d = NULL;
        bool held = lease->hold == HOLD_HELD || lease->hold == HOLD_REVOKED;
        readiness_drop(c, &lease->arrival_note);
        readiness_drop(c, &lease->change_note);
        if (lease_is_linked(lease))
                list_remove(c->leases, lease);
        table_remove(&c->lease_ids, &lease->by_id);
        change_hold(lease, HOLD_ENDED);
        if (held && !c->closed) {
                d = lease->detaching;
                lease->detaching = NULL;
                *d = (struct detaching){.state = DETACH_UNMAPPING, .lease = lease->by_id.key, .key = lease->key};
                list_add(c->detaching, d);
        }
        return d;
}

/* Lock not held. */
static void unmap(struct streamer_lease *lease)
{
        require(lease->hold == HOLD_ENDED || channel_forked(lease->client));
        for (size_t i = 0; i < lease->n_segments; i++)
                lease->segments[i].kind->unmap(&lease->segments[i]);
        lease->n_segments = 0;
        if (lease->manifest_map)
                munmap(lease->manifest_map, lease->manifest_size);
        arrival_deinit(&lease->arrival);
}

/* Lock not held. */
static void lease_free(struct streamer_lease *lease)
{
        unmap(lease);
        free(lease->segments);
        free(lease->detaching);
        free(lease->model);
        free(lease->published);
        free(lease->text);
        free(lease);
}

/* Lock held; its memory is not mapped any more. The daemon may be restarting: then the record stays, and the lease is
 * claimed and detached when the client reconnects. */
static void send_detach(struct streamer_client *c, struct detaching *d)
{
        require(d->state == DETACH_UNMAPPING || d->state == DETACH_LOST);
        if (d->state == DETACH_LOST || c->closed)
                detaching_free(c, d);
        else
                channel_post_detach(c, d);
}

void lease_unref(struct streamer_lease *lease)
{
        if (atomic_fetch_sub(&lease->refs, 1) != 1)
                return;
        struct streamer_client *c = lease->client;
        if (channel_forked(c)) { /* there it is the parent's: only what is mapped here is released */
                unmap(lease);
                channel_unref(c);
                return;
        }
        pthread_mutex_lock(&c->lock);
        struct detaching *d = take_out(lease);
        pthread_mutex_unlock(&c->lock);
        lease_free(lease);
        if (d) {
                lock_scope(&c->lock);
                send_detach(c, d);
        }
        channel_unref(c);
}

void streamer_detach(streamer_lease *lease)
{
        if (lease)
                lease_unref(lease);
}

/* ---- what does not change, and the digest ---- */

const char *streamer_lease_model(const streamer_lease *lease)
{
        return args_lease(lease, "lease_model") == 0 ? lease->model : NULL;
}

uint64_t streamer_generation(const streamer_lease *lease)
{
        return args_lease(lease, "generation") == 0 ? lease->key.generation : 0;
}

int streamer_lease_writable(const streamer_lease *lease)
{
        if (args_lease(lease, "lease_writable") != 0)
                return 0;
        for (size_t i = 0; i < lease->n_segments; i++)
                if (lease->segments[i].writable)
                        return 1;
        return 0;
}

static bool settled(const void *arg)
{
        return ((const struct streamer_lease *)arg)->state != LEASE_LOADING;
}

const char *streamer_digest(streamer_lease *lease)
{
        if (args_lease(lease, "digest") != 0)
                return "";
        struct streamer_client *c = lease->client;
        lock_scope(&c->lock);
        channel_wait(c, settled, lease, 0); /* the event may not have been read yet */
        return lease->state == LEASE_READY ? lease->key.digest : "";
}

size_t streamer_segment_count(const streamer_lease *lease)
{
        return args_lease(lease, "segment_count") == 0 ? lease->n_segments : 0;
}

int streamer_segment_get(const streamer_lease *lease, size_t i, streamer_segment *segment)
{
        int rc = args_lease(lease, "segment_get") ?: args_out(lease->client, "segment_get", "segment", segment);
        if (rc != 0)
                return rc;
        if (i >= lease->n_segments)
                return fail(lease->client, STREAMER_ENOENT, "the lease has no segment %zu", i);
        streamer_segment s = {.data = lease->segments[i].data,
                              .size = lease->segments[i].size,
                              .device_kind = lease->device_kind,
                              .device_index = lease->device_index};
        args_fill(segment, &s, sizeof(s));
        return 0;
}

/* ---- the checkpoint's metadata ---- */

const char *streamer_metadata(const streamer_lease *lease, const char *key)
{
        if (args_lease(lease, "metadata") != 0 || args_pointer(lease->client, "metadata", "key", key) != 0)
                return NULL;
        return manifest_metadata(&lease->manifest, key);
}

size_t streamer_metadata_count(const streamer_lease *lease)
{
        return args_lease(lease, "metadata_count") == 0 ? lease->manifest.header->n_metadata : 0;
}

int streamer_has_metadata(const streamer_lease *lease)
{
        return args_lease(lease, "has_metadata") == 0 && manifest_has_metadata(&lease->manifest);
}

int streamer_metadata_get(const streamer_lease *lease, size_t i, const char **key, const char **value)
{
        const char *k, *v;
        int rc = args_lease(lease, "metadata_get")
                         ?: args_pointer(lease->client, "metadata_get", "key", key)
                         ?: args_pointer(lease->client, "metadata_get", "value", value);
        if (rc != 0)
                return rc;
        if (i >= lease->manifest.header->n_metadata)
                return fail(lease->client, STREAMER_ENOENT, "there is no pair of metadata %zu", i);
        if (!manifest_pair_get(&lease->manifest, i, &k, &v))
                return fail(lease->client, STREAMER_ECORRUPT, "metadata %zu: a text is out of bounds", i);
        *key = k;
        *value = v;
        return 0;
}
