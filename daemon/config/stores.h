/* SPDX-License-Identifier: Apache-2.0
 *
 * What the settings say of sources that are read over the network: the client of HTTP, credentials by
 * host, stores, the Hub.
 */
#ifndef DAEMON_CONFIG_STORES_H
#define DAEMON_CONFIG_STORES_H

#include "daemon/config/config.h"
#include "daemon/source/source.h"

/* Sets http, web, s3 and hub. What was made before a failure is stores_free()'s. */
int stores_make(const struct config *config, struct sources *sources, struct error *error);
void stores_free(struct sources *sources);

#endif
