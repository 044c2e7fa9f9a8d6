/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sys/systemd.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <systemd/sd-bus.h>
#include <systemd/sd-daemon.h>

/* ---- notifications ---- */

bool notify_manager(void)
{
        return getenv("NOTIFY_SOCKET") != NULL;
}

/* The protocol of sd_notify(3) on a socket that never blocks: libsystemd's calls block while the manager does not read.
 * Connected, so that poll() waits for space in the manager's queue. A negative errno: -ENOTCONN without a manager. */
static int connect_manager(void)
{
        const char *path = getenv("NOTIFY_SOCKET");
        size_t path_len = path != NULL ? strlen(path) : 0;
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        if (path_len < 2 || path_len >= sizeof(address.sun_path) || (path[0] != '/' && path[0] != '@'))
                return -ENOTCONN;
        memcpy(address.sun_path, path, path_len);
        if (path[0] == '@') /* the abstract namespace */
                address.sun_path[0] = '\0';
        socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path_len);
        cleanup_close int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0 || connect(fd, (const struct sockaddr *)&address, len) < 0)
                return -errno;
        return take_fd(&fd);
}

/* What cannot be sent is dropped, since these calls come from the loop; the manager has timeouts of its own. */
bool notify_state(const char *text)
{
        cleanup_close int fd = connect_manager();
        return fd >= 0 && send(fd, text, strlen(text), MSG_NOSIGNAL) >= 0;
}

bool notify_ready(void)
{
        return notify_state("READY=1") || !notify_manager();
}

void notify_reloading(void)
{
        char text[64];
        snprintf(text, sizeof(text), "RELOADING=1\nMONOTONIC_USEC=%" PRIu64, now_ns() / 1000);
        notify_state(text);
}

bool notify_status(const char *text)
{
        char line[512], message[sizeof(line) + 8];
        /* A line break in a name would begin a second assignment. */
        error_escape(line, sizeof(line), text);
        snprintf(message, sizeof(message), "STATUS=%s", line);
        return notify_state(message);
}

uint64_t notify_watchdog_ns(void)
{
        uint64_t us = 0;
        return sd_watchdog_enabled(0, &us) > 0 ? us * 1000 : 0;
}

/* ---- how large the fd store is ---- */

#define MANAGER "org.freedesktop.systemd1"

/* Only a service that systemd started has an INVOCATION_ID. */
bool fdstore_possible(void)
{
        return notify_manager() && (getenv("FDSTORE") != NULL || getenv("INVOCATION_ID") != NULL);
}

/* Of the unit that this process is the main one of. */
static uint64_t ask_bus(void)
{
        __attribute__((cleanup(sd_bus_flush_close_unrefp))) sd_bus *bus = NULL;
        __attribute__((cleanup(sd_bus_message_unrefp))) sd_bus_message *reply = NULL;
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
        if (fdstore_possible())
                max = text != NULL ? strtoull(text, NULL, 10) : ask_bus();
        return max < FDSTORE_NAMES ? max : FDSTORE_NAMES;
}

/* ---- its messages ---- */

/* Time that is waited before the limit is read again, which another thread may lower. */
#define SLICE_NS UINT64_C(50000000)

static uint64_t left(const struct fdstore_limit *limit)
{
        uint64_t now = now_ns(), end = load_relaxed(limit->end_ns);
        if (limit->until_ns < end)
                end = limit->until_ns;
        return end > now ? end - now : 0;
}

/* 0 once the descriptor is ready; -ETIMEDOUT. */
static int wait_for(int fd, short events, const struct fdstore_limit *limit)
{
        struct pollfd one = {.fd = fd, .events = events};
        for (;;) {
                uint64_t ns = left(limit);
                const struct timespec slice = {.tv_nsec = (long)(ns < SLICE_NS ? ns : SLICE_NS)};
                int n = ppoll(&one, 1, &slice, NULL);
                if (n > 0)
                        return 0;
                if (n < 0 && errno != EINTR)
                        return -errno;
                if (ns == 0)
                        return -ETIMEDOUT;
        }
}

/* With a descriptor, or -1. */
static int send_within(const char *text, int passed, const struct fdstore_limit *limit)
{
        union {
                struct cmsghdr header;
                char bytes[CMSG_SPACE(sizeof(int))];
        } control = {.header = {.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))}};
        struct iovec part = {(void *)(uintptr_t)text, strlen(text)};
        struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
        cleanup_close int fd = connect_manager();
        if (fd < 0)
                return fd;
        if (passed >= 0) {
                memcpy(CMSG_DATA(&control.header), &passed, sizeof(passed));
                message.msg_control = &control;
                message.msg_controllen = sizeof(control.bytes);
        }
        for (;;) {
                if (sendmsg(fd, &message, MSG_NOSIGNAL) >= 0)
                        return 0;
                int r = errno == EINTR ? 0 : errno == EAGAIN ? wait_for(fd, POLLOUT, limit) : -errno;
                if (r < 0)
                        return r;
        }
}

int fdstore_add(const char *name, int fd, const struct fdstore_limit *limit)
{
        char text[64];
        if (strlen(name) >= FDSTORE_NAME_MAX)
                return -ENAMETOOLONG;
        /* FDPOLL=0: the manager drops a descriptor that hangs up, as the pidfd of a process that was
         * reaped does; that one is ours to remove. */
        snprintf(text, sizeof(text), "FDSTORE=1\nFDPOLL=0\nFDNAME=%s", name);
        return send_within(text, fd, limit);
}

int fdstore_remove(const char *name, const struct fdstore_limit *limit)
{
        char text[300]; /* a stored name may be longer than ours */
        snprintf(text, sizeof(text), "FDSTOREREMOVE=1\nFDNAME=%s", name);
        return send_within(text, -1, limit);
}

/* The manager closes the descriptor that comes with a barrier when it reads it. */
int fdstore_sync(const struct fdstore_limit *limit)
{
        int ends[2];
        if (pipe2(ends, O_CLOEXEC) < 0)
                return -errno;
        int r = send_within("BARRIER=1", ends[1], limit);
        close(ends[1]);
        r = r < 0 ? r : wait_for(ends[0], 0, limit);
        close(ends[0]);
        return r;
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
        if (listen_fds->fds == NULL) {
                free(names);
                return error_no_memory(error);
        }
        listen_fds->n = (size_t)n;
        for (size_t i = 0; i < listen_fds->n; i++)
                listen_fds->fds[i] = (struct listen_fd){SD_LISTEN_FDS_START + (int)i, names[i]};
        free(names);
        return 0;
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
