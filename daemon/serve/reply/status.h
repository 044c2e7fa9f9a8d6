/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to status: what the daemon holds, what it does just now, and how it is (preloads, threads
 * that hang, the loop's stalls).
 */
#ifndef DAEMON_SERVE_REPLY_STATUS_H
#define DAEMON_SERVE_REPLY_STATUS_H

#include "daemon/serve/server_state.h"

/* STREAMER_EINVAL, and nothing is written. */
int status_write(struct writer *writer, const struct server *server, const struct request *request,
                 struct error *error);

/* A key and its value: the staging ring. */
void status_ring(struct writer *writer, struct reader *reader);

#endif
