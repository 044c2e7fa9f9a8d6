/* SPDX-License-Identifier: Apache-2.0
 *
 * Whose process is at the other end of a socket.
 *
 * Linux says it (SO_PEERCRED). gVisor answers with whoever asks instead, as if each client were the daemon; but it
 * vouches for the credentials that come with a message, and clients send theirs with the first (SCM_CREDENTIALS).
 */
#ifndef DAEMON_SERVE_PEER_H
#define DAEMON_SERVE_PEER_H

#include <stdbool.h>
#include <sys/socket.h>

/* False where the kernel does not say it: pid is 0, uid and gid are -1 then. */
bool peer_ask(int fd, struct ucred *cred);

/* From now on messages tell whose they are. */
void peer_await(int fd);
/* As recv(), of the first bytes: whose they are, or 0, -1 and -1; pid is 0 where its thread has ended, too. Messages
 * tell nothing more after them. */
ssize_t peer_receive(int fd, void *space, size_t size, struct ucred *cred);

#endif
