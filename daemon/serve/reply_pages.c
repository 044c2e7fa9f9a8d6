/* SPDX-License-Identifier: Apache-2.0
 *
 * The replies to list and show. Each is a page: `next` says where the following one begins, and is
 * missing from the last. Models are paged by name, so that one that comes or goes between two pages
 * shifts nothing; tensors by number.
 */
#include "daemon/serve/reply.h"

#include <inttypes.h>
#include <string.h>

/* Models in one reply, and their bytes: what one more takes is far below the rest of a frame. */
#define LIST_PAGE 64
#define LIST_BYTES (FRAME_MAX / 2)
/* Bytes of tensor records in one reply. */
#define SHOW_PAGE (FRAME_MAX - 64 * 1024)

/* ---- list ---- */

struct entry {
        const char *name;
        struct generation *generation; /* NULL: it is wanted, and nothing of it is there */
};

static int by_name(const void *a, const void *b)
{
        const struct entry *x = a, *y = b;
        int r = strcmp(x->name, y->name);
        if (r != 0 || x->generation == NULL || y->generation == NULL)
                return r != 0 ? r : (x->generation != NULL) - (y->generation != NULL);
        return group_compare(x->generation, y->generation);
}

static size_t count_entries(const struct server *server)
{
        size_t n = 0;
        struct wanted wanted;
        while (wanted_at(server, n, &wanted))
                n++;
        list_each (pos, &server->resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                n += list_empty(&g->names);
                list_each (name, &g->names)
                        n++;
        }
        return n;
}

static bool any_has(const struct resident *resident, const char *name)
{
        list_each (pos, &resident->generations)
                if (generation_has_name(container_of(pos, struct generation, link), name))
                        return true;
        return false;
}

static size_t collect_wanted(const struct server *server, const char *after, struct entry *entries, size_t n)
{
        struct wanted wanted;
        for (size_t i = 0; wanted_at(server, i, &wanted); i++)
                if ((after == NULL || strcmp(wanted.name, after) > 0) && !any_has(server->resident, wanted.name))
                        entries[n++] = (struct entry){wanted.name, NULL};
        return n;
}

/* Every name of every generation that comes after `after`, and those that are wanted, sorted. */
static size_t collect(const struct server *server, const char *after, struct entry *entries)
{
        size_t n = collect_wanted(server, after, entries, 0);
        list_each (pos, &server->resident->generations) {
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
        if (entries[0].generation == NULL)
                return 1;
        while (group->n < n && group->n < GROUP_MAX && strcmp(entries[group->n].name, entries[0].name) == 0 &&
               entries[group->n].generation != NULL &&
               group_same(entries[group->n].generation, entries[0].generation)) {
                group->members[group->n] = entries[group->n].generation;
                group->n++;
        }
        return group->n;
}

/* As many models as fit, of the first `end` entries; how many entries that are. */
static size_t write_models(struct writer *w, const struct server *server, const struct entry *entries, size_t end,
                           size_t *n_models)
{
        size_t i = 0;
        for (*n_models = 0; i < end && w->buf.size < LIST_BYTES; ++*n_models) {
                struct group group;
                struct wanted wanted;
                i += take_group(entries + i, end - i, &group);
                if (group.n > 0)
                        reply_model(w, server, &group);
                else if (wanted_find(server, group.name, &wanted))
                        reply_wanted(w, &wanted);
        }
        return i;
}

static bool same_name(const struct entry *a, const struct entry *b)
{
        return strcmp(a->name, b->name) == 0;
}

/* The generations of one name stay together, since `after` is a name: where they do not fit one reply, those
 * that do are told. */
void reply_list(struct writer *w, const struct server *server, const struct request *request)
{
        const struct req_list *req = &request->u.list;
        cleanup_free struct entry *entries = calloc(count_entries(server) + 1, sizeof(*entries));
        if (entries == NULL) {
                writer_error(w, request->id, STREAMER_ENOMEM, "no memory");
                return;
        }
        size_t n = collect(server, req->after, entries), n_models;
        size_t page = req->limit > 0 && req->limit < LIST_PAGE ? (size_t)req->limit : LIST_PAGE;
        size_t end = n < page ? n : page;
        while (end > 0 && end < n && same_name(&entries[end], &entries[end - 1]))
                end++;
        struct writer models;
        writer_init(&models);
        end = write_models(&models, server, entries, end, &n_models);
        while (end > 0 && end < n && same_name(&entries[end], &entries[end - 1]))
                end++;
        writer_reply(w, request->id, end < n ? 2 : 1);
        writer_key(w, "models");
        writer_array(w, n_models);
        writer_append(w, &models);
        writer_deinit(&models);
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

static int write_tensors(struct writer *w, const struct server *server, const struct group *group,
                         const struct generation *g, const struct request *request, struct error *error)
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
        reply_model(w, server, group);
        writer_key(w, "tensor_list");
        writer_array(w, end - from);
        for (uint64_t i = from; i < end; i++)
                write_record(w, &m, &m.records[i], g->state == GENERATION_LOADING);
        if (more)
                writer_ku64(w, "next", end);
        return 0;
}

int reply_show(struct writer *w, const struct server *server, const struct group *group, const struct generation *g,
               const struct request *request, struct error *error)
{
        if (request->u.show.tensors) {
                if (g->manifest.fd < 0 || g->releasing)
                        return error_set(error, STREAMER_EFAILED, "its tensors are not known (%s)",
                                         generation_state_name(g->state));
                return write_tensors(w, server, group, g, request, error);
        }
        writer_reply(w, request->id, 1);
        writer_key(w, "models");
        writer_array(w, 1);
        reply_model(w, server, group);
        return 0;
}
