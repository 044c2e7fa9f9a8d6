/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/status.h"

#include "daemon/device/cuda.h"
#include "daemon/resident/host_cache.h"
#include "daemon/serve/reply.h"

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

static void write_targets(struct writer *w, const struct load *load)
{
        uint64_t now = now_ns();
        writer_key(w, "targets");
        writer_array(w, load->n_targets);
        for (size_t i = 0; i < load->n_targets; i++) {
                const struct load_target *t = &load->targets[i];
                uint64_t waits_ns;
                const char *state = load_target_state(t, now, &waits_ns);
                writer_map(w, 4u + t->failed);
                writer_kstr(w, "device", t->device->name);
                writer_kstr(w, "state", state);
                writer_ku64(w, "bytes", load->rooms[i].bytes);
                writer_ku64(w, "waits_ns", waits_ns);
                if (t->failed)
                        writer_kstr(w, "error", t->error.text);
        }
}

static void write_load(struct writer *w, struct load *load)
{
        struct load_progress p;
        load_progress(load, &p);
        writer_map(w, 12);
        writer_kstr(w, "model", load->name);
        writer_key(w, "devices");
        writer_array(w, load->n_targets);
        for (size_t i = 0; i < load->n_targets; i++)
                writer_str(w, load->targets[i].device->name);
        write_targets(w, load);
        writer_ku64(w, "generation", p.generation);
        writer_kstr(w, "state", load_state_name(p.state));
        writer_ku64(w, "bytes", p.bytes);
        writer_ku64(w, "total", p.total);
        writer_ku64(w, "tensors", p.tensors);
        writer_ku64(w, "tensors_total", p.tensors_total);
        writer_ku64(w, "elapsed_ns", p.elapsed_ns);
        writer_kbool(w, "stalled", p.stalled);
        writer_kbool(w, "streamed", p.streamed);
}

static void write_loads(struct writer *w, const struct loads *loads)
{
        size_t n = 0;
        list_each (pos, &loads->all)
                n += !load_ended(container_of(pos, struct load, link)->state);
        writer_key(w, "loads");
        writer_array(w, n);
        list_each (pos, &loads->all) {
                struct load *load = container_of(pos, struct load, link);
                if (!load_ended(load->state))
                        write_load(w, load);
        }
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

static void write_host_cache(struct writer *w, const struct resident *resident)
{
        const struct host_cache *cache = resident->cache;
        uint64_t models = 0;
        list_each (pos, &resident->generations)
                models += container_of(pos, struct generation, link)->state == GENERATION_CACHED;
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
        writer_map(w, 4);
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
}

static void write_preload(struct writer *w, const struct preload *preload)
{
        writer_key(w, "preload");
        preload_write(w, preload, now_ns());
}

/* Pinned when the daemon last ended, and not there yet. */
static void write_again(struct writer *w, const struct again *again)
{
        uint64_t now = now_ns();
        struct wanted m;
        writer_key(w, "again");
        writer_array(w, again_left(again));
        for (size_t i = 0; i < again_left(again); i++) {
                again_wanted(again, i, &m);
                writer_map(w, 4u + 2 * m.failed);
                writer_kstr(w, "name", m.name);
                reply_source(w, m.source);
                writer_kstr(w, "state", m.failed ? "failed" : m.tries > 0 ? "loading" : "waiting");
                writer_ku64(w, "tries", m.tries);
                if (!m.failed)
                        continue;
                writer_kstr(w, "error", m.error);
                writer_ku64(w, "retry_ns", m.retry_at_ns > now ? m.retry_at_ns - now : 0);
        }
}

/* ---- the whole ---- */

void status_write(struct writer *w, const struct server *server, uint64_t id)
{
        writer_reply(w, id, 11);
        writer_kstr(w, "version", STREAMERD_VERSION);
        writer_ku64(w, "protocol", PROTOCOL_MAX);
        writer_ku64(w, "uptime_ns", now_ns() - server->started_ns);
        writer_key(w, "devices");
        writer_array(w, server->resident->n_devices);
        for (size_t i = 0; i < server->resident->n_devices; i++)
                write_device(w, server->resident->devices[i]);
        write_host_cache(w, server->resident);
        status_ring(w, server->reader);
        write_loads(w, server->loads);
        write_preload(w, &server->preload);
        write_again(w, &server->again);
        write_workers(w, server->pool);
        write_loop(w, server->stall);
}
