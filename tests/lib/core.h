/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a daemon without a server: an event loop, gates at which other threads wait until the test opens them,
 * a fake device, and files that are opened and planned.
 *
 * Gates replace time. A test that needs "while it reads" closes the gate, waits until a thread has arrived at it,
 * checks, and opens it.
 */
#pragma once

#include "daemon/base/metric/metric.h"
#include "daemon/base/thread/poll_set.h"
#include "daemon/base/util.h"
#include "daemon/device/device.h"
#include "daemon/load/content/resolve.h"
#include "daemon/source/roots/caller.h"
#include "tests/lib/model.h"
#include "tests/lib/suite.h"

#include <uv.h>

/* ---- the loop, one for each test ---- */

extern uv_loop_t core_loop;
extern struct wake *core_wake;
extern struct poll_set *core_polls;

/* Runs the loop until the condition is true; the test's timeout bounds the wait. */
#define core_until(condition)                                                                                          \
        while (!(condition))                                                                                           \
        uv_run(&core_loop, UV_RUN_ONCE)
/* Runs the loop while a callback is due. */
void core_settle(void);

/* A fixture of which each test has a loop (threads do not survive the fork), around begin() and end(), or NULL. */
#define CORE_FIXTURE(begin, end, ...) FIXTURE(.outer = {core_begin, core_end}, .each = {begin, end}, __VA_ARGS__)
void core_begin(void); /* with huge pages of 2 MiB, of which the tests' sizes are multiples, whatever the machine has */
void core_end(void);   /* fails if a handle is still open */

static inline size_t list_length(const struct list *list)
{
        size_t n = 0;
        list_each (node, list)
                n++;
        return n;
}

/* As it is exported, of this process; never freed. */
char *metric_text(enum metric metric);

/* ---- gates ---- */

struct gate {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        unsigned come, passes;
        bool open;
};

void gate_init(struct gate *gate, bool open);
extern bool (*gate_delay)(void);                /* of orders.h, in place of all gates; atomic */
void gate_pass(struct gate *gate);              /* waits while the gate is closed */
bool gate_try(struct gate *gate);               /* false if it would wait */
void gate_await(struct gate *gate, unsigned n); /* waits until n threads have arrived in all */
unsigned gate_arrived(struct gate *gate);
void gate_pass_more(struct gate *gate, unsigned n); /* lets n more threads pass */
void gate_open(struct gate *gate);

/* Work that waits at a gate. */
struct held_work {
        struct work work;
        struct gate *gate;
        bool ran, done;
};
void held_work_submit(struct held_work *held, struct work_pool *pool, uint64_t lane, struct gate *gate);
void held_work_submit_for(struct held_work *held, struct work_pool *pool, uint64_t lane, uint64_t user,
                          struct gate *gate);

/* Waits until this process has `n` threads of this name and all of them sleep. */
unsigned threads_named(const char *name);
void threads_await_asleep(const char *name, unsigned n);

/* ---- a device ---- */

#define FAKE_POISON 0xa5
#define FAKE_SEGMENTS 64

/* Segments of ordinary memory, filled with poison. Gates are open at first; close one only before the device is used.
 */
struct fake_device {
        struct device device;
        struct gate alloc, release, prepare, put, read, event, answer; /* of ceiling() */
        bool hidden;            /* segments have no base: all bytes pass through put() */
        unsigned fail_alloc;    /* number, from 1, of the alloc() that fails; 0: none */
        unsigned fail_prepare;  /* the same for prepare(); atomic */
        unsigned fail_put;      /* the same for put(); atomic */
        unsigned fail_event;    /* the same for fired events; atomic */
        unsigned puts, events;  /* atomic */
        unsigned unaligned;     /* atomic: put() calls whose source and destination differ in page offset */
        unsigned copies;        /* copies copies started; atomic */
        unsigned allocs, freed; /* bytes of segments; atomic */
        unsigned prepares;      /* atomic */
        bool lies;              /* read() changes each byte; atomic */
        unsigned distrusted;    /* calls of distrust() */
        uint64_t ceiling;       /* atomic: bytes that other users leave, if shared */
        unsigned asked;         /* atomic: queries of the ceiling */
        unsigned char *memory[FAKE_SEGMENTS];
};

void fake_device_init(struct fake_device *fake, const char *name, uint64_t budget, bool hidden);
void fake_device_deinit(struct fake_device *fake); /* fails if a segment is leaked */
/* Makes other users share the device and leave `bytes` of it; the ceiling is then queried on the device's thread. */
void fake_device_share(struct fake_device *fake, uint64_t ceiling);
/* Gives it asynchronous copies: they start at the gate `put` and complete when their event passes `event`. */
void fake_device_copies(struct fake_device *fake);
unsigned char *fake_memory(const struct segment *segment);

/* ---- files ---- */

/* The program's folder as the only root. */
const struct sources *core_sources(void);
extern const struct caller core_caller; /* root, which may open every file */

/* Writes the model to a file of this name in the program's folder; returns its path. */
char *core_write(const struct model *model, const char *name);
/* n tensors "t.00000i" of 2 MiB each, at page boundaries. */
char *blocks_file(const char *name, size_t n);
/* Opens and plans a source, or fails with the text of the error. */
void core_resolve(struct resolved *resolved, const char *path, const struct plan_layout *layout, uint64_t block_size);

/* The index in the model's table of tensor i of the plan. */
size_t core_tensor(const struct resolved *resolved, const struct model *model, size_t i);
