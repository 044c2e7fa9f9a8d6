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

static socklen_t manager_address(struct sockaddr_un *address)
{
        const char *path = getenv("NOTIFY_SOCKET");
        size_t len = path != NULL ? strlen(path) : 0;
        *address = (struct sockaddr_un){.sun_family = AF_UNIX};
        if (len < 2 || len >= sizeof(address->sun_path) || (path[0] != '/' && path[0] != '@'))
                return 0;
        memcpy(address->sun_path, path, len);
        if (path[0] == '@') /* the abstract namespace */
                address->sun_path[0] = '\0';
        return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
}

static bool tell(const char *text)
{
        struct sockaddr_un address;
        socklen_t len = manager_address(&address);
        if (len == 0)
                return false;
        cleanup_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        return fd >= 0 && sendto(fd, text, strlen(text), MSG_NOSIGNAL, (const struct sockaddr *)&address, len) >= 0;
}

bool notify_ready(void)
{
        return tell("READY=1") || !notify_manager();
}

void notify_reloading(void)
{
        char text[64];
        snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, now_ns() / 1000);
        tell(text);
}

void notify_stopping(void)
{
        tell("STOPPING=1");
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
        return tell(message);
}

uint64_t notify_watchdog_ns(void)
{
        uint64_t us = 0;
        return sd_watchdog_enabled(0, &us) > 0 ? us * 1000 : 0;
}

void notify_alive(void)
{
        tell("WATCHDOG=1");
}
