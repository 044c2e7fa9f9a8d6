/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of small mappings in the file: `access.roles`, `http.hosts`, `s3.sources`, `preload`. Private to daemon/config.
 */
#ifndef DAEMON_CONFIG_DOCUMENT_SECTIONS_H
#define DAEMON_CONFIG_DOCUMENT_SECTIONS_H

#include "daemon/config/document/yaml.h"

extern const struct doc_list http_hosts, s3_sources, preload_entries;

/* The current event is the key. */
int access_read_roles(struct doc *doc);
/* Once all roots are known: a rule's must be below one of the daemon's. */
int access_check_roots(const struct config *config, struct error *error);
/* The current event is an item of http.allow_plain. */
int http_read_plain_host(struct doc *doc);

bool http_same_hosts(const struct config *a, const struct config *b);
bool s3_same_sources(const struct config *a, const struct config *b);

/* YAML text of this length, as a file of this name, into a config that has its defaults. */
int config_parse_yaml(struct config *config, const char *name, const char *text, size_t len, struct error *error);

#endif
