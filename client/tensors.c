/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a lease, read straight from the mapped manifest. Of a ready model everything may be
 * read without a lock. While it loads, the arrival log lists the tensors that have arrived: calls add its new
 * entries to a bitmap, and streamer_tensor_next() follows it with a cursor. The daemon stores the log's count
 * with release order after the tensor's bytes, digest and index, so a thread that has read the count may read the
 * rest.
 */
#include "client/args.h"
#include "client/lease.h"
#include "client/util.h"
#include "proto/require.h"

#include <inttypes.h>

/* ---- one record ---- */

static int fill(const struct streamer_lease *lease, uint64_t i, streamer_tensor *tensor)
{
        const char *why;
        const struct manifest_view *m = &lease->manifest;
        uint32_t dtype = manifest_record(m, i)->dtype;
        if (!dtype_name(dtype))
                return fail(lease->client, STREAMER_EUNSUPPORTED,
                            "tensor %" PRIu64 ": dtype number %" PRIu32 " is unknown: this library (" STREAMERD_VERSION
                            ") is older than the daemon",
                            i, dtype);
        if (manifest_check(m, i, &why) < 0)
                return fail(lease->client, STREAMER_ECORRUPT, "tensor %" PRIu64 ": %s", i, why);
        const struct manifest_record *r = manifest_record(m, i);
        streamer_tensor t = {
                .name = m->strings + r->name_off,
                .dtype_name = dtype_name(r->dtype),
                .dtype = (streamer_dtype)r->dtype,
                .rank = r->rank,
                .shape = m->shapes + r->shape_off,
                .bytes = r->bytes,
                .segment = r->segment,
                .offset = r->offset,
                .device_kind = lease->device_kind,
                .device_index = lease->device_index,
        };
        if (r->bytes > 0)
                t.data = (const char *)lease->segments[r->segment].data + r->offset;
        memcpy(t.digest, r->digest, sizeof(t.digest));
        args_fill(tensor, &t, sizeof(t));
        return 0;
}

/* ---- arrival ---- */

#define NO_SUCH_ENTRY "arrival log: no tensor has the number %u"

static uint64_t log_count(const struct streamer_lease *lease)
{
        return __atomic_load_n(&lease->arrival.header->count, __ATOMIC_ACQUIRE);
}

