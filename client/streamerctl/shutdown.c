/* SPDX-License-Identifier: Apache-2.0
 *
 * shutdown: ends the caller's own daemon, or the one that --socket or $STREAMERD_SOCKET names. Without --drain it
 * returns when the daemon has closed the connection, after its socket.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <inttypes.h>
#include <poll.h>
#include <stdio.h>

#define END_MS 15000 /* the daemon ends within ten seconds */

static bool wait_end(const struct ctl *ctl, int limit_ms)
{
        uint64_t end = clock_now_ns() + (uint64_t)limit_ms * 1000000;
        struct pollfd fd = {.fd = streamer_fd(ctl->client), .events = POLLIN};
        int rc;
        while ((rc = streamer_process(ctl->client)) != STREAMER_EUNREACHABLE) {
                uint64_t now = clock_now_ns();
                if (now >= end)
                        return false;
                if (rc == 0) /* 1 may have reported the loss, after which the descriptor is not readable */
                        poll(&fd, 1, (int)((end - now) / 1000000) + 1);
        }
        return true;
}

int verb_shutdown(struct ctl *ctl)
{
        json_auto_t *reply = NULL;
        int rc = ctl_call(ctl, "shutdown", json_pack("{s:b}", "drain", ctl->drain), NULL, &reply);
        if (rc != 0)
                return rc;
        uint64_t leases = json_u64(reply, "leases");
        if (!ctl->drain) {
                int limit_ms = ctl->timeout_ms > 0 ? ctl->timeout_ms : END_MS;
                if (!wait_end(ctl, limit_ms))
                        return ctl_error(ctl, STREAMER_ETIMEOUT, NULL, "the daemon has not ended after %g s",
                                         limit_ms / 1e3);
                json_object_set_new(reply, "state", json_string("ended"));
        }
        if (ctl->format == FORMAT_JSON)
                ctl_print_json(reply);
        else if (ctl->drain && leases > 0)
                printf("draining: %" PRIu64 " lease%s left\n", leases, leases == 1 ? "" : "s");
        else
                puts(ctl->drain ? "draining" : "ended");
        return 0;
}
