/* SPDX-License-Identifier: Apache-2.0
 *
 * What the checker believes of the daemon. What a load brought to a device is known from then until
 * nothing of it is left there; replicas share a number. On each device a name leads to one of these or none; each
 * slot of each puppet holds one or none.
 *
 *   named, ready --(last name gone)--> draining --(last lease gone)--> gone
 *     |                                   \-- by force, or when its time is over: taken, and every lease knows
 *     \--(evicted from a GPU)--> cached --(loaded again, unloaded, or others need the cache)--> gone
 *
 * Keep-alive and times to drain have no clock here: what is kept alive for a millisecond goes as soon as nobody
 * holds it and it is not pinned, what may drain for one is taken as soon as it drains, and the daemon is given
 * until the next comparison agrees; a day is for ever.
 *
 * Some sources are cut by rank, a file for each. Their ranks are loaded to a device each, all or none: the r-th to the
 * r-th that is named. What such a load brought is one set, under a number that nothing else has; it is resident for a
 * load of these files to these devices in this order while each of its ranks has a name, and else all are loaded anew.
 * Names lead to each rank by itself: a load to one of the devices, or an unload from one, takes that rank's name alone.
 * But what has a name still of a set is evicted, cached, leaves the cache and expires together; so one rank that is
 * leased or pinned, or serves the very name that is loaded, keeps the others. One that drains counts for none.
 * In the cache there are all ranks of a set or none: the first that loses its name there takes the others with it.
 *
 * What the model leaves open, and takes from the daemon's own list: which of those that may be evicted
 * are (though none where less important ones would do), whether the host cache takes them and what leaves it for
 * that, and whether a load that is cancelled ends before that.
 */
#ifndef TESTS_LIB_CHECKER_MODEL_H
#define TESTS_LIB_CHECKER_MODEL_H

#include "tests/lib/checker.h"
#include "tests/lib/fake/state.h"
#include "tests/lib/puppet.h"
#include "tests/lib/stage.h"

#define SOURCES 14u
#define PLAIN 10u /* of them; the others are cut by rank */
#define NAMES 8u
#define PUPPETS 6u
#define DEVICES 3u
#define GENERATIONS (DEVICES * (NAMES + 1) + PUPPETS * PUPPET_SLOTS)
#define TRAIL 16u
#define CHECKER_WAIT_MS 30000
/* Times to be kept alive, or to drain: over at once, and not over in this run. */
#define BRIEF_MS 1u
#define LONG_MS 86400000u

struct gen {
        uint64_t number; /* 0: this place is empty */
        uint64_t seed, charged;
        unsigned device, source, version, leases, priority, keep_alive_ms, drain_ms;
        unsigned rank, ranks; /* 0: not cut by rank */
        unsigned called;      /* the last name that was taken from it */
        bool pinned, taken, cached;
        bool came_back; /* cached, and just now brought back to some device: it may have left the cache */
};

struct checker_device {
        const char *name;
        uint64_t budget;
        int gpu;   /* -1: none */
        bool lost; /* out of service */
};

struct checker {
        struct daemon daemon;
        struct fake_state *gpus;
        struct checker_device devices[DEVICES];
        unsigned n_devices;
        uint64_t cache_budget; /* 0: there is none */
        char *report;          /* of what the stand-ins still hold; NULL: there are none */
        streamer_client *client, *watcher;
        unsigned watched; /* the name that the watcher has subscribed to; NAMES and more: all */
        bool deaf;        /* its connection is broken */
        json_t *heard;    /* by it, last */
        char root[PATH_SIZE], text[1024];
        uint64_t seed, chance, last_number, last_seed, first_step;
        struct checker_counts *counts;
        char trail[TRAIL][200]; /* what was done last: a ring */
        unsigned n_trail;

        unsigned versions[SOURCES];       /* how often a source was written */
        uint64_t seeds[SOURCES][DEVICES]; /* by rank */
        struct gen gens[GENERATIONS];
        struct gen *names[NAMES][DEVICES];
        struct puppet puppets[PUPPETS];
        struct gen *held[PUPPETS][PUPPET_SLOTS];
};

