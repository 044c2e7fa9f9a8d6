/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads without a server: the daemon's loop, reader, pool and files, and a fake device.
 *
 * A load is held in a state by work that blocks the lane of its file system (opening, planning, checking) or by a
 * gate of the device (allocating, reading). The end checks for leaked bytes of the budget, descriptors and threads.
 */
#pragma once

#include "daemon/load/load.h"
#include "tests/lib/read_fixture.h"

#define BUDGET (64 * MiB)

#define OTHERS 3

extern struct fake_device fake; /* devices[0]; blocks are read in place */
extern struct fake_device
        others[OTHERS]; /* "one", "two", "three", the next devices: of one layout, filled through slots */
extern struct device *devices[1 + OTHERS];
extern struct resident resident;
extern struct loads loads;
extern struct gate lane_gate;
extern unsigned arrivals; /* calls of loads.arrived */

void load_fixture_begin(void);
void load_fixture_begin_multi(void); /* with the other devices */
void load_fixture_end(void);

/* ---- a load and its events ---- */

struct watched {
        struct load_watch watch;
        struct load_request *request;
        struct load *load; /* NULL: it has ended, and may be freed */
        bool ended;
        enum load_state state;
        struct error error;
        struct load_progress progress;
        const char *targets[LOAD_DEVICES]; /* their states at its end */
        bool resident;                     /* of the first device */
        bool serves;                       /* on a device, since before the load */
        uint64_t needed;                   /* there, by its plan */
        struct generation *generation;
};

int load_request(struct watched *w, const struct load_args *what);
/* Begins a load, by default as "m". */
void ask_for(struct watched *w, struct load_args what);
/* The same; without a name it has its default one. */
void load_start(struct watched *w, const char *source, const char *name);
/* Runs the loop until it ends, which must be in this state. */
void ends(struct watched *w, enum load_state state);
struct generation *load_ready(const char *source, const char *name);
void load_fails(const char *source, const char *name, int code, const char *text);

/* Begins a load of `path` as "m" and holds it in this state. */
void load_start_held(struct watched *w, const char *path, enum load_state state);
/* Holds the next step in the lane of this path. */
void load_hold_lane(const char *path);
void load_release_held(void);

/* ---- loads of several devices ---- */

#define ON(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)
/* The same for the fields of a request. */
#define ON_FIELDS(...)                                                                                                 \
        .devices = (const char *const[]){__VA_ARGS__},                                                                 \
        .n_devices = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

void start_on(struct watched *w, const char *source, const char *const *names, size_t n, const char *pattern);
void wait_on(struct watched *w, const char *source, const char *name, const char *const *names, size_t n);
/* What has the name "m" on a device; NULL: none. */
struct generation *on(const char *device, enum generation_state state);
void serves_on(const char *device, uint64_t seed);
void failed_on(const char *device, const char *says);

/* ---- models ---- */

#define SMALL_TENSORS 53
#define SMALL_BYTES (3 * MiB + 5 + 42 + 50 * 333)

struct model *small_model(uint64_t seed);
char *small_file(const char *name, uint64_t seed);
/* One file per rank in a folder, with small_model(50), small_model(51) and so on; RANKS is their pattern. */
char *ranks_folder(size_t n);
#define RANKS "r{rank}.safetensors"
/* SHA256SUMS beside the files. */
void publish_sums(const char *folder, const char *const *files, size_t n);

/* Checks that the generation is ready and equal to the model: manifest, bytes, arrival log, digests. */
void serves(const struct generation *g, const struct model *m);
void serves_small(const struct generation *g, uint64_t seed);
