/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of small mappings in the file: `access.roles`, `http.hosts`, `s3.sources`, `preload`. Private to daemon/config.
 */
#ifndef DAEMON_CONFIG_LISTS_H
#define DAEMON_CONFIG_LISTS_H

#include "daemon/config/yaml.h"

/* The current event is the key. */
int access_read_roles(struct doc *doc);
/* Once all roots are known: a rule's must be below one of the daemon's. */
int access_check_roots(const struct config *config, struct error *error);
int http_read_allow_plain(struct doc *doc);
int http_read_hosts(struct doc *doc);
int s3_read_sources(struct doc *doc);

bool http_same_allow_plain(const struct config *a, const struct config *b);
bool http_same_hosts(const struct config *a, const struct config *b);
bool s3_same_sources(const struct config *a, const struct config *b);

/* The current event is the key. */
int preload_read(struct doc *doc);

#endif
