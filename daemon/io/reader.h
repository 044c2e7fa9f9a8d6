/* SPDX-License-Identifier: Apache-2.0
 *
 * The block reader: moves the blocks of any number of loads from objects into segments, with many
 * in flight. This is the shared part: whose block is next, who holds a slot, when a load's reading
 * has ended. What fills a block is an engine: reader_pread for files, reader_http for the network. A
 * job names its engine, whose threads take tickets of such jobs alone; slots are everyone's.
 *
 *   waiting > taken (ticket) > filled and hashed > [copied to each target] > landed
 *
 * A job's blocks go to one target or to several (replicas on devices of one layout): each block is
 * read once, and its slot comes back when the last copy is done. A target whose copy fails is dead
 * from then on and the others go on without it; the job fails when none is left.
 *
 * Places. Where the ring is split among NUMA nodes (numa.h), so are the threads: a block goes into a slot
 * of its device's node where one is free, and a thread takes blocks for its own node first. Neither is
 * waited for: a slot or a block of another node is better than none.
 *
 * Runs. Where asking costs more than a block is worth (a store authenticates, routes and opens for each
 * request), an engine may reserve a run of blocks that follow each other in their file, and ask for all of
 * them at once. It still holds one ticket at a time, the next when the last is full, so limits, shares and
 * slots count what they count for single blocks. With nothing left to reserve, the second half of the
 * longest run goes to whoever asks: a slow connection keeps no more than its share.
 *
 * Fairness. A load reads at most `concurrency` blocks at once (fewer where its engine says so), and holds
 * of what the others leave free (places of the engine, and slots where it needs them) at most half, less
 * where others weigh more (share.h): so whoever comes next finds a place and a slot at once, a load whose
 * storage hangs cannot take the rest, and loads that run side by side get shares by their weights. A block
 * that is copied to its devices holds its slot alone: the next one is read meanwhile, at a concurrency of
 * one, too.
 */
#ifndef DAEMON_IO_READER_H
#define DAEMON_IO_READER_H

#include "daemon/base/errand.h"
#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/base/numa.h"
#include "daemon/base/park.h"
#include "daemon/base/wake.h"
#include "daemon/device/device.h"
#include "daemon/io/object.h"
#include "daemon/io/share.h"
#include "daemon/io/staging.h"
#include "daemon/model/plan.h"

#include <pthread.h>

struct http;

#define READ_TARGETS 64
#define READER_WEIGHT 100u
/* Threads for each block that one load may have in flight: at full concurrency it leaves as many free. */
#define READER_THREADS_PER_BLOCK 2u
/* Of each thread. They call CUDA, whose driver, and tools that are put before it, need more than we do; what is not
 * touched takes no memory. */
#define READER_STACK (2 * MiB)

/* One device's segments, as a job's blocks go there. Dead from the start: the job leaves it out. */
struct read_target {
        struct segment *segments; /* by plan_block.segment */
        /* On the loop, where it died, each once and before the job's ended(): it has; nothing is on its
         * way there any more. */
        void (*died)(struct read_target *target);
        void (*idle)(struct read_target *target);
        bool dead;          /* atomic; never back */
        struct error error; /* why it died */

        /* private to the reader, under its lock */
        struct errand died_item, idle_item;
        unsigned in_flight;
        bool dropped; /* atomic: by the loop, for this reason, and not done yet */
        struct error why;
};

/* One load's reading; embedded by the load, which owns everything it points to until ended(). */
struct read_job {
        enum read_engine engine; /* of all its objects */
        const struct plan *plan;
        const struct object *objects;         /* by plan_block.file */
        unsigned char (*leaves)[DIGEST_SIZE]; /* plan->n_leaves; filled */
        /* One at least that lives; a single one where blocks are read in place. */
        struct read_target *targets[READ_TARGETS];
        size_t n_targets;
        unsigned weight;  /* of its share, where loads run side by side; 0: READER_WEIGHT */
        uint64_t storage; /* whose queue its reads share with those of other jobs; 0: nobody's */

