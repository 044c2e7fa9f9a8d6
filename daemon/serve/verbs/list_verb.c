/* SPDX-License-Identifier: Apache-2.0
 *
 * list and ps: a page of models in the order of their names, and of leases by id, and `next`, the last of the page,
 * unless no others follow. What is added or removed between two pages does not shift the others.
 *
 * Names, leases and desired models are in ordered trees, so a page costs what is on it.
 */
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/sys/sysfile.h"

#include <string.h>

#define LIST_PAGE 64 /* names */
#define PS_PAGE 200  /* leases */
/* Of models. The rest of the frame is large enough for one more. */
#define LIST_BYTES (FRAME_MAX / 2)

static size_t page_size(uint64_t asked, size_t most)
{
        return asked > 0 && asked < most ? (size_t)asked : most;
}

/* ---- list ---- */

/* The next names in both trees; of these the first is listed next. */
struct cursor {
        const struct model_name *resident;
        const struct desired_model *desired;
};

static const char *cursor_name(const struct cursor *cursor)
{
        const char *resident = cursor->resident != NULL ? cursor->resident->text : NULL;
        const char *desired = cursor->desired != NULL ? cursor->desired->spec.name : NULL;
        if (resident == NULL || desired == NULL)
                return resident ?: desired;
        return strcmp(resident, desired) < 0 ? resident : desired;
}

/* Behind this name in both. */
static void cursor_pass(struct cursor *cursor, const char *name)
{
        while (cursor->resident != NULL && strcmp(cursor->resident->text, name) <= 0)
                cursor->resident = model_name_next(cursor->resident);
        while (cursor->desired != NULL && strcmp(cursor->desired->spec.name, name) <= 0)
                cursor->desired = desired_next(cursor->desired);
}

/* One that drains is listed by its last name, while it has device memory or leases. A failure that lost its name is not
 * listed. */
static bool is_listed(const struct generation *g)
{
        return !list_empty(&g->names) || (generation_drains(g) && (g->charged > 0 || g->n_leases > 0));
}

static int compare_members(const void *a, const void *b)
{
        return model_set_compare(*(struct generation *const *)a, *(struct generation *const *)b);
}

/* The generations of the name, in the order of their sets: malloc'd. NULL: no memory. */
static struct generation **generations_of(struct resident *resident, const char *name, size_t *n)
{
        size_t most = 1;
        *n = 0;
        resident_each_named(count, resident, name) most += is_listed(count->generation);
        struct generation **all = calloc(most, sizeof(struct generation *));
        if (all == NULL)
                return NULL;
        resident_each_named(has, resident, name) if (is_listed(has->generation)) all[(*n)++] = has->generation;
        require(*n < most);
        if (*n > 1)
                qsort(all, *n, sizeof(struct generation *), compare_members);
        return all;
}

/* Writes the models of a name. A desired one is part of the resident ones, or without those a model of its own. What
 * does not fit the reply is left out. False: no memory. */
static bool write_name(struct items *rows, const struct server *server, const char *name)
{
        const struct desired_model *desired = desired_find(&server->desired, name);
        bool resident = false;
        size_t n;
        cleanup_free struct generation **all = generations_of(server->resident, name, &n);
        if (all == NULL)
                return false;
        for (size_t i = 0; i < n; i++)
                resident = resident || !list_empty(&all[i]->names);
        if (desired != NULL && !resident) {
                reply_model(&rows->w, &(struct model_set){.name = name}, desired, &reply_no_notes);
                rows->n++;
        }
        for (size_t at = 0; at < n && rows->w.buf.size < LIST_BYTES; rows->n++) {
                struct model_set group = {.name = name};
                const struct generation *first = all[at];
                while (at < n && group.n < MODEL_SET_MAX && model_set_same(all[at], first))
                        group.members[group.n++] = all[at++];
                reply_model(&rows->w, &group, desired, &reply_no_notes);
        }
        return true;
}

/* The generations of one name stay in one page, since `after` is a name. */
int verb_list(struct session *session, struct request *request, struct error *error)
{
        const struct req_list *req = &request->u.list;
        const struct server *server = session->server;
        struct cursor cursor = {.resident = resident_name_from(server->resident, req->after ?: ""),
                                .desired = desired_from(&server->desired, req->after ?: "")};
        const char *name, *last = NULL;
        size_t most = page_size(req->limit, LIST_PAGE);
        cleanup_with(items_deinit) struct items rows;
        items_init(&rows);
        if (req->after != NULL)
                cursor_pass(&cursor, req->after);
        for (size_t n = 0; (name = cursor_name(&cursor)) != NULL && n < most && rows.w.buf.size < LIST_BYTES;) {
                size_t before = rows.n;
                if (!write_name(&rows, server, name))
                        return error_no_memory(error);
                n += rows.n > before;
                last = name;
                cursor_pass(&cursor, name);
        }
        return session_reply(session, request->id, kitems("models", &rows), kif(name != NULL, kstr("next", last)));
}

/* ---- ps ---- */

struct page {
        const struct leases *leases;
        const struct lease *items[PS_PAGE];
        size_t n;
};

/* Its command name and control group are read from /proc, the name once a page. */
static void examine(struct process *process, uint64_t page)
{
        if (!process->asked && !process->exited)
                container_of_process(&process->container, process->pid);
        process->asked = true;
        if (process->page != page)
                sysfile_comm(process->comm, process->pid);
        process->page = page;
}

static void write_lease(struct writer *w, const void *data, size_t i)
{
        const struct page *page = data;
        const struct lease *lease = page->items[i];
        struct process *process = lease->process;
        const struct generation *g = lease->generation;
        uint64_t now = now_ns();
        examine(process, page->leases->pages);
        writer_map_of(w, ku64("id", lease->id), kstr("model", generation_name(g)), ku64("generation", g->number),
                      kstr("device", g->device->name), ku64("pid", (uint64_t)process->pid), ku64("uid", process->uid),
                      kstr("comm", process->comm), ku64("bytes", g->data_bytes), ku64("age_ns", now - lease->since_ns),
                      kbool("orphan", lease_is_orphan(lease, now)),
                      kbool("quarantined", g->state == GENERATION_REVOKED),
                      kstr("client", process->client != NULL ? process->client : ""),
                      kstr("container", process->container.id), kstr("pod", process->container.pod));
}

int verb_ps(struct session *session, struct request *request, struct error *error)
{
        const struct req_ps *req = &request->u.ps;
        struct leases *leases = &session->server->leases;
        struct page page = {.leases = leases};
        size_t most = page_size(req->limit, PS_PAGE);
        leases->pages++;
        const struct lease *lease = req->after < UINT64_MAX ? leases_from(leases, req->after + 1) : NULL;
        for (; lease != NULL && page.n < most; lease = lease_next(lease))
                page.items[page.n++] = lease;
        return session_reply(session, request->id, karray("leases", write_lease, &page, page.n),
                             kif(lease != NULL, ku64("next", page.items[page.n - 1]->id)));
}
