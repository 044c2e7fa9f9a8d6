/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/stall.h"

#include "daemon/base/metric.h"
#include "daemon/base/util.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <string.h>

#define LOOK_NS (UINT64_C(1) * 1000000)

uint64_t stall_bound_ns(unsigned bucket)
{
        static const unsigned bounds[] = STALL_BOUNDS_MS;
        _Static_assert(ARRAY_SIZE(bounds) + 1 == STALL_BUCKETS, "one more for the rest");
        return bucket < ARRAY_SIZE(bounds) ? bounds[bucket] * UINT64_C(1000000) : UINT64_MAX;
}

/* Of clocks that are read one after the other. */
static uint64_t less(uint64_t a, uint64_t b)
{
        return a > b ? a - b : 0;
}

static void keep(struct stall *stall, const struct stall_kept *turn)
{
        unsigned i = 0, last = stall->n_kept < STALL_KEPT ? stall->n_kept : STALL_KEPT - 1;
        while (i < stall->n_kept && stall->kept[i].ns >= turn->ns)
                i++;
        if (i == STALL_KEPT)
                return;
        memmove(&stall->kept[i + 1], &stall->kept[i], (last - i) * sizeof(*turn));
        stall->kept[i] = *turn;
        stall->n_kept = last + 1;
}

uint64_t stall_turn(struct stall *stall, const struct stall_clocks *clocks)
{
        const struct stall_clocks last = stall->last;
        stall->last = *clocks;
        if (last.now_ns == 0)
                return 0;
        uint64_t busy = less(clocks->now_ns - last.now_ns, clocks->idle_ns - last.idle_ns);
        uint64_t own = less(busy, clocks->ready_ns - last.ready_ns), ran = clocks->ran_ns - last.ran_ns;
        unsigned bucket = 0;
        while (busy >= stall_bound_ns(bucket) && bucket < STALL_BUCKETS - 1)
                bucket++;
        stall->counts[bucket]++;
        stall->turns++;
        if (busy > stall->longest_ns)
                stall->longest_ns = busy;
        if (own > stall->longest_own_ns)
                stall->longest_own_ns = own;
        if (busy >= STALL_KEPT_FROM_NS)
                keep(stall, &(struct stall_kept){clocks->now_ns - busy, busy, own, ran < own ? ran : own, clocks->cpu});
        return busy;
}

/* ---- on a loop ---- */

/* "time on a processor, time ready without one, ...", in nanoseconds. A look costs a microsecond, so that
 * turns of less than LOOK_NS go without: what they waited is then counted in a later one. */
static void look(struct stall_watch *watch)
{
        char text[96];
        uint64_t before = watch->clocks.ready_ns;
        if (watch->schedstat < 0 || watch->clocks.now_ns - watch->looked_ns < LOOK_NS)
                return;
        watch->looked_ns = watch->clocks.now_ns;
        ssize_t n = pread(watch->schedstat, text, sizeof(text) - 1, 0);
        if (n <= 0)
                return;
        text[n] = '\0';
        if (sscanf(text, "%" SCNu64 " %" SCNu64, &watch->clocks.ran_ns, &watch->clocks.ready_ns) == 2)
                metric_add(METRIC_LOOP_READY, less(watch->clocks.ready_ns, before));
}

/* Callbacks run inside the loop's poll, so the time around it is asked for, and not the one between
 * its end and its beginning. */
static void on_about_to_wait(uv_prepare_t *prepare)
{
        struct stall_watch *watch = container_of(prepare, struct stall_watch, prepare);
        watch->clocks.now_ns = uv_hrtime();
        watch->clocks.idle_ns = uv_metrics_idle_time(prepare->loop);
        watch->clocks.cpu = (unsigned)sched_getcpu();
        look(watch);
        uint64_t busy = stall_turn(&watch->stall, &watch->clocks);
        if (busy >= STALL_KEPT_FROM_NS) /* shorter ones would cost more than they tell */
                metric_observe(METRIC_LOOP_STALL, busy);
}

void stall_watch_start(struct stall_watch *watch, uv_loop_t *loop)
{
        *watch = (struct stall_watch){.schedstat = open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC)};
        uv_loop_configure(loop, UV_METRICS_IDLE_TIME);
        uv_prepare_init(loop, &watch->prepare);
        uv_prepare_start(&watch->prepare, on_about_to_wait);
        uv_unref((uv_handle_t *)&watch->prepare);
}

void stall_watch_deinit(struct stall_watch *watch)
{
        close_p(&watch->schedstat);
        watch->schedstat = -1;
}