/* Lock held: reads what is new in the log. */
static int read_log(struct streamer_lease *lease)
{
        uint64_t n = lease->manifest.header->n_records, count = log_count(lease);
        if (count > n)
                return fail(lease->client, STREAMER_ECORRUPT, "arrival log: more entries than tensors");
        for (; lease->arrival.n_seen < count; lease->arrival.n_seen++) {
                uint32_t i = lease->arrival.log[lease->arrival.n_seen];
                if (i >= n)
                        return fail(lease->client, STREAMER_ECORRUPT, NO_SUCH_ENTRY, i);
                lease->arrival.seen[i / 8] |= (unsigned char)(1u << i % 8);
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
        lock_scope(&c->lock);
        int rc = read_log(lease);
        if (rc != 0 || lease->arrival.seen[i / 8] & 1u << i % 8)
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
        int rc = args_lease(lease, "tensor_count") ?: args_pointer(lease->client, "tensor_count", "count", count);
        if (rc == 0)
                *count = (size_t)lease->manifest.header->n_records;
        return rc;
}

int streamer_tensor_name(const streamer_lease *lease, size_t i, const char **name)
{
        int rc = args_lease(lease, "tensor_name") ?: args_pointer(lease->client, "tensor_name", "name", name);
        if (rc != 0)
                return rc;
        const struct manifest_view *m = &lease->manifest;
        if (i >= m->header->n_records)
                return fail(lease->client, STREAMER_ENOENT, "no such tensor: %zu", i);
        const struct manifest_record *r = manifest_record(m, i);
        const char *found = manifest_text(m->strings, m->header->strings_len, r->name_off, r->name_len);
        if (!found)
                return fail(lease->client, STREAMER_ECORRUPT, "tensor %zu: its name is out of bounds", i);
        *name = found;
        return 0;
}

int tensor_get(const struct streamer_lease *lease, uint64_t i, streamer_tensor *tensor)
{
        return check_arrived(mutable(lease), i) ?: fill(lease, i, tensor);
}

int streamer_tensor_get(const streamer_lease *lease, size_t i, streamer_tensor *tensor)
{
        int rc = args_lease(lease, "tensor_get") ?: args_out(lease->client, "tensor_get", "tensor", tensor);
        if (rc == 0 && i >= lease->manifest.header->n_records)
                rc = fail(lease->client, STREAMER_ENOENT, "no such tensor: %zu", i);
        return rc ?: tensor_get(lease, i, tensor);
}

int tensor_number(const struct streamer_lease *lease, const char *name, uint64_t *i)
{
        const char *why;
        int64_t found = manifest_find(&lease->manifest, name, strlen(name), &why);
        if (found == -2)
                return fail(lease->client, STREAMER_ECORRUPT, "manifest: %s", why);
        if (found < 0)
                return fail(lease->client, STREAMER_ENOENT, "no such tensor: '%s'", name);
        *i = (uint64_t)found;
        return 0;
}

int streamer_tensor_find(const streamer_lease *lease, const char *name, streamer_tensor *tensor)
{
        uint64_t i = 0;
        int rc = args_lease(lease, "tensor_find")
                         ?: args_pointer(lease->client, "tensor_find", "name", name)
                         ?: args_out(lease->client, "tensor_find", "tensor", tensor)
                         ?: tensor_number(lease, name, &i);
        return rc ?: tensor_get(lease, i, tensor);
}

int streamer_tensor_read(const streamer_lease *lease, const streamer_tensor *tensor, uint64_t offset, void *to,
                         size_t len)
{
        streamer_tensor t;
        int rc = args_lease(lease, "tensor_read") ?: tensor_copy(lease, "tensor_read", &t, tensor);
        if (rc == 0 && len > 0)
                rc = args_pointer(lease->client, "tensor_read", "to", to);
        if (rc != 0)
                return rc;
        if (offset > t.bytes || len > t.bytes - offset)
                return fail(lease->client, STREAMER_EINVAL,
                            "tensor_read: %zu bytes from offset %" PRIu64 " are not all inside '%s'", len, offset,
                            t.name ? t.name : "");
        if (len == 0)
                return 0;
        const struct mapping *m = &lease->segments[t.segment];
        return m->kind->copy(m, t.offset + offset, to, NULL, len, lease->client->fault);
}

int tensor_copy(const struct streamer_lease *lease, const char *call, streamer_tensor *to, const streamer_tensor *from)
{
        int rc = args_copy(lease->client, call, "tensor", to, sizeof(*to), from);
        if (rc != 0 || to->bytes == 0)
                return rc;
        uint64_t size = to->segment < lease->n_segments ? lease->segments[to->segment].size : 0;
        if (to->offset > size || to->bytes > size - to->offset)
                return fail(lease->client, STREAMER_EINVAL, "%s: 'tensor' is not of this lease", call);
        return 0;
}

/* ---- in order of arrival ---- */

struct arrival_wait {
        const struct streamer_lease *lease;
        uint64_t seen;
};

uint64_t lease_n_arrived(const struct streamer_lease *lease)
{
        uint64_t n = lease->manifest.header->n_records, count = lease->arrival.header ? log_count(lease) : n;
        return count < n ? count : n;
}

int lease_arrival_get(const struct streamer_lease *lease, uint64_t position, uint64_t *i)
{
        require(position < lease_n_arrived(lease));
        *i = lease->arrival.header ? lease->arrival.log[position] : position;
        if (*i < lease->manifest.header->n_records)
                return 0;
        return fail(lease->client, STREAMER_ECORRUPT, NO_SUCH_ENTRY, (unsigned)*i);
}

bool lease_has_arrivals(const struct streamer_lease *lease)
{
        return lease->arrival.header && log_count(lease) > lease->cursor;
}

/* Something to return, or nothing more to wait for. */
static bool has_arrival(const void *arg)
{
        const struct arrival_wait *w = arg;
        return lease_n_arrived(w->lease) > w->seen || w->lease->state == LEASE_FAILED ||
               (w->lease->state == LEASE_READY && w->seen >= w->lease->manifest.header->n_records);
}

static int failed(const struct streamer_lease *lease)
{
        return fail(lease->client, lease->code, "%s", lease->text ? lease->text : "the load failed");
}

/* Lock held: more than `seen` tensors have arrived, or the end of it. After the last tensor the result is
 * STREAMER_EEND only if the daemon has found the source unchanged. */
static int await_arrival(struct streamer_lease *lease, uint64_t seen, int64_t deadline)
{
        for (;;) {
                int rc = read_log(lease);
                if (rc != 0)
                        return rc;
                if (lease->state == LEASE_FAILED)
                        return failed(lease);
                if (seen < lease->arrival.n_seen)
                        return 0;
                if (lease->state == LEASE_READY && seen >= lease->manifest.header->n_records)
                        return STREAMER_EEND;
                struct arrival_wait wait = {lease, seen};
                rc = channel_wait(lease->client, has_arrival, &wait, deadline);
                if (rc == STREAMER_ETIMEOUT)
                        return fail(lease->client, rc, "no tensor arrived in time");
                /* The daemon may be there, and the load go on. */
                if (rc == STREAMER_EUNREACHABLE && channel_ensure(lease->client, false, deadline) == 0 &&
                    lease->hold != HOLD_LOST)
                        continue;
                if (rc == STREAMER_EUNREACHABLE && !lease->client->closed)
                        return fail(lease->client, STREAMER_ELOST, "the daemon exited, and the load ended");
                if (rc != 0)
                        return rc;
        }
}

/* Lock held: *i is the next record. Another thread may take one while this one waits. */
static int next_arrival(struct streamer_lease *lease, int64_t deadline, uint64_t *i)
{
        int rc;
        while ((rc = await_arrival(lease, lease->cursor, deadline)) == 0)
                if (lease->cursor < lease->arrival.n_seen) {
                        *i = lease->arrival.log[lease->cursor++];
                        return 0;
                }
        return rc;
}

/* Lock held: a model that was ready has no order of arrival but the table's. */
static int next_index(struct streamer_lease *lease, uint64_t *i)
{
        if (lease->cursor == lease->manifest.header->n_records)
                return STREAMER_EEND;
        *i = lease->cursor++;
        return 0;
}

/* Lock held: after a look that ended with `rc`. */
static void drop_arrival_note(struct streamer_lease *lease, int rc)
{
        if (rc != 0 || (lease->state == LEASE_LOADING && !lease_has_arrivals(lease)))
                readiness_drop(lease->client, &lease->arrival_note);
}

int lease_await(struct streamer_lease *lease, uint64_t seen, int timeout_ms)
{
        lock_scope(&lease->client->lock);
        int rc = 0;
        if (lease->cursor < seen && seen <= lease_n_arrived(lease))
                lease->cursor = seen;
        if (lease->arrival.header)
                rc = await_arrival(lease, seen, deadline_in_ms(timeout_ms));
        else if (seen >= lease->manifest.header->n_records)
                rc = STREAMER_EEND;
        drop_arrival_note(lease, rc);
        return rc;
}

int streamer_tensor_next(streamer_lease *lease, int timeout_ms, streamer_tensor *tensor)
{
        uint64_t i = 0;
        int rc = args_lease(lease, "tensor_next") ?: args_out(lease->client, "tensor_next", "tensor", tensor);
        if (rc != 0)
                return rc;
        pthread_mutex_lock(&lease->client->lock);
        if (lease->arrival.header)
                rc = next_arrival(lease, deadline_in_ms(timeout_ms), &i);
        else
                rc = next_index(lease, &i);
        drop_arrival_note(lease, rc);
        pthread_mutex_unlock(&lease->client->lock);
        if (rc == STREAMER_EEND)
                return fail(lease->client, rc, "no more tensors");
        return rc ?: fill(lease, i, tensor);
}
