/* SPDX-License-Identifier: Apache-2.0
 *
 * Connecting by the library's rule. That the daemon is the user's own is said on standard error, with why it is not the
 * system's.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <stdio.h>

static void name_own_daemon(const struct ctl *ctl)
{
        streamer_socket_info socket = STREAMER_SOCKET_INFO_INIT;
        if (streamer_socket(ctl->client, &socket) != 0 || socket.rule != STREAMER_SOCKET_USER)
                return;
        fputs("streamerctl: your own daemon serves (", stderr);
        put_escaped(stderr, socket.path);
        fputs(")", stderr);
        if (socket.skipped[0]) {
                fputs("; the system's is skipped: ", stderr);
                put_escaped(stderr, socket.skipped);
        }
        fputc('\n', stderr);
}

int ctl_connect(struct ctl *ctl, int connect_ms, int reply_ms)
{
        streamer_connect_opts opts = {.struct_size = sizeof(opts),
                                      .socket = ctl->socket,
                                      .timeout_ms = reply_ms,
                                      .connect_timeout_ms = connect_ms,
                                      .flags = ctl->verb->own ? STREAMER_CONNECT_OWN : 0};
        int rc = streamer_connect(&opts, &ctl->client);
        if (rc == 0 && !ctl->quiet && ctl->format != FORMAT_JSON)
                name_own_daemon(ctl);
        return rc;
}
