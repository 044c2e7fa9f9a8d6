/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/manager.h"

#include "daemon/base/notify.h"

#define READY_AGAIN_MS 100

/* From the loop itself, so that a loop that hangs is what the manager notices. */
static void on_alive(uv_timer_t *timer)
{
        (void)timer;
        notify_alive();
}

void manager_start(struct manager *manager, uv_loop_t *loop)
{
        uint64_t ms = notify_watchdog_ns() / 1000000;
        uv_timer_init(loop, &manager->ready);
        uv_timer_init(loop, &manager->alive);
        if (ms > 0)
                uv_timer_start(&manager->alive, on_alive, 0, ms / 2 > 0 ? ms / 2 : 1);
}

/* A manager that hears nothing ends a daemon that serves, or holds it to be reloading for ever. */
static void on_ready(uv_timer_t *timer)
{
        if (notify_ready())
                uv_timer_stop(timer);
}

void manager_tell_ready(struct manager *manager)
{
        if (!notify_ready())
                uv_timer_start(&manager->ready, on_ready, READY_AGAIN_MS, READY_AGAIN_MS);
}
