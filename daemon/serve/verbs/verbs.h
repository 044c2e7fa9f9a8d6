/* SPDX-License-Identifier: Apache-2.0
 *
 * The verbs of the protocol: what sessions do.
 */
#pragma once

#include "daemon/serve/session.h"

extern const struct session_ops verbs_session_ops;

/* Answers the requests for a reload: it failed, or was applied except for the keys in `restart`. */
void verbs_reloaded(struct server *server, const struct error *error, const char *restart);
