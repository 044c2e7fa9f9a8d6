/* SPDX-License-Identifier: Apache-2.0
 *
 * list: a page of models in the order of their names, and `next`, the name after which the following page begins,
 * unless it is the last. Models that are added or removed between two pages do not shift the others.
 *
 * A page walks over all models twice: to find its names, and to find what has them. Its cost grows linearly with the
 * number of models, and only the page itself is sorted.
 */
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

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

typedef bool page_add(struct page *page, const struct entry *entry);

static bool add_name(struct page *page, const struct entry *entry)
{
        size_t at = page->n_names;
        int r = -1;
        while (at > 0 && (r = strcmp(page->names[at - 1], entry->name)) > 0)
                at--;
        if ((at > 0 && r == 0) || (page->after != NULL && strcmp(entry->name, page->after) <= 0))
                return true;
        if (page->n_names == page->most)
                page->more = true;
        else
                page->n_names++;
        if (at == page->n_names) /* after the last that fits */
                return true;
        memmove(page->names + at + 1, page->names + at, (page->n_names - at - 1) * sizeof(page->names[0]));
        page->names[at] = entry->name;
        return true;
}

/* Calls `add` for each name of each model, until it returns false. */
static bool each_name(struct page *page, page_add *add)
{
        bool ok = true;
        list_each_item (const struct desired_model, m, &page->server->desired.models, link)
                if (m->state != DESIRED_READY)
                        ok = ok && add(page, &(struct entry){m->spec.name, NULL, m});
        list_each_item (struct generation, g, &page->server->resident->generations, link) {
                /* One that drains is listed by its last name. A failure that lost its name is not listed. */
                if (list_empty(&g->names) && g->state != GENERATION_FAILED)
                        ok = ok && add(page, &(struct entry){generation_name(g), g, NULL});
                list_each_item (const struct model_name, name, &g->names, link)
                        ok = ok && add(page, &(struct entry){name->text, g, NULL});
        }
        return ok;
}

/* ---- its entries ---- */

static bool add_entry(struct page *page, const struct entry *entry)
{
        bool on_page = page->n_names > 0 && strcmp(entry->name, page->names[page->n_names - 1]) <= 0 &&
                       (page->after == NULL || strcmp(entry->name, page->after) > 0);
        if (!on_page || (entry->desired != NULL && entry->desired != desired_find(&page->server->desired, entry->name)))
                return true;
        struct entry *entries = array_grow(page->entries, page->n, sizeof(*entries));
        if (entries == NULL)
                return false;
        page->entries = entries;
        page->entries[page->n++] = *entry;
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

/* ---- writing ---- */

/* The models of one name, which n entries have: a desired one is part of the resident ones, or without those a model of
 * its own. What does not fit the reply is left out. */
static void write_name(struct items *models, const struct entry *entries, size_t n)
{
        const struct desired_model *desired = entries[0].desired;
        bool resident = false;
        for (size_t i = 0; i < n; i++)
                resident = resident || (entries[i].generation != NULL && !list_empty(&entries[i].generation->names));
        if (desired != NULL && !resident) {
                reply_desired(&models->w, desired);
                models->n++;
        }
        for (size_t i = desired != NULL; i < n && models->w.buf.size < LIST_BYTES; models->n++) {
                struct model_set group = {.name = entries[0].name};
                const struct generation *first = entries[i].generation;
                while (i < n && group.n < MODEL_SET_MAX && model_set_same(entries[i].generation, first))
                        group.members[group.n++] = entries[i++].generation;
                reply_model(&models->w, &group, desired);
        }
}

/* The generations of one name stay in one page, since `after` is a name. */
static void reply_page(struct session *session, uint64_t id, const struct page *page)
{
        cleanup_with(items_deinit) struct items models;
        size_t at = 0;
        items_init(&models);
        while (at < page->n && models.w.buf.size < LIST_BYTES) {
                size_t from = at;
                while (at < page->n && strcmp(page->entries[at].name, page->entries[from].name) == 0)
                        at++;
                write_name(&models, &page->entries[from], at - from);
        }
        bool more = at < page->n || page->more;
        session_reply(session, id, kitems("models", &models), kif(more, kstr("next", page->entries[at - 1].name)));
}

int verb_list(struct session *session, struct request *request, struct error *error)
{
        const struct req_list *req = &request->u.list;
        struct page page = {.server = session->server,
                            .after = req->after,
                            .most = req->limit > 0 && req->limit < LIST_PAGE ? (size_t)req->limit : LIST_PAGE};
        each_name(&page, add_name);
        int r = each_name(&page, add_entry) ? 0 : error_no_memory(error);
        if (r == 0) {
                if (page.n > 0)
                        qsort(page.entries, page.n, sizeof(*page.entries), by_name);
                reply_page(session, request->id, &page);
        }
        free(page.entries);
        return r;
}
