/* SPDX-License-Identifier: Apache-2.0
 *
 * A source, or an address, as logs, errors and replies show it: without what may be secret in a URL, which are
 * user, password, query and fragment. What is no URL is shown as it is.
 */
#ifndef DAEMON_BASE_SHOWN_H
#define DAEMON_BASE_SHOWN_H

#define SHOWN_SOURCE 512

/* Cut where it is longer. */
void shown_source(char out[SHOWN_SOURCE], const char *source);
char *shown_source_whole(const char *source); /* malloc'd; NULL: no memory */

#endif
