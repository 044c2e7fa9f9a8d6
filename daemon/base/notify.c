/* SPDX-License-Identifier: Apache-2.0
 *
 * sd_notify(3). A failure to notify is the manager's to notice: it has its own timeouts.
 */
#include "daemon/base/notify.h"

#include "daemon/base/error.h"

#include <stdarg.h>
#include <stdio.h>
#include <systemd/sd-daemon.h>

void notify_ready(void)
{
        sd_notify(0, "READY=1");
}

void notify_stopping(void)
{
        sd_notify(0, "STOPPING=1");
}

void notify_status(const char *format, ...)
{
        char text[512], line[512];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        /* A line break in a name would begin a second assignment. */
        error_escape(line, sizeof(line), text);
        sd_notifyf(0, "STATUS=%s", line);
}
