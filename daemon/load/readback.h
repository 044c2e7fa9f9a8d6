/* SPDX-License-Identifier: Apache-2.0
 *
 * Resident bytes of one device, read back piece by piece, one ahead of the piece that is looked at. Where the
 * device's memory is mapped they are looked at in place; a device that copies brings them to two slots of the
 * ring in turn; where the ring has none to spare, or the device copies while it is waited for, they come to a
 * buffer and nothing is read ahead.
 */
#ifndef DAEMON_LOAD_READBACK_H
#define DAEMON_LOAD_READBACK_H

#include "daemon/io/reader.h"

#define READBACK_PIECE PLAN_LEAF /* at most */

struct readback {
        struct reader *reader;
        struct copier *copier;   /* NULL: nothing is read ahead */
        unsigned char *to[2];    /* slots, with a copier; else a buffer, and NULL */
        unsigned turn;           /* where the next piece comes to */
        struct device_span next; /* asked for, and not taken yet; len 0: none */
        void *event;             /* of its copy */
};

/* Accepted by readback_deinit() whatever it answers. */
int readback_init(struct readback *readback, struct reader *reader, struct device *device, struct error *error);
void readback_deinit(struct readback *readback);

/* One piece at a time: the one before has been taken. */
int readback_ask(struct readback *readback, struct segment *segment, uint64_t offset, uint64_t len,
                 struct error *error);
/* The bytes of the piece that was asked for; they stay until the next one is taken. */
int readback_take(struct readback *readback, const unsigned char **data, struct error *error);

#endif
