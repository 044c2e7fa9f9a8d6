/* SPDX-License-Identifier: Apache-2.0
 *
 * The protocol of sd_notify(3) on a non-blocking socket: libsystemd's call blocks while the manager does not read, and
 * these calls come from the loop. What cannot be sent is dropped; the manager has timeouts of its own.
 */
#include "daemon/base/systemd/notify.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>

bool notify_manager(void)
{
        return getenv("NOTIFY_SOCKET") != NULL;
}

/* False: not sent. */
static bool notify(const char *text)
{
        const char *path = getenv("NOTIFY_SOCKET");
        size_t path_len = path != NULL ? strlen(path) : 0;
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        if (path_len < 2 || path_len >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@'))
                return false;
        memcpy(address.sun_path, path, path_len);
        if (path[0] == '@') /* the abstract namespace */
                address.sun_path[0] = '\0';
        socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path_len);
        cleanup_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        return fd >= 0 && sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&address, len) >= 0;
}

bool notify_ready(void)
{
        return notify("READY=1") || !notify_manager();
}

void notify_reloading(void)
{
        char text[64];
        snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, now_ns() / 1000);
        notify(text);
}

void notify_stopping(void)
{
        notify("STOPPING=1");
}

bool notify_status(const char *format, ...)
{
        char text[512], line[512], message[sizeof(line) + 8];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        /* A line break in a name would begin a second assignment. */
        error_escape(line, sizeof(line), text);
        snprintf(message, sizeof(message), "STATUS=%s", line);
        return notify(message);
}

uint64_t notify_watchdog_ns(void)
{
        uint64_t us = 0;
        return sd_watchdog_enabled(0, &us) > 0 ? us * 1000 : 0;
}

void notify_alive(void)
{
        notify("WATCHDOG=1");
}
