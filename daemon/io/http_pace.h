/* SPDX-License-Identifier: Apache-2.0
 *
 * How many ranges of one load are in flight. Pure: time comes from the caller.
 *
 * A server that is far takes all that there may be: they fill the time until it answers. One that is near
 * begins with a quarter, since each further one may only cost it time:
 *
 *   settling > measured: no more than before > back to what was best, tried again after a while
 *       ^          \
 *       |           \ throughput grew
 *       |____________\_ twice as many
 *
 * A server that asks to slow down halves it; then it grows by one at a time, and as before once some windows have
 * passed in which it did not ask again.
 *
 * Near the end of a load, requests are cut in two and blocks asked for twice where that may end it sooner: never
 * while bytes come as fast as ever, since what one more request would bring is then taken from the others.
 */
#ifndef DAEMON_IO_HTTP_PACE_H
#define DAEMON_IO_HTTP_PACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct http_pace {
        unsigned limit, most;
        bool answered, settled;
        /* The window, which ends when as many blocks as the limit have landed, not too soon: */
        unsigned landed;
        uint64_t window_ns, bytes;
        /* The best that was measured: */
        unsigned best;
        uint64_t rate;      /* bytes a second with it; 0: none yet */
        unsigned held;      /* windows since it was tried to have more */
        uint64_t slowed_ns; /* when it was last halved; 0: never */
        unsigned calm;      /* windows since then that are to come before it grows as ever */
        uint64_t block_ns;  /* what a block takes, smoothed; 0: none has landed */
        /* How fast bytes come, by samples: */
        uint64_t first_ns, first_bytes; /* when there were some; 0: not yet */
        uint64_t sample_ns, sample_bytes;
        uint64_t flow, average; /* bytes a second: of the last few samples, of all; 0: not known yet */
};

/* The server asks for less: half of *n from now on, and one at the least. It answers all that is in flight so, of
 * which one counts: false where that was halved a moment ago, at *slowed_ns (0: never). */
bool http_pace_halve(unsigned *n, uint64_t *slowed_ns, uint64_t now);

void http_pace_init(struct http_pace *pace, unsigned most, uint64_t now);
/* The server has begun to answer a request, so long after it was asked. */
void http_pace_answered(struct http_pace *pace, uint64_t after_ns);
/* So many bytes have come in all. True: a sample has ended. */
bool http_pace_came(struct http_pace *pace, uint64_t bytes, uint64_t now);
/* They come about as fast as ever: the server is busy, or the line is full. */
bool http_pace_flows(const struct http_pace *pace);
/* So many blocks are worth the cost of another request, once a place is free. SIZE_MAX: none, or not known yet. */
size_t http_pace_split(const struct http_pace *pace);
void http_pace_landed(struct http_pace *pace, uint64_t bytes, uint64_t took_ns, uint64_t now);
void http_pace_slow_down(struct http_pace *pace, uint64_t now);
/* A block that takes longer is a straggler. 0: not known yet. */
uint64_t http_pace_straggler(const struct http_pace *pace);

#endif
