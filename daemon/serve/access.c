/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/access.h"

#include <unistd.h>

static bool is_admin(const struct conn *conn)
{
        return conn->caller.uid == 0 || conn->caller.uid == geteuid();
}

static bool in_group(const struct conn *conn, gid_t gid)
{
        if (conn->caller.gid == gid)
                return true;
        for (size_t i = 0; i < conn->caller.n_groups; i++)
                if (conn->caller.groups[i] == gid)
                        return true;
        return false;
}

static bool administers(enum verb verb)
{
        return verb == VERB_unload || verb == VERB_cancel || verb == VERB_set_priority;
}

int access_check(const struct server *server, const struct conn *conn, enum verb verb, struct error *error)
{
        if (is_admin(conn))
                return 0;
        if (!in_group(conn, server->socket_gid))
                return error_set(error, STREAMER_EPERM, "%s: uid %u is not in the socket's group %u",
                                 verb_desc(verb)->name, (unsigned)conn->caller.uid, (unsigned)server->socket_gid);
        if (administers(verb))
                return error_set(error, STREAMER_EPERM, "%s: only root and the daemon's own user may (uid %u)",
                                 verb_desc(verb)->name, (unsigned)conn->caller.uid);
        return 0;
}
