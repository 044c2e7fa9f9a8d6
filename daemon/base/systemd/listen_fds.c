/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/systemd/listen_fds.h"

#include "daemon/base/util.h"

#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

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
