/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a lease, read straight from the mapped manifest. Of a ready model everything may be
 * read without a lock. While it loads, the arrival log tells what is there: its new entries are
 * folded into a bitmap when someone asks, and streamer_tensor_next() walks it with a cursor. The
 * log's count is released by the daemon after the tensor's bytes, digest and index, so whoever has
 * seen the count may read the rest.
 */
#include "client/lease.h"
#include "client/util.h"

#include <inttypes.h>

/* ---- one record ---- */

static int fill(const struct streamer_lease *lease, uint64_t i, streamer_tensor *tensor)
{
        const char *why;
        const struct manifest_view *m = &lease->manifest;
        if (manifest_check(m, i, &why) < 0)
                return fail(lease->client, STREAMER_ECORRUPT, "tensor %" PRIu64 ": %s", i, why);
        const struct manifest_record *r = &m->records[i];
        *tensor = (streamer_tensor){
                .name = m->strings + r->name_off,
                .dtype = dtype_name(r->dtype),
                .rank = r->rank,
                .shape = m->shapes + r->shape_off,
                .bytes = r->bytes,
                .segment = r->segment,
                .offset = r->offset,
                .device_kind = lease->device_kind,
                .device_index = lease->device_index,
        };
        if (r->bytes > 0)
                tensor->data = (const char *)lease->segments[r->segment].data + r->offset;
        memcpy(tensor->digest, r->digest, sizeof(tensor->digest));
        return 0;
}

/* ---- arrival ---- */

static uint64_t log_count(const struct streamer_lease *lease)
{
        return __atomic_load_n(&lease->arrival->count, __ATOMIC_ACQUIRE);
}

static const uint32_t *log_entries(const struct streamer_lease *lease)
{
        return (const uint32_t *)(const void *)(lease->arrival + 1);
}

/* Lock held: reads what is new in the log. */
static int read_log(struct streamer_lease *lease)
{
        uint64_t n = lease->manifest.header->n_records, count = log_count(lease);
        if (count > n)
                return fail(lease->client, STREAMER_ECORRUPT, "arrival log: more entries than tensors");
        for (; lease->n_arrived < count; lease->n_arrived++) {
                uint32_t i = log_entries(lease)[lease->n_arrived];
                if (i >= n)
                        return fail(lease->client, STREAMER_ECORRUPT, "arrival log: no tensor has the number %u", i);
                lease->arrived[i / 8] |= (unsigned char)(1u << i % 8);
        }
        if (count == n)
                atomic_store(&lease->complete, true);
        return 0;
}

static int check_arrived(struct streamer_lease *lease, uint64_t i)
{
        struct streamer_client *c = lease->client;
        if (atomic_load(&lease->complete))
                return 0;
        pthread_mutex_lock(&c->lock);
        int rc = read_log(lease);
        bool there = rc == 0 && (lease->arrived[i / 8] & 1u << i % 8);
        pthread_mutex_unlock(&c->lock);
        if (rc != 0 || there)
                return rc;
        return fail(c, STREAMER_EBUSY, "tensor %" PRIu64 " has not arrived yet", i);
}

/* The lease itself is constant to its reader; what has arrived is a cache behind it. */
static struct streamer_lease *mutable(const streamer_lease *lease)
{
        return (struct streamer_lease *)(uintptr_t)lease;
}

/* ---- queries ---- */

int streamer_tensor_count(const streamer_lease *lease, size_t *count)
{
        int rc = lease_check(lease);
        if (rc != 0)
                return rc;
        *count = (size_t)lease->manifest.header->n_records;
        return 0;
}

int streamer_tensor_get(const streamer_lease *lease, size_t i, streamer_tensor *tensor)
{
        int rc = lease_check(lease);
        if (rc != 0)
                return rc;
        if (i >= lease->manifest.header->n_records)
                return fail(lease->client, STREAMER_ENOENT, "there is no tensor %zu", i);
        rc = check_arrived(mutable(lease), i);
        return rc == 0 ? fill(lease, i, tensor) : rc;
}

