/* SPDX-License-Identifier: Apache-2.0
 *
 * The verb wait: answered when the model is ready, or when no load of it is under way or will begin.
 */
#include "daemon/serve/verbs/verbs_private.h"

static void wait_failed(struct session *session, const struct request *request, int code, const char *why)
{
        session_fail(session, request->id, code == STREAMER_ECANCELED ? STREAMER_ECANCELED : STREAMER_EFAILED, "%s: %s",
                     request->u.wait.model, why);
}

static bool try_wait(struct session *session, const struct request *request, const struct deferred *deferred)
{
        (void)deferred;
        struct resident *resident = session->server->resident;
        const char *model = request->u.wait.model;
        struct generation *g = resident_ready(resident, model);
        const struct generation *loading = resident_on(resident, model, GENERATION_LOADING, NULL);
        if (g != NULL && loading != NULL && loading->number == g->number)
                return false; /* on further devices */
        if (g != NULL) {
                session_reply_state(session, request->id, model, "ready", g->number);
                return true;
        }
        const struct desired_model *desired = desired_find(&session->server->desired, model);
        if (loading != NULL || (desired != NULL && !desired_failed(desired)))
                return false;
        g = resident_on(resident, model, GENERATION_FAILED, NULL);
        if (g != NULL)
                wait_failed(session, request, g->error.code, g->error.text);
        else if (desired != NULL)
                wait_failed(session, request, desired->error.code, desired->error.text);
        else
                session_no_model(session, request->id, model);
        return true;
}

void verb_wait(struct session *session, struct request *request)
{
        deferred_wait(session, request, try_wait, request->u.wait.model, request->u.wait.timeout_ms);
}
