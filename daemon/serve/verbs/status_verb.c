/* SPDX-License-Identifier: Apache-2.0
 *
 * status: what the daemon holds, what it does just now, and its condition (preloads, threads that hang, the loop's
 * longest iterations).
 */
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/resident/hostcache/host_cache.h"

#include <inttypes.h>
#include <limits.h>

/* ---- what it holds, and how it is ---- */

static void write_device(struct writer *w, const void *data, size_t i)
{
        const struct device *d = ((const struct resident *)data)->devices[i];
        writer_map_of(w, REPLY_DEVICE(d), ku64("quarantined", d->quarantined), ku64("free", device_unused(d)),
                      ku64("prefaulted", prefault_bytes(d->prefault)));
}

static void write_absent(struct writer *w, const void *data, size_t i)
{
        const struct device_absence *absent = data;
        writer_map_of(w, kstr("device", absent[i].name), kstr("why", absent[i].error.text));
}

static void write_bucket(struct writer *w, const void *data, size_t i)
{
        uint64_t bound = loop_cpu_bounds_ns[i];
        writer_map_of(w, kif(bound != UINT64_MAX, ku64("below_ns", bound)),
                      ku64("iterations", ((const struct loop_cpu *)data)->counts[i]));
}

/* ---- rows: a page of loads, then restored models, then configured ones ----
 *
 * The last row of a page says where the next one begins: a load's id, or a desired model's priority and sequence. So
 * rows that are added or removed between two pages shift nothing. */

enum status_list { STATUS_LOADS, STATUS_RESTORING, STATUS_PRELOAD, STATUS_LISTS };

struct status_rows {
        struct items lists[STATUS_LISTS];
        uint64_t left; /* rows that the page may still have */
        /* The position behind which the page begins, and in the end the next page. */
        unsigned list, priority; /* priority: of a desired model */
        uint64_t sequence;       /* of a desired model, or a load's id */
        bool more;
};

/* Of rows in one page. The rest of the frame is large enough for one more row and all other fields. */
#define PAGE_BYTES (FRAME_MAX / 2)

static void write_device_name(struct writer *w, const void *data, size_t i)
{
        writer_str(w, ((const struct load *)data)->targets[i].device->name);
}

static void write_target(struct writer *w, const void *data, size_t i)
{
        const struct load *load = data;
        const struct load_target *t = &load->targets[i];
        uint64_t waits_ns;
        const char *state = load_target_state(t, now_ns(), &waits_ns);
        bool charged = load->state >= LOAD_QUEUED && t->state == TARGET_OPEN;
        writer_map_of(w, kstr("device", t->device->name), kstr("state", state),
                      ku64("bytes", charged ? target_needs(t) : 0), ku64("waiting_ns", waits_ns),
                      kif(t->state == TARGET_FAILED, kstr("error", t->error.text)));
}

static void write_load(struct writer *w, struct load *load)
{
        struct load_progress p;
        load_progress(load, &p);
        writer_map_of(w, kstr("name", load->name), karray("devices", write_device_name, load, load->n_targets),
                      karray("targets", write_target, load, load->n_targets), REPLY_PROGRESS(p),
                      kbool("stalled", p.stalled));
}

static void write_desired(struct writer *w, const struct desired_model *m, uint64_t now)
{
        bool failed = desired_failed(m);
        writer_map_of(w, kif(m->named, kstr("name", m->spec.name)), reply_source(m->spec.source),
                      kstr("state", desired_state_name(m)), ku64("tries", m->attempts),
                      kif(failed, kstr("error", m->error.text)),
                      kif(failed && m->retry_at_ns > 0,
                          ku64("retry_in_ns", m->retry_at_ns > now ? m->retry_at_ns - now : 0)));
}

/* Rows are in the order of their lists; in a list, of falling priorities, then of sequence numbers. */
static bool follows_last(const struct status_rows *rows, enum status_list list, unsigned priority, uint64_t sequence)
{
        if (list != rows->list)
                return list > rows->list;
        if (priority != rows->priority)
                return priority < rows->priority;
        return sequence > rows->sequence;
}

/* A row of this position, if it follows the last one and fits; else NULL. */
static struct writer *begin_row(struct status_rows *rows, enum status_list list, unsigned priority, uint64_t sequence)
{
        size_t bytes = 0;
        bool follows = follows_last(rows, list, priority, sequence);
        for (size_t i = 0; i < STATUS_LISTS; i++)
                bytes += rows->lists[i].w.buf.size;
        if (follows && (rows->left == 0 || bytes >= PAGE_BYTES))
                rows->more = true;
        if (!follows || rows->more)
                return NULL;
        rows->left--;
        rows->list = list;
        rows->priority = priority;
        rows->sequence = sequence;
        rows->lists[list].n++;
        return &rows->lists[list].w;
}

