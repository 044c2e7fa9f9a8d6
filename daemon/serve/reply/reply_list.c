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

static bool add_name(struct page *page, const char *name, struct generation *g, const struct desired_model *desired)
{
        (void)g;
        (void)desired;
        size_t from = 0, to = page->n_names;
        if (page->after != NULL && strcmp(name, page->after) <= 0)
                return true;
        while (from < to) {
                size_t middle = (from + to) / 2;
                int r = strcmp(name, page->names[middle]);
                if (r == 0)
                        return true;
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
                return true;
        }
        memmove(page->names + from + 1, page->names + from, (page->n_names - from) * sizeof(page->names[0]));
        page->names[from] = name;
        page->n_names++;
        return true;
}

typedef bool page_add(struct page *page, const char *name, struct generation *g, const struct desired_model *desired);

/* Calls `add` for each name of each model, until it returns false. */
static bool each_name(struct page *page, page_add *add)
{
        bool ok = true;
        list_each_item (const struct desired_model, m, &page->server->desired.models, link)
                if (m->state != DESIRED_READY)
                        ok = ok && add(page, m->spec->name, NULL, m);
        list_each_item (struct generation, g, &page->server->resident->generations, link) {
                /* One that drains is listed by its last name. A failure that lost its name is not listed. */
                if (list_empty(&g->names) && g->state != GENERATION_FAILED)
                        ok = ok && add(page, generation_name(g), g, NULL);
                list_each_item (const struct model_name, name, &g->names, link)
                        ok = ok && add(page, name->text, g, NULL);
        }
        return ok;
}

/* ---- its entries ---- */

static bool add_entry(struct page *page, const char *name, struct generation *g, const struct desired_model *desired)
{
        bool on_page = page->n_names > 0 && strcmp(name, page->names[page->n_names - 1]) <= 0 &&
                       (page->after == NULL || strcmp(name, page->after) > 0);
        if (!on_page || (desired != NULL && desired != desired_find(&page->server->desired, name)))
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
static void merge_desired(struct page *page)
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

/* The generations of one name stay in one page, since `after` is a name; what does not fit the reply is left out. */
static void write_page(struct writer *w, const struct page *page, uint64_t id)
{
        struct writer models;
        size_t n_models, end = 0;
        writer_init(&models);
        for (n_models = 0; end < page->n && models.buf.size < LIST_BYTES; n_models++) {
                const struct entry *first = &page->entries[end];
                struct model_set group;
                end += take_group(first, page->n - end, &group);
                if (group.n > 0)
                        reply_model(&models, &group, first->desired);
                else
                        reply_desired(&models, first->desired);
        }
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

int reply_list(struct writer *w, const struct server *server, const struct request *request, struct error *error)
{
        const struct req_list *req = &request->u.list;
        struct page page = {.server = server,
                            .after = req->after,
                            .most = req->limit > 0 && req->limit < LIST_PAGE ? (size_t)req->limit : LIST_PAGE};
        each_name(&page, add_name);
        int r = each_name(&page, add_entry) ? 0 : error_no_memory(error);
        if (r == 0) {
                if (page.n > 0)
                        qsort(page.entries, page.n, sizeof(*page.entries), by_name);
                merge_desired(&page);
                write_page(w, &page, request->id);
        }
        free(page.entries);
        return r;
}
