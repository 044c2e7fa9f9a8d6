/* SPDX-License-Identifier: Apache-2.0
 *
 * The URI of a local source (local_uri.c), for source_local (local.c).
 */
#ifndef DAEMON_SOURCE_LOCAL_LOCAL_H
#define DAEMON_SOURCE_LOCAL_LOCAL_H

#include "daemon/source/source.h"

int local_canonical(const char *source, char **out, struct error *error);
char *local_default_name(const char *canonical);
uint64_t local_lane(const char *canonical);

#endif
