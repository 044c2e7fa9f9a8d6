/* SPDX-License-Identifier: Apache-2.0
 *
 * Pauses between attempts.
 */
#include "client/patience.h"

#include "client/util.h"

#include <errno.h>

#define PATIENCE_MS 3000 /* a daemon that restarts is back by then, unless it reads its models again */
#define PAUSE_NS 10000000
#define PAUSE_MAX_NS 200000000

struct patience patience_begin(int64_t deadline)
{
        int64_t end = deadline_in_ms(PATIENCE_MS);
        return (struct patience){.end = deadline < end ? deadline : end, .pause_ns = PAUSE_NS};
}

bool patience_pause(struct patience *patience)
{
        struct timespec left = {.tv_sec = 0, .tv_nsec = patience->pause_ns};
        if (now_ns() + patience->pause_ns >= patience->end)
                return false;
        while (nanosleep(&left, &left) < 0 && errno == EINTR)
                ;
        patience->pause_ns = 2 * patience->pause_ns < PAUSE_MAX_NS ? 2 * patience->pause_ns : PAUSE_MAX_NS;
        return true;
}
