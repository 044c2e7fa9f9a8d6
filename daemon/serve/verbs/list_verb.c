/* SPDX-License-Identifier: Apache-2.0
 *
 * list and ps: a page of models in the order of their names, and of leases by id, and `next`, the last of the page,
 * unless no others follow. It comes first, so that a client may ask for the next page while it reads this one. What is
 * added or removed between two pages does not shift the others.
 *
 * Names, leases and desired models are in ordered trees, so a page costs what is on it.
 */
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/sys/sysfile.h"

#include <string.h>

#define LIST_PAGE 128 /* names */
#define PS_PAGE 200   /* leases */
/* Of models. The rest of the frame is large enough for one more. */
#define LIST_BYTES (FRAME_MAX / 2)

static size_t page_size(uint64_t asked, size_t most)
{
        return asked > 0 && asked < most ? (size_t)asked : most;
}

/* ---- list ---- */

#define AHEAD 8
#define CACHE_LINE 64

static void fetch(const void *data, size_t size)
{
        for (size_t at = 0; at < size; at += CACHE_LINE)
                __builtin_prefetch((const char *)data + at);
}

/* The memory of the models of the next AHEAD names, all at once. A row of a list needs a dozen cache lines of a model,
 * and would wait for one after the other. */
static void fetch_ahead(const struct model_name *from)
{
        const struct model_name *name = from;
        for (unsigned i = 0; i < AHEAD && name != NULL; i++, name = model_name_next(name))
                fetch(name->generation, sizeof(*name->generation));
        name = from;
        for (unsigned i = 0; i < AHEAD && name != NULL; i++, name = model_name_next(name)) {
                if (name->generation->state == GENERATION_READY) /* else a worker may still make them */
                        fetch(name->generation->segments, sizeof(*name->generation->segments));
                fetch(model_name_source(name), CACHE_LINE);
        }
}

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

/* What a name leads to. */
struct named {
        const char *name;
        const struct desired_model *desired; /* the first of this name; NULL: none */
        struct generation **generations;     /* in the order of their sets; malloc'd, and kept for the next name */
        size_t n, most;                      /* most: that it had of a name, for which there is space */
};

/* One that drains is listed by its last name, while it has device memory or leases. A failure that lost its name is not
 * listed. */
static bool is_listed(const struct generation *g)
{
        return !list_empty(&g->names) || (generation_drains(g) && (g->charged > 0 || g->n_leases > 0));
}

/* False: no memory. */
static bool named_add(struct named *named, struct generation *generation)
{
        if (named->n == named->most) {
                struct generation **more = array_grow(named->generations, named->n, sizeof(*more));
                if (more == NULL)
                        return false;
                named->generations = more;
                named->most++;
        }
        named->generations[named->n++] = generation;
        return true;
}

static int compare_members(const void *a, const void *b)
{
        return model_set_compare(*(struct generation *const *)a, *(struct generation *const *)b);
}

/* Moves behind the name in both trees. False: no memory. */
static bool cursor_take(struct cursor *cursor, const char *name, struct named *named)
{
        named->name = name;
        named->desired = NULL;
        named->n = 0;
        for (; cursor->desired != NULL && strcmp(cursor->desired->spec.name, name) <= 0;
             cursor->desired = desired_next(cursor->desired))
                if (named->desired == NULL)
                        named->desired = cursor->desired;
        for (; cursor->resident != NULL && strcmp(cursor->resident->text, name) <= 0;
             cursor->resident = model_name_next(cursor->resident))
                if (is_listed(cursor->resident->generation) && !named_add(named, cursor->resident->generation))
                        return false;
        if (named->n > 1)
                qsort(named->generations, named->n, sizeof(struct generation *), compare_members);
        return true;
}

/* Writes the models of a name. A desired one is part of the resident ones, or without those a model of its own. What
 * does not fit the reply is left out. */
static void write_named(struct items *rows, const struct named *named)
{
        struct generation *const *all = named->generations;
        bool resident = false;
        for (size_t i = 0; i < named->n; i++)
                resident = resident || !list_empty(&all[i]->names);
        if (named->desired != NULL && !resident) {
                reply_model(&rows->w, &(struct model_set){.name = named->name}, named->desired, &reply_no_notes);
                rows->n++;
        }
        for (size_t at = 0; at < named->n && rows->w.buf.size < LIST_BYTES; rows->n++) {
                struct model_set group;
                const struct generation *first = all[at];
                group.name = named->name;
                for (group.n = 0; at < named->n && group.n < MODEL_SET_MAX && model_set_same(all[at], first); at++)
                        group.members[group.n++] = all[at];
                reply_model(&rows->w, &group, named->desired, &reply_no_notes);
        }
}

/* The generations of one name stay in one page, since `after` is a name. */
int verb_list(struct session *session, struct request *request, struct error *error)
{
        const struct req_list *req = &request->u.list;
        const struct server *server = session->server;
        struct cursor cursor = {.resident = resident_name_from(server->resident, req->after ?: ""),
                                .desired = desired_from(&server->desired, req->after ?: "")};
        struct named named = {.name = NULL};
        const char *name, *last = NULL;
        size_t most = page_size(req->limit, LIST_PAGE);
        cleanup_with(items_deinit) struct items rows;
        items_init(&rows);
        bool ok = req->after == NULL || cursor_take(&cursor, req->after, &named);
        for (size_t n = 0; ok && (name = cursor_name(&cursor)) != NULL && n < most && rows.w.buf.size < LIST_BYTES;) {
                size_t before = rows.n;
                if (n % AHEAD == 0)
                        fetch_ahead(cursor.resident);
                ok = cursor_take(&cursor, name, &named);
                if (ok)
                        write_named(&rows, &named);
                n += rows.n > before;
                last = name;
        }
        free(named.generations);
        if (!ok)
                return error_no_memory(error);
        return session_reply(session, request->id, kif(name != NULL, kstr("next", last)), kitems("models", &rows));
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
        return session_reply(session, request->id, kif(lease != NULL, ku64("next", page.items[page.n - 1]->id)),
                             karray("leases", write_lease, &page, page.n));
}
