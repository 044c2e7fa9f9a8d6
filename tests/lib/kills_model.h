/* SPDX-License-Identifier: Apache-2.0
 *
 * The states that are permitted after a kill. Each file has two names, which may refer to one model or to two. The
 * client writes its requests to shared memory, before the request and after its reply. The checker thus knows all
 * states that each name may have had since the last check.
 *
 * An fd store keeps ready models, and each change of a name before its reply. The state file follows a few
 * times a second; it restores pinned models by their source, with the file's current contents.
 */
#pragma once

#include "tests/lib/client_process.h"
#include "tests/lib/kills.h"
#include "tests/lib/service_manager.h"
#include "tests/lib/fixture.h"

#define FILES 3u
#define NAMES (2 * FILES)
#define HISTORY 4096
#define ABSENT 0 /* as a version */
#define PINNED "pinned"

enum { MAY_BE_LOOSE = 1, MAY_BE_PINNED = 2 }; /* an absent name is not pinned */

struct history {
        uint64_t versions[HISTORY]; /* possible versions; the last is the newest */
        unsigned n;
        unsigned pins, priorities; /* bits: MAY_BE_*, and a priority's number */
};

struct shared {
        struct history names[NAMES];
        /* Each file's version, and the one that replaces it. */
        uint64_t written[FILES], writing[FILES];
        uint64_t next_version;
};

struct kills {
        struct manager m;
        struct shared *shared;
        char root[PATH_SIZE], state[PATH_SIZE];
        uint64_t chance, seed;
        unsigned round;
        bool stored; /* with an fd store */
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
/* Priorities by number; the first is the default. */
#define PRIORITIES 4u
unsigned kills_priority(unsigned number);

void may_be(struct history *name, uint64_t version);
void is_only(struct history *name, uint64_t version);

/* The client that makes changes; exits when the daemon does. */
_Noreturn void kills_change(struct kills *k);
