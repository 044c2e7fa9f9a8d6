/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the bytes of restored models with their digests in the background, while they serve. A damaged one stops
 * serving: its names become failed models with the reason, and its memory is freed with its last lease. One that was
 * pinned is loaded again.
 *
 * Several are checked at once, on all processors but one, and the next when one is done; while a load runs, one
 * at a time, started by a tick. The end of the daemon stops those that are under way.
 */
#pragma once

#include "daemon/resident/digest_check.h"
#include "daemon/serve/desired/desired.h"

/* As many threads as a lane has. */
#define SCRUB_CHECKS 4

struct scrub;

struct scrub_check {
        struct scrub *scrub;
        struct work work;
        struct generation *checked; /* a reference, until the check is done; NULL: none is under way */
        struct digest_job job;      /* the check, of which a piece may be under way */
        bool more;                  /* it is not complete */
        struct error error;
};

struct scrub {
        struct desired *desired; /* to which damaged models are added that were pinned; closed: the checks stop */
        unsigned at_once;
        struct scrub_check checks[SCRUB_CHECKS];
};

void scrub_init(struct scrub *scrub, struct desired *desired);
/* A few times a second: starts to check the next models. */
void scrub_tick(struct scrub *scrub);
