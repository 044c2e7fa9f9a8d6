/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/systemd/fdstore.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* ---- what was passed ---- */

int listen_fds_init(struct listen_fds *listen_fds, struct error *error)
{
        char **names = NULL;
        *listen_fds = (struct listen_fds){0};
        int n = sd_listen_fds_with_names(1, &names); /* sets close-on-exec */
        if (n < 0)
                return error_errno(error, STREAMER_EOS, -n, "LISTEN_FDS");
        if (n == 0)
                return 0;
        listen_fds->fds = calloc((size_t)n, sizeof(*listen_fds->fds));
        if (listen_fds->fds != NULL)
                listen_fds->n = (size_t)n;
        for (size_t i = 0; i < listen_fds->n; i++)
                listen_fds->fds[i] = (struct listen_fd){SD_LISTEN_FDS_START + (int)i, names[i]};
        free(names);
        return listen_fds->fds != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

void listen_fds_deinit(struct listen_fds *listen_fds)
{
        for (size_t i = 0; i < listen_fds->n; i++) {
                close_p(&listen_fds->fds[i].fd);
                free(listen_fds->fds[i].name);
        }
        free(listen_fds->fds);
        *listen_fds = (struct listen_fds){0};
}

int listen_fds_take_listener(struct listen_fds *listen_fds, int *fd, struct error *error)
{
        *fd = -1;
        for (size_t i = 0; i < listen_fds->n; i++) {
                struct listen_fd *in = &listen_fds->fds[i];
                if (in->fd < 0 || sd_is_socket_unix(in->fd, SOCK_STREAM, 1, NULL, 0) <= 0)
                        continue;
                if (*fd >= 0) {
                        close(*fd);
                        return error_set(error, STREAMER_EINVAL, "socket: two were passed, one of them as '%s'",
                                         in->name);
                }
                *fd = take_fd(&in->fd);
        }
        return 0;
}

int listen_fds_take_named(struct listen_fds *listen_fds, const char *prefix, const char **name)
{
        for (size_t i = 0; i < listen_fds->n; i++) {
                struct listen_fd *in = &listen_fds->fds[i];
                if (in->fd < 0 || in->name == NULL || strncmp(in->name, prefix, strlen(prefix)) != 0)
                        continue;
                *name = in->name;
                return take_fd(&in->fd);
        }
        return -1;
}
