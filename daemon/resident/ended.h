/* SPDX-License-Identifier: Apache-2.0
 *
 * The last names that models have lost, each with how, when and why: a ring that overwrites its oldest entry. For
 * messages, and for clients that miss a model. Owned by the loop; it ends with the daemon.
 */
#pragma once

#include "proto/messages.h"

#include <stdbool.h>

#define ENDED_MAX 128
#define ENDED_TEXT 400

enum end { END_UNLOADED, END_REPLACED, END_EXPIRED, END_EVICTED, END_FAILED, END_DAMAGED };
const char *end_name(enum end end); /* "unloaded", ... */

struct end_reason {
        enum end end;
        char text[ENDED_TEXT]; /* printable; "by uid 1000"; may be empty */
};
/* What is too long is cut. */
void end_reason_set(struct end_reason *reason, enum end end, const char *format, ...)
        __attribute__((format(printf, 3, 4)));

struct ended {
        struct end_reason reason;
        uint64_t generation, at_ns;
        const char *device; /* constant */
        char name[PROTO_NAME_MAX + 1];
};

struct ended_ring {
        struct ended entries[ENDED_MAX];
        uint64_t n; /* that were ever added */
};

void ended_add(struct ended_ring *ring, const char *name, uint64_t generation, const char *device,
               const struct end_reason *reason);
/* Of this name, the one before `last` (NULL: the latest); NULL: none is left. */
const struct ended *ended_find(const struct ended_ring *ring, const char *name, const struct ended *last);
