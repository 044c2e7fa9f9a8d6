/* SPDX-License-Identifier: Apache-2.0
 *
 * verify: recomputes the digests of a resident model, on one device after another.
 */
#include "daemon/resident/digest_check.h"
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verb_task.h"
#include "daemon/serve/verbs/verbs_private.h"

struct verify_task {
        struct verb_task task;
        struct generation *checked;           /* on one device; a reference while work is in flight */
        uint64_t generation;                  /* its number */
        uint64_t n_devices, n_tensors, bytes; /* so far */
};

static struct verify_task *verify_of(struct verb_task *task)
{
        return container_of(task, struct verify_task, task);
}

static const char *model_of(const struct verify_task *v)
{
        return verb_task_request(&v->task)->u.verify.model;
}

/* The next device's copy of what is verified, the first where `last` is NULL; NULL after the last. */
static struct generation *next_of(const struct verify_task *v, const struct generation *last)
{
        struct resident *resident = v->task.server->resident;
        struct generation *ready = resident_ready(resident, model_of(v));
        struct model_set group;
        if (ready == NULL || ready->number != v->generation)
                return NULL;
        model_set_find(&group, resident, model_of(v), ready);
        for (size_t i = 0; i < group.n; i++) {
                struct generation *g = group.members[i];
                if (g->state != GENERATION_READY)
                        continue;
                /* The order of a group, also for a generation that lost its name while it was verified. */
                if (last == NULL ||
                    (g->rank != last->rank ? g->rank > last->rank : g->device->number > last->device->number))
                        return g;
        }
        return NULL;
}

static void begin(struct verify_task *v, struct generation *generation)
{
        generation_get(generation);
        v->checked = generation;
        verb_task_submit(&v->task, WORK_LANE_DEVICE(generation->device->number));
}

static void verify_start_task(struct verb_task *task)
{
        struct verify_task *v = verify_of(task);
        const struct generation *ready = resident_ready(task->server->resident, model_of(v));
        if (ready != NULL) {
                v->generation = ready->number;
                begin(v, next_of(v, NULL));
                return;
        }
        session_state_error(task->deferred->session, model_of(v), "ready", &task->error);
        verb_task_finish(task);
}

static void verify_run_task(struct verb_task *task)
{
        const struct verify_task *v = verify_of(task);
        struct error error = {0};
        if (verify_generation(v->checked, task->server->reader, &task->given_up, &error) < 0)
                error_set(&task->error, error.code, "%s: %s: %s", model_of(v), v->checked->device->name, error.text);
}

static void verify_reply(struct verb_task *task, struct session *session)
{
        const struct verify_task *v = verify_of(task);
        struct generation *last = v->checked;
        struct model_set group;
        struct writer w;
        model_set_find(&group, task->server->resident, model_of(v), last);
        session_reply(&w, verb_task_request(task)->id, 6);
        writer_kstr(&w, "name", model_of(v));
        writer_ku64(&w, "generation", last->number);
        reply_digest_bytes(&w, "digest", model_set_digest(&group));
        writer_ku64(&w, "tensors", v->n_tensors);
        writer_ku64(&w, "bytes", v->bytes);
        writer_ku64(&w, "devices", v->n_devices);
        session_send(session, &w);
}

static void verify_done_task(struct verb_task *task)
{
        struct verify_task *v = verify_of(task);
        struct generation *g = v->checked, *next = NULL;
        v->n_devices++;
        v->n_tensors += g->n_tensors;
        v->bytes += g->data_bytes;
        if (task->error.code == 0 && task->deferred->session != NULL)
                next = next_of(v, g);
        if (next != NULL)
                begin(v, next);
        else
                verb_task_finish(task);
        generation_put(g);
}

static const struct verb_task_ops verify_ops = {
        .start = verify_start_task, .run = verify_run_task, .done = verify_done_task, .reply = verify_reply};

int verb_verify(struct session *session, struct request *request, struct error *error)
{
        const char *model = request->u.verify.model;
        if (resident_ready(session->server->resident, model) == NULL)
                return session_state_error(session, model, "ready", error);
        struct verify_task *v = verb_task_new(sizeof(*v), &verify_ops, error);
        return v != NULL ? verb_task_begin(&v->task, session, request, VERB_TASK_VERIFY, error) : error->code;
}
