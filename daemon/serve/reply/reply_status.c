/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to status: what the daemon holds, what it does just now, and its condition (preloads, threads that hang,
 * the loop's longest iterations).
 */
#include "daemon/serve/reply/reply.h"

#include "daemon/device/cuda/cuda.h"
#include "daemon/resident/hostcache/host_cache.h"

#include <inttypes.h>
#include <limits.h>
#include <string.h>

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
        writer_ku64(w, "prefaulted", prefault_bytes(d->prefault));
        writer_kstr(w, "page_kind", page_kind_name(d->pages));
}

void reply_ring(struct writer *w, struct reader *reader)
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
        list_each_item (const struct generation, g, &resident->generations, link) {
                const struct generation *first = NULL; /* of this number: ranks, and replicas, are one */
                list_each_item (const struct generation, other, &resident->generations, link)
                        if (first == NULL && other->state == GENERATION_CACHED && other->number == g->number)
                                first = other;
                models += g == first;
        }
        writer_kmap(w, "host_cache", 3);
        writer_ku64(w, "budget", cache != NULL ? cache->budget : 0);
        writer_ku64(w, "used", cache != NULL ? cache->used : 0);
        writer_ku64(w, "models", models);
}

/* ---- how it is ---- */

static void write_loop(struct writer *w, const struct loop_cpu *loop_cpu)
{
        writer_kmap(w, "loop", 3);
        writer_ku64(w, "iterations", loop_cpu->iterations);
        writer_ku64(w, "longest_cpu_ns", loop_cpu->longest_ns);
        writer_karray(w, "histogram", LOOP_CPU_BUCKETS);
        for (unsigned i = 0; i < LOOP_CPU_BUCKETS; i++) {
                bool last = loop_cpu_bound_ns(i) == UINT64_MAX;
                writer_map(w, last ? 1 : 2);
                if (!last)
                        writer_ku64(w, "below_ns", loop_cpu_bound_ns(i));
                writer_ku64(w, "iterations", loop_cpu->counts[i]);
        }
}

/* ---- rows: a page of loads, then configured models, then restored ones ----
 *
 * The last row of a page says where the next one begins: a load's id, or a desired model's priority and sequence. So
 * rows that are added or removed between two pages shift nothing. */

enum status_list { STATUS_LOADS, STATUS_PRELOAD, STATUS_RESTORING, STATUS_LISTS };

struct status_rows {
        struct {
                struct writer rows;
                size_t n;
        } lists[STATUS_LISTS];
        uint64_t left; /* rows that the page may still have */
        /* The position behind which the page begins, and in the end the next page. */
        enum status_list list;
        unsigned priority; /* of a desired model */
        uint64_t sequence; /* of a desired model, or a load's id */
        bool more;
};

/* Of rows in one page. The rest of the frame is large enough for one more row and all other fields. */
#define PAGE_BYTES (FRAME_MAX / 2)

static const char *const names[] = {
        [STATUS_LOADS] = "loads", [STATUS_PRELOAD] = "preload", [STATUS_RESTORING] = "restoring"};

/* `after`: the page before's "next", or NULL; `limit`: rows, 0: as many as fit. */
static int status_rows_init(struct status_rows *rows, const char *after, uint64_t limit, struct error *error)
{
        int end = 0;
        char name[16];
        *rows = (struct status_rows){
                .left = limit > 0 ? limit : UINT64_MAX, .list = STATUS_LOADS, .priority = UINT_MAX};
        for (size_t i = 0; i < STATUS_LISTS; i++)
                writer_init(&rows->lists[i].rows);
        if (after == NULL)
                return 0;
        bool whole = sscanf(after, "%15[a-z]:%u:%" SCNu64 "%n", name, &rows->priority, &rows->sequence, &end) == 3 &&
                     after[end] == '\0';
        for (unsigned i = 0; whole && i < STATUS_LISTS; i++)
                if (strcmp(name, names[i]) == 0) {
                        rows->list = (enum status_list)i;
                        return 0;
                }
        return error_set(error, STREAMER_EINVAL, "status: after: not the 'next' of a reply");
}

/* ---- loads ---- */

static void write_load(struct writer *w, struct load *load)
{
        uint64_t now = now_ns();
        struct load_progress p;
        load_progress(load, &p);
        writer_map(w, 11);
        writer_kstr(w, "name", load->name);
        writer_karray(w, "devices", load->n_targets);
        load_each_target (t, load)
                writer_str(w, t->device->name);
        writer_karray(w, "targets", load->n_targets);
        for (size_t i = 0; i < load->n_targets; i++) {
                const struct load_target *t = &load->targets[i];
                uint64_t waits_ns;
                const char *state = load_target_state(t, now, &waits_ns);
                bool failed = t->state == TARGET_FAILED;
                writer_map(w, 4u + failed);
                writer_kstr(w, "device", t->device->name);
                writer_kstr(w, "state", state);
                writer_ku64(w, "bytes", load->demands[i].bytes);
                writer_ku64(w, "waiting_ns", waits_ns);
                if (failed)
                        writer_kstr(w, "error", t->error.text);
        }
        reply_progress(w, &p);
        writer_kbool(w, "stalled", p.stalled);
}

