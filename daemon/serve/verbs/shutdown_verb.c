/* SPDX-License-Identifier: Apache-2.0
 *
 * The verb `shutdown`: the daemon ends as on SIGTERM, at once or (drain) when no lease and no load is left. While it
 * drains, verbs that would begin either are refused.
 */
#include "daemon/serve/verbs/verbs_private.h"

int verb_shutdown(struct session *session, struct request *request, struct error *error)
{
        struct server *server = session->server;
        bool drain = request->u.shutdown.drain;
        struct writer w;
        (void)error;
        server->ending = drain ? ENDING_DRAINED : ENDING_NOW;
        server->ended_by = session->conn->caller.uid;
        session_reply(&w, request->id, 2);
        writer_kstr(&w, "state", drain ? "draining" : "ending");
        writer_ku64(&w, "leases", server->leases.n);
        session_send(session, &w);
        return 0;
}
