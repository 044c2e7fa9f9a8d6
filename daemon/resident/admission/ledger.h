/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger of one pass over the queue: the bytes of each device that are unused or being freed, less what
 * earlier requests have reserved; and the outcome of the next request.
 */
#ifndef DAEMON_RESIDENT_ADMISSION_LEDGER_H
#define DAEMON_RESIDENT_ADMISSION_LEDGER_H

#include "daemon/resident/model.h"

#define ADMISSION_DEVICES 64

/* Bytes of one device; a request has at most one part for each. */
struct admission_part {
        struct device *device;
        uint64_t bytes;
        struct generation *generation; /* that is charged; NULL for an estimate */
};

enum admission_outcome { ADMISSION_FITS, ADMISSION_PENDING, ADMISSION_EVICTS, ADMISSION_BLOCKED };

struct admission_outlook {
        enum admission_outcome outcome;
        struct generation **victims; /* to be evicted */
        size_t n_victims;
        /* Blocked: by a device that is out of service, where no eviction helps, or else by what cannot be freed. */
        const struct admission_part *missing; /* of the query */
};
void admission_outlook_deinit(struct admission_outlook *outlook); /* accepts a zeroed one */

struct ledger {
        uint64_t unused[ADMISSION_DEVICES], freeing[ADMISSION_DEVICES]; /* by device number, less what is reserved */
};

/* A request, or an estimate of one. */
struct admission_query {
        struct resident *resident;
        const char *name; /* NULL: the names of the parts' generations */
        const struct admission_part *parts;
        size_t n_parts;
        bool evict;
};

void ledger_make(struct ledger *ledger, const struct resident *resident);
/* Reserves bytes, as many as there are: those being freed first. */
void ledger_reserve(struct ledger *ledger, const struct admission_part *part);
/* Fills in the outlook and changes nothing else. Victims are chosen only where they suffice, with the unused bytes, on
 * every device. */
void ledger_assess(const struct admission_query *query, const struct ledger *ledger, struct admission_outlook *outlook);

#endif
