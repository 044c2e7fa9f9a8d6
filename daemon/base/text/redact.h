/* SPDX-License-Identifier: Apache-2.0
 *
 * Redacts a source or an address for logs, errors and replies: without user, password, query and fragment of a URL,
 * which may be secret. Other text is unchanged.
 */
#ifndef DAEMON_BASE_TEXT_REDACT_H
#define DAEMON_BASE_TEXT_REDACT_H

#define REDACTED_SOURCE 512

/* Cut where it is longer. */
void redact_source(char out[REDACTED_SOURCE], const char *source);
char *redact_source_new(const char *source); /* malloc'd; NULL: no memory */

#endif
