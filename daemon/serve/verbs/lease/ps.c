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

static void write_lease(struct writer *w, const void *data, size_t i)
{
        const struct lease *lease = ((const struct page *)data)->leases[i];
        const struct process *process = lease->process;
        const struct generation *g = lease->generation;
        uint64_t now = now_ns();
        char comm[SYSFILE_COMM];
        sysfile_comm(comm, process->pid);
        writer_map_of(w, ku64("id", lease->id), kstr("model", generation_name(g)), ku64("generation", g->number),
                      kstr("device", g->device->name), ku64("pid", (uint64_t)process->pid), ku64("uid", process->uid),
                      kstr("comm", comm), ku64("bytes", g->data_bytes), ku64("age_ns", now - lease->since_ns),
                      kbool("orphan", lease_is_orphan(lease, now)),
                      kbool("quarantined", g->state == GENERATION_REVOKED),
                      kstr("client", process->client != NULL ? process->client : ""));
}

int verb_ps(struct session *session, struct request *request, struct error *error)
{
        const struct req_ps *req = &request->u.ps;
        struct page page = {.most = req->limit > 0 && req->limit < PS_PAGE ? (size_t)req->limit : PS_PAGE};
        list_each_item (const struct generation, g, &session->server->resident->generations, link)
                list_each_item (const struct lease, lease, &g->leases, in_generation)
                        if (lease->id > req->after)
                                page_add(&page, lease);
        session_reply(session, request->id, karray("leases", write_lease, &page, page.n),
                      kif(page.more, ku64("next", page.leases[page.n - 1]->id)));
        return 0;
}
