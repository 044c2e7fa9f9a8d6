/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon's core on a small stage of its own, without a server: a loop with its door, gates at
 * which other threads wait until a test lets them on, a device that does as it is told, and files
 * that are opened and planned.
 *
 * Gates replace time: a test that needs "while it reads" closes the gate, waits until somebody has
 * come to it, looks around, and opens it.
 */
#ifndef TESTS_LIB_CORE_H
#define TESTS_LIB_CORE_H

#include "daemon/device/device.h"
#include "daemon/load/resolve.h"
#include "tests/lib/model.h"
#include "tests/lib/suite.h"

#include <pthread.h>
#include <uv.h>

/* ---- the loop, one for each test ---- */

extern uv_loop_t core_loop;
extern struct wake *core_wake;

void core_begin(void);
void core_end(void); /* fails where a handle was left open */

/* Turns the loop until it is so; whoever waits for what never comes runs into the test's timeout. */
#define core_until(condition)                                                                                          \
        while (!(condition))                                                                                           \
        uv_run(&core_loop, UV_RUN_ONCE)
/* Turns the loop as long as something is due at once. */
void core_settle(void);

/* A group whose tests each begin and end with these, in their own process (threads do not survive
 * the fork). */
TCase *core_group(const char *name, void (*setup)(void), void (*teardown)(void));

/* ---- gates ---- */

struct gate {
        pthread_mutex_t mutex;
        pthread_cond_t changed;
        unsigned come, passes;
        bool open;
};

void gate_init(struct gate *gate, bool open);
void gate_pass(struct gate *gate);              /* waits where it is closed */
bool gate_try(struct gate *gate);               /* false where it would wait */
void gate_await(struct gate *gate, unsigned n); /* until n have come in all */
unsigned gate_come(struct gate *gate);
void gate_let(struct gate *gate, unsigned n); /* lets n more pass */
void gate_open(struct gate *gate);

/* Work that waits at a gate. */
struct held_work {
        struct work work;
        struct gate *gate;
        bool ran, done;
};
void held_work_submit(struct held_work *held, struct work_pool *pool, uint64_t lane, struct gate *gate);

/* Threads of this process that go by a name; waits until so many do, and each of them sleeps. */
unsigned threads_named(const char *name);
void threads_await_asleep(const char *name, unsigned n);

/* ---- a device ---- */

#define FAKE_POISON 0xa5
#define FAKE_SEGMENTS 64

/* Segments of ordinary memory, filled with poison. Gates are open at first; whoever closes one does
 * so before the device is used. */
struct fake_device {
        struct device device;
        struct gate alloc, release, prepare, put, event;
        bool hidden;            /* segments have no base: everything goes through put() */
        unsigned fail_alloc;    /* the number, from 1, of the alloc that fails; 0: none */
        unsigned fail_prepare;  /* the same of prepare; atomic */
        unsigned fail_put;      /* of put; atomic */
        unsigned fail_event;    /* of the events that fired; atomic */
        unsigned puts, events;  /* atomic */
        unsigned copies;        /* started; atomic */
        unsigned allocs, freed; /* of segments, atomic */
        unsigned prepares;      /* atomic */
        uint64_t ceiling;       /* atomic: what others leave of it, where it is shared */
        bool lost;              /* atomic: out of service */
        unsigned asked, idled;  /* atomic: questions for the ceiling, and ends of them */
        unsigned char *memory[FAKE_SEGMENTS];
        uint64_t sizes[FAKE_SEGMENTS];
};

void fake_device_init(struct fake_device *fake, const char *name, uint64_t budget, bool hidden);
void fake_device_deinit(struct fake_device *fake); /* fails where a segment is left */
/* Others use it too, and leave so much of it; from now on it is asked on its thread. */
void fake_device_share(struct fake_device *fake, uint64_t ceiling);
/* From now on it has copiers: copies start at the gate `put`, and land when their event passes `event`. */
void fake_device_copies(struct fake_device *fake);
unsigned char *fake_memory(const struct segment *segment);

/* ---- files ---- */

/* The folder of the program as the one root. */
const struct sources *core_sources(void);
extern const struct caller core_caller; /* root, who opens whatever is there */

/* Writes it to a file of this name in the program's folder: its path. */
char *core_write(const struct model *model, const char *name);
/* Opens and plans a source, or fails with the text of the error. */
void core_resolve(struct resolved *resolved, const char *path, const struct device_layout *layout, uint64_t block_size);

/* The index in the model's own table of the plan's tensor i. */
size_t core_tensor(const struct resolved *resolved, const struct model *model, size_t i);

#endif