        /* On a reader thread: the block's bytes are where they belong, in each target that lives,
         * and its leaves are hashed. */
        void (*landed)(struct read_job *job, const struct plan_block *block);
        /* On the loop, once: nothing of the job is in flight any more. `failed` says how it went. */
        void (*ended)(struct read_job *job);

        bool failed;        /* settled before ended() */
        struct error error; /* of the first failure */

        /* private to the reader, under its lock */
        struct list link;
        struct errand item;
        struct share share;
        struct list runs;
        size_t next;                 /* block that nobody has, nor has reserved */
        unsigned in_flight, copying; /* tickets; of these, that are read and on their way to devices */
        unsigned busy;               /* places of the engine that it takes and that do not hang */
        unsigned slots;
        unsigned stalled;   /* atomic, for who looks without the lock */
        unsigned limit;     /* of tickets that are not copied; the engine's to change. 0: they are taken by name */
        size_t run_most;    /* blocks of one run, likewise; 1 for those who take single blocks */
        unsigned run_parts; /* the largest limit that there will be */
        size_t split_from;  /* runs of so many blocks are worth splitting, likewise */
        unsigned held;      /* what keeps it from ending beside its tickets */
        bool stopped, over;
        int node;   /* of its devices; NUMA_ANYWHERE where they have none, or several */
        bool quiet; /* atomic as well: no byte for too long, and no thread that hangs */
        void *pace; /* the engine's own, gone before ended() */
        struct reader *reader;
        struct errand errand, farewell;
        unsigned asked;         /* atomic: times that the loop wanted something, and it is not done yet */
        unsigned wants;         /* atomic: what */
        unsigned weight_wanted; /* atomic */
        uint64_t begun_ns, over_ns;
        uint64_t read_ns; /* atomic: spent in reads, by all threads together */
};

/* A load that is going to read. */
struct read_expect {
        struct list link;
        struct reader *reader;
        struct errand begin, end;
        uint64_t storage, since_ns; /* 0: nobody waits for it any more */
};

struct reader_opts {
        unsigned concurrency;
        uint64_t block_size, memory_limit, stall_ns;
        struct numa_choice numa; /* where the ring and the threads sit */
        struct http *http;       /* NULL: no job of READ_HTTP comes */
};

struct reader;

/* With the reader's lock held. */
struct engine_ops {
        /* One thread more; false where it cannot be started. */
        bool (*start)(struct reader *reader);
        /* There may be work for one thread, or for all; or reason to look again at what is in flight. */
        void (*wake)(struct reader *reader, bool all);
        /* About once a second: who moves no byte? */
        void (*watch)(struct reader *reader, uint64_t now);
        /* Of a job. begin() sets its limit; either may be NULL. */
        int (*begin)(struct reader *reader, struct read_job *job, struct error *error);
        void (*end)(struct reader *reader, struct read_job *job);
        /* When no thread is alive; and where some are left to the end of the process. */
        void (*join)(struct reader *reader);
        void (*detach)(struct reader *reader);
};

struct engine {
        const struct engine_ops *ops;
        struct list threads;
        unsigned base, alive, stuck; /* threads: wanted, there, of these hanging */
        unsigned places;             /* tickets that one thread can hold */
        unsigned busy;               /* places that are taken, and do not hang */
        unsigned jobs;
};

struct reader {
        struct reader_opts opts;
        struct wake *wake;
        pthread_mutex_t mutex;
        struct park work; /* files' threads; the network's have loops of their own */
        pthread_cond_t ended;
        struct list jobs, expected;
        uint64_t virtual_time; /* of their shares */
        struct staging staging;
        unsigned untouched; /* slots, taken from the ring until a thread has touched them */
        struct engine engines[READ_ENGINES];
        /* For threads, which take them in turn. */
        struct reader_place {
                int node;
                cpu_set_t processors;
        } places[NUMA_NODES];
        unsigned n_places, next_place; /* none: they run anywhere */
        bool stopping;
        unsigned blocks; /* in flight, of all jobs */

