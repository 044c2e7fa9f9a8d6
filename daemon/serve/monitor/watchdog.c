/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/monitor/watchdog.h"

#include "daemon/base/systemd/notify.h"

#define READY_AGAIN_MS 100

/* Sent by the loop itself, so that the manager notices a loop that hangs. */
static void on_alive(uv_timer_t *timer)
{
        (void)timer;
        notify_alive();
}

void watchdog_start(struct watchdog *watchdog, uv_loop_t *loop)
{
        uint64_t ms = notify_watchdog_ns() / 1000000;
        uv_timer_init(loop, &watchdog->ready);
        uv_timer_init(loop, &watchdog->alive);
        if (ms > 0)
                uv_timer_start(&watchdog->alive, on_alive, 0, ms / 2 > 0 ? ms / 2 : 1);
}

/* A manager that misses READY=1 ends the daemon, or considers it to be reloading for ever. */
static void on_ready(uv_timer_t *timer)
{
        if (notify_ready())
                uv_timer_stop(timer);
}

void watchdog_notify_ready(struct watchdog *watchdog)
{
        if (!notify_ready())
                uv_timer_start(&watchdog->ready, on_ready, READY_AGAIN_MS, READY_AGAIN_MS);
}
