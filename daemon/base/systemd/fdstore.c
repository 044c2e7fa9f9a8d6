/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/systemd/fdstore.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-daemon.h>

/* ---- how large it is ---- */

#define MANAGER "org.freedesktop.systemd1"

static void bus_unref_p(sd_bus **bus)
{
        sd_bus_flush_close_unref(*bus);
}
static void message_unref_p(sd_bus_message **message)
{
        sd_bus_message_unref(*message);
}

/* Of the unit that this process is the main one of. */
static uint64_t ask_bus(void)
{
        __attribute__((cleanup(bus_unref_p))) sd_bus *bus = NULL;
        __attribute__((cleanup(message_unref_p))) sd_bus_message *reply = NULL;
        const char *unit;
        uint32_t max = 0;
        if (sd_bus_open_system(&bus) < 0)
                return 0;
        sd_bus_set_method_call_timeout(bus, 1000000);
        if (sd_bus_call_method(bus, MANAGER, "/org/freedesktop/systemd1", MANAGER ".Manager", "GetUnitByPID", NULL,
                               &reply, "u", (uint32_t)getpid()) < 0 ||
            sd_bus_message_read(reply, "o", &unit) < 0 ||
            sd_bus_get_property_trivial(bus, MANAGER, unit, MANAGER ".Service", "FileDescriptorStoreMax", NULL, 'u',
                                        &max) < 0)
                return 0;
        return max;
}

uint64_t fdstore_max(void)
{
        const char *text = getenv("FDSTORE");
        uint64_t max = 0;
        if (getenv("NOTIFY_SOCKET") == NULL)
                return 0;
        if (text != NULL)
                max = strtoull(text, NULL, 10);
        else if (getenv("INVOCATION_ID") != NULL) /* only a service that systemd started has one */
                max = ask_bus();
        return max < FDSTORE_NAMES ? max : FDSTORE_NAMES;
}

bool fdstore_possible(void)
{
        return getenv("NOTIFY_SOCKET") != NULL && (getenv("FDSTORE") != NULL || getenv("INVOCATION_ID") != NULL);
}

/* ---- messages ---- */

/* Both answer 1 when the message was sent, 0 where there is no service manager. */
static int sent(int r)
{
        return r > 0 ? 0 : r == 0 ? -ENOTCONN : r;
}

int fdstore_add(const char *name, int fd)
{
        char text[64];
        if (strlen(name) >= FDSTORE_NAME_MAX)
                return -ENAMETOOLONG;
        /* FDPOLL=0: the manager drops a descriptor that hangs up, as the pidfd of a process that was
         * reaped does; that one is ours to remove. */
        snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
        return sent(sd_pid_notify_with_fds(0, 0, text, &fd, 1));
}

int fdstore_remove(const char *name)
{
        char text[300]; /* whatever was found there */
        snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
        return sent(sd_notify(0, text));
}

int fdstore_sync(uint64_t timeout_ns)
{
        return sent(sd_notify_barrier(0, timeout_ns / 1000));
}
