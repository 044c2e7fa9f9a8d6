/* SPDX-License-Identifier: Apache-2.0
 *
 * What one pass over the queue knows: the bytes of each device that are unused or on their way back,
 * less what was spoken for by who stands before; and what would become of who asks next.
 */
#ifndef DAEMON_RESIDENT_ROOM_LEDGER_H
#define DAEMON_RESIDENT_ROOM_LEDGER_H

#include "daemon/resident/room.h"

#define ROOM_DEVICES 64

struct ledger {
        uint64_t unused[ROOM_DEVICES], coming[ROOM_DEVICES]; /* by device number, less what is spoken for */
};

/* What is asked for: of each device once. */
struct demand {
        struct device *device;
        uint64_t bytes;
};

/* A request, or the question what would become of one. */
struct asker {
        struct resident *resident;
        const char *name;              /* NULL: those of the parts' generations */
        const struct room_part *parts; /* NULL for a question */
        size_t n_parts;
        struct demand demands[ROOM_DEVICES];
        size_t n_demands;
        bool evict;
};

void ledger_make(struct ledger *ledger, const struct resident *resident);
/* One of its devices that is out of service: there is no room there, whoever leaves. NULL if there is none. */
const struct device *asker_lost_device(const struct asker *asker);
/* What comes back is taken first. */
void ledger_speak_for(struct ledger *ledger, const struct demand *demand);
/* Those of one device that bring `needed` bytes, into the outlook; false where nobody could. */
bool ledger_victims(const struct asker *asker, const struct device *device, uint64_t needed,
                    struct room_outlook *outlook);
/* Changes nothing; the outlook is made, whatever it held. Victims are chosen only where they, with what is there,
 * suffice on every device. */
void ledger_look(const struct asker *asker, const struct ledger *ledger, struct room_outlook *outlook);

#endif
