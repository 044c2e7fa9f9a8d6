/* SPDX-License-Identifier: Apache-2.0
 *
 * Connecting by the library's rule. That the daemon is the user's own is said on standard error, with why it is not the
 * system's. Verbs that wait for models also wait for a daemon that is being started.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <stdio.h>
#include <time.h>

#define START_MS 1000
#define LOOK_NS 20000000

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
        int start_ms = ctl->verb->waits ? ctl_left_ms(ctl, START_MS) : 0;
        uint64_t end = clock_now_ns() + (uint64_t)start_ms * UINT64_C(1000000);
        int rc;
        while ((rc = streamer_connect(&opts, &ctl->client)) == STREAMER_EUNREACHABLE && clock_now_ns() < end)
                nanosleep(&(struct timespec){.tv_nsec = LOOK_NS}, NULL);
        if (rc == 0 && !ctl->quiet && ctl->format != FORMAT_JSON)
                name_own_daemon(ctl);
        return rc;
}
