/* SPDX-License-Identifier: Apache-2.0
 *
 * Selects the generation for an attach: the one that serves, else the one that loads; if the request names a
 * generation or a digest, only that one. For a model on several devices the client names one.
 */
#ifndef DAEMON_SERVE_VERBS_LEASE_ATTACH_SELECT_H
#define DAEMON_SERVE_VERBS_LEASE_ATTACH_SELECT_H

#include "daemon/resident/model.h"
#include "proto/messages.h"

/* Attach to *out now; look again after a change; or fail. */
enum choice { CHOICE_NOW, CHOICE_WAIT, CHOICE_ERROR };

/* Clients can attach to it while it loads. */
bool attach_can_follow(const struct generation *generation);

/* With neither a name nor a digest it is STREAMER_EINVAL. */
enum choice attach_select(struct resident *resident, const struct req_attach *req, struct generation **out,
                          struct error *error);

#endif
