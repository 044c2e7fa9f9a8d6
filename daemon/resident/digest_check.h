/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the bytes of a resident model with the digests that were taken while it was loaded, tensor by
 * tensor in the order of its manifest. May also store the bytes in host memory of the same layout.
 */
#ifndef DAEMON_RESIDENT_DIGEST_CHECK_H
#define DAEMON_RESIDENT_DIGEST_CHECK_H

#include "daemon/io/readback.h"
#include "daemon/resident/model.h"

struct digest_check {
        const struct generation *generation;
        struct manifest_view manifest;
        unsigned char *const *bases; /* host memory, one for each segment; NULL: the bytes are not stored */
        struct readback readback;
        struct hash *hash;
        uint64_t asked, done; /* numbers of manifest records */
};

/* `reader`: lends slots of its ring where bytes are not stored. digest_check_deinit() is due also after a failure. */
int digest_check_init(struct digest_check *check, const struct generation *generation, struct reader *reader,
                      unsigned char *const *bases, struct error *error);
void digest_check_deinit(struct digest_check *check);

/* Checks the next tensor; there must be one. STREAMER_EFAILED where its bytes differ. */
int digest_check_tensor(struct digest_check *check, struct error *error);

#endif
