/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/http_pace.h"

#define SECOND UINT64_C(1000000000)
/* Within a building answers take a few milliseconds at most, between buildings ten and more. */
#define FAR (SECOND / 50)
/* A gateway that reads ahead for each request pays for each: radosgw gave 4 curls 1.42 GiB/s and 16 of them 0.91. */
#define FEW_LEAST 4u
#define WINDOW_LEAST (SECOND / 10)
#define ONE_SLOWING (SECOND / 2)
#define SAMPLE (SECOND / 10)
/* Half of what was too much is where TCP's slow start would end, too; on from there it goes by ones for so many
 * windows. A store that has served them without a word has scaled, or the crowd has gone: to go on by ones would
 * mean that one answer in a load's first second is paid for to its end. Where that was too soon it costs one more
 * halving, back to where it stood. */
#define CALM 8u
#define PROBE_AGAIN 8u /* windows at the best, before more is tried again */
#define STRAGGLER_TIMES 3u
#define STRAGGLER_LEAST (SECOND / 2)
/* Cutting a request short costs a connection and another request, which a store that is short of processors
 * pays for with what it sends meanwhile: halves of what would be there soon made loads from Swift slower by a
 * third. */
#define WORTH_A_REQUEST SECOND

bool http_pace_halve(unsigned *n, uint64_t *slowed_ns, uint64_t now)
{
        if (*slowed_ns > 0 && now - *slowed_ns < ONE_SLOWING)
                return false;
        *slowed_ns = now;
        *n = *n > 1 ? *n / 2 : 1;
        return true;
}

/* Of the whole where that is not much. */
static unsigned few(unsigned most)
{
        unsigned n = most / 4 > FEW_LEAST ? most / 4 : FEW_LEAST;
        return n < most ? n : most;
}

void http_pace_init(struct http_pace *pace, unsigned most, uint64_t now)
{
        unsigned n = few(most);
        *pace = (struct http_pace){.limit = n, .best = n, .most = most, .window_ns = now};
}

static void window_begin(struct http_pace *pace, uint64_t now)
{
        pace->landed = 0;
        pace->bytes = 0;
        pace->window_ns = now;
}

static void set(struct http_pace *pace, unsigned limit)
{
        pace->limit = limit < pace->most ? limit : pace->most;
        pace->settled = false;
        pace->held = 0;
}

static void grow(struct http_pace *pace)
{
        set(pace, pace->calm > 0 ? pace->limit + 1 : pace->limit * 2);
}

void http_pace_answered(struct http_pace *pace, uint64_t after_ns)
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

static void window_end(struct http_pace *pace, uint64_t now)
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

void http_pace_landed(struct http_pace *pace, uint64_t bytes, uint64_t took_ns, uint64_t now)
{
        pace->block_ns = pace->block_ns == 0 ? took_ns : pace->block_ns - pace->block_ns / 8 + took_ns / 8;
        pace->bytes += bytes;
        if (++pace->landed >= pace->limit && now >= pace->window_ns + WINDOW_LEAST)
                window_end(pace, now);
}

void http_pace_slow_down(struct http_pace *pace, uint64_t now)
{
        unsigned limit = pace->limit;
        if (!http_pace_halve(&limit, &pace->slowed_ns, now))
                return;
        set(pace, limit);
        pace->best = pace->limit;
        pace->rate = 0;
        pace->calm = CALM;
        window_begin(pace, now);
}

bool http_pace_came(struct http_pace *pace, uint64_t bytes, uint64_t now)
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

bool http_pace_flows(const struct http_pace *pace)
{
        return pace->flow >= pace->average / 3 * 2;
}

size_t http_pace_split(const struct http_pace *pace)
{
        if (pace->block_ns == 0 || http_pace_flows(pace))
                return SIZE_MAX;
        size_t blocks = (size_t)(WORTH_A_REQUEST / pace->block_ns) + 1;
        return blocks > 2 ? blocks : 2;
}

uint64_t http_pace_straggler(const struct http_pace *pace)
{
        uint64_t after = pace->block_ns * STRAGGLER_TIMES;
        if (pace->block_ns == 0)
                return 0;
        return after > STRAGGLER_LEAST ? after : STRAGGLER_LEAST;
}