_Noreturn void differ(const struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* One line of what is done, for whoever reads of a difference. */
void trail_add(struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t random_below(struct checker *c, uint64_t n);
const char *name_of(unsigned n);

/* ---- the daemon (checker_kinds.c) ---- */

void start_daemon(struct checker *c, enum checker_kind kind, const char *folder);
/* It ends well, and holds nothing of its GPUs. */
void stop_daemon(struct checker *c);
/* One of its GPUs fails for good. */
void lose_device(struct checker *c);

/* ---- the daemon's word ---- */

json_t *ask(struct checker *c, const char *verb, const char *args);
/* 0, or what the library says. */
int try(struct checker *c, const char *verb, json_t *args);                   /* takes the arguments over */
uint64_t device_bytes(struct checker *c, unsigned device, const char *which); /* "used", "quarantined" */

/* ---- the model ---- */

struct gen *find_gen(struct checker *c, uint64_t number, unsigned device);
struct gen *free_place(struct checker *c);
bool is_named(const struct checker *c, const struct gen *g);
/* Something on the device that is not cached. */
bool name_serves(const struct checker *c, unsigned name, unsigned device);
/* It, or another rank of its set. */
bool is_held(const struct checker *c, const struct gen *g);
bool is_pinned(const struct checker *c, const struct gen *g);
/* Both have a name, and are one, or ranks of one set. */
bool stand_together(const struct checker *c, const struct gen *g, const struct gen *other);
/* Its time to be kept alive. */
bool is_over(const struct checker *c, const struct gen *g);
/* Forgets what nothing leads to any more; NULL is nothing. */
void settle(struct checker *c, struct gen *g);
/* NULL: the name leads nowhere. What had it before drains, for `drain_ms` at the most; 0: as long as it is held. */
void take_name(struct checker *c, unsigned name, unsigned device, struct gen *g, unsigned drain_ms);
void mark_taken(struct checker *c, struct gen *g);

/* Holds the two against each other until they agree, or fails. `may_evict`: what the daemon has not
 * any more, or not on its device, and was free to evict, is forgotten or cached, and counted. */
void compare(struct checker *c, bool may_evict);

/* ---- steps (checker_steps.c) ---- */

void check_answer(struct checker *c, const struct puppet_answer *answer);
/* Its client looks at every byte of all that it holds, and knows what was taken. */
void look(struct checker *c, unsigned puppet);
/* Detaches what is held there. */
void empty_slot(struct checker *c, unsigned puppet, unsigned slot);
/* Kills it, and what it held is held no more. */
void let_go(struct checker *c, unsigned puppet);
void step(struct checker *c);

/* ---- connections (checker_conns.c) ---- */

void step_break(struct checker *c);

/* ---- of sources and loads (checker_loads.c) ---- */

struct wish {
        unsigned priority, keep_alive_ms, drain_ms; /* 0: none */
        bool pin;
};

/* One load, and what stood before it. By device, where it is one of the load's. */
struct trial {
        unsigned name, source;
        unsigned ranks; /* 0: not cut by rank */
        bool on[DEVICES];
        const char *devices[DEVICES];
        unsigned order[DEVICES]; /* the same by number */
        unsigned n_devices;
        char *path;
        struct wish wish;
        bool no_evict;
        uint64_t used[DEVICES], needed[DEVICES];
        uint64_t stays[DEVICES]; /* of what is used no eviction can bring: as it was when it was asked for */
        struct gen gens[GENERATIONS];
        bool may_go[GENERATIONS]; /* of these: may be evicted for it */
        json_t *before;           /* the daemon's list, where it has several devices */
};

struct outcome {
        int result;
        uint64_t generation;
        bool got[DEVICES];
        bool fresh[DEVICES]; /* and it was not there before; set when the model follows */
        bool any_fresh;
};

/* At random; `several`: of devices. */
void trial_init(struct checker *c, struct trial *t, bool several);
void trial_deinit(struct trial *t);
int trial_begin(struct checker *c, const struct trial *t, unsigned flags, streamer_op **op);
/* `r`: of its beginning. */
void trial_end(struct checker *c, const struct trial *t, int r, streamer_op *op, struct outcome *outcome);
/* The model follows. */
void trial_follow(struct checker *c, const struct trial *t, struct outcome *outcome);
/* The two are compared; nobody was refused or evicted without need. */
void trial_check(struct checker *c, const struct trial *t, const struct outcome *outcome);
/* What may be evicted for it may have been: where something new came, or is allocated and then found lost. */
bool trial_may_evict(const struct trial *t, const struct outcome *outcome);

/* What the load finds on the device, and gets as it is; NULL: nothing. */
struct gen *resident_copy(struct checker *c, const struct trial *t, unsigned device);
/* Ranks are brought all or none: where all of the load's devices do. */
bool load_fits(struct checker *c, const struct trial *t);
bool on_lost_device(const struct checker *c, const struct trial *t);
/* Bytes that no eviction can bring: what is leased or pinned, and what serves under the name itself and goes on. */
uint64_t immovable(const struct checker *c, unsigned name, unsigned device);

void step_load(struct checker *c);
void step_cancel(struct checker *c);

/* ---- sources (checker_sources.c) ---- */

/* As many files as it has ranks, or one. */
void write_source(struct checker *c, unsigned source);
unsigned source_ranks(unsigned source);
/* The whole of it, or the file of one rank. The caller frees. */
char *source_path(const struct checker *c, unsigned source);
char *rank_path(const struct checker *c, unsigned source, unsigned rank);
void step_rewrite(struct checker *c);

/* ---- subscribed (checker_watch.c) ---- */

void watch_start(struct checker *c, const streamer_connect_opts *opts);
void watch_break(struct checker *c);
/* All that happened until now. */
void watch_hear(struct checker *c);
/* It was told of what serves since the trial began. */
void watch_check(struct checker *c, const struct trial *t, const struct outcome *outcome);
void step_subscribe(struct checker *c);

/* ---- loads that somebody meets (checker_meets.c) ---- */

void step_join(struct checker *c);
void step_wait(struct checker *c);

#endif
