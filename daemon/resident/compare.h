/* SPDX-License-Identifier: Apache-2.0
 *
 * The bytes of a resident model, read back tensor by tensor in the order of its table, and compared with the
 * digests that were taken while it was loaded. They may be kept on the way: then they are copied to where the
 * table says, in host memory that is laid out as the segments are.
 */
#ifndef DAEMON_RESIDENT_COMPARE_H
#define DAEMON_RESIDENT_COMPARE_H

#include "daemon/io/readback.h"
#include "daemon/resident/resident.h"

struct compare {
        const struct generation *generation;
        struct manifest_view manifest;
        unsigned char *const *bases; /* of the host memory, a segment each; NULL: nothing is kept */
        struct readback readback;
        struct hash *hash;
        uint64_t asked, done; /* records */
};

/* `reader`: of whose ring it borrows where nothing is kept. Accepted by compare_deinit() whatever it answers. */
int compare_init(struct compare *compare, const struct generation *generation, struct reader *reader,
                 unsigned char *const *bases, struct error *error);
void compare_deinit(struct compare *compare);

/* The next tensor, which must be there. STREAMER_EFAILED where its bytes differ. */
int compare_tensor(struct compare *compare, struct error *error);

#endif
