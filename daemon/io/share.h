/* SPDX-License-Identifier: Apache-2.0
 *
 * Weighted shares of the reader among the loads that read. Pure: values in, values out; whoever uses
 * it holds a lock.
 *
 * Two things keep shares. *How much* one may hold of what is scarce (threads, slots): its part of
 * what the others leave free,
 *
 *     (free + held) x weight / (weight + heaviest)
 *
 * which is half of it for the heaviest and for all of equal weight, and makes what two hold stand in
 * the ratio of their weights. The rest stays free for whoever comes next. *Who is next*: by virtual
 * time, as in start-time fair queueing. A block of n bytes moves its load n / weight further; the
 * load that is least far goes first. Who could not take any for a while begins at the others' time
 * again: it has saved nothing up.
 */
#ifndef DAEMON_IO_SHARE_H
#define DAEMON_IO_SHARE_H

#include <stdbool.h>
#include <stdint.h>

#define SHARE_WEIGHT_MAX 10000u

struct share {
        unsigned weight; /* 1 to SHARE_WEIGHT_MAX */
        uint64_t due;    /* virtual time at which its next block is due */
        uint64_t ahead;  /* bytes that cost it nothing: see share_head_start() */
};

/* `now`: the virtual time, which begins at 0 and is moved by share_take(). */
void share_init(struct share *share, unsigned weight, uint64_t now);

/* Its next `bytes` are not counted, so that it goes before all others meanwhile. For one that has just
 * come: it finds their blocks in storage's queue, and has waited behind them for its headers already. */
void share_head_start(struct share *share, uint64_t bytes);

/* How many of `n` (what is free and what it holds) it may hold; 1 at least. `heaviest`: the largest
 * weight among those that share, itself included. */
unsigned share_of(const struct share *share, unsigned heaviest, unsigned n);

/* Does a's next block come before b's? */
bool share_before(const struct share *a, const struct share *b);
/* It has been given so many bytes. */
void share_take(struct share *share, uint64_t *now, uint64_t bytes);

#endif
