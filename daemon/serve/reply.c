/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/reply.h"

#include "daemon/resident/expiry.h"
#include "daemon/resident/host_cache.h"
#include "daemon/serve/status.h"

#include <inttypes.h>
#include <string.h>

/* The query of a URL may be a signature: whoever reads replies has no use for it. */
static void write_source(struct writer *w, const char *source)
{
        bool url = strncmp(source, "http://", 7) == 0 || strncmp(source, "https://", 8) == 0;
        writer_key(w, "source");
        writer_strn(w, source, url ? strcspn(source, "?") : strlen(source));
}

/* Models in one reply: each is at most a name, a source and an error, far below 1 MiB in all. */
#define LIST_PAGE 64
/* Bytes of tensor records in one reply. */
#define SHOW_PAGE (FRAME_MAX - 64 * 1024)

void reply_digest(struct writer *writer, const char *key, const struct generation *generation)
{
        writer_key(writer, key);
        bool known = generation->state == GENERATION_READY || generation->state == GENERATION_DRAINING ||
                     generation->state == GENERATION_CACHED;
        if (known)
                writer_hex(writer, generation->digest, DIGEST_SIZE);
        else
                writer_str(writer, "");
}

/* ---- models ---- */

static enum page_kind pages_of(const struct generation *g)
{
        bool allocated = g->state == GENERATION_READY || g->state == GENERATION_DRAINING;
        return allocated && g->n_segments > 0 && !g->releasing ? g->segments[0].pages : g->device->pages;
}

static void write_on_device(struct writer *w, const struct generation *g)
{
        bool failed = g->state == GENERATION_FAILED, ranks = g->n_ranks > 0;
        writer_map(w, 6u + failed + ranks);
        writer_kstr(w, "device", g->device->name);
        writer_ku64(w, "bytes", g->charged);
        writer_kstr(w, "page_kind", page_kind_name(pages_of(g)));
        writer_kstr(w, "state", generation_state_name(g->state));
        reply_digest(w, "digest", g);
        writer_ku64(w, "leases", g->n_leases);
        if (ranks)
                writer_ku64(w, "rank", g->rank);
        if (failed)
                writer_kstr(w, "error", g->error.text);
}

void reply_group_digest(struct writer *w, const struct group *group)
{
        const unsigned char *digest = group_digest(group);
        writer_key(w, "digest");
        if (digest != NULL)
                writer_hex(w, digest, DIGEST_SIZE);
        else
                writer_str(w, "");
}

static const struct generation *representative(const struct group *group)
{
        for (size_t i = 0; i < group->n; i++)
                if (group->members[i]->state == group_state(group))
                        return group->members[i];
        return group->members[0];
}

static uint64_t count_leases(const struct group *group)
{
        uint64_t n = 0;
        for (size_t i = 0; i < group->n; i++)
                n += group->members[i]->n_leases;
        return n;
}

/* Since the last lease of any of its devices ended. */
static uint64_t idle_ns(const struct group *group, uint64_t now)
{
        uint64_t last = 0;
        for (size_t i = 0; i < group->n; i++)
                if (group->members[i]->last_used_ns > last)
                        last = group->members[i]->last_used_ns;
        return now > last ? now - last : 0;
}

