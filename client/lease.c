/* SPDX-License-Identifier: Apache-2.0
 *
 * The life of a lease: linked when the attach is answered, updated by events, unmapped when the
 * handle and the last DLPack capsule are gone. Only then is the daemon told, since it may use the
 * memory again as soon as it is.
 */
#include "client/lease.h"

#include "client/util.h"

#include <sys/mman.h>

int lease_check(const struct streamer_lease *lease)
{
        int rc = channel_check(lease->client);
        if (rc == 0 && atomic_load(&lease->gone))
                rc = fail(lease->client, STREAMER_ELOST, "the memory was the daemon's, and is gone with it");
        return rc;
}

void lease_link(struct streamer_lease *lease, uint64_t id)
{
        lease->id = id;
        lease->linked = true;
        lease->next = lease->client->leases;
        lease->client->leases = lease;
}

static void unlink_lease(struct streamer_lease *lease)
{
        struct streamer_lease **at = &lease->client->leases;
        while (*at && *at != lease)
                at = &(*at)->next;
        if (*at)
                *at = lease->next;
        lease->linked = false;
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
        if (object_str(o, "digest", &digest, &len) && len == sizeof(lease->digest) - 1)
                memcpy(lease->digest, digest, len);
        if (object_str_eq(o, "state", "revoked")) {
                lease->revoked = true;
                update_code(lease, o);
                return;
        }
        if (object_str_eq(o, "state", "failed")) {
                lease->state = LEASE_FAILED;
                update_code(lease, o);
        } else if (!object_str_eq(o, "state", "loading")) {
                lease->state = LEASE_READY; /* "draining" too: it has every tensor */
        }
}

void lease_event(struct streamer_client *c, const msgpack_object *event)
{
        uint64_t id;
        if (!object_u64(event, "lease", &id))
                return;
        /* The number of one that is lost may be another's by now: a daemon that was started anew begins again. */
        for (struct streamer_lease *lease = c->leases; lease; lease = lease->next)
                if (lease->id == id && !lease->lost)
                        lease_update(lease, event);
}

/* What is mapped of it. */
static void lose_segment(struct streamer_lease *lease, struct mapping *mapping)
{
        if (!mapping->kind->outlives_daemon)
                atomic_store(&lease->gone, true);
        if (mapping->kind->forget)
                mapping->kind->forget(mapping);
}

void lease_add_segment(struct streamer_lease *lease)
{
        pthread_mutex_lock(&lease->client->lock);
        struct mapping *mapping = &lease->segments[lease->n_segments++];
        if (lease->lost)
                lose_segment(lease, mapping);
        pthread_mutex_unlock(&lease->client->lock);
}

void lease_lose(struct streamer_lease *lease)
{
        lease->lost = true;
        if (lease->state == LEASE_LOADING) {
                lease->state = LEASE_FAILED;
                lease->code = STREAMER_ELOST;
        }
        for (size_t i = 0; i < lease->n_segments; i++)
                lose_segment(lease, &lease->segments[i]);
}

void lease_revoke(struct streamer_lease *lease)
{
        if (lease->revoked)
                return;
        lease->revoked = true;
        lease->code = STREAMER_EREVOKED;
}

int streamer_lease_check(streamer_lease *lease)
{
        struct streamer_client *c = lease->client;
        int rc = lease_check(lease);
        for (int attempt = 0; rc == 0 && attempt < 2; attempt++) {
                struct call call = {0};
                struct request request = {.verb = VERB_ping};
                int answer = channel_call(c, &request, &call, channel_deadline(c));
                if (answer == 0)
                        call_deinit(&call);
                /* The daemon may go while it is asked: then the second ping finds it again. */
                if (answer != STREAMER_EUNREACHABLE || attempt > 0)
                        rc = answer;
                if (answer == 0)
                        break;
        }
        if (rc != 0)
                return rc;
        pthread_mutex_lock(&c->lock);
        if (lease->lost)
                rc = fail(c, STREAMER_ELOST, "the daemon does not hold this lease any more");
        else if (lease->revoked)
                rc = fail(c, lease->code, "%s", lease->text ? lease->text : code_text(lease->code));
        pthread_mutex_unlock(&c->lock);
        return rc;
}

