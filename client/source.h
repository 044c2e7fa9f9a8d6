/* SPDX-License-Identifier: Apache-2.0
 *
 * What the caller wrote as a source, made independent of the caller: the daemon has another working
 * folder and another environment.
 */
#ifndef CLIENT_SOURCE_H
#define CLIENT_SOURCE_H

#include <stdint.h>

/*   scheme://...      as it is
 *   org/name[@rev]    the snapshot's folder in the caller's Hugging Face cache
 *   anything else     a path, made absolute, without "." and ".."
 *
 * 0 with *out (malloc'd), STREAMER_EINVAL, STREAMER_ENOENT (not in the cache) or STREAMER_EOS. */
int source_resolve(const char *source, char **out, uint64_t serial);

#endif
