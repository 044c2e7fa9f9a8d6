/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads with loop, reader, pool and files as in the daemon, a device that obeys, and no server.
 *
 * A load is held in a state by work that blocks the lane of its file system (opening, planning,
 * checking) or by a gate of the device (allocating, reading). At the end nothing may be left: no
 * byte of the budget, no descriptor, no thread.
 */
#ifndef TESTS_LIB_LOADING_H
#define TESTS_LIB_LOADING_H

#include "daemon/load/load.h"
#include "tests/lib/core.h"

#define BLOCK (2 * MiB)
#define BUDGET (64 * MiB)

#define OTHERS 3

extern struct fake_device fake;           /* devices[0] at first; is read in place */
extern struct fake_device others[OTHERS]; /* "one", "two", "three" behind it, of one layout, through slots */
extern struct device *devices[1 + OTHERS];
extern struct resident resident;
extern struct loads loads;
extern struct gate lane_gate;
extern unsigned arrivals; /* calls of loads.arrived */

void loading_begin(void);
void loading_begin_several(void); /* with the others */
void loading_end(void);
/* Takes a name from somebody who is not loading; false: there is nobody. */
bool loading_drop_name(void);

/* ---- a load, and what its watcher was told ---- */

struct watched {
        struct load_watch watch;
        struct load *load;
        bool ended;
        enum load_state state;
        struct error error;
        struct load_progress progress;
        struct load_estimate estimate;
        struct generation *generation;
};

int load_request(struct watched *w, const struct load_request *what);
void load_start(struct watched *w, const char *source, const char *name);
void load_start_sha256(struct watched *w, const char *source, const char *name);
/* Until the end, which must be this one. */
struct generation *load_ready(const char *source, const char *name);
void load_fails(const char *source, const char *name, int code, const char *text);

/* Begins a load of `path` as "m" and stops it in this state. */
void load_start_held(struct watched *w, const char *path, enum load_state state);
/* The next step in the lane of this path waits. */
void load_hold_lane(const char *path);
void load_let_go(void);

/* ---- models ---- */

#define SMALL_TENSORS 53
#define SMALL_BYTES (3 * MiB + 5 + 42 + 50 * 333)

struct model *small_model(uint64_t seed);
char *small_file(const char *name, uint64_t seed);
/* A tensor a block; a segment each where the device has small ones. */
char *blocks_file(const char *name, size_t n);

/* It serves, and is the model: manifest, bytes, arrivals, digests. */
void serves(const struct generation *g, const struct model *m);
void serves_small(const struct generation *g, uint64_t seed);

#endif