/* ---- the end ---- */

struct streamer_lease *lease_ref(struct streamer_lease *lease)
{
        atomic_fetch_add(&lease->refs, 1);
        return lease;
}

/* The lease is still linked, and whoever finds its daemon gone looks at its segments: from here on it has none. In a
 * forked child the lock may be held for ever, and nobody looks. */
static size_t take_segments(struct streamer_lease *lease)
{
        bool forked = channel_forked(lease->client);
        if (!forked)
                pthread_mutex_lock(&lease->client->lock);
        size_t n = lease->n_segments;
        lease->n_segments = 0;
        if (!forked)
                pthread_mutex_unlock(&lease->client->lock);
        return n;
}

static void unmap(struct streamer_lease *lease)
{
        size_t n = take_segments(lease);
        for (size_t i = 0; i < n; i++)
                lease->segments[i].kind->unmap(&lease->segments[i]);
        if (lease->manifest_map)
                munmap(lease->manifest_map, lease->manifest_size);
        if (lease->arrival)
                munmap((void *)(uintptr_t)lease->arrival, lease->arrival_size);
}

static void tell_daemon(struct streamer_lease *lease, bool wait)
{
        struct streamer_client *c = lease->client;
        struct request request = {.verb = VERB_detach, .u.detach = {.lease = lease->id}};
        pthread_mutex_lock(&c->lock);
        /* While it is linked, it is among those that are claimed from a daemon that came back. */
        if (wait && lease->linked)
                channel_ensure(c, false, channel_deadline(c));
        bool linked = lease->linked && !lease->lost;
        unlink_lease(lease);
        if (linked && !wait)
                channel_post(c, &request);
        pthread_mutex_unlock(&c->lock);
        if (linked && wait) {
                struct call call = {.hasty = true};
                if (channel_call(c, &request, &call, channel_deadline(c)) == 0)
                        call_deinit(&call);
        }
}

void lease_unref(struct streamer_lease *lease, bool wait)
{
        if (atomic_fetch_sub(&lease->refs, 1) != 1)
                return;
        unmap(lease);
        /* In a forked child the lease is the parent's, and the lock may be held for ever. */
        if (!channel_forked(lease->client))
                tell_daemon(lease, wait);
        channel_unref(lease->client);
        free(lease->arrived);
        free(lease->text);
        free(lease);
}

void streamer_detach(streamer_lease *lease)
{
        if (lease)
                lease_unref(lease, true);
}

/* ---- what does not change, and the digest ---- */

uint64_t streamer_generation(const streamer_lease *lease)
{
        return lease->generation;
}

static bool settled(const void *arg)
{
        return ((const struct streamer_lease *)arg)->state != LEASE_LOADING;
}

const char *streamer_digest(streamer_lease *lease)
{
        struct streamer_client *c = lease->client;
        if (lease_check(lease) != 0)
                return "";
        pthread_mutex_lock(&c->lock);
        /* Nobody may have read the event yet. */
        channel_wait(c, settled, lease, 0);
        const char *digest = lease->state == LEASE_READY ? lease->digest : "";
        pthread_mutex_unlock(&c->lock);
        return digest;
}

size_t streamer_segment_count(const streamer_lease *lease)
{
        return lease_check(lease) == 0 ? lease->n_segments : 0;
}

int streamer_segment_get(const streamer_lease *lease, size_t i, const void **data, uint64_t *size)
{
        int rc = lease_check(lease);
        if (rc != 0)
                return rc;
        if (i >= lease->n_segments)
                return fail(lease->client, STREAMER_ENOENT, "the lease has no segment %zu", i);
        if (data)
                *data = lease->segments[i].data;
        if (size)
                *size = lease->segments[i].size;
        return 0;
}

const char *streamer_metadata(const streamer_lease *lease, const char *key)
{
        return lease_check(lease) == 0 && key ? manifest_metadata(&lease->manifest, key) : NULL;
}
