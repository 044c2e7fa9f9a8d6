/* SPDX-License-Identifier: Apache-2.0
 *
 * list and ps: a page of models in the order of their names, and of leases by id, and `next`, the last of the page,
 * unless no others follow. What is added or removed between two pages does not shift the others.
 *
 * A page walks over all models or leases, and sorts those that were on it at some time of the walk.
 */
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/sys/sysfile.h"

#include <string.h>

#define LIST_PAGE 64 /* names */
#define PS_PAGE 200  /* leases */
/* Of models. The rest of the frame is large enough for one more. */
#define LIST_BYTES (FRAME_MAX / 2)

/* ---- pages ---- */

/* The first items behind the page before, in their order. */
struct page {
        const void *items[PS_PAGE];
        size_t n, most;
        bool more; /* others follow */
};

static size_t page_size(uint64_t asked, size_t most)
{
        return asked > 0 && asked < most ? (size_t)asked : most;
}

/* Items are compared as by strcmp(), and equal ones are one. False: the item is behind the page. */
static bool page_add(struct page *page, const void *item, int (*compare)(const void *, const void *))
{
        size_t at = page->n;
        int r = 1;
        while (at > 0 && (r = compare(item, page->items[at - 1])) < 0)
                at--;
        if (r == 0)
                return true;
        if (page->n == page->most)
                page->more = true;
        else
                page->n++;
        if (at == page->n)
                return false;
        memmove(page->items + at + 1, page->items + at, (page->n - at - 1) * sizeof(page->items[0]));
        page->items[at] = item;
        return true;
}

/* ---- list ---- */

struct entry {
        const char *name;
        struct generation *generation;
};

/* A page of names, and the generations that have them; entries of names behind the page may be among these. */
struct models {
        const struct server *server;
        const char *after; /* NULL: from the start */
        struct page names;
        struct entry *entries;
        size_t n;
        bool failed; /* no memory */
};

static int compare_names(const void *a, const void *b)
{
        return strcmp(a, b);
}

static int compare_entries(const void *a, const void *b)
{
        const struct entry *x = a, *y = b;
        int r = strcmp(x->name, y->name);
        return r != 0 ? r : model_set_compare(x->generation, y->generation);
}

/* NULL generation: of a desired model. */
static void add_name(struct models *models, const char *name, struct generation *g)
{
        if ((models->after != NULL && strcmp(name, models->after) <= 0) ||
            !page_add(&models->names, name, compare_names) || g == NULL)
                return;
        struct entry *entries = array_grow(models->entries, models->n, sizeof(*entries));
        models->failed = models->failed || entries == NULL;
        if (entries == NULL)
                return;
        models->entries = entries;
        models->entries[models->n++] = (struct entry){name, g};
}

static void find_names(struct models *models)
{
        list_each_item (const struct desired_model, m, &models->server->desired.models, link)
                if (m->state != DESIRED_READY)
                        add_name(models, m->spec.name, NULL);
        list_each_item (struct generation, g, &models->server->resident->generations, link) {
                /* One that drains is listed by its last name, while it has device memory or leases. A failure that lost
                 * its name is not listed. */
                if (generation_drains(g) && (g->charged > 0 || g->n_leases > 0))
                        add_name(models, generation_name(g), g);
                list_each_item (const struct model_name, name, &g->names, link)
                        add_name(models, name->text, g);
        }
        if (models->n > 0)
                qsort(models->entries, models->n, sizeof(models->entries[0]), compare_entries);
}

/* Writes the models of a name, whose entries begin at `at`, and returns where they end. A desired one is part of the
 * resident ones, or without those a model of its own. What does not fit the reply is left out. */
static size_t write_name(struct items *rows, const struct models *models, const char *name, size_t at)
{
        const struct desired_model *desired = desired_find(&models->server->desired, name);
        const struct entry *entries = models->entries;
        bool resident = false;
        size_t end = at;
        for (; end < models->n && strcmp(entries[end].name, name) == 0; end++)
                resident = resident || !list_empty(&entries[end].generation->names);
        if (desired != NULL && !resident) {
                reply_model(&rows->w, &(struct model_set){.name = name}, desired, &reply_no_notes);
                rows->n++;
        }
        for (; at < end && rows->w.buf.size < LIST_BYTES; rows->n++) {
                struct model_set group = {.name = name};
                const struct generation *first = entries[at].generation;
                while (at < end && group.n < MODEL_SET_MAX && model_set_same(entries[at].generation, first))
                        group.members[group.n++] = entries[at++].generation;
                reply_model(&rows->w, &group, desired, &reply_no_notes);
        }
        return end;
}

/* The generations of one name stay in one page, since `after` is a name. */
int verb_list(struct session *session, struct request *request, struct error *error)
{
        const struct req_list *req = &request->u.list;
        struct models models = {
                .server = session->server, .after = req->after, .names.most = page_size(req->limit, LIST_PAGE)};
        cleanup_with(items_deinit) struct items rows;
        size_t at = 0, n = 0;
        items_init(&rows);
        find_names(&models);
        for (; n < models.names.n && rows.w.buf.size < LIST_BYTES; n++)
                at = write_name(&rows, &models, models.names.items[n], at);
        bool more = models.names.more || n < models.names.n;
        if (!models.failed)
                session_reply(session, request->id, kitems("models", &rows),
                              kif(more, kstr("next", models.names.items[n - 1])));
        free(models.entries);
        return models.failed ? error_no_memory(error) : 0;
}

/* ---- ps ---- */

static int compare_leases(const void *a, const void *b)
{
        return ORDER(((const struct lease *)a)->id, ((const struct lease *)b)->id);
}

/* With the process's command name and control group from /proc. */
static void write_lease(struct writer *w, const void *data, size_t i)
{
        const struct lease *lease = ((const struct page *)data)->items[i];
        struct process *process = lease->process;
        const struct generation *g = lease->generation;
        uint64_t now = now_ns();
        char comm[SYSFILE_COMM];
        sysfile_comm(comm, process->pid);
        if (!process->asked && !process->exited)
                container_of_process(&process->container, process->pid);
        process->asked = true;
        writer_map_of(w, ku64("id", lease->id), kstr("model", generation_name(g)), ku64("generation", g->number),
                      kstr("device", g->device->name), ku64("pid", (uint64_t)process->pid), ku64("uid", process->uid),
                      kstr("comm", comm), ku64("bytes", g->data_bytes), ku64("age_ns", now - lease->since_ns),
                      kbool("orphan", lease_is_orphan(lease, now)),
                      kbool("quarantined", g->state == GENERATION_REVOKED),
                      kstr("client", process->client != NULL ? process->client : ""),
                      kstr("container", process->container.id), kstr("pod", process->container.pod));
}

int verb_ps(struct session *session, struct request *request, struct error *error)
{
        const struct req_ps *req = &request->u.ps;
        struct page page = {.most = page_size(req->limit, PS_PAGE)};
        list_each_item (const struct generation, g, &session->server->resident->generations, link)
                list_each_item (const struct lease, lease, &g->leases, in_generation)
                        if (lease->id > req->after)
                                page_add(&page, lease, compare_leases);
        return session_reply(session, request->id, karray("leases", write_lease, &page, page.n),
                             kif(page.more, ku64("next", ((const struct lease *)page.items[page.n - 1])->id)));
}