        struct errands errands; /* of the loop */
        struct errand watch;
        bool watching;        /* atomic: that one is left */
        unsigned newly_stuck; /* atomic: threads, to be told of; 0: no more than before */
        struct {
                unsigned free_slots, untouched, blocks, threads[READ_ENGINES], stuck[READ_ENGINES];
        } seen; /* atomic: for who looks without the lock */
};

/* A block that a thread has taken. */
struct ticket {
        struct read_job *job;
        const struct plan_block *block;
        uint64_t targets;    /* bits: those that lived when it was taken */
        unsigned char *slot; /* NULL where the block lands in place */
        bool copied;         /* read and hashed, and on its way to devices: it takes no place */
};

/* Blocks that one request asks for, and that nobody else takes. */
struct read_run {
        struct list link; /* in its job's runs */
        struct read_job *job;
        size_t next, end; /* blocks that are still to be taken; the end may move down, never up */
};

int reader_init(struct reader *reader, const struct reader_opts *opts, struct wake *wake, struct error *error);
/* True if every thread has ended and the reader is gone; false: some are stuck in the kernel, and
 * the process must end without them. */
bool reader_deinit(struct reader *reader, uint64_t deadline_ns);

/* ---- on the loop, which waits for no thread (errand.h) ---- */

/* Before a load opens its files: while it does, and for EXPECT_NS at the most, others keep less of this
 * storage's queue full, behind which its headers and its first blocks would wait. NULL: no memory, and
 * nobody makes room. */
struct read_expect *reader_expect(struct reader *reader, uint64_t storage);
/* Accepts NULL. Answers NULL. */
struct read_expect *reader_expect_over(struct reader *reader, struct read_expect *expect);

void reader_start(struct reader *reader, struct read_job *job);
/* No new blocks; what is in flight comes home, then ended(). May be called at any time before. */
void reader_stop(struct reader *reader, struct read_job *job);
/* Between reader_start() and ended(): its share from now on. */
void reader_set_weight(struct reader *reader, struct read_job *job, unsigned weight);

/* Likewise: a target is not to be read to any more, as if it had failed of this. */
void reader_drop(struct reader *reader, struct read_job *job, struct read_target *target, const struct error *error);

/* About once a second: counts threads that have moved no byte for stall_ns out and replaces them up to
 * a cap. */
void reader_watch(struct reader *reader);
bool reader_job_stalled(const struct read_job *job);

/* Of a job that is over: the time spent in reads, and the time that could have been, which is its
 * length times its depth (its limit, or its blocks where they are fewer). Equal: storage was asked for
 * all that it could give. */
void reader_job_reads(const struct read_job *job, uint64_t *took_ns, uint64_t *room_ns);

struct reader_usage {
        unsigned slots, used_slots, threads, stuck_threads;
        unsigned blocks; /* in flight */
        uint64_t ring_bytes;
};
void reader_usage(const struct reader *reader, struct reader_usage *usage);

/* ---- of the reader's own files ---- */

static inline void reader_lock(struct reader *reader)
{
        pthread_mutex_lock(&reader->mutex);
}
/* Wakes who is to be woken, too, and does what the loop has left to be done. */
void reader_unlock(struct reader *reader);

/* With the lock held. */

void reader_wake_locked(struct reader *reader, bool all);
/* A place of the job's engine. */
void reader_place_taken(struct reader *reader, struct read_job *job);
void reader_place_left(struct reader *reader, struct read_job *job);
/* Before a thread runs. */
void reader_place_ring(struct reader *reader);
int reader_job_node(const struct read_job *job);

static inline bool read_target_dead(const struct read_target *target)
{
        return __atomic_load_n(&target->dead, __ATOMIC_ACQUIRE);
}

