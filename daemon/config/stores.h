/* SPDX-License-Identifier: Apache-2.0
 *
 * The stores that the settings describe.
 */
#ifndef DAEMON_CONFIG_STORES_H
#define DAEMON_CONFIG_STORES_H

#include "daemon/config/config.h"
#include "daemon/source/source.h"

/* Sets s3 and hub. */
int stores_make(const struct config *config, struct sources *sources, struct error *error);
void stores_free(struct sources *sources);

#endif
