/* SPDX-License-Identifier: Apache-2.0
 *
 * Ports of loopback for servers that are told where to listen. No other test program is given them before
 * this process has ended, and no connection takes one by itself: they lie below those that the kernel hands
 * out. So a server may be started late, or stopped and started again at the same place.
 */
#ifndef TESTS_LIB_PORTS_H
#define TESTS_LIB_PORTS_H

#define PORTS_MAX 64 /* at a time */

/* The first of n neighbours. */
unsigned free_ports(unsigned n);
unsigned free_port(void);

#endif
