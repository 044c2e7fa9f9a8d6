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
        struct model_set checked; /* a reference each */
        size_t n_begun;           /* of these; the last one may be under way */
        struct digest_job job;    /* of the last one */
        bool more;                /* it is not complete */
};

static void verify_next(struct verb_task *task)
{
        struct verify_task *v = container_of(task, struct verify_task, task);
        bool goes_on = task->error.code == 0 && task->deferred.session != NULL;
        if (goes_on && !v->more && v->n_begun < v->checked.n) {
                verify_begin(&v->job, v->checked.members[v->n_begun++], task->server->loads->reader, &task->given_up);
                v->more = true;
        }
        if (goes_on && v->more)
                verb_task_submit(task, WORK_LANE_DEVICE(v->job.generation->device->number));
        else
                verb_task_finish(task);
}

static void verify_start_task(struct verb_task *task)
{
        struct verify_task *v = container_of(task, struct verify_task, task);
        struct resident *resident = task->server->resident;
        const char *model = task->deferred.request.u.verify.model;
        const struct generation *ready = resident_ready(resident, model);
        struct model_set group = {.n = 0};
        v->checked.name = model;
        if (ready != NULL)
                model_set_find(&group, resident, model, ready);
        else
                session_state_error(task->deferred.session, model, "ready", &task->error);
        for (size_t i = 0; i < group.n; i++)
                if (group.members[i]->state == GENERATION_READY) {
                        generation_get(group.members[i]);
                        v->checked.members[v->checked.n++] = group.members[i];
                }
        verify_next(task);
}

static void verify_run_task(struct verb_task *task)
{
        struct verify_task *v = container_of(task, struct verify_task, task);
        struct error error = {0};
        int r = verify_run(&v->job, &error);
        v->more = r == DIGEST_MORE;
        if (r < 0)
                error_set(&task->error, error.code, "%s: %s: %s", v->checked.name, v->job.generation->device->name,
                          error.text);
}

static void verify_reply(struct verb_task *task, struct session *session)
{
        const struct verify_task *v = container_of(task, struct verify_task, task);
        uint64_t tensors = 0, bytes = 0;
        for (size_t i = 0; i < v->checked.n; i++) {
                tensors += v->checked.members[i]->n_tensors;
                bytes += v->checked.members[i]->data_bytes;
        }
        session_reply(session, task->deferred.request.id, kstr("name", v->checked.name),
                      ku64("generation", v->checked.members[0]->number),
                      reply_digest_bytes("digest", model_set_digest(&v->checked)), ku64("tensors", tensors),
                      ku64("bytes", bytes), ku64("devices", v->checked.n));
}

static void verify_deinit(struct verb_task *task)
{
        struct verify_task *v = container_of(task, struct verify_task, task);
        for (size_t i = 0; i < v->checked.n; i++)
                generation_put(v->checked.members[i]);
}

static const struct verb_task_ops verify_ops = {.start = verify_start_task,
                                                .run = verify_run_task,
                                                .done = verify_next,
                                                .reply = verify_reply,
                                                .deinit = verify_deinit};

int verb_verify(struct session *session, struct request *request, struct error *error)
{
        struct verify_task *v = verb_task_new(sizeof(*v), &verify_ops, session, request, error);
        return v != NULL ? verb_task_begin(&v->task, 0, QUOTA_VERIFY, error) : error->code;
}
