/* SPDX-License-Identifier: Apache-2.0
 *
 * show: one model, with its tensors, or with what has become of earlier models of its name. Tensors are a page, by
 * number: `next` says where the following one begins, and is missing from the last.
 */
#include "daemon/serve/reply/reply.h"
#include "daemon/serve/verbs/verbs_private.h"

#include <inttypes.h>

/* Bytes of tensor records in one reply. */
#define SHOW_PAGE (FRAME_MAX - 64 * 1024)

struct shown {
        struct model_set group;              /* empty: nothing of it is resident */
        const struct desired_model *desired; /* NULL: none */
        /* A page of tensors. */
        struct manifest_view manifest;
        uint64_t from, end;
        bool loading; /* digests are other threads' to write */
};

static void write_models(struct writer *w, const void *data)
{
        const struct shown *shown = data;
        writer_array(w, shown->group.n > 0 || shown->desired != NULL);
        if (shown->group.n > 0)
                reply_model(w, &shown->group, shown->desired);
        else if (shown->desired != NULL)
                reply_desired(w, shown->desired);
}

/* ---- tensors ---- */

static void write_dimension(struct writer *w, const void *data, size_t i)
{
        writer_u64(w, ((const uint64_t *)data)[i]);
}

static void write_tensor(struct writer *w, const void *data, size_t i)
{
        const struct shown *shown = data;
        const struct manifest_view *m = &shown->manifest;
        const struct manifest_record *r = manifest_record(m, shown->from + i);
        writer_map_of(w, kstrn("name", m->strings + r->name_off, r->name_len), kstr("dtype", dtype_name(r->dtype)),
                      karray("shape", write_dimension, m->shapes + r->shape_off, r->rank), ku64("bytes", r->bytes),
                      ku64("segment", r->segment), ku64("offset", r->offset),
                      reply_digest_bytes("digest", shown->loading ? NULL : r->digest));
}

static int show_tensors(struct session *session, const struct request *request, struct shown *shown,
                        const struct generation *g, struct error *error)
{
        const struct req_show *req = &request->u.show;
        if (g->manifest.fd < 0 || g->releasing)
                return error_set(error, STREAMER_EFAILED, "its tensors are not known (%s)",
                                 generation_state_name(g->state));
        shown->manifest = table_manifest(&g->manifest);
        shown->loading = g->state == GENERATION_LOADING;
        uint64_t n = shown->manifest.header->n_records, size = 0;
        shown->from = shown->end = req->offset < n ? req->offset : n;
        while (shown->end < n && (req->limit == 0 || shown->end - shown->from < req->limit)) {
                const struct manifest_record *r = manifest_record(&shown->manifest, shown->end);
                size += r->name_len + UINT64_C(9) * r->rank + 160;
                if (size > SHOW_PAGE)
                        break;
                shown->end++;
        }
        bool more = shown->end < n;
        if (more && shown->end == shown->from)
                return error_set(error, STREAMER_EUNSUPPORTED, "tensor %" PRIu64 ": its name does not fit a reply",
                                 shown->from);
        session_reply(session, request->id, kcall("models", write_models, shown),
                      karray("tensor_list", write_tensor, shown, shown->end - shown->from),
                      kif(more, ku64("next", shown->end)));
        return 0;
}

/* ---- the verb ---- */

/* What has become of the models of this name, and one that is resident. */
static int show_ended(struct session *session, const struct request *request, struct shown *shown, struct error *error)
{
        const char *model = request->u.show.model;
        const struct resident *resident = session->server->resident;
        cleanup_with(items_deinit) struct items ended;
        items_init(&ended);
        for (const struct ended *e = NULL; (e = ended_find(&resident->ended, model, e)) != NULL;)
                items_add(&ended, ku64("generation", e->generation), kstr("device", e->device),
                          kstr("state", end_name(e->reason.end)), kstr("text", e->reason.text),
                          ku64("age_ns", now_ns() - e->at_ns));
        if (shown->group.n == 0)
                shown->desired = NULL;
        if (shown->group.n == 0 && ended.n == 0)
                return resident_no_model(resident, model, error);
        session_reply(session, request->id, kcall("models", write_models, shown), kitems("ended", &ended));
        return 0;
}

int verb_show(struct session *session, struct request *request, struct error *error)
{
        const struct req_show *req = &request->u.show;
        struct resident *resident = session->server->resident;
        struct generation *g = resident_any(resident, req->model);
        struct shown shown = {.desired = desired_find(&session->server->desired, req->model)};
        if (g != NULL)
                model_set_find(&shown.group, resident, req->model, g);
        if (req->ended)
                return show_ended(session, request, &shown, error);
        if (g == NULL && (req->device != NULL || req->tensors || shown.desired == NULL))
                return resident_no_model(resident, req->model, error);
        if (req->device != NULL) {
                const struct device *device = resident_device(resident, req->device, NULL);
                g = device != NULL ? model_set_on(&shown.group, device) : NULL;
                if (g == NULL)
                        return error_set(error, STREAMER_ENOENT, "%s: not on device %s", req->model, req->device);
        } else if (g != NULL) {
                g = shown.group.members[0];
        }
        if (req->tensors)
                return show_tensors(session, request, &shown, g, error);
        session_reply(session, request->id, kcall("models", write_models, &shown));
        return 0;
}