void reply_model(struct writer *w, const struct group *group)
{
        uint64_t now = now_ns();
        const struct generation *g = representative(group);
        bool failed = g->state == GENERATION_FAILED;
        writer_map(w, failed ? 17 : 16);
        writer_kstr(w, "name", group->name);
        writer_ku64(w, "generation", g->number);
        reply_group_digest(w, group);
        write_source(w, g->source);
        writer_kstr(w, "state", generation_state_name(g->state));
        writer_ku64(w, "bytes", group_bytes(group));
        writer_ku64(w, "tensors", group_tensors(group));
        writer_key(w, "devices");
        writer_array(w, group->n);
        for (size_t i = 0; i < group->n; i++)
                write_on_device(w, group->members[i]);
        writer_ku64(w, "leases", count_leases(group));
        writer_kbool(w, "pinned", generation_pinned(g));
        writer_kstr(w, "tier", g->state == GENERATION_CACHED ? "host" : "device");
        writer_ku64(w, "idle_ns", count_leases(group) > 0 ? 0 : idle_ns(group, now));
        writer_ku64(w, "keep_alive_ns", g->keep_alive_ns);
        writer_ku64(w, "expires_in_ns", generation_expires_in(g, now));
        writer_ku64(w, "priority", g->priority);
        writer_ku64(w, "load_ns", g->state == GENERATION_LOADING ? 0 : g->load_ns);
        if (failed)
                writer_kstr(w, "error", g->error.text);
}

/* ---- list ---- */

struct entry {
        const char *name;
        struct generation *generation;
};

static int by_name(const void *a, const void *b)
{
        const struct entry *x = a, *y = b;
        int r = strcmp(x->name, y->name);
        return r != 0 ? r : group_compare(x->generation, y->generation);
}

static size_t count_entries(const struct resident *resident)
{
        size_t n = 0;
        list_each (pos, &resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                n += list_empty(&g->names);
                list_each (name, &g->names)
                        n++;
        }
        return n;
}

/* Every name of every generation that comes after `after`, sorted. */
static size_t collect(const struct resident *resident, const char *after, struct entry *entries)
{
        size_t n = 0;
        list_each (pos, &resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (list_empty(&g->names) && (after == NULL || strcmp(g->last_name, after) > 0))
                        entries[n++] = (struct entry){g->last_name, g};
                list_each (link, &g->names) {
                        const char *name = container_of(link, struct model_name, link)->text;
                        if (after == NULL || strcmp(name, after) > 0)
                                entries[n++] = (struct entry){name, g};
                }
        }
        qsort(entries, n, sizeof(*entries), by_name);
        return n;
}

/* How many entries, from the first on, are one model. */
static size_t take_group(const struct entry *entries, size_t n, struct group *group)
{
        *group = (struct group){.name = entries[0].name};
        while (group->n < n && group->n < GROUP_MAX && strcmp(entries[group->n].name, entries[0].name) == 0 &&
               group_same(entries[group->n].generation, entries[0].generation)) {
                group->members[group->n] = entries[group->n].generation;
                group->n++;
        }
        return group->n;
}

static size_t count_groups(const struct entry *entries, size_t n)
{
        struct group group;
        size_t groups = 0;
        for (size_t i = 0; i < n; i += take_group(entries + i, n - i, &group))
                groups++;
        return groups;
}

void reply_list(struct writer *w, const struct server *server, const struct request *request)
{
        const struct req_list *req = &request->u.list;
        cleanup_free struct entry *entries = calloc(count_entries(server->resident) + 1, sizeof(*entries));
        if (entries == NULL) {
                writer_error(w, request->id, STREAMER_ENOMEM, "no memory");
                return;
        }
        size_t n = collect(server->resident, req->after, entries);
        size_t page = req->limit > 0 && req->limit < LIST_PAGE ? (size_t)req->limit : LIST_PAGE;
        size_t end = n < page ? n : page;
        while (end > 0 && end < n && strcmp(entries[end].name, entries[end - 1].name) == 0)
                end++; /* the generations of one name stay together: `after` is a name */
        writer_reply(w, request->id, end < n ? 2 : 1);
        writer_key(w, "models");
        writer_array(w, count_groups(entries, end));
        for (size_t i = 0; i < end;) {
                struct group group;
                i += take_group(entries + i, end - i, &group);
                reply_model(w, &group);
        }
        if (end < n)
                writer_kstr(w, "next", entries[end - 1].name);
}

/* ---- show ---- */

static uint64_t record_size(const struct manifest_record *r)
{
        return r->name_len + UINT64_C(9) * r->rank + 160;
}

