/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/events/lease_events.h"

#include "daemon/serve/reply/reply.h"

/* The model was unloaded by force; memory that the client has mapped stays valid. */
static void notify_revoked(struct session *session, struct lease *lease)
{
        const struct generation *g = lease->generation;
        lease->dirty = !conn_writable(session->conn);
        if (lease->dirty)
                return;
        lease_set_state(lease, LEASE_REVOKED);
        struct writer w;
        conn_writer(&w);
        writer_map(&w, 6);
        writer_kstr(&w, "event", "lease");
        writer_ku64(&w, "lease", lease->id);
        writer_ku64(&w, "arrived", generation_arrived(g));
        writer_kstr(&w, "state", "revoked");
        writer_kstr(&w, "code", code_wire(STREAMER_EREVOKED));
        writer_kstr(&w, "text", "the model was unloaded by force; detach to give its memory back");
        session_send(session, &w);
}

static void notify_progress(struct session *session, struct lease *lease)
{
        const struct generation *g = lease->generation;
        uint64_t count = generation_arrived(g);
        bool ended = g->state != GENERATION_LOADING, failed = g->state == GENERATION_FAILED;
        if (lease->state != LEASE_LOADING || (!ended && count == lease->told))
                return;
        lease->dirty = !conn_writable(session->conn);
        if (lease->dirty)
                return;
        lease->told = count;
        if (ended)
                lease_set_state(lease, LEASE_HELD);
        struct writer w;
        conn_writer(&w);
        writer_map(&w, failed ? 7 : 5);
        writer_kstr(&w, "event", "lease");
        writer_ku64(&w, "lease", lease->id);
        writer_ku64(&w, "arrived", count);
        writer_kstr(&w, "state", !ended ? "loading" : failed ? "failed" : "ready");
        reply_digest(&w, "digest", g);
        if (failed) {
                writer_kstr(&w, "code", code_wire(g->error.code));
                writer_kstr(&w, "text", g->error.text);
        }
        session_send(session, &w);
}

/* The end of the load is notified before the revocation: every tensor has arrived and can be read. */
void lease_events_send(struct session *session, struct lease *lease)
{
        lease->dirty = false;
        notify_progress(session, lease);
        if (lease->state == LEASE_HELD && lease->generation->quarantined)
                notify_revoked(session, lease);
}
