/* SPDX-License-Identifier: Apache-2.0
 *
 * Clients on strings: processes that attach, compare and detach when they are told, so that a test
 * decides who holds what, and may kill them.
 *
 * What they compare with is told by the model itself: its metadata names the seed that its contents
 * follow from.
 */
#ifndef TESTS_LIB_PUPPET_H
#define TESTS_LIB_PUPPET_H

#include "tests/lib/model.h"

#include <stdbool.h>
#include <sys/types.h>

#define PUPPET_SLOTS 4u

struct puppet {
        pid_t pid; /* 0: none */
        int fd;
};

struct puppet_answer {
        int result; /* of the library */
        uint64_t generation, seed;
        char text[256];   /* of the error, or of what was not as it should be */
        unsigned revoked; /* of a look: a bit for each slot whose model was taken by force */
        bool wrong;       /* bytes that differ: never allowed */
};

/* What to attach to, as an attach has it. */
struct puppet_wish {
        const char *model;
        const char *device, *digest; /* NULL: none is named */
        uint64_t generation;         /* 0: whichever serves */
};

/* The model whose contents follow from `seed`; its size does, too. */
struct model *puppet_model(uint64_t seed);

void puppet_start(struct puppet *puppet, const char *socket);
/* SIGKILL, whatever it holds. */
void puppet_kill(struct puppet *puppet);

/* Attaches to it when it is ready, compares every byte, and holds it in this empty slot. */
void puppet_attach(struct puppet *puppet, unsigned slot, const struct puppet_wish *wish, struct puppet_answer *answer);
/* The same while it loads, if it does: each tensor is compared as it arrives, then all of them again. */
void puppet_join(struct puppet *puppet, unsigned slot, const struct puppet_wish *wish, struct puppet_answer *answer);
void puppet_detach(struct puppet *puppet, unsigned slot, struct puppet_answer *answer);
/* Its connection is gone, and the process lives: the next of these calls makes it again. With `silent` the daemon
 * hears of it when it next sends something, or with that. */
void puppet_break(struct puppet *puppet, bool silent, struct puppet_answer *answer);
/* Compares every byte of all that it holds again, and asks whether it still has it. */
void puppet_look(struct puppet *puppet, struct puppet_answer *answer);

#endif