/* ---- desired models ---- */

static void write_desired(struct writer *w, const struct desired_model *m, uint64_t now)
{
        bool failed = desired_failed(m), retried = failed && m->retry_at_ns > 0;
        const char *state = failed                        ? "failed"
                            : m->state == DESIRED_READY   ? "ready"
                            : m->state == DESIRED_WAITING ? "waiting"
                                                          : "loading";
        writer_map(w, 3u + m->named + failed + retried);
        if (m->named)
                writer_kstr(w, "name", m->spec->name);
        reply_source(w, m->spec->source);
        writer_kstr(w, "state", state);
        writer_ku64(w, "tries", m->attempts);
        if (failed)
                writer_kstr(w, "error", m->error.text);
        if (retried)
                writer_ku64(w, "retry_in_ns", m->retry_at_ns > now ? m->retry_at_ns - now : 0);
}

/* ---- the page ---- */

/* A row of this position, if it follows the last one and fits; else NULL. */
static struct writer *begin_row(struct status_rows *rows, enum status_list list, unsigned priority, uint64_t sequence)
{
        size_t bytes = 0;
        bool follows = list != rows->list           ? list > rows->list
                       : priority != rows->priority ? priority < rows->priority
                                                    : sequence > rows->sequence;
        for (size_t i = 0; i < STATUS_LISTS; i++)
                bytes += rows->lists[i].rows.buf.size;
        if (follows && (rows->left == 0 || bytes >= PAGE_BYTES))
                rows->more = true;
        if (!follows || rows->more)
                return NULL;
        rows->left--;
        rows->list = list;
        rows->priority = priority;
        rows->sequence = sequence;
        rows->lists[list].n++;
        return &rows->lists[list].rows;
}

static void fill_desired(struct status_rows *rows, enum status_list list, const struct desired *desired,
                         enum desired_origin origin)
{
        uint64_t now = now_ns();
        list_each_item (const struct desired_model, m, &desired->models, link) {
                struct writer *w =
                        m->origin == origin ? begin_row(rows, list, m->spec->settings.priority, m->sequence) : NULL;
                if (w != NULL)
                        write_desired(w, m, now);
        }
}

/* ---- the whole ---- */

/* Further pages are of rows alone. */
int reply_status(struct writer *w, const struct server *server, const struct request *request, struct error *error)
{
        const struct req_status *req = &request->u.status;
        struct status_rows rows;
        int r = status_rows_init(&rows, req->after, req->limit, error);
        if (r < 0)
                return r;
        list_each_item (struct load, load, &server->loads->all, link) {
                struct writer *row =
                        load_ended(load->state) ? NULL : begin_row(&rows, STATUS_LOADS, UINT_MAX, load->id);
                if (row != NULL)
                        write_load(row, load);
        }
        fill_desired(&rows, STATUS_PRELOAD, &server->desired, DESIRED_CONFIGURED);
        fill_desired(&rows, STATUS_RESTORING, &server->desired, DESIRED_RESTORED);
        writer_reply(w, request->id, (req->after == NULL ? 9u : 0u) + STATUS_LISTS + rows.more);
        if (req->after == NULL) {
                unsigned threads, hung;
                writer_kstr(w, "version", STREAMERD_VERSION);
                writer_ku64(w, "protocol", PROTOCOL_MAX);
                writer_ku64(w, "uptime_ns", now_ns() - server->started_ns);
                writer_karray(w, "devices", server->resident->n_devices);
                for (size_t i = 0; i < server->resident->n_devices; i++)
                        write_device(w, server->resident->devices[i]);
                writer_karray(w, "absent", server->n_absent);
                for (size_t i = 0; i < server->n_absent; i++) {
                        writer_map(w, 2);
                        writer_kstr(w, "device", server->absent[i].name);
                        writer_kstr(w, "why", server->absent[i].error.text);
                }
                write_host_cache(w, server->resident);
                reply_ring(w, server->reader);
                work_pool_count(server->pool, &threads, &hung);
                writer_kmap(w, "workers", 2);
                writer_ku64(w, "threads", threads);
                writer_ku64(w, "stuck", hung);
                write_loop(w, &server->loop_cpu);
        }
        for (size_t i = 0; i < STATUS_LISTS; i++) {
                writer_karray(w, names[i], rows.lists[i].n);
                writer_append(w, &rows.lists[i].rows);
                writer_deinit(&rows.lists[i].rows);
        }
        if (rows.more) {
                char next[PROTO_CURSOR_MAX + 1];
                snprintf(next, sizeof(next), "%s:%u:%" PRIu64, names[rows.list], rows.priority, rows.sequence);
                writer_kstr(w, "next", next);
        }
        return 0;
}
