/* SPDX-License-Identifier: Apache-2.0
 *
 * How many ranges of one load are in flight. It starts at half of what it may have and grows while
 * throughput grows; a server that asks to slow down halves it, and from then on it grows by one at a
 * time. Pure: time comes from the caller.
 */
#ifndef DAEMON_IO_HTTP_PACE_H
#define DAEMON_IO_HTTP_PACE_H

#include <stdbool.h>
#include <stdint.h>

struct http_pace {
        unsigned limit, most;
        unsigned landed; /* in this window, which ends with as many as the limit */
        uint64_t window_ns, bytes;
        uint64_t rate;      /* bytes a second in the last window in which it grew */
        unsigned held;      /* windows since */
        uint64_t slowed_ns; /* when it was last halved; 0: never */
        uint64_t range_ns;  /* what a range takes, smoothed; 0: none has landed */
};

void http_pace_init(struct http_pace *pace, unsigned most, uint64_t now);
void http_pace_landed(struct http_pace *pace, uint64_t bytes, uint64_t took_ns, uint64_t now);
/* 429, 503. */
void http_pace_slow_down(struct http_pace *pace, uint64_t now);
/* A range that has taken so long is a straggler: 0 where nothing is known yet. */
uint64_t http_pace_straggler(const struct http_pace *pace);

#endif
