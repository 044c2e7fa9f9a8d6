/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of whole files against published digests, over the bytes in the segments: the header as it was read, then
 * the tensors read back. The file is not read a second time, since it could have changed; only tensors that the model
 * does not use, and that were not read, are.
 */
#pragma once

#include "daemon/load/content/resolve.h"

struct reader;

/* On a worker, once for each file and target, when all its bytes are in the device's segments; borrows slots of the
 * reader's ring. STREAMER_EFAILED where the digest differs. */
int sha_check_file(struct reader *reader, const struct resolved *resolved, struct device *device,
                   const struct segment *segments, size_t file, struct error *error);
