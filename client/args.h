/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks of what callers pass to the library, and structs of other versions. Each check returns 0, or
 * a STREAMER_E* whose text names the call and the argument.
 */
#pragma once

#include "streamer/client.h"

#include <stdint.h>

/* The handle is not NULL and belongs to this process. */
/* Of a source that JSON cannot hold. STREAMER_EINVAL. */
int args_not_utf8(const streamer_client *client, const char *call, const char *source);
int args_client(const streamer_client *client, const char *call);
int args_lease(const streamer_lease *lease, const char *call); /* and its memory exists */

/* A required pointer. */
int args_pointer(const streamer_client *client, const char *call, const char *name, const void *pointer);

/* A required text that is not empty. */
int args_text(const streamer_client *client, const char *call, const char *name, const char *text);

/* Flags outside of `all`. */
int args_flags(const streamer_client *client, const char *call, unsigned flags, unsigned all);

/* Copies a struct of the caller's version into one of this library's, of `size` bytes: members that an older
 * caller does not have are 0; members that a newer caller sets and this library does not know are refused. */
int args_copy(const streamer_client *client, const char *call, const char *name, void *to, size_t size,
              const void *from);

/* As args_copy(), of a struct that may be NULL: then all of it is 0. */
int args_options(const streamer_client *client, const char *call, const char *name, void *to, size_t size,
                 const void *from);

/* A struct that the library fills: its struct_size is set. */
int args_out(const streamer_client *client, const char *call, const char *name, const void *out);

/* Fills it from one of this library's version, of `size` bytes. What this library does not know of it is 0. */
void args_fill(void *out, const void *from, size_t size);
