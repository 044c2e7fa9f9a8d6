/* SPDX-License-Identifier: Apache-2.0
 *
 * Compares the bytes of a resident model with the digests that were taken while it was loaded, tensor by
 * tensor in the order of its manifest. May also store the bytes in host memory of the same layout.
 */
#pragma once

#include "daemon/io/readback.h"
#include "daemon/resident/model.h"

/* `reader`: lends slots of its ring where bytes are not stored. `bases`: the host memory, one for each segment; NULL:
 * the bytes are not stored. STREAMER_EFAILED where they differ; STREAMER_ECANCELED, without a text, once *stop (atomic)
 * is true. */
int digest_check(const struct generation *generation, struct reader *reader, unsigned char *const *bases,
                 const bool *stop, struct error *error);

/* On a worker, in the lane of the device, with a reference to the generation, which must have been ready: compares
 * every tensor and the model's digest. `reader`, `stop`: as above. STREAMER_EFAILED, STREAMER_ECANCELED. */
int verify_generation(const struct generation *generation, struct reader *reader, const bool *stop,
                      struct error *error);
