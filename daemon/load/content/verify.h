/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads a resident model back from its device and compares every tensor, and the model, with the digests that were
 * taken while loading.
 */
#ifndef DAEMON_LOAD_CONTENT_VERIFY_H
#define DAEMON_LOAD_CONTENT_VERIFY_H

#include "daemon/resident/model.h"

struct reader;

/* On a worker, in the lane of the device, with a reference to the generation, which must have been ready. `reader`: its
 * ring lends slots. STREAMER_EFAILED where a digest differs; STREAMER_ECANCELED once *stop (atomic) is true. */
int verify_generation(const struct generation *generation, struct reader *reader, const bool *stop,
                      struct error *error);

#endif
