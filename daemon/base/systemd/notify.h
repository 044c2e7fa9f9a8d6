/* SPDX-License-Identifier: Apache-2.0
 *
 * Notifications to the service manager. Never blocks; without a manager ($NOTIFY_SOCKET unset) nothing happens.
 */
#ifndef DAEMON_BASE_SYSTEMD_NOTIFY_H
#define DAEMON_BASE_SYSTEMD_NOTIFY_H

#include <stdbool.h>
#include <stdint.h>

bool notify_manager(void);   /* is there one? */
bool notify_ready(void);     /* the socket answers; false where it was not sent, though there is a manager */
void notify_reloading(void); /* the settings are read again; notify_ready() ends it */
void notify_stopping(void);  /* no new work is taken */
/* One line for `systemctl status`; false where it was not sent. */
bool notify_status(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* How often the manager wants a sign of life (WatchdogSec=), in ns; 0: it does not. */
uint64_t notify_watchdog_ns(void);
void notify_alive(void);

#endif