/* The first desired model behind the last row. */
static const struct desired_model *first_desired(const struct desired *desired, const struct status_rows *rows)
{
        static const enum desired_origin origins[] = {
                [STATUS_RESTORING] = DESIRED_RESTORED, [STATUS_PRELOAD] = DESIRED_CONFIGURED};
        if (rows->list == STATUS_LOADS)
                return desired_after(desired, DESIRED_RESTORED, UINT_MAX, 0);
        return desired_after(desired, origins[rows->list], rows->priority, rows->sequence);
}

/* Further pages are of rows alone. */
int verb_status(struct session *session, struct request *request, struct error *error)
{
        const struct server *server = session->server;
        const struct req_status *req = &request->u.status;
        const struct host_cache *cache = server->resident->cache;
        struct status_rows rows = {.left = req->limit > 0 ? req->limit : UINT64_MAX, .priority = UINT_MAX};
        char next[PROTO_CURSOR_MAX + 1];
        unsigned threads, stuck;
        int end = 0;
        if (req->after != NULL &&
            (sscanf(req->after, "%u:%u:%" SCNu64 "%n", &rows.list, &rows.priority, &rows.sequence, &end) != 3 ||
             req->after[end] != '\0' || rows.list >= STATUS_LISTS))
                return error_set(error, STREAMER_EINVAL, "status: after: not the 'next' of a reply");
        for (size_t i = 0; i < STATUS_LISTS; i++)
                items_init(&rows.lists[i]);
        list_each_item (struct load, load, &server->loads->all, link) {
                struct writer *row =
                        load_ended(load->state) ? NULL : begin_row(&rows, STATUS_LOADS, UINT_MAX, load->id);
                if (row != NULL)
                        write_load(row, load);
        }
        desired_each_from (m, first_desired(&server->desired, &rows)) {
                enum status_list list = m->origin == DESIRED_RESTORED ? STATUS_RESTORING : STATUS_PRELOAD;
                struct writer *row = begin_row(&rows, list, desired_priority(m), m->sequence);
                if (row == NULL)
                        break;
                write_desired(row, m, now_ns());
        }
        snprintf(next, sizeof(next), "%u:%u:%" PRIu64, rows.list, rows.priority, rows.sequence);
        work_pool_count(server->loads->pool, &threads, &stuck);
        struct disk_cache *disk = server->loads->sources->disk;
        struct disk_usage usage = {.budget = 0};
        if (disk != NULL)
                disk_cache_usage(disk, &usage);
        bool first = req->after == NULL;
        session_reply(session, request->id, kif(first, kstr("version", STREAMERD_VERSION)),
                      kif(first, ku64("protocol", PROTOCOL_MAX)),
                      kif(first, ku64("uptime_ns", now_ns() - server->started_ns)),
                      kif(first, karray("devices", write_device, server->resident, server->resident->n_devices)),
                      kif(first, karray("absent", write_absent, server->absent, server->n_absent)),
                      kif(first, kmap("host_cache", ku64("budget", cache->budget), ku64("used", cache->used),
                                      ku64("models", server->resident->n_cached))),
                      kif(first && disk != NULL,
                          kmap("disk_cache", kstr("path", disk->folder.path), ku64("budget", usage.budget),
                               ku64("used", usage.used), ku64("entries", usage.entries))),
                      kif(first, kcall("ring", reply_ring, server)),
                      kif(first, kmap("workers", ku64("threads", threads), ku64("stuck", stuck))),
                      kif(first, kmap("loop", ku64("iterations", server->loop_cpu.iterations),
                                      ku64("longest_cpu_ns", server->loop_cpu.longest_ns),
                                      karray("histogram", write_bucket, &server->loop_cpu, LOOP_CPU_BUCKETS))),
                      kitems("loads", &rows.lists[STATUS_LOADS]), kitems("preload", &rows.lists[STATUS_PRELOAD]),
                      kitems("restoring", &rows.lists[STATUS_RESTORING]), kif(rows.more, kstr("next", next)));
        for (size_t i = 0; i < STATUS_LISTS; i++)
                items_deinit(&rows.lists[i]);
        return 0;
}
