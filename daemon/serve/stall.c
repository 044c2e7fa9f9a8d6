/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/stall.h"

#include "daemon/base/metric.h"
#include "daemon/base/util.h"

#define METRIC_FROM_NS (UINT64_C(10) * 1000000) /* shorter ones would cost more than they tell */

uint64_t stall_bound_ns(unsigned bucket)
{
        static const unsigned bounds[] = STALL_BOUNDS_MS;
        _Static_assert(ARRAY_SIZE(bounds) + 1 == STALL_BUCKETS, "one more for the rest");
        return bucket < ARRAY_SIZE(bounds) ? bounds[bucket] * UINT64_C(1000000) : UINT64_MAX;
}

uint64_t stall_turn(struct stall *stall, uint64_t now, uint64_t idle)
{
        uint64_t passed = now - stall->last_ns, waited = idle - stall->last_idle_ns;
        bool first = stall->last_ns == 0;
        stall->last_ns = now;
        stall->last_idle_ns = idle;
        if (first)
                return 0;
        /* The two clocks are read one after the other. */
        uint64_t busy = passed > waited ? passed - waited : 0;
        unsigned bucket = 0;
        while (busy >= stall_bound_ns(bucket) && bucket < STALL_BUCKETS - 1)
                bucket++;
        stall->counts[bucket]++;
        stall->turns++;
        if (busy > stall->longest_ns)
                stall->longest_ns = busy;
        return busy;
}

/* Callbacks run inside the loop's poll, so the time around it is asked for, and not the one between
 * its end and its beginning. */
static void on_about_to_wait(uv_prepare_t *prepare)
{
        struct stall_watch *watch = container_of(prepare, struct stall_watch, prepare);
        uint64_t busy = stall_turn(&watch->stall, uv_hrtime(), uv_metrics_idle_time(prepare->loop));
        if (busy >= METRIC_FROM_NS)
                metric_observe(METRIC_LOOP_STALL, busy);
}

void stall_watch_start(struct stall_watch *watch, uv_loop_t *loop)
{
        *watch = (struct stall_watch){.stall = {.turns = 0}};
        uv_loop_configure(loop, UV_METRICS_IDLE_TIME);
        uv_prepare_init(loop, &watch->prepare);
        uv_prepare_start(&watch->prepare, on_about_to_wait);
        uv_unref((uv_handle_t *)&watch->prepare);
}
