/* SPDX-License-Identifier: Apache-2.0
 *
 * Who may do what here: the rules (role.h) put to a connection and its request, and what its user
 * may hold.
 */
#ifndef DAEMON_SERVE_ACCESS_H
#define DAEMON_SERVE_ACCESS_H

#include "daemon/serve/role.h"
#include "daemon/serve/session.h"

void access_grant(const struct server *server, const struct conn *conn, struct role_grant *grant);

/* 0, or STREAMER_EPERM naming the rule. */
int access_check(const struct server *server, const struct conn *conn, enum verb verb, struct error *error);
/* Does the caller's rule let it load from this source, and does the name (NULL: the source's own)
 * not stand for somebody else's? Says in the request below which roots the source is opened, and
 * whether the caller is an admin. */
int access_check_load(const struct server *server, const struct conn *conn, struct load_request *request,
                      struct error *error);
/* As access_check_load, for a model that its user had pinned in an earlier run: the rules of now decide where
 * it may come from, and no limit whether there is room for it. */
int access_check_again(struct server *server, struct load_request *request, struct user_limits *limits,
                       struct error *error);
/* A model is changed by who loaded it, or by an admin: STREAMER_EPERM for a request that would. */
int access_check_model(const struct server *server, const struct conn *conn, const struct request *request,
                       struct error *error);

/* Root and the daemon's own user may hold any amount. */
void access_limits(const struct server *server, const struct conn *conn, struct user_limits *limits);
/* Charges the connection's user. */
int access_charge(struct server *server, const struct conn *conn, struct user_charge *charge, enum user_slot slot,
                  uint64_t amount, struct error *error);

void session_whoami(struct session *session, const struct request *request);

#endif
