/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the verbs that publish.
 */
#ifndef DAEMON_SERVE_VERBS_PUBLISH_PUBLISH_PRIVATE_H
#define DAEMON_SERVE_VERBS_PUBLISH_PUBLISH_PRIVATE_H

#include "daemon/serve/verbs/verbs_private.h"

/* publications->ended: requests that wait for a claim look again. */
void publish_claim_ended(struct publications *publications);
/* Unloads a published model; its leases keep what they have mapped. */
void publish_drop_stale(struct generation *generation);
/* Frees requests that wait, of clients that have disconnected. */
void publish_abandon_finds(struct server *server);

#endif
