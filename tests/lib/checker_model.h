/* SPDX-License-Identifier: Apache-2.0
 *
 * What the checker believes of the daemon. A generation is known from the load that made it until
 * nothing of it is left; names lead to generations; each slot of each puppet holds one or none.
 *
 *   named, ready --(last name gone)--> draining --(last lease gone)--> gone
 *                                         \-- by force: taken, and every lease of it knows
 *
 * Keep-alive has no clock here: what is kept alive for a millisecond goes as soon as nobody holds it and
 * it is not pinned, and the daemon is given until the next comparison agrees; a day is for ever.
 *
 * What the model leaves open, and takes from the daemon's own list: which of the generations that may
 * be evicted are (though none where less important ones would do), and whether a load that is cancelled
 * ends before that.
 */
#ifndef TESTS_LIB_CHECKER_MODEL_H
#define TESTS_LIB_CHECKER_MODEL_H

#include "tests/lib/checker.h"
#include "tests/lib/puppet.h"
#include "tests/lib/stage.h"

#define SOURCES 10u
#define NAMES 8u
#define PUPPETS 6u
#define GENERATIONS (NAMES + PUPPETS * PUPPET_SLOTS)
#define BUDGET (16u << 20)
#define CHECKER_WAIT_MS 30000
/* Times to be kept alive: over as soon as nobody holds it, and not over in this run. */
#define BRIEF_MS 1u
#define LONG_MS 86400000u

struct gen {
        uint64_t number; /* 0: this place is empty */
        uint64_t seed, charged;
        unsigned source, version, leases, priority, keep_alive_ms;
        unsigned called; /* the last name that was taken from it */
        bool pinned, taken;
};

struct checker {
        struct daemon daemon;
        streamer_client *client;
        char root[PATH_SIZE], text[1024];
        uint64_t seed, chance, last_number, last_seed;
        struct checker_counts *counts;

        unsigned versions[SOURCES]; /* how often a source was written */
        uint64_t seeds[SOURCES];
        struct gen gens[GENERATIONS];
        struct gen *names[NAMES];
        struct puppet puppets[PUPPETS];
        struct gen *held[PUPPETS][PUPPET_SLOTS];
};

_Noreturn void differ(const struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t random_below(struct checker *c, uint64_t n);
const char *name_of(unsigned n);

/* ---- the daemon's word ---- */

json_t *ask(struct checker *c, const char *verb, const char *args);
uint64_t device_bytes(struct checker *c, const char *which); /* "used", "quarantined" */

/* ---- the model ---- */

struct gen *find_gen(struct checker *c, uint64_t number); /* 0: a free place */
bool is_named(const struct checker *c, const struct gen *g);
/* Forgets what nothing leads to any more; NULL is nothing. */
void settle(struct checker *c, struct gen *g);
/* NULL: the name leads nowhere. */
void take_name(struct checker *c, unsigned name, struct gen *g);

/* Holds the two against each other until they agree, or fails. `may_evict`: what the daemon has not
 * any more, and was free to evict, is forgotten and counted. */
void compare(struct checker *c, bool may_evict);

/* ---- steps (checker_steps.c) ---- */

void check_answer(struct checker *c, const struct puppet_answer *answer);
/* Detaches what is held there. */
void empty_slot(struct checker *c, unsigned puppet, unsigned slot);
/* Kills it, and what it held is held no more. */
void let_go(struct checker *c, unsigned puppet);
void step(struct checker *c);

/* ---- of sources and loads (checker_loads.c) ---- */

void rewrite_source(struct checker *c, unsigned source);
void step_rewrite(struct checker *c);
void step_load(struct checker *c);
void step_join(struct checker *c);
void step_wait(struct checker *c);
void step_cancel(struct checker *c);

#endif
