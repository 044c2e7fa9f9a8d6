/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/status.h"

#include "daemon/device/cuda.h"
#include "daemon/resident/host_cache.h"
#include "daemon/serve/status_rows.h"

/* ---- what it holds and does ---- */

static void write_device(struct writer *w, const struct device *d)
{
        writer_map(w, 8);
        writer_kstr(w, "device", d->name);
        writer_kstr(w, "uuid", d->uuid);
        writer_ku64(w, "budget", d->budget);
        writer_ku64(w, "used", d->used);
        writer_ku64(w, "quarantined", d->quarantined);
        writer_ku64(w, "free", device_unused(d));
        writer_ku64(w, "spare", device_spare(d));
        writer_kstr(w, "page_kind", page_kind_name(d->pages));
}

void status_ring(struct writer *w, struct reader *reader)
{
        static const char *const pinned[] = {
                [RING_NOT_PINNED] = "no", [RING_PINNED] = "yes", [RING_PIN_REFUSED] = "refused"};
        char numa[256];
        writer_key(w, "ring");
        struct reader_usage usage;
        reader_usage(reader, &usage);
        writer_map(w, 6);
        writer_ku64(w, "bytes", reader->staging.bytes);
        writer_kstr(w, "page_kind", page_kind_name(reader->staging.pages));
        writer_kstr(w, "pinned", pinned[__atomic_load_n(&reader->staging.pinned, __ATOMIC_RELAXED)]);
        writer_ku64(w, "threads", reader->engines[READ_PREAD].base);
        writer_ku64(w, "stuck", usage.stuck_threads);
        writer_kstr(w, "numa", numa_text(&reader->opts.numa, numa, sizeof(numa)));
}

/* Ranks, and replicas, are one. */
static bool is_first_cached(const struct resident *resident, const struct generation *of)
{
        list_each (pos, &resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                if (g->state == GENERATION_CACHED && g->number == of->number)
                        return g == of;
        }
        return false;
}

static void write_host_cache(struct writer *w, const struct resident *resident)
{
        const struct host_cache *cache = resident->cache;
        uint64_t models = 0;
        list_each (pos, &resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                models += g->state == GENERATION_CACHED && is_first_cached(resident, g);
        }
        writer_key(w, "host_cache");
        writer_map(w, 3);
        writer_ku64(w, "budget", cache != NULL ? cache->budget : 0);
        writer_ku64(w, "used", cache != NULL ? cache->used : 0);
        writer_ku64(w, "models", models);
}

/* ---- how it is ---- */

static void write_workers(struct writer *w, struct work_pool *pool)
{
        unsigned threads, hung;
        work_pool_count(pool, &threads, &hung);
        writer_key(w, "workers");
        writer_map(w, 2);
        writer_ku64(w, "threads", threads);
        writer_ku64(w, "stuck", hung);
}

static void write_loop(struct writer *w, const struct stall *stall)
{
        writer_key(w, "loop");
        writer_map(w, 5);
        writer_ku64(w, "turns", stall->turns);
        writer_ku64(w, "longest_ns", stall->longest_ns);
        writer_ku64(w, "longest_own_ns", stall->longest_own_ns);
        writer_key(w, "histogram");
        writer_array(w, STALL_BUCKETS);
        for (unsigned i = 0; i < STALL_BUCKETS; i++) {
                bool last = stall_bound_ns(i) == UINT64_MAX;
                writer_map(w, last ? 1 : 2);
                if (!last)
                        writer_ku64(w, "below_ns", stall_bound_ns(i));
                writer_ku64(w, "turns", stall->counts[i]);
        }
        writer_key(w, "longest");
        writer_array(w, stall->n_kept);
        for (unsigned i = 0; i < stall->n_kept; i++) {
                writer_map(w, 5);
                writer_ku64(w, "at_ns", stall->kept[i].at_ns);
                writer_ku64(w, "ns", stall->kept[i].ns);
                writer_ku64(w, "own_ns", stall->kept[i].own_ns);
                writer_ku64(w, "ran_ns", stall->kept[i].ran_ns);
                writer_ku64(w, "cpu", stall->kept[i].cpu);
        }
}

/* ---- the whole ---- */

static void write_state(struct writer *w, const struct server *server)
{
        writer_kstr(w, "version", STREAMERD_VERSION);
        writer_ku64(w, "protocol", PROTOCOL_MAX);
        writer_ku64(w, "uptime_ns", now_ns() - server->started_ns);
        writer_key(w, "devices");
        writer_array(w, server->resident->n_devices);
        for (size_t i = 0; i < server->resident->n_devices; i++)
                write_device(w, server->resident->devices[i]);
        write_host_cache(w, server->resident);
        status_ring(w, server->reader);
        write_workers(w, server->pool);
        write_loop(w, server->stall);
}

/* Further pages are of rows alone. */
int status_write(struct writer *w, const struct server *server, const struct request *request, struct error *error)
{
        const struct req_status *req = &request->u.status;
        struct status_rows rows;
        int r = status_rows_init(&rows, req->after, req->limit, error);
        if (r < 0)
                return r;
        status_rows_fill(&rows, server);
        writer_reply(w, request->id, (req->after == NULL ? 8u : 0u) + STATUS_LISTS + rows.more);
        if (req->after == NULL)
                write_state(w, server);
        status_rows_write(&rows, w);
        return 0;
}