/* While loading, digests are other threads' to write. */
static void write_record(struct writer *w, const struct manifest_view *m, const struct manifest_record *r, bool loading)
{
        writer_map(w, 7);
        writer_key(w, "name");
        writer_strn(w, m->strings + r->name_off, r->name_len);
        writer_kstr(w, "dtype", dtype_name(r->dtype));
        writer_key(w, "shape");
        writer_array(w, r->rank);
        for (uint32_t i = 0; i < r->rank; i++)
                writer_u64(w, m->shapes[r->shape_off + i]);
        writer_ku64(w, "bytes", r->bytes);
        writer_ku64(w, "segment", r->segment);
        writer_ku64(w, "offset", r->offset);
        writer_key(w, "digest");
        if (loading)
                writer_str(w, "");
        else
                writer_hex(w, r->digest, DIGEST_SIZE);
}

static int write_tensors(struct writer *w, const struct group *group, const struct generation *g,
                         const struct request *request, struct error *error)
{
        const struct req_show *req = &request->u.show;
        const struct manifest_view m = table_manifest(&g->manifest);
        uint64_t n = m.header->n_records, from = req->offset < n ? req->offset : n, end = from, size = 0;
        while (end < n && (req->limit == 0 || end - from < req->limit)) {
                size += record_size(&m.records[end]);
                if (size > SHOW_PAGE)
                        break;
                end++;
        }
        bool more = end < n;
        if (more && end == from)
                return error_set(error, STREAMER_EUNSUPPORTED, "tensor %" PRIu64 ": its name does not fit a reply",
                                 from);
        writer_reply(w, request->id, more ? 3 : 2);
        writer_key(w, "models");
        writer_array(w, 1);
        reply_model(w, group);
        writer_key(w, "tensor_list");
        writer_array(w, end - from);
        for (uint64_t i = from; i < end; i++)
                write_record(w, &m, &m.records[i], g->state == GENERATION_LOADING);
        if (more)
                writer_ku64(w, "next", end);
        return 0;
}

int reply_show(struct writer *w, const struct group *group, const struct generation *g, const struct request *request,
               struct error *error)
{
        if (request->u.show.tensors) {
                if (g->manifest.fd < 0 || g->releasing)
                        return error_set(error, STREAMER_EFAILED, "its tensors are not known (%s)",
                                         generation_state_name(g->state));
                return write_tensors(w, group, g, request, error);
        }
        writer_reply(w, request->id, 1);
        writer_key(w, "models");
        writer_array(w, 1);
        reply_model(w, group);
        return 0;
}

/* ---- status ---- */

static void write_device(struct writer *w, const struct device *d)
{
        writer_map(w, 7);
        writer_kstr(w, "device", d->name);
        writer_kstr(w, "uuid", d->uuid);
        writer_ku64(w, "budget", d->budget);
        writer_ku64(w, "used", d->used);
        writer_ku64(w, "quarantined", d->quarantined);
        writer_ku64(w, "free", device_unused(d));
        writer_kstr(w, "page_kind", page_kind_name(d->pages));
}

