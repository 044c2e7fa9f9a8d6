/* SPDX-License-Identifier: Apache-2.0
 *
 * Access control: applies the rules (role.h) to a connection and its request, and to what its user may hold.
 */
#pragma once

#include "daemon/serve/access/role.h"
#include "daemon/serve/server_state.h"

struct role_grant access_grant(const struct server *server, const struct conn *conn);

/* 0, or STREAMER_EPERM naming the rule: for a verb that the caller's role does not allow, and for a request that would
 * change a model of another user, unless the caller is an admin. */
int access_check(const struct server *server, const struct conn *conn, const struct request *request,
                 struct error *error);
/* Whether the caller's rule allows this source, and the name (NULL: derived from the source) does not serve another
 * user's source. Sets the request's roots and whether the caller is an admin. */
int access_check_load(const struct server *server, const struct conn *conn, struct load_args *request,
                      struct error *error);
/* Whether the caller may publish a model of this name: another user's is not replaced. */
int access_check_publish(const struct server *server, const struct conn *conn, const char *name, struct error *error);
/* Whether the caller may read a model: one that was published is as trustworthy as its publisher; one that was
 * decrypted is for those who may have it decrypted. */
int access_check_attach(const struct server *server, const struct conn *conn, const struct generation *generation,
                        struct error *error);
/* Whether the caller may read this file beside the weights of the source, or (NULL) list such files, as for a load. The
 * caller frees *canonical and *roots (a reference; NULL: the daemon's own), also on failure. */
int access_check_fetch(const struct server *server, const struct conn *conn, const char *source, const char *file,
                       char **canonical, struct source_roots **roots, struct error *error);
/* As access_check_load, for a model that its user had pinned in an earlier run (desired->allow): today's rules decide
 * on its source, and no limit applies. */
int access_check_restored(struct desired *desired, struct load_args *request, struct quota_limits *limits,
                          struct error *error);

struct quota_limits access_limits(const struct server *server, const struct conn *conn);
/* Charges the connection's user. */
int access_charge(struct server *server, const struct conn *conn, struct quota_charge *charge, enum quota_slot slot,
                  uint64_t amount, struct error *error);
