/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sys/listen.h"

#include "daemon/base/util.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#define UNIX_PREFIX "unix:"

/* ---- reading ---- */

int listen_set_path(struct listen_address *address, const char *path, struct error *error)
{
        *address = (struct listen_address){.un.sun_family = AF_UNIX, .size = sizeof(address->un)};
        if (strlen(path) >= sizeof(address->un.sun_path))
                return error_set(error, STREAMER_EINVAL, LISTEN_TOO_LONG);
        strcpy(address->un.sun_path, path);
        return 0;
}

int listen_parse(const char *text, struct listen_address *address, struct error *error)
{
        *address = (struct listen_address){0};
        if (strncmp(text, UNIX_PREFIX, strlen(UNIX_PREFIX)) == 0) {
                const char *path = text + strlen(UNIX_PREFIX);
                if (path[0] != '/')
                        return error_set(error, STREAMER_EINVAL, "'%.80s' is not an absolute path", path);
                return listen_set_path(address, path, error);
        }
        char host[64] = "";
        int end = 0;
        bool is_v6 = text[0] == '[';
        sscanf(text, is_v6 ? "[%63[^]]]%n" : "%63[^:]%n", host, &end);
        if (strcmp(host, "localhost") == 0)
                strcpy(host, "127.0.0.1");
        address->any.sa_family = is_v6 ? AF_INET6 : AF_INET;
        address->size = is_v6 ? sizeof(address->in6) : sizeof(address->in);
        void *binary = is_v6 ? (void *)&address->in6.sin6_addr : &address->in.sin_addr;
        if (text[end] != ':' || inet_pton(address->any.sa_family, host, binary) != 1)
                return error_set(error, STREAMER_EINVAL, "'%.80s' is neither ADDRESS:PORT nor unix:/path", text);

        const char *port = text + end + 1;
        size_t len = strlen(port);
        unsigned long number = strtoul(port, NULL, 10);
        if (len == 0 || len > 5 || strspn(port, "0123456789") != len || number > 65535)
                return error_set(error, STREAMER_EINVAL, "'%.80s': the port is not within 0 to 65535", text);
        address->in.sin_port = htons((uint16_t)number); /* sin6_port has the same place */
        return 0;
}

bool listen_is_local(const struct listen_address *address)
{
        switch (address->any.sa_family) {
        case AF_INET:
                return ntohl(address->in.sin_addr.s_addr) >> 24 == 127;
        case AF_INET6:
                return IN6_IS_ADDR_LOOPBACK(&address->in6.sin6_addr);
        default:
                return true;
        }
}

/* ---- listening ---- */

/* Removes a socket file that no process serves. */
static int remove_stale(const struct listen_address *address, struct error *error)
{
        const char *path = address->un.sun_path;
        struct stat st;
        if (lstat(path, &st) < 0)
                return 0;
        if (!S_ISSOCK(st.st_mode))
                return error_set(error, STREAMER_EFAILED, "the path exists and is not a socket (%s)", path);
        cleanup_close int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_errno(error, STREAMER_EOS, errno, "socket");
        if (connect(fd, &address->any, address->size) == 0 || errno == EAGAIN)
                return error_set(error, STREAMER_EBUSY, "another process serves it (%s)", path);
        if (errno != ECONNREFUSED && errno != ENOENT)
                return error_errno(error, STREAMER_EOS, errno, "%s", path);
        unlink(path);
        return 0;
}

/* Two processes that start at once take turns here, by a lock on the socket's folder. */
static int lock_folder(const char *path)
{
        char folder[sizeof(((struct sockaddr_un *)0)->sun_path)] = ".";
        const char *slash = strrchr(path, '/');
        if (slash != NULL)
                snprintf(folder, sizeof(folder), "%.*s", slash == path ? 1 : (int)(slash - path), path);
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (fd >= 0)
                flock(fd, LOCK_EX);
        return fd;
}

int listener_open(struct listener *listener, const struct listen_address *address, int backlog, struct error *error)
{
        const char *path = address->any.sa_family == AF_UNIX ? address->un.sun_path : NULL;
        struct stat st = {.st_ino = 0};
        cleanup_close int lock = path != NULL ? lock_folder(path) : -1;
        *listener = (struct listener){.fd = -1, .path = path != NULL ? strdup(path) : NULL};
        if (path != NULL && listener->path == NULL)
                return error_no_memory(error);
        if (path != NULL && lock < 0)
                return error_errno(error, STREAMER_EOS, errno, "its folder (%s)", path);
        int r = path != NULL ? remove_stale(address, error) : 0;
        if (r < 0)
                return r;
        cleanup_close int fd = socket(address->any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        if (fd < 0)
                return error_errno(error, STREAMER_EOS, errno, "socket");
        setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &(int){1}, sizeof(int));
        mode_t mask = umask(0117); /* 0660 from the first moment */
        r = bind(fd, &address->any, address->size);
        int e = errno;
        umask(mask);
        if (r < 0)
                return error_errno(error, STREAMER_EOS, e, "bind");
        if (listen(fd, backlog) < 0 || (path != NULL && lstat(path, &st) < 0))
                return error_errno(error, STREAMER_EOS, errno, "listen");
        listener->dev = st.st_dev;
        listener->ino = st.st_ino;
        listener->gid = st.st_gid;
        listener->fd = take_fd(&fd);
        return 0;
}

int listener_adopt_consume_fd(struct listener *listener, int fd, struct error *error)
{
        struct listen_address a = {.size = sizeof(a.un)};
        struct stat st;
        *listener = (struct listener){.fd = fd};
        fcntl(fd, F_SETFL, O_NONBLOCK);
        if (getsockname(fd, &a.any, &a.size) < 0 || a.un.sun_path[0] != '/')
                return error_set(error, STREAMER_EINVAL, "the one that was passed has no path");
        if (stat(a.un.sun_path, &st) < 0)
                return error_errno(error, STREAMER_EOS, errno, "%s", a.un.sun_path);
        listener->gid = st.st_gid;
        listener->path = strdup(a.un.sun_path);
        return listener->path != NULL ? 0 : error_no_memory(error);
}

void listener_close(struct listener *listener)
{
        struct stat st;
        if (listener->ino != 0 && lstat(listener->path, &st) == 0 && st.st_dev == listener->dev &&
            st.st_ino == listener->ino)
                unlink(listener->path);
        listener->ino = 0;
        close_fd(&listener->fd);
}

void listener_deinit(struct listener *listener)
{
        listener_close(listener);
        free(listener->path);
        listener->path = NULL;
}

void listen_text(int fd, const char *scheme, char text[LISTEN_TEXT])
{
        struct listen_address a = {.size = sizeof(a.un)};
        getsockname(fd, &a.any, &a.size);
        bool is_v6 = a.any.sa_family == AF_INET6;
        char host[INET6_ADDRSTRLEN] = "";
        if (a.any.sa_family == AF_UNIX) {
                snprintf(text, LISTEN_TEXT, "unix:%.107s", a.un.sun_path);
                return;
        }
        inet_ntop(a.any.sa_family, is_v6 ? (void *)&a.in6.sin6_addr : &a.in.sin_addr, host, sizeof(host));
        snprintf(text, LISTEN_TEXT, is_v6 ? "%s://[%s]:%u" : "%s://%s:%u", scheme, host, ntohs(a.in.sin_port));
}
