/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/status.h"

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
        writer_map(w, 3);
        writer_ku64(w, "turns", stall->turns);
        writer_ku64(w, "longest_ns", stall->longest_ns);
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

void status_health(struct writer *w, const struct server *server)
{
        write_preload(w, &server->preload);
        write_workers(w, server->pool);
        write_loop(w, server->stall);
}
