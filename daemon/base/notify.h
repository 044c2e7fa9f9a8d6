/* SPDX-License-Identifier: Apache-2.0
 *
 * What the service manager is told. Nothing happens where there is none ($NOTIFY_SOCKET unset).
 */
#ifndef DAEMON_BASE_NOTIFY_H
#define DAEMON_BASE_NOTIFY_H

void notify_ready(void);    /* the socket answers */
void notify_stopping(void); /* no new work is taken */
/* One line for `systemctl status`. */
void notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
