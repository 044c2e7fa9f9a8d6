/* SPDX-License-Identifier: Apache-2.0
 *
 * ps: the leases, a page of them, with each process's command name from /proc, which does not block.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/base/sys/sysfile.h"

#define PS_PAGE 200

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

static void write_row(struct writer *w, const struct lease *lease, uint64_t now)
{
        const struct process *process = lease->process;
        const struct generation *g = lease->generation;
        char comm[SYSFILE_COMM];
        sysfile_comm(comm, process->pid);
        writer_map(w, 12);
        writer_ku64(w, "id", lease->id);
        writer_kstr(w, "model", generation_name(g));
        writer_ku64(w, "generation", g->number);
        writer_kstr(w, "device", g->device->name);
        writer_ku64(w, "pid", (uint64_t)process->pid);
        writer_ku64(w, "uid", process->uid);
        writer_kstr(w, "comm", comm);
        writer_ku64(w, "bytes", g->data_bytes);
        writer_ku64(w, "age_ns", now - lease->since_ns);
        writer_kbool(w, "orphan", lease_is_orphan(lease, now));
        writer_kbool(w, "quarantined", g->state == GENERATION_REVOKED);
        writer_kstr(w, "client", process->client != NULL ? process->client : "");
}

int verb_ps(struct session *session, struct request *request, struct error *error)
{
        const struct req_ps *req = &request->u.ps;
        struct page page = {.most = req->limit > 0 && req->limit < PS_PAGE ? (size_t)req->limit : PS_PAGE};
        uint64_t now = now_ns();
        struct writer w;
        (void)error;
        list_each_item (const struct generation, g, &session->server->resident->generations, link)
                list_each_item (const struct lease, lease, &g->leases, in_generation)
                        if (lease->id > req->after)
                                page_add(&page, lease);
        session_reply(&w, request->id, page.more ? 2 : 1);
        writer_karray(&w, "leases", page.n);
        for (size_t i = 0; i < page.n; i++)
                write_row(&w, page.leases[i], now);
        if (page.more)
                writer_ku64(&w, "next", page.leases[page.n - 1]->id);
        session_send(session, &w);
        return 0;
}
