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
        bool more;    /* others follow */
        bool loading; /* digests are other threads' to write */
};

static void write_models(struct writer *w, const void *data)
{
        const struct shown *shown = data;
        bool exists = shown->group.n > 0 || shown->desired != NULL;
        writer_array(w, exists);
        if (exists)
                reply_model(w, &shown->group, shown->desired,
                            reply_notes(shown->group.n > 0 ? model_set_leading(&shown->group) : NULL));
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

/* Sets the page of tensors that is asked for. */
static int find_page(struct shown *shown, const struct generation *g, const struct req_show *req, struct error *error)
{
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
        shown->more = shown->end < n;
        if (shown->more && shown->end == shown->from)
                return error_set(error, STREAMER_EUNSUPPORTED, "tensor %" PRIu64 ": its name does not fit a reply",
                                 shown->from);
        return 0;
}

/* `ended` shows resident models alone, whatever else is asked for. */
int verb_show(struct session *session, struct request *request, struct error *error)
{
        const struct req_show *req = &request->u.show;
        const char *on = req->ended ? NULL : req->device;
        bool tensors = req->tensors && !req->ended;
        struct resident *resident = session->server->resident;
        struct generation *g = resident_any(resident, req->model);
        struct shown shown = {.group.name = req->model};
        cleanup_with(items_deinit) struct items ended;
        items_init(&ended);
        if (g != NULL)
                model_set_find(&shown.group, resident, req->model, g);
        /* What has become of earlier models of this name. */
        for (const struct ended *e = NULL; req->ended && (e = ended_find(&resident->ended, req->model, e)) != NULL;)
                items_add(&ended, ku64("generation", e->generation), kstr("device", e->device),
                          kstr("state", end_name(e->reason.end)), kstr("text", e->reason.text ?: ""),
                          ku64("age_ns", now_ns() - e->at_ns));
        if (g != NULL || !req->ended)
                shown.desired = desired_find(&session->server->desired, req->model);
        if (g == NULL && ended.n == 0 && (shown.desired == NULL || on != NULL || tensors))
                return resident_no_model(resident, req->model, error);
        const struct device *device = on != NULL ? resident_device(resident, on, NULL) : NULL;
        if (on != NULL && (device == NULL || model_set_on(&shown.group, device) == NULL))
                return error_set(error, STREAMER_ENOENT, "%s: not on device %s", req->model, on);
        if (tensors && find_page(&shown, model_set_on(&shown.group, device), req, error) < 0)
                return error->code;
        return session_reply(session, request->id, kif(shown.more, ku64("next", shown.end)),
                             kcall("models", write_models, &shown), kif(req->ended, kitems("ended", &ended)),
                             kif(tensors, karray("tensor_list", write_tensor, &shown, shown.end - shown.from)));
}
