/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the bytes of restored models with their digests in the background, one model after the other, while they
 * serve. A damaged one stops serving: its names become failed models with the reason, and its memory is freed with its
 * last lease. One that was pinned is loaded again.
 *
 * A tick starts the check of a model when none is under way. The end of the daemon stops the check that is.
 */
#pragma once

#include "daemon/resident/digest_check.h"
#include "daemon/serve/desired/desired.h"

struct scrub {
        struct desired *desired; /* to which damaged models are added that were pinned; closed: the check stops */
        struct work work;
        struct generation *checked; /* a reference, until the check is done; NULL: none is under way */
        struct digest_job job;      /* the check, of which a piece may be under way */
        bool more;                  /* it is not complete */
        struct error error;
};

void scrub_init(struct scrub *scrub, struct desired *desired);
/* A few times a second: starts to check the next model. */
void scrub_tick(struct scrub *scrub);