/* ---- for engines ---- */

/* The first thing of each thread: touches slots of the ring as long as there are any untouched, so
 * that the daemon serves before its whole ring is in memory. */
void reader_touch_ring(struct reader *reader);

/* Where a thread is to run, which is about to be started with these attributes: the node whose blocks it
 * takes first. With the lock held. */
int reader_place_thread(struct reader *reader, pthread_attr_t *attr);

/* Waits for a ticket; false when the thread shall end: it does not count any more. */
bool reader_take(struct reader *reader, enum read_engine engine, int node, struct ticket *ticket);
/* The same without waiting: false where there is none just now, or where it is not the turn of `only`, which
 * may be NULL. */
bool reader_try(struct reader *reader, enum read_engine engine, int node, const struct read_job *only,
                struct ticket *ticket);
/* The next block of this job, whatever its limit. */
bool reader_try_job_locked(struct reader *reader, struct read_job *job, struct ticket *ticket);
/* As reader_try_locked(), with a run of blocks behind the one that is taken, none perhaps. It keeps the job
 * from ending until reader_run_end(). */
bool reader_run_begin_locked(struct reader *reader, enum read_engine engine, int node, struct read_run *run,
                             struct ticket *ticket);
/* The run's next block, whatever its job's limit: false where the run is over, or where there is no slot
 * just now. */
bool reader_run_next_locked(struct reader *reader, struct read_run *run, struct ticket *ticket);
/* Nothing of it is to be taken any more. */
bool reader_run_over_locked(const struct read_run *run);
/* All that is left of a run becomes another: `run` is over. */
void reader_run_move_locked(struct read_run *run, struct read_run *to);
/* With an error: the whole job's. */
void reader_run_end(struct reader *reader, struct read_run *run, const struct error *error);
/* One thing less that holds the job: it may end. With an error: the whole job's. */
void reader_release(struct reader *reader, struct read_job *job, const struct error *error);
/* A slot beyond what tickets hold, if there is one: NULL else. */
unsigned char *reader_slot_get(struct reader *reader);
void reader_slot_put(struct reader *reader, unsigned char *slot);
/* The thread ends: it does not count any more. */
void reader_leave_locked(struct reader *reader, enum read_engine engine);
/* A target cannot take what is read: it is dead from here on. */
void reader_lose(struct reader *reader, struct read_job *job, struct read_target *target, const struct error *error);
/* The block is read, and its copies are on their way: another may be read. */
void reader_copies(struct reader *reader, struct ticket *ticket);
/* Nothing more is to be done for the block: it has landed, unless no target of it lives. */
void reader_landed(const struct ticket *ticket);
/* Gives it back: an error is the whole job's. */
void reader_give(struct reader *reader, struct ticket *ticket, const struct error *error);

/* A block's bytes took so long to come, from the reads' side; while its ticket is held. */
void reader_read_took(const struct ticket *ticket, uint64_t ns);

/* Hashes the pieces of a block whose end is at most `have` bytes into it, from memory at `data`
 * (where the block begins), continuing at the cursor. */
struct hash_cursor {
        struct plan_cursor pieces;
        struct plan_piece piece;
        bool have_piece;
};
void reader_hash_begin(const struct ticket *ticket, struct hash_cursor *cursor);
void reader_hash(const struct ticket *ticket, struct hash_cursor *cursor, const unsigned char *data, uint64_t have);

/* A block whose bytes come piece by piece through a buffer: hashed there, where they are in the cache, and
 * then stored past it. */
struct fill {
        struct hash *hash; /* the caller's, from hash_new() */
        struct hash_cursor cursor;
        uint64_t have; /* bytes of the block */
};
void reader_fill_begin(const struct ticket *ticket, struct fill *fill);
/* The block's next n bytes, into the block that begins at `to`. */
void reader_fill(const struct ticket *ticket, struct fill *fill, unsigned char *to, const unsigned char *data,
                 size_t n);

#endif
