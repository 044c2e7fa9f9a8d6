/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/inherit.h"

#include "daemon/base/util.h"

#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>

int inherit_init(struct inherit *inherit, struct error *error)
{
        char **names = NULL;
        *inherit = (struct inherit){0};
        int n = sd_listen_fds_with_names(1, &names); /* sets close-on-exec */
        if (n < 0)
                return error_errno(error, STREAMER_EOS, -n, "LISTEN_FDS");
        if (n == 0)
                return 0;
        inherit->fds = calloc((size_t)n, sizeof(*inherit->fds));
        if (inherit->fds != NULL)
                inherit->n = (size_t)n;
        for (size_t i = 0; i < inherit->n; i++)
                inherit->fds[i] = (struct inherited){SD_LISTEN_FDS_START + (int)i, names[i]};
        free(names);
        return inherit->fds != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

void inherit_deinit(struct inherit *inherit)
{
        for (size_t i = 0; i < inherit->n; i++) {
                close_p(&inherit->fds[i].fd);
                free(inherit->fds[i].name);
        }
        free(inherit->fds);
        *inherit = (struct inherit){0};
}

int inherit_take_listener(struct inherit *inherit, int *fd, struct error *error)
{
        *fd = -1;
        for (size_t i = 0; i < inherit->n; i++) {
                struct inherited *in = &inherit->fds[i];
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

int inherit_take_named(struct inherit *inherit, const char *prefix, const char **name)
{
        for (size_t i = 0; i < inherit->n; i++) {
                struct inherited *in = &inherit->fds[i];
                if (in->fd < 0 || in->name == NULL || strncmp(in->name, prefix, strlen(prefix)) != 0)
                        continue;
                *name = in->name;
                return take_fd(&in->fd);
        }
        return -1;
}
