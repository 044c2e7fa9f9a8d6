/* SPDX-License-Identifier: Apache-2.0
 *
 * Loopback ports for servers that are configured with a port. No other test program receives them before this process
 * has exited, and no connection uses one by accident: they lie below the kernel's ephemeral range. So a server may be
 * started late, or restarted on the same port.
 */
#pragma once

#define PORTS_MAX 64 /* at a time */

/* The first of n neighbours. */
unsigned free_ports(unsigned n);
unsigned free_port(void);

/* A socket that listens on any port of IPv4 loopback. */
int listen_on_loopback(int backlog, unsigned *port);
/* A connection to this port there; -1 with errno. */
int connect_to_loopback(unsigned port);
