/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads back the resident bytes of one device piece by piece, one ahead of the piece that the caller examines. The
 * caller names runs of bytes; a piece is at most a leaf of one. Memory that can be mapped is examined in place, through
 * a mapping of its own: what is examined is what clients see, not what the daemon believes to have written. A device
 * with copiers copies to the destination of the run, or else to two slots of the ring in turn. If the ring has no free
 * slots, or the device has no copiers, pieces are copied to a buffer and nothing is read ahead.
 */
#pragma once

#include "daemon/io/reader/reader.h"

#define READBACK_PIECE PLAN_LEAF /* at most */

struct readback_run {
        const struct segment *segment;
        uint64_t offset, bytes;
        unsigned char *to; /* memory that the device copies to; NULL: the bytes are examined only */
};

/* The next run, in order; false: no more. Empty ones have no piece. */
typedef bool readback_runs_fn(void *context, struct readback_run *run);

struct readback {
        struct reader *reader;
        struct copier *copier; /* NULL: nothing is read ahead */
        unsigned char *to[2];  /* slots, with a copier; else a buffer, unless there are views, and NULL */
        unsigned turn;         /* which of them is next */
        readback_runs_fn *runs;
        void *context;
        struct readback_run run; /* its first `requested` bytes have become pieces */
        uint64_t requested;
        struct readback_run piece;    /* the next to be taken; bytes 0: none */
        void *event;                  /* of its copy; NULL: none is in flight */
        const struct segment *viewed; /* NULL: none */
        const unsigned char *view;    /* a map of it */
};

/* `reader`: whose ring lends slots; NULL: none does, and every run of a device that copies names the destination of its
 * bytes. To be followed by readback_deinit() after a failure, too. */
int readback_init(struct readback *readback, struct reader *reader, struct device *device, struct error *error);
void readback_deinit(struct readback *readback);

int readback_begin(struct readback *readback, readback_runs_fn *runs, void *context, struct error *error);
/* The next piece, which must exist; its bytes are valid until the following one is taken. */
int readback_take(struct readback *readback, const unsigned char **data, uint64_t *len, struct error *error);
