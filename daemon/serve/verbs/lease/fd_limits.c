/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/verbs/lease/fd_limits.h"

#define RECOUNT_NS UINT64_C(2000000)

static uint64_t fds_in_flight(struct server *server)
{
        uint64_t n = 0;
        list_each_item (struct conn, conn, &server->conns, link)
                if (conn->fds_sent > 0)
                        n += conn_fds_in_flight(conn);
        return n;
}

/* All that were sent since the last count may still be in flight. A count asks the kernel about each connection, so it
 * is made only when that number would exceed the limit. */
static bool fit(struct server *server, unsigned n)
{
        uint64_t now = now_ns();
        if (server->fds_out + n > server->limits.fds_in_flight && now >= server->fds_counted_ns + RECOUNT_NS) {
                server->fds_out = fds_in_flight(server);
                server->fds_counted_ns = now;
        }
        return server->fds_out + n <= server->limits.fds_in_flight;
}

int fd_limits_check(struct session *session, unsigned n, const char *verb, struct error *error)
{
        struct server *server = session->server;
        if (session->conn->fds_sent > 0 && conn_fds_in_flight(session->conn) + n > server->limits.fds_per_client)
                return error_set(error, STREAMER_ELIMIT,
                                 "%s: this client does not take its descriptors (limits.fds_per_client)", verb);
        if (!fit(server, n))
                return error_set(error, STREAMER_ELIMIT,
                                 "%s: too many descriptors are on their way to clients (limits.fds_in_flight)", verb);
        return 0;
}

void fd_limits_send(struct session *session, struct writer *writer, const int *fds, size_t n)
{
        session->server->fds_out += n;
        session_send_fds(session, writer, fds, n);
}