int streamer_tensor_find(const streamer_lease *lease, const char *name, streamer_tensor *tensor)
{
        const char *why;
        int rc = lease_check(lease);
        if (rc != 0)
                return rc;
        int64_t i = manifest_find(&lease->manifest, name, strlen(name), &why);
        if (i == -2)
                return fail(lease->client, STREAMER_ECORRUPT, "manifest: %s", why);
        if (i < 0)
                return fail(lease->client, STREAMER_ENOENT, "there is no tensor '%s'", name);
        return streamer_tensor_get(lease, (size_t)i, tensor);
}

int streamer_tensor_read(const streamer_lease *lease, const streamer_tensor *tensor, uint64_t offset, void *to,
                         size_t len)
{
        int rc = lease_check(lease);
        if (rc != 0)
                return rc;
        if (offset > tensor->bytes || len > tensor->bytes - offset || tensor->segment >= lease->n_segments)
                return fail(lease->client, STREAMER_EINVAL,
                            "read: %zu bytes from offset %" PRIu64 " on are not in '%s'", len, offset, tensor->name);
        if (len == 0)
                return 0;
        const struct mapping *m = &lease->segments[tensor->segment];
        if (m->kind->read != NULL)
                return m->kind->read(m, tensor->offset + offset, to, len, lease->client->serial);
        memcpy(to, (const char *)m->data + tensor->offset + offset, len);
        return 0;
}

/* ---- in order of arrival ---- */

struct news {
        const struct streamer_lease *lease;
        uint64_t seen;
};

/* Something to hand out, or nothing more to wait for. */
static bool has_news(const void *arg)
{
        const struct news *n = arg;
        return n->lease->cursor != n->seen || log_count(n->lease) > n->seen || n->lease->state == LEASE_FAILED ||
               (n->lease->state == LEASE_READY && n->seen >= n->lease->manifest.header->n_records);
}

static int failed(const struct streamer_lease *lease)
{
        return fail(lease->client, lease->code, "%s", lease->text ? lease->text : "the load failed");
}

/* Lock held: *i is the next record, or the end of it. Whoever has had the last tensor is told
 * STREAMER_EEND only when the daemon has found the source unchanged. */
static int next_arrival(struct streamer_lease *lease, int64_t deadline, uint64_t *i)
{
        for (;;) {
                int rc = read_log(lease);
                if (rc != 0)
                        return rc;
                if (lease->state == LEASE_FAILED)
                        return failed(lease);
                if (lease->cursor < lease->n_arrived) {
                        *i = log_entries(lease)[lease->cursor++];
                        return 0;
                }
                if (lease->state == LEASE_READY && lease->cursor == lease->manifest.header->n_records)
                        return STREAMER_EEND;
                struct news news = {lease, lease->cursor};
                rc = channel_wait(lease->client, has_news, &news, deadline);
                if (rc == STREAMER_ETIMEOUT)
                        return fail(lease->client, rc, "no tensor arrived in time");
                /* The daemon may be there, and the load go on. */
                if (rc == STREAMER_EUNREACHABLE && channel_ensure(lease->client, false, deadline) == 0 && !lease->lost)
                        continue;
                if (rc == STREAMER_EUNREACHABLE && !lease->client->closed)
                        return fail(lease->client, STREAMER_ELOST, "the daemon is gone, and the load with it");
                if (rc != 0)
                        return rc;
        }
}

/* Lock held: a model that was ready has no order of arrival but the table's. */
static int next_index(struct streamer_lease *lease, uint64_t *i)
{
        if (lease->cursor == lease->manifest.header->n_records)
                return STREAMER_EEND;
        *i = lease->cursor++;
        return 0;
}

int streamer_tensor_next(streamer_lease *lease, int timeout_ms, streamer_tensor *tensor)
{
        uint64_t i = 0;
        int rc = lease_check(lease);
        if (rc != 0)
                return rc;
        pthread_mutex_lock(&lease->client->lock);
        if (lease->arrival)
                rc = next_arrival(lease, deadline_in_ms(timeout_ms), &i);
        else
                rc = next_index(lease, &i);
        pthread_mutex_unlock(&lease->client->lock);
        if (rc == STREAMER_EEND)
                return fail(lease->client, rc, "no more tensors");
        return rc == 0 ? fill(lease, i, tensor) : rc;
}
