/* SPDX-License-Identifier: Apache-2.0
 *
 * What the text of a local source tells by itself: the parts of source_local that touch no file.
 */
#ifndef DAEMON_SOURCE_LOCAL_H
#define DAEMON_SOURCE_LOCAL_H

#include "daemon/source/source.h"

int local_canonical(const char *source, char **out, struct error *error);
char *local_default_name(const char *canonical);
uint64_t local_lane(const char *canonical);

#endif
