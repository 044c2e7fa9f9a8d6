/* SPDX-License-Identifier: Apache-2.0
 *
 * The reply to show. With tensors it is a page: `next` says where the following one begins, and is missing from
 * the last. They are paged by number.
 */
#include "daemon/serve/reply/reply.h"

#include <inttypes.h>

/* Bytes of tensor records in one reply. */
#define SHOW_PAGE (FRAME_MAX - 64 * 1024)

/* While loading, digests are other threads' to write. */
static void write_record(struct writer *w, const struct manifest_view *m, const struct manifest_record *r, bool loading)
{
        writer_map(w, 7);
        writer_key(w, "name");
        writer_strn(w, m->strings + r->name_off, r->name_len);
        writer_kstr(w, "dtype", dtype_name(r->dtype));
        writer_karray(w, "shape", r->rank);
        for (uint32_t i = 0; i < r->rank; i++)
                writer_u64(w, m->shapes[r->shape_off + i]);
        writer_ku64(w, "bytes", r->bytes);
        writer_ku64(w, "segment", r->segment);
        writer_ku64(w, "offset", r->offset);
        reply_digest_bytes(w, "digest", loading ? NULL : r->digest);
}

static int write_tensors(struct writer *w, const struct server *server, const struct model_set *group,
                         const struct generation *g, const struct request *request, struct error *error)
{
        const struct req_show *req = &request->u.show;
        const struct manifest_view m = table_manifest(&g->manifest);
        uint64_t n = m.header->n_records, from = req->offset < n ? req->offset : n, end = from, size = 0;
        while (end < n && (req->limit == 0 || end - from < req->limit)) {
                const struct manifest_record *r = manifest_record(&m, end);
                size += r->name_len + UINT64_C(9) * r->rank + 160;
                if (size > SHOW_PAGE)
                        break;
                end++;
        }
        bool more = end < n;
        if (more && end == from)
                return error_set(error, STREAMER_EUNSUPPORTED, "tensor %" PRIu64 ": its name does not fit a reply",
                                 from);
        writer_reply(w, request->id, more ? 3 : 2);
        writer_karray(w, "models", 1);
        reply_model(w, group, desired_find(&server->desired, group->name));
        writer_karray(w, "tensor_list", end - from);
        for (uint64_t i = from; i < end; i++)
                write_record(w, &m, manifest_record(&m, i), g->state == GENERATION_LOADING);
        if (more)
                writer_ku64(w, "next", end);
        return 0;
}

int reply_show(struct writer *w, const struct server *server, const struct model_set *group, const struct generation *g,
               const struct request *request, struct error *error)
{
        if (request->u.show.tensors) {
                if (g->manifest.fd < 0 || g->releasing)
                        return error_set(error, STREAMER_EFAILED, "its tensors are not known (%s)",
                                         generation_state_name(g->state));
                return write_tensors(w, server, group, g, request, error);
        }
        writer_reply(w, request->id, 1);
        writer_karray(w, "models", 1);
        reply_model(w, group, desired_find(&server->desired, group->name));
        return 0;
}
