/* SPDX-License-Identifier: Apache-2.0
 *
 * The reader as its engines see it: they take tickets and runs of blocks, fill them, and give the tickets back.
 */
#pragma once

#include "daemon/base/thread/threads.h"
#include "daemon/io/reader/reader.h"

struct reader_thread;

/* Threads that hang are replaced until there are this many times the base. */
#define READER_THREADS_CAP 3u

/* With the reader's lock held, except thread_main() and thread_free(). */
struct engine_ops {
        unsigned capacity_min; /* tickets that one thread can hold, at least */
        /* Of a thread: the size of its struct, which begins with a reader_thread, may have a running hash and is
         * zeroed; false: no memory; what it runs; and free(), which accepts one whose init() has failed. */
        size_t thread_size;
        bool (*thread_init)(struct reader_thread *thread);
        void *(*thread_main)(void *thread);
        void (*thread_free)(struct reader_thread *thread);
        /* There may be work, or reason to look again at what is in flight. */
        void (*wake)(struct reader *reader);
        /* Of a job: sets its limit, and what the engine knows of it. May be NULL. */
        int (*begin)(struct reader *reader, struct read_job *job, struct error *error);
};

/* The first member of an engine's own struct. */
struct reader_thread {
        _Alignas(struct hash) struct list link; /* in the engine's threads */
        pthread_t thread;
        struct reader *reader;
        enum read_engine engine;
        int node; /* whose blocks it takes first */
        /* For threads that wait for storage and devices, with the lock held: */
        struct read_job *job; /* that it reads or copies for; NULL: none */
        bool stuck, started;  /* it has looked for work */
        uint64_t moved_ns;    /* atomic: when a byte of it was last moved */
};

/* A block that a thread has taken. */
struct ticket {
        struct read_job *job;
        const struct plan_block *block;
        struct read_stream *stream; /* until the block is read; NULL: of none */
        uint64_t targets;           /* bit set of the targets that were alive when the block was taken */
        unsigned char *slot;        /* NULL where the block is read to its place */
        bool copied;                /* read and hashed, and being copied to devices: it takes no capacity */
};

/* Blocks that one request asks for, and that no other thread takes. */
struct read_run {
        struct read_job *job;
        size_t next, end; /* blocks that are still to be taken */
};
/* It does not hold its job; only of an engine of single blocks. */
static inline bool reader_run_is_empty(const struct read_run *run)
{
        return run->job == NULL;
}

/* ---- with the lock held ---- */

void reader_wake_locked(struct reader *reader);
/* A block that a thread of this engine may take now. */
bool reader_has_work_locked(const struct reader *reader, enum read_engine engine);
/* False: there are enough, or none could be started. */
bool reader_add_thread_locked(struct reader *reader, enum read_engine engine);
/* Capacity of the job's engine; n may be negative. */
/* A free slot, near this node if there is one; or NULL. */
unsigned char *reader_slot_get_locked(struct reader *reader, int node);
void reader_add_busy(struct reader *reader, struct read_job *job, int n);
/* The thread reads or copies for this job from now on, and is stuck if it moves no byte; NULL: it does not. */
void reader_thread_work_for(struct reader_thread *thread, struct read_job *job);
/* The next node in turn, and its processors. */
int reader_set_affinity(struct reader *reader, pthread_attr_t *attr);
/* The thread ends: it is not counted any more. */
void reader_end_thread_locked(struct reader *reader, enum read_engine engine);

/* A run, and the ticket of its first block; false: there is no block to take. It keeps the job from ending until
 * reader_run_end(). */
bool reader_run_begin_locked(struct reader_thread *thread, struct read_run *run, struct ticket *ticket);
/* The run's next block, whatever its job's limit: false if the run is over, or no slot is free. */
bool reader_run_next_locked(struct reader_thread *thread, struct read_run *run, struct ticket *ticket);
/* No block of it is left to take. */
bool reader_run_over_locked(const struct read_run *run);
/* Moves the rest of a run, from the next chunk on, to another: `run` ends there. False: there is none. */
bool reader_run_move_locked(struct read_run *run, struct read_run *to);

/* ---- without the lock ---- */

/* Waits for a ticket, and the run of the blocks that continue its chunk, which may be empty (reader_run_is_empty());
 * false when the thread is to end: it is not counted any more. */
bool reader_take_ticket(struct reader_thread *thread, struct read_run *run, struct ticket *ticket);
/* The same without waiting: false if there is none, or the next one is not of `only`, which may be NULL. */
bool reader_try_take_ticket(struct reader_thread *thread, const struct read_job *only, struct read_run *run,
                            struct ticket *ticket);
/* The next block of a run that is not empty. `wait`: until there is a slot for it. False: the run is over, the reader
 * ends, or there is no slot just now. */
bool reader_run_take(struct reader_thread *thread, struct read_run *run, bool wait, struct ticket *ticket);
bool reader_run_is_over(struct reader_thread *thread, const struct read_run *run);
/* Of a run that is over, or whose reader ends: it is empty afterwards. */
void reader_run_give_up(struct reader *reader, struct read_run *run);
/* The block is read, and the next one of its stream may be; reader_return_ticket() does that, too. */
void reader_end_stream(struct reader_thread *thread, struct ticket *ticket);
/* An error fails the whole job, in both. */
void reader_return_ticket(struct reader_thread *thread, struct ticket *ticket, const struct error *error);
void reader_run_end(struct reader *reader, struct read_run *run, const struct error *error);

/* Where a block's bytes begin: in its segment; or in its slot at the same offset modulo 4 KiB as at their destination,
 * so that copies are aligned as well as it allows. */
unsigned char *reader_block_data(const struct ticket *ticket);
/* Allocates the memory of the slot; or of a block that is read in place: `len` bytes from offset `from`, or up to the
 * block's end. */
int reader_block_prepare(struct reader *reader, const struct ticket *ticket, uint64_t from, uint64_t len,
                         struct error *error);

/* The leaves of a block, of bytes that come one after the other. */
struct leaf_hash {
        struct hash hash;
        struct plan_cursor pieces;
        struct plan_piece piece; /* the present one, if have_piece */
        bool have_piece;
        uint64_t hashed; /* bytes of the block */
};

/* The bytes of a block as they come: they are decrypted, and its leaves are hashed, while they are in the cache. */
struct fill {
        struct leaf_hash leaves; /* as they are in memory */
        struct leaf_hash stored; /* of an encrypted file whose leaves are compared: as they were read */
        uint64_t have;           /* bytes of the block */
        /* Of an encrypted file: the tensor of the next byte, and the bytes of it before that. */
        uint32_t tensor;
        uint64_t skip;
        struct chunk chunk; /* under way; also from one block to the next, of the same run */
};
void reader_fill_begin(const struct ticket *ticket, struct fill *fill);
/* The block's next n bytes, at their place in the block that begins at `to`, or else stored there past the cache. What
 * is hashed, and the block once it is full, is authentic, but for a chunk that the next block continues.
 * STREAMER_EFAILED: it cannot be decrypted, does not match its tag, or is not what is expected. */
int reader_fill(const struct ticket *ticket, struct fill *fill, unsigned char *to, const unsigned char *data, size_t n,
                struct error *error);
/* The run is over. Wipes the key; accepts a zeroed one. */
void reader_fill_deinit(struct fill *fill);

/* A slot without a ticket; NULL: none is free. */
unsigned char *reader_slot_get(struct reader *reader);
void reader_slot_put(struct reader *reader, unsigned char *slot);
