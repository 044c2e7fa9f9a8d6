/* SPDX-License-Identifier: Apache-2.0
 *
 * Secrets: wiped when they are freed, named in settings by their location, and redacted in texts.
 */
#pragma once

#include "daemon/base/error.h"

/* Accepts NULL. */
void secret_free(char *secret);
void secret_free_p(char **secret); /* for cleanup_with() */

/* The secret that a setting denotes: "file:PATH", "credential:NAME" ($CREDENTIALS_DIRECTORY, where the service
 * manager puts what a unit's LoadCredential= names), else itself. A file's line end is removed. */
int secret_read(const char *setting, char **secret, struct error *error);
/* The same, but all of a file, of `max` bytes at most, and wiped by secret_text_deinit(). */
struct text;
int secret_read_text(const char *setting, uint64_t max, struct text *text, struct error *error);
void secret_text_deinit(struct text *text); /* accepts a zeroed one */
/* The first line of this file. */
int secret_read_file(const char *path, char **secret, struct error *error);
/* The setting names the secret's location and is not the secret. */
bool secret_is_reference(const char *setting);

/* The path of the file that such a setting names; malloc'd. */
int secret_location(const char *setting, char **path, struct error *error);

/* All of a file of keys into memory as secret_map() has it: the file is root's or the daemon's user's, others cannot
 * read it, and its group cannot write it. `setting` names it in messages. STREAMER_EFAILED. */
int secret_read_keys(const char *setting, const char *path, uint64_t max, struct text *text, struct error *error);
void secret_keys_deinit(struct text *text); /* accepts a zeroed one */

/* Zeroed memory for secrets: locked where the system allows it, left out of core dumps and of forked children. NULL: no
 * memory. */
void *secret_map(size_t size);
void secret_unmap(void *memory, size_t size); /* wipes it; accepts NULL */

#define REDACTED_SOURCE 512

/* A source or an address for logs, errors and replies: without user, password, query and fragment of a URL. Other text
 * is unchanged. */
void redact_source(char out[REDACTED_SOURCE], const char *source); /* truncated */
char *redact_source_new(const char *source);                       /* malloc'd; NULL: no memory */
