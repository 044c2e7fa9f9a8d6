/* SPDX-License-Identifier: Apache-2.0
 *
 * A bounded thread pool for everything that may block: open, stat, parse, manifests, allocation. Work is queued in
 * lanes, one for each file system or store; a lane uses at most `per_lane` threads, so a file system that hangs delays
 * only its own work.
 *
 *   submitted (lane's queue) > running (a pool thread) > done (the loop, through wake)
 *
 * A thread is started when the last idle one takes work, up to the cap, and stays. A stuck thread, whose work has taken
 * too long, is counted out and replaced. A pool of one thread is a device's own thread. work.c has the table of shares.
 */
#pragma once

#include "daemon/base/list.h"
#include "daemon/base/thread/wake.h"

#include <sys/types.h>

/* Keys of lanes. Each key below WORK_LANE_SOURCES has a lane of its own; sources (source_lane) share a table. */
enum work_lane_key {
        WORK_LANE_CPU,     /* reads nothing */
        WORK_LANE_STATE,   /* the file system of the state file */
        WORK_LANE_PROBE,   /* test models */
        WORK_LANE_INSPECT, /* inspects the machine for a client */
        WORK_LANE_HUB,     /* the Hugging Face cache, whose file system is not known before */
        WORK_LANE_DEVICES, /* long work on a device's memory, a lane for each device number */
        WORK_LANE_SOURCES = WORK_LANE_DEVICES + 64,
};
#define WORK_LANE_DEVICE(number) ((uint64_t)WORK_LANE_DEVICES + (number))
#define WORK_LANE_REMOTE (UINT64_C(1) << 63) /* a flag of a source's key: it may wait for a server */

struct work_pool;

struct work {
        struct callback item;
        void (*run)(struct work *work);            /* on a pool thread */
        void (*done)(struct work *work);           /* on the loop */
        uint64_t (*find_lane)(const char *source); /* NULL: it is in its lane */
        const char *source;                        /* borrowed until done() */
        uint64_t user;                             /* whose share it uses; 0: unlimited. Set before it is submitted */
        struct work *next;
        struct work_lane *lane;
        struct list running; /* in the pool, under its lock */
        uint64_t since_ns;   /* it runs */
        bool stuck;          /* it has taken so long that its thread is counted out */
        bool first;          /* it had a thread beyond max_threads, as the only work of its lane */
};

static inline uint64_t work_user(uid_t uid)
{
        return (uint64_t)uid + 1;
}

/* With its first thread; NULL where there is no memory, or none for that. `name` is the threads' name (15 bytes at
 * most), and borrowed. */
struct work_pool *work_pool_new(struct wake *wake, const char *name, unsigned max_threads, unsigned per_lane);

/* Waits only for the pool's lock, which is held briefly. Never refuses work: callers bound their queues. The
 * work is the pool's until done() is called, which happens exactly once; while the pool is being stopped run() is
 * skipped for work that is still queued. Not to be called once the pool was stopped. */
void work_submit(struct work_pool *pool, uint64_t lane, struct work *work, void (*run)(struct work *),
                 void (*done)(struct work *));

/* A worker calls find_lane(source) first, as no file here knows sources, and moves the work to the lane it returns. */
void work_submit_routed(struct work_pool *pool, uint64_t (*find_lane)(const char *source), const char *source,
                        struct work *work, void (*run)(struct work *), void (*done)(struct work *));

/* About once a second: work that runs for longer than limit_ns in another lane than WORK_LANE_CPU
 * and the devices' is stuck: its thread is counted out and replaced, until there are three times as many as there
 * should be. True while something runs: it is to be called again.
 */
bool work_pool_watch(struct work_pool *pool, uint64_t now_ns, uint64_t limit_ns);
void work_pool_count(struct work_pool *pool, unsigned *threads, unsigned *stuck);

/* Stops taking work up. Waits for running work until `deadline_ns` (monotonic). True if every
 * thread ended: then the pool may be freed; else threads are stuck in the kernel, and the process
 * must end without them. */
bool work_pool_stop(struct work_pool *pool, uint64_t deadline_ns);
struct work_pool *work_pool_free(struct work_pool *pool);
