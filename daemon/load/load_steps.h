/* SPDX-License-Identifier: Apache-2.0
 *
 * Between load.c (the states) and loads.c (who has which load): private to daemon/load.
 */
#ifndef DAEMON_LOAD_LOAD_STEPS_H
#define DAEMON_LOAD_LOAD_STEPS_H

#include "daemon/load/load.h"

/* From nothing to OPENING. */
void load_open(struct load *load);
/* Tells those who watch; each is unlinked before it is called. */
void load_tell_watchers(struct load *load);
void load_move_watchers(struct load *from, struct load *to);
/* When nothing of it is in flight and it has ended. */
void load_free(struct load *load);

#endif
