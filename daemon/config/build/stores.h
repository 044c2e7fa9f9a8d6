/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds what remote sources need from the settings, which they borrow: the HTTP client, credentials by host, S3
 * endpoints, the Hub.
 */
#ifndef DAEMON_CONFIG_BUILD_STORES_H
#define DAEMON_CONFIG_BUILD_STORES_H

#include "daemon/config/config.h"
#include "daemon/source/source.h"

/* Sets http, hosts, s3 and hub. What was made before a failure is stores_free()'s. */
int stores_make(const struct config *config, struct sources *sources, struct error *error);
void stores_free(struct sources *sources);

#endif
