/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the files of the verbs alone: the handlers, and what verbs use of each other.
 */
#pragma once

#include "daemon/serve/deferred.h"
#include "daemon/serve/verbs/verbs.h"

#define V(name) session_verb verb_##name;
VERBS(V)
#undef V

/* Clients can attach to it while it loads: a load from the host cache has a manifest before all bytes are copied, and
 * no arrival log. The memory of an encrypted model is not lent then: it is decrypted in place, and a mapping would show
 * what was not compared with its tag (crypt/encrypted_file.h). */
static inline bool attach_can_follow(const struct generation *generation)
{
        return generation->manifest.fd >= 0 && generation->arrival.fd >= 0 && generation->encryption == NULL;
}
/* Replies with a lease of this generation. */
int attach_reply_lease(struct session *session, uint64_t id, struct generation *generation, const char *model,
                       struct error *error);
/* A lease of this generation, which the session owns: counted and charged. NULL with *error. */
struct lease *attach_lease_new(struct session *session, struct generation *generation, struct error *error);
/* About once a second: unloads published models where another version of their base serves. */
void publish_tick(struct server *server);
/* Frees transfers whose time is over. UINT64_MAX: the session ends, and so do all. */
void fetch_expire_transfers(struct session *session, uint64_t now_ns);
/* Whatever became of the load: the model is unloaded when its leases have ended. */
void probe_end(struct session *session);