static void write_load(struct writer *w, struct load *load)
{
        struct load_progress p;
        load_progress(load, &p);
        writer_map(w, 11);
        writer_kstr(w, "model", load->name);
        writer_key(w, "devices");
        writer_array(w, load->n_targets);
        for (size_t i = 0; i < load->n_targets; i++)
                writer_str(w, load->targets[i].device->name);
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

void reply_ring(struct writer *w, struct reader *reader)
{
        char numa[256];
        writer_key(w, "ring");
        struct reader_usage usage;
        reader_usage(reader, &usage);
        writer_map(w, 5);
        writer_ku64(w, "bytes", reader->staging.bytes);
        writer_kstr(w, "page_kind", page_kind_name(reader->staging.pages));
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

void reply_status(struct writer *w, const struct server *server, uint64_t id)
{
        writer_reply(w, id, 7 + STATUS_HEALTH);
        writer_kstr(w, "version", STREAMERD_VERSION);
        writer_ku64(w, "protocol", PROTOCOL_MAX);
        writer_ku64(w, "uptime_ns", now_ns() - server->started_ns);
        writer_key(w, "devices");
        writer_array(w, server->resident->n_devices);
        for (size_t i = 0; i < server->resident->n_devices; i++)
                write_device(w, server->resident->devices[i]);
        write_host_cache(w, server->resident);
        reply_ring(w, server->reader);
        write_loads(w, server->loads);
        status_health(w, server);
}

static const char *outcome_name(enum room_outcome outcome)
{
        static const char *const names[] = {
                [ROOM_FITS] = "fits", [ROOM_COMES] = "waits", [ROOM_EVICTS] = "evicts", [ROOM_BLOCKED] = "blocked"};
        return names[outcome];
}

/* What the load would find, and whom it would evict. */
static void write_outlook(struct writer *w, const struct load_target *target)
{
        const struct load *load = target->load;
        struct room_outlook outlook = {.outcome = ROOM_FITS};
        if (!target->estimate.resident)
                room_look(load->loads->resident->room, target->device, load->name, target->estimate.needed,
                          !load->no_evict, &outlook);
        writer_kstr(w, "room", outcome_name(outlook.outcome));
        writer_key(w, "evicts");
        writer_array(w, outlook.n_victims);
        for (size_t i = 0; i < outlook.n_victims; i++) {
                const struct generation *g = outlook.victims[i];
                writer_map(w, 3);
                writer_kstr(w, "model", generation_name(g));
                writer_ku64(w, "generation", g->number);
                writer_ku64(w, "bytes", g->charged);
        }
}

static void write_estimate(struct writer *w, const struct load_target *target)
{
        const struct load_estimate *e = &target->estimate;
        writer_kstr(w, "device", target->device->name);
        writer_ku64(w, "needed", e->needed);
        writer_ku64(w, "free", e->unused);
        writer_ku64(w, "budget", e->budget);
        writer_kbool(w, "fits", e->fits);
        writer_ku64(w, "segments", e->segments);
        writer_ku64(w, "blocks", e->blocks);
        writer_ku64(w, "copied_bytes", e->copied);
        writer_kbool(w, "resident", e->resident);
        write_outlook(w, target);
}

#define ESTIMATE_FIELDS 11u

/* Replicas are of the same files, ranks each of their own. */
static void write_estimate_sums(struct writer *w, const struct load *load)
{
        uint64_t files = 0, tensors = 0, bytes = 0;
        bool streamed = false;
        for (size_t i = 0; i < (load->pattern != NULL ? load->n_targets : 1); i++) {
                files += load->targets[i].estimate.files;
                tensors += load->targets[i].estimate.tensors;
                bytes += load->targets[i].estimate.bytes;
                streamed |= load->targets[i].estimate.streamed;
        }
        writer_ku64(w, "files", files);
        writer_ku64(w, "tensors", tensors);
        writer_ku64(w, "bytes", bytes);
        writer_kbool(w, "streamed", streamed);
}

void reply_estimate(struct writer *w, const struct load *load, uint64_t id)
{
        bool several = load->n_targets > 1;
        writer_reply(w, id, 6 + (several ? 1 : ESTIMATE_FIELDS));
        writer_kstr(w, "model", load->name);
        write_source(w, load->source);
        write_estimate_sums(w, load);
        if (!several) {
                write_estimate(w, &load->targets[0]);
                return;
        }
        writer_key(w, "devices");
        writer_array(w, load->n_targets);
        for (size_t i = 0; i < load->n_targets; i++) {
                writer_map(w, ESTIMATE_FIELDS);
                write_estimate(w, &load->targets[i]);
        }
}
