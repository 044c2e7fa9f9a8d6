/* SPDX-License-Identifier: Apache-2.0
 *
 * The block reader: moves the blocks of any number of loads from objects into segments, with many in flight. It decides
 * which load's block is next, which blocks have slots, and when a load's reading has ended. Engines fill blocks
 * (engine.h): one for files, one for the network. A job names its engine; all engines share the slots.
 *
 *   waiting > taken (ticket) > filled and hashed > [copied to each target] > landed
 *
 * A job's blocks have one target or several (replicas on devices of one layout): each block is read once, and its slot
 * is returned when the last copy is done. A target whose copy fails is dead, and the others continue; the job fails
 * with its last target.
 *
 * Nodes. If the ring is split among NUMA nodes (numa.h), so are the threads: a block takes a free slot on its device's
 * node, or else any; a thread takes blocks for its own node first, or else any.
 *
 * Runs. A request to a store costs more than a block is worth, so an engine may reserve a run of consecutive blocks of
 * a file and request them at once. It still holds one ticket at a time, so limits, shares and slots count single
 * blocks. The blocks that continue a chunk (plan.h) are always reserved with its first one: a chunk is decrypted in
 * order, by one thread.
 *
 * Fairness. A load reads at most `concurrency` blocks at once (or its engine's lower limit), and takes at most half of
 * the threads and slots that the others leave free, less if others weigh more (fair_share.h). A block that is being
 * copied to its devices holds only its slot. On storage that several loads read from, those under way make way for one
 * that is being opened (announced) or has just begun (its head start): fairness_small_load 1.9 with both, 2.5 without.
 */
#pragma once

#include "daemon/base/hash.h"
#include "daemon/base/list.h"
#include "daemon/base/metric/metric.h"
#include "daemon/base/sys/numa.h"
#include "daemon/base/thread/wake.h"
#include "daemon/crypt/encrypted_file.h"
#include "daemon/device/device.h"
#include "daemon/io/object.h"
#include "daemon/io/reader/fair_share.h"
#include "daemon/io/staging.h"
#include "daemon/model/plan.h"

#include <pthread.h>

struct engine_ops;
struct http_job;

#define READ_TARGETS 64
#define READER_WEIGHT 100u
/* Threads that have had no work for so long end, and the ring's memory is given back: long enough for the next load of
 * a series. */
#define READER_IDLE_NS (60 * SECOND)
/* Threads for each block that one load may have in flight: at full concurrency it leaves as many free. */
#define READER_THREADS_PER_BLOCK 2u
/* Of each thread. They call CUDA, whose driver, and tools that are put before it, need more than we do; what is not
 * touched takes no memory. */
#define READER_STACK (2 * MiB)

/* One device's segments, as destination of a job's blocks. Dead from the start: the job leaves it out. */
struct read_target {
        struct segment *segments; /* by plan_block.segment */
        /* Posted to the loop, each once and before the job's `ended`: it has failed, and is dead; no copy to it is in
         * flight any more. */
        struct callback died, idle;
        bool dead;          /* atomic; never back */
        struct error error; /* of its failure */

        unsigned in_flight; /* private to the reader, under its lock */
};

static inline bool read_target_dead(const struct read_target *target)
{
        return __atomic_load_n(&target->dead, __ATOMIC_ACQUIRE);
}

/* Blocks that are read one after the other, by one thread at a time. */
struct read_stream {
        size_t next, end; /* blocks that are still to be taken */
        int fd;           /* borrowed */
        bool busy;        /* one of them is being read */
};

/* One load's reading; embedded by the load, which owns everything it points to until `ended`. */
struct read_job {
        enum read_engine engine; /* of all its objects */
        const struct plan *plan;
        const struct object *objects;            /* by plan_block.file */
        struct encrypted_file *const *encrypted; /* likewise; NULL: that one, or (NULL) none, is encrypted */
        unsigned char (*leaves)[DIGEST_SIZE];    /* plan->n_leaves; filled */
        /* Likewise, of the bytes as they are stored, where these are encrypted before they are decrypted: a block whose
         * leaves differ fails; NULL: not known. */
        const unsigned char (*expected)[DIGEST_SIZE];
        /* One at least that lives; a single one where blocks are read in place. */
        struct read_target *targets[READ_TARGETS];
        size_t n_targets;
        unsigned weight;  /* of its share, where loads run side by side; 0: READER_WEIGHT */
        uint64_t storage; /* jobs with the same number share one queue of reads; 0: not shared */

        /* On a reader thread: the block's bytes are in each live target, and its leaves are hashed. */
        void (*landed)(struct read_job *job, const struct plan_block *block);
        struct callback ended; /* posted to the loop once: nothing of the job is in flight any more */

        bool failed;          /* final before `ended` */
        struct error error;   /* of the first failure */
        uint32_t failed_file; /* of the block whose reading failed; UINT32_MAX: none did */

