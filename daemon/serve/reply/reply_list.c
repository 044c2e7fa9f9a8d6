/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to list: a page of models in the order of their names, and `next`, the name after which the following page
 * begins, unless it is the last. Models that are added or removed between two pages do not shift the others.
 *
 * A page walks over all models twice: to find its names, and to find what has them. Its cost grows linearly with the
 * number of models, and only the page itself is sorted.
 */
#include "daemon/serve/reply/reply.h"

#include <string.h>

/* Of one reply. The rest of the frame is large enough for one more model. */
#define LIST_PAGE 64
#define LIST_BYTES (FRAME_MAX / 2)

struct entry {
        const char *name;
        struct generation *generation;       /* NULL: not resident */
        const struct desired_model *desired; /* of this name; NULL: none */
};

/* What a page is made from. */
struct page {
        const struct server *server;
        const char *after;            /* NULL: from the start */
        const char *names[LIST_PAGE]; /* the first, in order */
        size_t n_names, most;
        bool more; /* others follow */
        struct entry *entries;
        size_t n;
};

/* ---- its names ---- */

static void note_name(struct page *page, const char *name)
{
        size_t from = 0, to = page->n_names;
        if (page->after != NULL && strcmp(name, page->after) <= 0)
                return;
        while (from < to) {
                size_t middle = (from + to) / 2;
                int r = strcmp(name, page->names[middle]);
                if (r == 0)
                        return;
                if (r < 0)
                        to = middle;
                else
                        from = middle + 1;
        }
        if (page->n_names == page->most) {
                page->more = true;
                page->n_names--;
        }
        if (from > page->n_names) { /* after the last that fits */
                page->n_names++;
                return;
        }
        memmove(page->names + from + 1, page->names + from, (page->n_names - from) * sizeof(page->names[0]));
        page->names[from] = name;
        page->n_names++;
}

/* It drains: it is listed by its last name. A failure that lost its name is not listed. */
static bool is_nameless(const struct generation *g)
{
        return list_empty(&g->names) && g->state != GENERATION_FAILED;
}

static void find_names(struct page *page)
{
        list_each_item (const struct desired_model, m, &page->server->desired.models, link)
                if (m->state != DESIRED_READY)
                        note_name(page, m->spec->name);
        list_each_item (const struct generation, g, &page->server->resident->generations, link) {
                if (is_nameless(g))
                        note_name(page, g->last_name);
                list_each (name, &g->names)
                        note_name(page, container_of(name, struct model_name, link)->text);
        }
}

/* ---- its entries ---- */

static bool is_on_page(const struct page *page, const char *name)
{
        return page->n_names > 0 && strcmp(name, page->names[page->n_names - 1]) <= 0 &&
               (page->after == NULL || strcmp(name, page->after) > 0);
}

static bool add(struct page *page, const char *name, struct generation *g, const struct desired_model *desired)
{
        if (!is_on_page(page, name))
                return true;
        struct entry *entries = array_grow(page->entries, page->n, sizeof(*entries));
        if (entries == NULL)
                return false;
        page->entries = entries;
        page->entries[page->n++] = (struct entry){name, g, desired};
        return true;
}

/* A desired model before the resident ones of its name. */
static int by_name(const void *a, const void *b)
{
        const struct entry *x = a, *y = b;
        int r = strcmp(x->name, y->name);
        if (r != 0)
                return r;
        if (x->generation == NULL || y->generation == NULL)
                return (x->generation != NULL) - (y->generation != NULL);
        return model_set_compare(x->generation, y->generation);
}

/* Merges a desired model into the resident ones of its name; without those it is an entry of its own. */
static void settle(struct page *page)
{
        struct entry *e = page->entries;
        size_t n = 0;
        for (size_t i = 0, end; i < page->n; i = end) {
                const char *name = e[i].name;
                const struct desired_model *desired = e[i].desired;
                bool resident = false;
                for (end = i; end < page->n && strcmp(e[end].name, name) == 0; end++)
                        resident = resident || (e[end].generation != NULL && !list_empty(&e[end].generation->names));
                for (size_t k = i; k < end; k++)
                        if (e[k].generation != NULL || (!resident && k == i))
                                e[n++] = (struct entry){name, e[k].generation, desired};
        }
        page->n = n;
}

static bool collect(struct page *page)
{
        bool ok = true;
        list_each_item (const struct desired_model, m, &page->server->desired.models, link) {
                const char *name = m->spec->name;
                if (m->state != DESIRED_READY && is_on_page(page, name) &&
                    m == desired_find(&page->server->desired, name))
                        ok = ok && add(page, name, NULL, m);
        }
        list_each_item (struct generation, g, &page->server->resident->generations, link) {
                if (is_nameless(g))
                        ok = ok && add(page, g->last_name, g, NULL);
                list_each (name, &g->names)
                        ok = ok && add(page, container_of(name, struct model_name, link)->text, g, NULL);
        }
        if (page->n > 0)
                qsort(page->entries, page->n, sizeof(*page->entries), by_name);
        settle(page);
        return ok;
}

/* ---- writing ---- */

/* How many entries, from the first on, are one model. */
static size_t take_group(const struct entry *entries, size_t n, struct model_set *group)
{
        *group = (struct model_set){.name = entries[0].name};
        if (entries[0].generation == NULL)
                return 1;
        while (group->n < n && group->n < MODEL_SET_MAX && strcmp(entries[group->n].name, entries[0].name) == 0 &&
               model_set_same(entries[group->n].generation, entries[0].generation)) {
                group->members[group->n] = entries[group->n].generation;
                group->n++;
        }
        return group->n;
}

/* As many models as fit; how many entries that are. */
static size_t write_models(struct writer *w, const struct page *page, size_t *n_models)
{
        size_t i = 0;
        for (*n_models = 0; i < page->n && w->buf.size < LIST_BYTES; ++*n_models) {
                const struct entry *first = &page->entries[i];
                struct model_set group;
                i += take_group(first, page->n - i, &group);
                if (group.n > 0)
                        reply_model(w, &group, first->desired);
                else
                        reply_desired(w, first->desired);
        }
        return i;
}

/* The generations of one name stay in one page, since `after` is a name; what does not fit the reply is left out. */
static void write_page(struct writer *w, const struct page *page, uint64_t id)
{
        struct writer models;
        size_t n_models;
        writer_init(&models);
        size_t end = write_models(&models, page, &n_models);
        while (end > 0 && end < page->n && strcmp(page->entries[end].name, page->entries[end - 1].name) == 0)
                end++;
        bool more = end < page->n || page->more;
        writer_reply(w, id, more ? 2 : 1);
        writer_karray(w, "models", n_models);
        writer_append(w, &models);
        writer_deinit(&models);
        if (more)
                writer_kstr(w, "next", page->entries[end - 1].name);
}

void reply_list(struct writer *w, const struct server *server, const struct request *request)
{
        const struct req_list *req = &request->u.list;
        struct page page = {.server = server,
                            .after = req->after,
                            .most = req->limit > 0 && req->limit < LIST_PAGE ? (size_t)req->limit : LIST_PAGE};
        find_names(&page);
        if (collect(&page))
                write_page(w, &page, request->id);
        else
                writer_error(w, request->id, STREAMER_ENOMEM, "no memory");
        free(page.entries);
}
