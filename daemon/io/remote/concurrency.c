/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/remote/concurrency.h"

#include "daemon/base/util.h"
#include "daemon/io/http/http.h"

/* Within a building answers take a few milliseconds at most, between buildings ten and more. */
#define DISTANT (SECOND / 50)
/* Each request costs a gateway that reads ahead for it: radosgw sent 1.42 GiB/s to 4 curls and 0.91 to 16. */
#define FEW_LEAST 4u
#define WINDOW_LEAST (SECOND / 10)
#define SAMPLE (SECOND / 10)
/* After a halving the number grows by ones for so many windows, as TCP does. A store that has served these windows
 * without asking to slow down has scaled, or its load has fallen: if the number continued to grow by ones, a single
 * answer in a load's first second would slow the load to its end. If doubling is too soon it costs one more halving. */
#define ADDITIVE_WINDOWS 8u
#define PROBE_AGAIN 8u /* windows at the best, before more is tried again */
#define STRAGGLER_TIMES 3u
#define STRAGGLER_LEAST (SECOND / 2)
#define SILENCE_UNKNOWN (2 * SECOND) /* before the first answer */
#define ANSWER_LEAST (SECOND / 1000)
#define ANSWER_OUTLIER 4u /* a late answer counts as so many times the usual one at most */

void concurrency_init(struct concurrency *c, unsigned most, uint64_t now)
{
        unsigned n = most / 4 > FEW_LEAST ? most / 4 : FEW_LEAST;
        if (n > most)
                n = most;
        *c = (struct concurrency){.limit = n, .best = n, .most = most, .window_ns = now};
}

static void window_begin(struct concurrency *c, uint64_t now)
{
        c->landed = 0;
        c->bytes = 0;
        c->window_ns = now;
}

static void set_limit(struct concurrency *c, unsigned limit)
{
        c->limit = limit < c->most ? limit : c->most;
        c->stable = false;
        c->windows_since_probe = 0;
}

void concurrency_answered(struct concurrency *c, uint64_t after_ns)
{
        if (c->answer_ns == 0 && after_ns >= DISTANT && c->slowed_ns == 0) {
                set_limit(c, c->most);
                c->best = c->most;
        }
        if (after_ns < ANSWER_LEAST)
                after_ns = ANSWER_LEAST;
        if (c->answer_ns > 0) {
                uint64_t most = c->answer_ns * ANSWER_OUTLIER;
                after_ns = c->answer_ns - c->answer_ns / 8 + (after_ns < most ? after_ns : most) / 8;
        }
        c->answer_ns = after_ns;
}

static uint64_t rate_of(uint64_t bytes, uint64_t ns)
{
        return (uint64_t)((double)bytes * (double)SECOND / (double)ns);
}

static void window_end(struct concurrency *c, uint64_t now)
{
        uint64_t rate = rate_of(c->bytes, now - c->window_ns);
        window_begin(c, now);
        c->additive_windows -= c->additive_windows > 0;
        bool gain = rate > c->rate + c->rate / 20;
        if (!c->stable) {
                c->stable = true;
        } else if (!gain && c->limit > c->best) {
                set_limit(c, c->best);
        } else if (gain || ++c->windows_since_probe >= PROBE_AGAIN) {
                c->rate = rate;
                if (gain)
                        c->best = c->limit;
                set_limit(c, c->additive_windows > 0 ? c->limit + 1 : c->limit * 2);
        }
}

void concurrency_add_block(struct concurrency *c, uint64_t bytes, uint64_t took_ns, uint64_t now)
{
        c->block_ns = c->block_ns == 0 ? took_ns : c->block_ns - c->block_ns / 8 + took_ns / 8;
        c->bytes += bytes;
        if (++c->landed >= c->limit && now >= c->window_ns + WINDOW_LEAST)
                window_end(c, now);
}

void concurrency_slow_down(struct concurrency *c, uint64_t now)
{
        unsigned limit = c->limit;
        if (!http_halve_concurrency(&limit, &c->slowed_ns, now))
                return;
        set_limit(c, limit);
        c->best = c->limit;
        c->rate = 0;
        c->additive_windows = ADDITIVE_WINDOWS;
        window_begin(c, now);
}

void concurrency_add_bytes(struct concurrency *c, uint64_t bytes, uint64_t now)
{
        if (c->first_ns == 0 && bytes > 0) {
                c->first_ns = c->sample_ns = now;
                c->first_bytes = c->sample_bytes = bytes;
        }
        if (c->first_ns == 0 || now < c->sample_ns + SAMPLE)
                return;
        uint64_t flow = rate_of(bytes - c->sample_bytes, now - c->sample_ns);
        c->flow = c->average > 0 ? c->flow / 2 + flow / 2 : flow;
        c->average = rate_of(bytes - c->first_bytes, now - c->first_ns);
        c->sample_ns = now;
        c->sample_bytes = bytes;
}

bool concurrency_is_saturated(const struct concurrency *c)
{
        return c->flow >= c->average / 3 * 2;
}

/* When something that takes `usual_ns` is late. */
static uint64_t late_after(uint64_t usual_ns)
{
        uint64_t after = usual_ns * STRAGGLER_TIMES;
        return after > STRAGGLER_LEAST ? after : STRAGGLER_LEAST;
}

uint64_t concurrency_straggler(const struct concurrency *c)
{
        return c->block_ns > 0 ? late_after(c->block_ns) : 0;
}

uint64_t concurrency_silence(const struct concurrency *c)
{
        return c->answer_ns > 0 ? late_after(c->answer_ns) : SILENCE_UNKNOWN;
}
