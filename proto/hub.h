/* SPDX-License-Identifier: Apache-2.0
 *
 * Hub ids (org/name[@rev]) in the Hugging Face cache of this process's environment. The library looks
 * them up for its caller, the daemon for its own preloads: they mean something in one environment
 * only, and never go over the socket.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* "org/name" before an optional "@rev". */
bool hub_is_id(const char *source);

/* The snapshot's folder: 0 with *path (malloc'd), else STREAMER_ENOENT, STREAMER_EINVAL or
 * STREAMER_ENOMEM with a text. Reads the cache, so it may block. */
int hub_resolve(const char *id, char **path, char *text, size_t text_size);
