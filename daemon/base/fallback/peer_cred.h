/* SPDX-License-Identifier: Apache-2.0
 *
 * The process at the other end of a socket.
 *
 * Linux reports it (SO_PEERCRED). gVisor reports the asking process instead, as if each client were the daemon; but it
 * verifies credentials that are sent with a message, and clients send theirs with the first one (SCM_CREDENTIALS).
 */
#pragma once

#include <stdbool.h>
#include <sys/socket.h>

/* False if the kernel does not report it; then pid is 0, and uid and gid are -1. */
bool peer_cred_get(int fd, struct ucred *cred);

/* From now on messages carry their sender's credentials. */
void peer_cred_enable(int fd);
/* As recv(), for the first bytes, with their sender's credentials, or 0, -1 and -1; pid is also 0 if the sending thread
 * has ended. Later messages carry none. */
ssize_t peer_cred_receive(int fd, void *space, size_t size, struct ucred *cred);
