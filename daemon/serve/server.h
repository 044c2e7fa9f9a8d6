/* SPDX-License-Identifier: Apache-2.0
 *
 * The server: the listening socket, its connections and the timer, all on the loop thread.
 */
#pragma once

#include "daemon/serve/server_state.h"

/* Serves `listener`, a socket that listens already, or (-1) makes one at `path`: where another daemon serves it,
 * STREAMER_EBUSY. */
int server_init_consume_fd(struct server *server, uv_loop_t *loop, const char *path, int listener, struct error *error);
/* Begins the end; once. */
void server_close(struct server *server);
/* Then, until the resident is empty; `abort`: ends connections whose clients do not read what is queued. Once no
 * connection is left, which it returns, ends leases and drops models, as far as they can be by now. */
bool server_release(struct server *server, bool abort);
void server_deinit(struct server *server);
