/* SPDX-License-Identifier: Apache-2.0
 *
 * What may be there after a kill. Each file has two names, which may lead to one model or to two. What
 * the client was told goes into shared memory, before it asks for it and once it is answered; so for
 * each name there is all that it may have been since the daemon was looked at last.
 *
 * A store of the service manager keeps what is ready, and each change of a name with the next store to
 * memory. The state file follows a few times a second, and brings back what is pinned, by its source:
 * whatever the file has by then.
 */
#ifndef TESTS_LIB_KILLS_MODEL_H
#define TESTS_LIB_KILLS_MODEL_H

#include "tests/lib/kills.h"
#include "tests/lib/manager.h"
#include "tests/lib/stage.h"

#define FILES 3u
#define NAMES (2 * FILES)
#define HISTORY 4096
#define ABSENT 0 /* as a version */
#define PINNED "pinned"

enum { MAY_BE_LOOSE = 1, MAY_BE_PINNED = 2 }; /* what is not there is not pinned */

struct history {
        uint64_t versions[HISTORY]; /* that it may have; the last is the newest */
        unsigned n;
        unsigned pins, priorities; /* bits: MAY_BE_*, and a priority's number */
};

struct shared {
        struct history names[NAMES];
        /* Of each file: what is there, or what it is being replaced by. */
        uint64_t written[FILES], writing[FILES];
        uint64_t next_version;
        struct stalls stalls;
};

struct kills {
        struct manager m;
        struct shared *shared;
        char root[PATH_SIZE], state[PATH_SIZE];
        uint64_t chance, seed;
        unsigned round;
        bool stored; /* a store keeps what is ready */
        struct model *pinned;
        streamer_client *client;
        streamer_lease *held;
        struct kills_counts *counts;
};

static inline uint64_t kills_below(struct kills *k, uint64_t n)
{
        return draw_below(&k->chance, n);
}

const char *kills_name(unsigned name);
/* The file's other name. */
static inline unsigned other_name(unsigned name)
{
        return (name + FILES) % NAMES;
}

/* Priorities that are asked for, by their number; the first is the one of whoever asks for none. */
#define PRIORITIES 4u
unsigned kills_priority(unsigned number);

/* Each file tells its version by its metadata, and its contents follow from that. */
struct model *kills_model_of(uint64_t version);

void may_be(struct history *name, uint64_t version);
void is_only(struct history *name, uint64_t version);

/* The client that changes things; ends when the daemon does. */
_Noreturn void kills_change(struct kills *k);

#endif
