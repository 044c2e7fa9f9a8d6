/* SPDX-License-Identifier: Apache-2.0
 *
 * Which generation an attach gets: the one that serves; else the one that loads; with a generation or a
 * digest asked for, that one and no other. Of a model on several devices the client says which.
 */
#ifndef DAEMON_SERVE_ATTACH_CHOICE_H
#define DAEMON_SERVE_ATTACH_CHOICE_H

#include "daemon/resident/resident.h"
#include "proto/messages.h"

/* Now, of *out; when something has changed; or never, for the error. */
enum choice { CHOICE_NOW, CHOICE_WAIT, CHOICE_ERROR };

enum choice attach_choose(struct resident *resident, const struct req_attach *req, struct generation **out,
                          struct error *error);

#endif
