/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/remote/concurrency.h"

#include "daemon/io/http/policy.h"

#define SECOND UINT64_C(1000000000)
/* Within a building answers take a few milliseconds at most, between buildings ten and more. */
#define FAR (SECOND / 50)
/* A gateway that reads ahead for each request pays for each: radosgw gave 4 curls 1.42 GiB/s and 16 of them 0.91. */
#define FEW_LEAST 4u
#define WINDOW_LEAST (SECOND / 10)
#define SAMPLE (SECOND / 10)
/* Half of what was too much is where TCP's slow start would end, too; from there it grows by ones for so many
 * windows. A store that has served them without complaint has scaled, or its load has fallen: to continue by
 * ones would mean that one answer in a load's first second slows it to its end. Where that was too soon it costs one
 * more halving, back to the former number. */
#define CALM 8u
#define PROBE_AGAIN 8u /* windows at the best, before more is tried again */
#define STRAGGLER_TIMES 3u
#define STRAGGLER_LEAST (SECOND / 2)
/* Cutting a request short costs a connection and another request, which a store that is short of processors
 * pays for with what it sends meanwhile: halves of what would be there soon made loads from Swift slower by a
 * third. */
#define WORTH_A_REQUEST SECOND

/* Of the whole where that is not much. */
static unsigned few(unsigned most)
{
        unsigned n = most / 4 > FEW_LEAST ? most / 4 : FEW_LEAST;
        return n < most ? n : most;
}

void concurrency_init(struct concurrency *pace, unsigned most, uint64_t now)
{
        unsigned n = few(most);
        *pace = (struct concurrency){.limit = n, .best = n, .most = most, .window_ns = now};
}

static void window_begin(struct concurrency *pace, uint64_t now)
{
        pace->landed = 0;
        pace->bytes = 0;
        pace->window_ns = now;
}

static void set(struct concurrency *pace, unsigned limit)
{
        pace->limit = limit < pace->most ? limit : pace->most;
        pace->settled = false;
        pace->held = 0;
}

static void grow(struct concurrency *pace)
{
        set(pace, pace->calm > 0 ? pace->limit + 1 : pace->limit * 2);
}

void concurrency_answered(struct concurrency *pace, uint64_t after_ns)
{
        if (!pace->answered && after_ns >= FAR && pace->slowed_ns == 0) {
                set(pace, pace->most);
                pace->best = pace->most;
        }
        pace->answered = true;
}

static uint64_t rate_of(uint64_t bytes, uint64_t ns)
{
        return (uint64_t)((double)bytes * (double)SECOND / (double)ns);
}

static void window_end(struct concurrency *pace, uint64_t now)
{
        uint64_t rate = rate_of(pace->bytes, now - pace->window_ns);
        window_begin(pace, now);
        pace->calm -= pace->calm > 0;
        if (!pace->settled) {
                pace->settled = true;
        } else if (rate > pace->rate + pace->rate / 20) {
                pace->rate = rate;
                pace->best = pace->limit;
                grow(pace);
        } else if (pace->limit > pace->best) {
                set(pace, pace->best);
        } else if (++pace->held >= PROBE_AGAIN) {
                pace->rate = rate;
                grow(pace);
        }
}

void concurrency_add_block(struct concurrency *pace, uint64_t bytes, uint64_t took_ns, uint64_t now)
{
        pace->block_ns = pace->block_ns == 0 ? took_ns : pace->block_ns - pace->block_ns / 8 + took_ns / 8;
        pace->bytes += bytes;
        if (++pace->landed >= pace->limit && now >= pace->window_ns + WINDOW_LEAST)
                window_end(pace, now);
}

void concurrency_slow_down(struct concurrency *pace, uint64_t now)
{
        unsigned limit = pace->limit;
        if (!http_halve_concurrency(&limit, &pace->slowed_ns, now))
                return;
        set(pace, limit);
        pace->best = pace->limit;
        pace->rate = 0;
        pace->calm = CALM;
        window_begin(pace, now);
}

bool concurrency_add_bytes(struct concurrency *pace, uint64_t bytes, uint64_t now)
{
        if (pace->first_ns == 0 && bytes > 0) {
                pace->first_ns = pace->sample_ns = now;
                pace->first_bytes = pace->sample_bytes = bytes;
        }
        if (pace->first_ns == 0 || now < pace->sample_ns + SAMPLE)
                return false;
        uint64_t flow = rate_of(bytes - pace->sample_bytes, now - pace->sample_ns);
        pace->flow = pace->average > 0 ? pace->flow / 2 + flow / 2 : flow;
        pace->average = rate_of(bytes - pace->first_bytes, now - pace->first_ns);
        pace->sample_ns = now;
        pace->sample_bytes = bytes;
        return true;
}

bool concurrency_is_saturated(const struct concurrency *pace)
{
        return pace->flow >= pace->average / 3 * 2;
}

size_t concurrency_split(const struct concurrency *pace)
{
        if (pace->block_ns == 0 || concurrency_is_saturated(pace))
                return SIZE_MAX;
        size_t blocks = (size_t)(WORTH_A_REQUEST / pace->block_ns) + 1;
        return blocks > 2 ? blocks : 2;
}

uint64_t concurrency_straggler(const struct concurrency *pace)
{
        uint64_t after = pace->block_ns * STRAGGLER_TIMES;
        if (pace->block_ns == 0)
                return 0;
        return after > STRAGGLER_LEAST ? after : STRAGGLER_LEAST;
}
