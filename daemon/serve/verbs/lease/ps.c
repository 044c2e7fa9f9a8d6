/* SPDX-License-Identifier: Apache-2.0
 *
 * ps: who holds what. The loop takes a snapshot, a worker adds each process's command name from
 * /proc, the loop answers.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/sys/sysfile.h"

#include <string.h>

#define PS_PAGE 200

struct ps_row {
        uint64_t id, generation, bytes, since_ns;
        pid_t pid;
        uid_t uid;
        bool orphan, quarantined;
        char *client;
        const char *device; /* devices stay as long as the daemon */
        char comm[32];
        char *model;
};

struct ps {
        struct work work;
        struct deferred *deferred;
        bool more;
        size_t n;
        struct ps_row rows[];
};

/* The first leases behind the page before. All leases are examined, and no more than a page is sorted. */
struct page {
        const struct lease *leases[PS_PAGE]; /* by ascending id */
        size_t n, most;
        bool more;
};

static void page_add(struct page *page, const struct lease *lease)
{
        size_t i = page->n;
        if (i == page->most) {
                page->more = true;
                if (lease->id > page->leases[i - 1]->id)
                        return;
                i--;
        } else {
                page->n++;
        }
        for (; i > 0 && page->leases[i - 1]->id > lease->id; i--)
                page->leases[i] = page->leases[i - 1];
        page->leases[i] = lease;
}

static struct ps *ps_new(const struct server *server, const struct req_ps *req)
{
        uint64_t now = now_ns();
        struct page page = {.most = req->limit > 0 && req->limit < PS_PAGE ? (size_t)req->limit : PS_PAGE};
        list_each_item (const struct generation, g, &server->resident->generations, link)
                list_each_item (const struct lease, lease, &g->leases, in_generation)
                        if (lease->id > req->after)
                                page_add(&page, lease);
        struct ps *ps = calloc(1, sizeof(*ps) + page.n * sizeof(ps->rows[0]));
        if (ps == NULL)
                return NULL;
        ps->more = page.more;
        for (; ps->n < page.n; ps->n++) {
                const struct lease *lease = page.leases[ps->n];
                const struct generation *g = lease->generation;
                const char *client = lease->process->client;
                ps->rows[ps->n] = (struct ps_row){.id = lease->id,
                                                  .generation = g->number,
                                                  .bytes = g->data_bytes,
                                                  .since_ns = lease->since_ns,
                                                  .pid = lease->process->pid,
                                                  .uid = lease->process->uid,
                                                  .orphan = lease_is_orphan(lease, now),
                                                  .device = g->device->name,
                                                  .quarantined = g->quarantined,
                                                  .client = client != NULL ? strdup(client) : NULL,
                                                  .model = strdup(generation_name(g))};
        }
        return ps;
}

static void ps_run(struct work *work)
{
        struct ps *ps = container_of(work, struct ps, work);
        for (struct ps_row *row = ps->rows; row < ps->rows + ps->n; row++) {
                sysfile_line(row->comm, sizeof(row->comm), "/proc/%d/comm", (int)row->pid);
                /* A process names itself as it likes; replies are UTF-8. */
                for (char *p = row->comm; *p != '\0'; p++)
                        if (*p < ' ' || *p > '~')
                                *p = '?';
        }
}

static void write_row(struct writer *w, const struct ps_row *row, uint64_t now)
{
        writer_map(w, 12);
        writer_ku64(w, "id", row->id);
        writer_kstr(w, "model", row->model != NULL ? row->model : "");
        writer_ku64(w, "generation", row->generation);
        writer_kstr(w, "device", row->device);
        writer_ku64(w, "pid", (uint64_t)row->pid);
        writer_ku64(w, "uid", row->uid);
        writer_kstr(w, "comm", row->comm);
        writer_ku64(w, "bytes", row->bytes);
        writer_ku64(w, "age_ns", now - row->since_ns);
        writer_kbool(w, "orphan", row->orphan);
        writer_kbool(w, "quarantined", row->quarantined);
        writer_kstr(w, "client", row->client != NULL ? row->client : "");
}

static void ps_done(struct work *work)
{
        struct ps *ps = container_of(work, struct ps, work);
        struct deferred *deferred = ps->deferred;
        if (deferred->session != NULL) {
                struct writer w;
                session_reply(&w, deferred->request.id, ps->more ? 2 : 1);
                writer_karray(&w, "leases", ps->n);
                uint64_t now = now_ns();
                for (size_t i = 0; i < ps->n; i++)
                        write_row(&w, &ps->rows[i], now);
                if (ps->more)
                        writer_ku64(&w, "next", ps->rows[ps->n - 1].id);
                session_send(deferred->session, &w);
        }
        for (struct ps_row *row = ps->rows; row < ps->rows + ps->n; row++) {
                free(row->model);
                free(row->client);
        }
        free(ps);
        deferred_free(deferred);
}

void verb_ps(struct session *session, struct request *request)
{
        struct deferred *deferred = deferred_new(session, request);
        if (deferred == NULL)
                return;
        struct ps *ps = ps_new(session->server, &deferred->request.u.ps);
        if (ps == NULL) {
                session_fail(session, deferred->request.id, STREAMER_ENOMEM, "no memory");
                deferred_free(deferred);
                return;
        }
        ps->deferred = deferred;
        deferred->has_worker = true;
        work_submit(session->server->pool, WORK_LANE_CPU, &ps->work, ps_run, ps_done);
}
