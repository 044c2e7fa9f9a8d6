/* SPDX-License-Identifier: Apache-2.0
 *
 * ps: the leases, by process. The loop takes a snapshot, a worker adds each process's command name from
 * /proc, the loop answers.
 */
#include "daemon/serve/verb_task.h"
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
        struct verb_task task;
        bool more;
        size_t n;
        struct ps_row *rows;
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

static void ps_start(struct verb_task *task)
{
        struct ps *ps = container_of(task, struct ps, task);
        const struct req_ps *req = &verb_task_request(task)->u.ps;
        uint64_t now = now_ns();
        struct page page = {.most = req->limit > 0 && req->limit < PS_PAGE ? (size_t)req->limit : PS_PAGE};
        list_each_item (const struct generation, g, &task->server->resident->generations, link)
                list_each_item (const struct lease, lease, &g->leases, in_generation)
                        if (lease->id > req->after)
                                page_add(&page, lease);
        ps->rows = calloc(page.n + 1, sizeof(*ps->rows));
        if (ps->rows == NULL) {
                error_no_memory(&task->error);
                verb_task_finish(task);
                return;
        }
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
                                                  .quarantined = g->state == GENERATION_REVOKED,
                                                  .client = client != NULL ? strdup(client) : NULL,
                                                  .model = strdup(generation_name(g))};
        }
        verb_task_submit(task, WORK_LANE_CPU);
}

static void ps_run(struct verb_task *task)
{
        const struct ps *ps = container_of(task, struct ps, task);
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

static void ps_reply(struct verb_task *task, struct session *session)
{
        const struct ps *ps = container_of(task, struct ps, task);
        uint64_t now = now_ns();
        struct writer w;
        session_reply(&w, verb_task_request(task)->id, ps->more ? 2 : 1);
        writer_karray(&w, "leases", ps->n);
        for (size_t i = 0; i < ps->n; i++)
                write_row(&w, &ps->rows[i], now);
        if (ps->more)
                writer_ku64(&w, "next", ps->rows[ps->n - 1].id);
        session_send(session, &w);
}

static void ps_deinit(struct verb_task *task)
{
        struct ps *ps = container_of(task, struct ps, task);
        for (size_t i = 0; i < ps->n; i++) {
                free(ps->rows[i].model);
                free(ps->rows[i].client);
        }
        free(ps->rows);
}

static const struct verb_task_ops ps_ops = {.start = ps_start, .run = ps_run, .reply = ps_reply, .deinit = ps_deinit};

int verb_ps(struct session *session, struct request *request, struct error *error)
{
        struct ps *ps = verb_task_new(sizeof(*ps), &ps_ops, error);
        return ps != NULL ? verb_task_begin(&ps->task, session, request, VERB_TASK_PS, error) : error->code;
}
