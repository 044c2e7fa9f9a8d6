/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of handlers by verb, and what sessions do beside answering requests.
 */
#include "daemon/serve/verbs/verbs_private.h"

#include "daemon/serve/events/events.h"
#include "daemon/serve/events/lease_events.h"
#include "daemon/serve/events/op.h"

static session_verb *const handlers[VERB_COUNT] = {
#define V(name) [VERB_##name] = verb_##name,
        VERBS(V)
#undef V
};

static void on_drained(struct session *session)
{
        events_notify(session);
        list_each_item (struct lease, lease, &session->leases, in_owner)
                if (lease->dirty)
                        lease_events_send(session, lease);
}

static void on_closed(struct session *session)
{
        event_log_unsubscribe(&session->server->event_log, &session->subscriber);
        list_each_safe (pos, &session->ops)
                op_free(container_of(pos, struct op, link));
        while (!list_empty(&session->deferred))
                deferred_orphan(container_of(session->deferred.next, struct deferred, in_session));
        probe_end(session);
        attach_abandon_leases(session);
}

const struct session_ops verbs_session_ops = {
        .verbs = handlers, .notify = events_notify, .drained = on_drained, .closed = on_closed};
