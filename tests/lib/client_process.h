/* SPDX-License-Identifier: Apache-2.0
 *
 * Client processes that attach, compare and detach on command, and can be killed.
 *
 * The model's metadata contains the seed of its contents, from which a client computes the expected bytes.
 */
#pragma once

#include "tests/lib/model.h"

#include <stdbool.h>
#include <sys/types.h>

#define CLIENT_SLOTS 4u

struct client_process {
        pid_t pid; /* 0: none */
        int fd;
};

struct client_answer {
        int result; /* of the library */
        uint64_t generation, seed;
        char text[256];   /* describes the error or the mismatch */
        unsigned revoked; /* after a recheck: one bit per slot whose lease is revoked */
        bool mismatch;    /* wrong bytes or an invalid lease: always a failure */
};

struct attach_target {
        const char *model;
        const char *device, *digest; /* NULL: any */
        uint64_t generation;         /* 0: any */
        bool loading;                /* may be loading: compares each tensor as it arrives, then all of them again */
};

/* The model whose size and contents are a function of `seed`. */
struct model *seeded_model(uint64_t seed);

void client_process_start(struct client_process *process, const char *socket);
/* Kills it with SIGKILL and waits for it; does nothing without a process. */
void client_process_kill(struct client_process *process);

/* Attaches, compares every byte, and stores the lease in `slot`, which must be empty. */
void client_process_attach(struct client_process *process, unsigned slot, const struct attach_target *target,
                           struct client_answer *answer);
void client_process_detach(struct client_process *process, unsigned slot, struct client_answer *answer);
/* Breaks the connection; the process lives on, and the next call reconnects. With `unnoticed` the daemon notices only
 * when it next sends something. */
void client_process_break(struct client_process *process, bool unnoticed, struct client_answer *answer);
/* Compares every byte of all leases again, and checks which of them are revoked. */
void client_process_recheck(struct client_process *process, struct client_answer *answer);
