/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/http_pace.h"

#define SECOND UINT64_C(1000000000)
/* A store that slows a client down answers all that is in flight so: one of them counts. */
#define ONE_SLOWING (SECOND / 2)
#define PROBE_AGAIN 8u /* windows that brought no more, before one more step is tried */
#define STRAGGLER_TIMES 3u
#define STRAGGLER_LEAST (SECOND / 2)

void http_pace_init(struct http_pace *pace, unsigned most, uint64_t now)
{
        *pace = (struct http_pace){.limit = (most + 1) / 2, .most = most, .window_ns = now};
}

static void window_begin(struct http_pace *pace, uint64_t now)
{
        pace->landed = 0;
        pace->bytes = 0;
        pace->window_ns = now;
}

static void grow(struct http_pace *pace)
{
        unsigned to = pace->slowed_ns > 0 ? pace->limit + 1 : pace->limit * 2;
        pace->limit = to < pace->most ? to : pace->most;
        pace->held = 0;
}

static void window_end(struct http_pace *pace, uint64_t now)
{
        uint64_t ns = now > pace->window_ns ? now - pace->window_ns : 1;
        uint64_t rate = (uint64_t)((double)pace->bytes * (double)SECOND / (double)ns);
        window_begin(pace, now);
        if (rate > pace->rate + pace->rate / 20 || ++pace->held >= PROBE_AGAIN) {
                pace->rate = rate;
                grow(pace);
        }
}

void http_pace_landed(struct http_pace *pace, uint64_t bytes, uint64_t took_ns, uint64_t now)
{
        pace->range_ns = pace->range_ns == 0 ? took_ns : pace->range_ns - pace->range_ns / 8 + took_ns / 8;
        pace->bytes += bytes;
        if (++pace->landed >= pace->limit)
                window_end(pace, now);
}

void http_pace_slow_down(struct http_pace *pace, uint64_t now)
{
        if (pace->slowed_ns > 0 && now - pace->slowed_ns < ONE_SLOWING)
                return;
        pace->slowed_ns = now;
        pace->limit = pace->limit > 1 ? pace->limit / 2 : 1;
        pace->rate = 0;
        pace->held = 0;
        window_begin(pace, now);
}

uint64_t http_pace_straggler(const struct http_pace *pace)
{
        uint64_t after = pace->range_ns * STRAGGLER_TIMES;
        if (pace->range_ns == 0)
                return 0;
        return after > STRAGGLER_LEAST ? after : STRAGGLER_LEAST;
}
