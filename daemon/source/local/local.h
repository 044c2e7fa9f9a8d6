/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of source_local: its URI (local_uri.c), its weights (local.c), its sidecars
 * (local_sidecar.c).
 */
#ifndef DAEMON_SOURCE_LOCAL_LOCAL_H
#define DAEMON_SOURCE_LOCAL_LOCAL_H

#include "daemon/source/source.h"

int local_canonical(const char *source, char **out, struct error *error);
char *local_default_name(const char *canonical);
uint64_t local_lane(const char *canonical);

int local_list_sidecars(const struct sources *sources, const char *canonical, struct sidecar_list *list,
                        struct error *error);
int local_open_sidecar(const struct sources *sources, const char *canonical, const char *name, struct object *object,
                       struct error *error);

#endif