        /* private to the reader, under its lock; zeroes until it is started */
        struct list link;
        struct fair_share share;
        size_t next; /* block that no thread has taken or reserved; of streams, how many blocks were taken */
        struct read_stream
                *streams; /* malloc'd by the engine, freed before `ended`; NULL: blocks are read in any order */
        size_t n_streams;
        unsigned in_flight, copying; /* tickets; of these, that are read and being copied to devices */
        unsigned busy;               /* capacity of the engine that it takes, without stuck threads */
        unsigned slots;
        unsigned stuck;    /* of its threads, as schedule.c has the word; atomic, for those without the lock */
        unsigned silent;   /* of its tickets, likewise; the engine's to change */
        unsigned limit;    /* of tickets that are neither copied nor silent; the engine's to change, atomically */
        size_t run_blocks; /* of one run at most, likewise; 1 for engines that take single blocks */
        unsigned held;     /* runs, which keep it from ending as its tickets do */
        bool stopped;      /* atomic, for readers without the lock */
        bool over;
        int node;              /* of its devices; NUMA_ANYWHERE where they have none, or several */
        uint64_t moved_ns;     /* atomic: when a byte was last received; 0: its threads are stuck instead */
        bool no_bytes;         /* atomic as well: see schedule.c */
        struct http_job *http; /* malloc'd by the network engine; freed before `ended` */
        uint64_t begun_ns;
        uint64_t over_ns;          /* atomic: when its last ticket was returned; 0: not yet */
        uint64_t no_slot_since_ns; /* its next block waits for a slot; 0: it does not */
        struct stages stages;      /* of its threads */
};

/* A load that is going to read; embedded. */
struct announced_load {
        struct list link; /* in the reader's announced; else empty */
        uint64_t storage, since_ns;
};

struct reader_opts {
        unsigned concurrency;
        uint64_t block_size, memory_limit, stall_ns;
        struct numa_choice numa; /* of the ring and the threads */
        const struct engine_ops *engines[READ_ENGINES];
        unsigned network_threads; /* 0: there are no jobs of READ_HTTP */
        uint64_t request_max;     /* bytes of one request of such a job; at least a block */
        /* The ring may be pinned (staging.pinned): calls give_back(arg) unless it is, or is about to be, and keeps it
         * from being pinned meanwhile. NULL: it is never pinned. */
        void (*if_unpinned)(void *context, void (*give_back)(void *arg), void *arg);
        void *pinning;    /* its context */
        uint64_t idle_ns; /* READER_IDLE_NS */
};

struct engine {
        const struct engine_ops *ops;
        struct list threads;
        unsigned base, alive, stuck; /* threads: configured, alive, of these stuck */
        unsigned capacity;           /* tickets that one thread can hold */
        unsigned busy;               /* capacity that is taken by threads that are not stuck */
        unsigned waiting, starting;  /* threads for files that wait for work, or have not looked for any yet */
        unsigned jobs;
};

struct reader {
        struct reader_opts opts;
        struct wake *wake;
        pthread_mutex_t mutex;
        pthread_cond_t work; /* for files' threads; the network's have loops of their own */
        pthread_cond_t ended;
        pthread_cond_t runs; /* for threads that wait for a slot for the next block of their run */
        unsigned waiting_runs;
        struct list jobs, announced;
        uint64_t virtual_time; /* of their shares */
        struct staging staging;
        struct engine engines[READ_ENGINES];
        /* Nodes, which threads are bound to in turn. */
        struct reader_node {
                int node;
                cpu_set_t processors;
        } nodes[NUMA_NODES];
        unsigned n_nodes, next_node; /* none: threads run anywhere */
        unsigned processors;         /* that this process may use */
        bool stopping;               /* atomic as well */
};

int reader_init(struct reader *reader, const struct reader_opts *opts, struct wake *wake, struct error *error);
/* True if every thread has ended and the reader is freed; false: some are stuck in the kernel, and
 * the process must end without them. */
bool reader_deinit(struct reader *reader, uint64_t deadline_ns);

/* ---- on the loop ---- */

/* Before a load opens its files: meanwhile, and for at most ANNOUNCED_NS, other loads have fewer reads in flight on
 * this storage, so that the headers and the first blocks do not wait behind them. */
void reader_announce(struct reader *reader, struct announced_load *announced, uint64_t storage);
/* Also without it, and twice. */
void reader_announce_end(struct reader *reader, struct announced_load *announced);

void reader_start(struct reader *reader, struct read_job *job);
/* No new blocks; what is in flight completes, then `ended`. May be called at any time before. */
void reader_stop(struct reader *reader, struct read_job *job);
/* Between reader_start() and `ended`: its share from now on. */
void reader_set_weight(struct reader *reader, struct read_job *job, unsigned weight);

/* Between reader_start() and `ended`: nothing more is copied to the target; a job without others fails with this error.
 * True: copies are in flight, and `idle` follows. */
bool reader_drop_target(struct reader *reader, struct read_job *job, struct read_target *target,
                        const struct error *error);

/* Of a job that is not started: fills a block that is read in place from its bytes, which are in memory, as a reader
 * thread does. On any thread, in the order of the blocks. */
int reader_place_block(struct read_job *job, const struct plan_block *block, const unsigned char *from,
                       struct error *error);

/* About once a second: replaces threads that have moved no byte for stall_ns, up to a cap. False: none works. */
bool reader_watch(struct reader *reader);
bool reader_job_stalled(const struct read_job *job);

/* Of a job that is over: the time spent in reads, and its maximum, which is the job's duration times its depth (its
 * limit, or its number of blocks if that is less). Equal: storage was always busy. */
void reader_job_reads(const struct read_job *job, uint64_t *took_ns, uint64_t *max_ns);

/* From any thread, until the job is freed: a copy to the target has failed, or it has wrong bytes. */
void reader_fail_target(struct reader *reader, struct read_job *job, struct read_target *target,
                        const struct error *error);

/* The ring is not pinned any more: its memory is given back, unless it is used meanwhile. From any thread. */
void reader_ring_unpinned(struct reader *reader);

/* Some job reads from this storage. From any thread. */
bool reader_reads_storage(struct reader *reader, uint64_t storage);

struct reader_usage {
        unsigned slots, used_slots, threads, stuck_threads;
        unsigned blocks; /* in flight */
        uint64_t ring_bytes;
};
void reader_usage(struct reader *reader, struct reader_usage *usage);
