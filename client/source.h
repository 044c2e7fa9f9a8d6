/* SPDX-License-Identifier: Apache-2.0
 *
 * What the caller wrote as a source, made independent of the caller: the daemon has another working
 * folder and another environment.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct fault;

/* The name of a model rather than a source: no URL, no path (with a leading '/' or '.', or one that exists), and no
 * identifier of the Hugging Face Hub with a snapshot in the caller's cache. */
bool source_is_name(const char *source_or_name);

/*   ~/...             below $HOME
 *   scheme://...      as it is
 *   org/name[@rev]    the snapshot's folder in the caller's Hugging Face cache, unless such a path exists
 *   anything else     a path, made absolute, without "." and ".."
 *
 * 0 with *out (malloc'd), STREAMER_EINVAL, STREAMER_ENOENT (not in the cache) or STREAMER_EOS. */
int source_resolve(const char *source, char **out, struct fault *fault);

/* What was looked for besides a resident model, of a name; or (NULL) the nearest entry of its folder, of an absolute
 * path. For the end of an error message; malloc'd, NULL: nothing to add. May block on a file system. */
char *source_explain_missing(const char *name, const char *path);
