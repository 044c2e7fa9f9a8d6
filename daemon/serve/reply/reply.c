/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/reply/reply.h"

#include "daemon/base/text/secret.h"
#include "daemon/resident/model.h"

#include <inttypes.h>
#include <string.h>

void reply_source(struct writer *w, const char *source)
{
        bool url = strncmp(source, "http://", 7) == 0 || strncmp(source, "https://", 8) == 0;
        writer_key(w, "source");
        writer_strn(w, source, url ? strcspn(source, "?") : strlen(source));
}

void reply_digest_bytes(struct writer *w, const char *key, const unsigned char *digest)
{
        writer_key(w, key);
        if (digest != NULL)
                writer_hex(w, digest, DIGEST_SIZE);
        else
                writer_str(w, "");
}

void reply_digest(struct writer *w, const struct generation *g)
{
        bool known = g->state == GENERATION_READY || generation_drains(g) || g->state == GENERATION_CACHED;
        reply_digest_bytes(w, "digest", known ? g->digest : NULL);
}

int reply_segment(struct writer *w, const struct generation *g, unsigned segment, size_t fd)
{
        struct handle handle;
        g->device->ops->handle(&g->segments[segment], &handle);
        writer_kstr(w, "kind", handle.kind);
        if (handle.fd >= 0) {
                writer_ku64(w, "fd", fd);
        } else {
                writer_key(w, "handle");
                writer_bin(w, handle.bytes, handle.n_bytes);
        }
        writer_ku64(w, "size", g->segments[segment].size);
        writer_ku64(w, "offset", 0);
        writer_kstr(w, "uuid", g->device->uuid);
        return handle.fd;
}

void reply_progress(struct writer *w, const struct load_progress *p)
{
        writer_ku64(w, "generation", p->generation);
        writer_kstr(w, "state", load_state_name(p->state));
        writer_ku64(w, "bytes", p->bytes);
        writer_ku64(w, "total", p->total);
        writer_ku64(w, "tensors", p->tensors);
        writer_ku64(w, "tensors_total", p->tensors_total);
        writer_ku64(w, "load_ns", p->load_ns);
}

static void write_on_device(struct writer *w, const struct generation *g)
{
        bool failed = g->state == GENERATION_FAILED, ranks = g->n_ranks > 0;
        bool allocated = (g->state == GENERATION_READY || generation_drains(g)) && g->n_segments > 0;
        uint64_t small = generation_small_page_bytes(g);
        writer_map(w, 7u + failed + ranks + (small > 0));
        writer_kstr(w, "device", g->device->name);
        writer_ku64(w, "bytes", g->charged);
        writer_kstr(w, "page_kind",
                    page_kind_name(allocated && !g->releasing ? g->segments[0].pages : g->device->pages));
        if (small > 0)
                writer_ku64(w, "small_page_bytes", small);
        writer_kstr(w, "state", generation_state_name(g->state));
        reply_digest(w, g);
        writer_ku64(w, "leases", g->n_leases);
        writer_kbool(w, "pinned", model_set_member_pinned(g));
        if (ranks)
                writer_ku64(w, "rank", g->rank);
        if (failed)
                writer_kstr(w, "error", g->error.text);
}

static void write_tries(struct writer *w, const struct desired_model *desired, uint64_t now)
{
        writer_ku64(w, "tries", desired->attempts);
        if (desired->retry_at_ns > 0)
                writer_ku64(w, "retry_in_ns", desired->retry_at_ns > now ? desired->retry_at_ns - now : 1);
}

static uint32_t count_tries(const struct desired_model *desired)
{
        return desired->retry_at_ns > 0 ? 2 : 1;
}

void reply_desired(struct writer *w, const struct desired_model *desired)
{
        uint64_t now = now_ns();
        bool failed = desired_failed(desired);
        writer_map(w, 16u + failed + (failed ? count_tries(desired) : 0));
        writer_kstr(w, "name", desired->spec->name);
        writer_ku64(w, "generation", 0);
        writer_kstr(w, "digest", "");
        reply_source(w, desired->spec->source);
        writer_kstr(w, "state", failed ? "failed" : "queued");
        writer_ku64(w, "bytes", 0);
        writer_ku64(w, "tensors", 0);
        writer_karray(w, "devices", 0);
        writer_ku64(w, "leases", 0);
        writer_kbool(w, "pinned", desired->spec->settings.pinned);
        writer_kstr(w, "tier", "device");
        writer_ku64(w, "idle_ns", 0);
        writer_ku64(w, "keep_alive_ns", 0);
        writer_ku64(w, "expires_in_ns", 0);
        writer_ku64(w, "priority", desired->spec->settings.priority);
        writer_ku64(w, "load_ns", 0);
        if (failed) {
                writer_kstr(w, "error", desired->error.text);
                write_tries(w, desired, now);
        }
}

static void write_published(struct writer *w, const struct generation *g)
{
        const struct published *p = g->published;
        char base[REDACTED_SOURCE];
        writer_kmap(w, "published", 3u + p->base.has_digest);
        writer_ku64(w, "uid", g->caller.uid);
        if (p->base.source != NULL)
                redact_source(base, p->base.source);
        writer_kstr(w, "base", p->base.source != NULL ? base : NULL);
        if (p->base.has_digest)
                reply_digest_bytes(w, "base_digest", p->base.digest);
        writer_kmap(w, "key", p->n_key);
        for (size_t i = 0; i < p->n_key; i++) {
                size_t len = strcspn(p->key[i], "=");
                writer_strn(w, p->key[i], len);
                writer_str(w, p->key[i] + len + 1);
        }
}

void reply_model(struct writer *w, const struct model_set *group, const struct desired_model *desired)
{
        uint64_t now = now_ns();
        const struct generation *g = model_set_leading(group);
        struct model_size size = model_set_size(group);
        bool failed = g->state == GENERATION_FAILED, tried = desired != NULL && desired_failed(desired);
        bool drains = generation_drains(g);                                          /* then another model is desired */
        bool read = g->state != GENERATION_LOADING && g->stages.ns[STAGE_begin] > 0; /* in this run */
        writer_map(w, 16u + read + failed + (g->published != NULL) + (tried ? count_tries(desired) : 0));
        writer_kstr(w, "name", group->name);
        writer_ku64(w, "generation", g->number);
        reply_digest_bytes(w, "digest", model_set_digest(group));
        reply_source(w, g->source);
        writer_kstr(w, "state", generation_state_name(g->state));
        writer_ku64(w, "bytes", size.bytes);
        writer_ku64(w, "tensors", size.tensors);
        writer_karray(w, "devices", group->n);
        uint64_t leases = 0, last_used_ns = 0;
        for (size_t i = 0; i < group->n; i++) {
                const struct generation *member = group->members[i];
                write_on_device(w, member);
                leases += member->n_leases;
                if (member->last_used_ns > last_used_ns)
                        last_used_ns = member->last_used_ns;
        }
        writer_ku64(w, "leases", leases);
        /* Whether unpin would change something: on any of its devices, or for a desired load. */
        writer_kbool(w, "pinned",
                     model_set_pinned(group) || (desired != NULL && desired->spec->settings.pinned && !drains));
        writer_kstr(w, "tier", g->state == GENERATION_CACHED ? "host" : "device");
        writer_ku64(w, "idle_ns", leases > 0 || now <= last_used_ns ? 0 : now - last_used_ns);
        writer_ku64(w, "keep_alive_ns", g->settings.keep_alive_ns);
        writer_ku64(w, "expires_in_ns", generation_expires_in(g, now));
        writer_ku64(w, "priority", g->settings.priority);
        writer_ku64(w, "load_ns", g->state == GENERATION_LOADING ? 0 : g->load_ns);
        if (read) {
                writer_kmap(w, "stages", STAGE_COUNT);
                for (enum stage stage = 0; stage < STAGE_COUNT; stage++) {
                        char key[32];
                        snprintf(key, sizeof(key), "%s_ns", stage_name(stage));
                        writer_ku64(w, key, g->stages.ns[stage]);
                }
        }
        if (g->published != NULL)
                write_published(w, g);
        if (failed)
                writer_kstr(w, "error", g->error.text);
        if (tried)
                write_tries(w, desired, now);
}

/* ---- show ----
 *
 * With tensors it is a page, by number: `next` says where the following one begins, and is missing from the last. */

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

/* What has become of the models of this name, and one that is resident. */
static int write_ended(struct writer *w, const struct server *server, const struct model_set *group,
                       const struct request *request, struct error *error)
{
        const char *model = request->u.show.model;
        const struct resident *resident = server->resident;
        uint64_t now = now_ns();
        size_t n = 0;
        for (const struct ended *e = NULL; (e = ended_find(&resident->ended, model, e)) != NULL;)
                n++;
        if (group->n == 0 && n == 0)
                return resident_no_model(resident, model, error);
        writer_reply(w, request->id, 2);
        writer_karray(w, "models", group->n > 0);
        if (group->n > 0)
                reply_model(w, group, desired_find(&server->desired, model));
        writer_karray(w, "ended", n);
        for (const struct ended *e = NULL; (e = ended_find(&resident->ended, model, e)) != NULL;) {
                writer_map(w, 5);
                writer_ku64(w, "generation", e->generation);
                writer_kstr(w, "device", e->device);
                writer_kstr(w, "state", end_name(e->reason.end));
                writer_kstr(w, "text", e->reason.text);
                writer_ku64(w, "age_ns", now - e->at_ns);
        }
        return 0;
}

int reply_show(struct writer *w, const struct server *server, const struct request *request, struct error *error)
{
        const struct req_show *req = &request->u.show;
        const struct desired_model *desired = desired_find(&server->desired, req->model);
        struct generation *g = resident_any(server->resident, req->model);
        struct model_set group = {.n = 0};
        if (g != NULL)
                model_set_find(&group, server->resident, req->model, g);
        if (req->ended)
                return write_ended(w, server, &group, request, error);
        if (g == NULL && (req->device != NULL || req->tensors || desired == NULL))
                return resident_no_model(server->resident, req->model, error);
        if (req->device != NULL) {
                const struct device *device = resident_device(server->resident, req->device, NULL);
                g = device != NULL ? model_set_on(&group, device) : NULL;
                if (g == NULL)
                        return error_set(error, STREAMER_ENOENT, "%s: not on device %s", req->model, req->device);
        } else if (g != NULL) {
                g = group.members[0];
        }
        if (req->tensors) {
                if (g->manifest.fd < 0 || g->releasing)
                        return error_set(error, STREAMER_EFAILED, "its tensors are not known (%s)",
                                         generation_state_name(g->state));
                return write_tensors(w, server, &group, g, request, error);
        }
        writer_reply(w, request->id, 1);
        writer_karray(w, "models", 1);
        if (g != NULL)
                reply_model(w, &group, desired);
        else
                reply_desired(w, desired);
        return 0;
}

/* ---- the dry run of a load: what it would need, read and find ---- */

/* Named victims: the list has to fit a reply. */
#define EVICTS_MAX 256

/* The outcome of admission, and the models that would be evicted. */
static void write_outlook(struct writer *w, const struct load_target *target)
{
        static const char *const names[] = {[ADMISSION_FITS] = "fits",
                                            [ADMISSION_PENDING] = "waits",
                                            [ADMISSION_EVICTS] = "evicts",
                                            [ADMISSION_BLOCKED] = "blocked"};
        const struct load *load = target->load;
        struct admission_outlook outlook = {.outcome = ADMISSION_FITS};
        if (!target->resident)
                admission_estimate(load->loads->resident->admission, target->device, load->name, target_needs(target),
                                   !load->request.no_evict, &outlook);
        writer_kstr(w, "admission", names[outlook.outcome]);
        size_t n = outlook.n_victims < EVICTS_MAX ? outlook.n_victims : EVICTS_MAX;
        writer_karray(w, "evicts", n);
        for (size_t i = 0; i < n; i++) {
                const struct generation *g = outlook.victims[i];
                writer_map(w, 3);
                writer_kstr(w, "name", generation_name(g));
                writer_ku64(w, "generation", g->number);
                writer_ku64(w, "bytes", g->charged);
        }
        admission_outlook_deinit(&outlook);
}

static void write_estimate(struct writer *w, const struct load_target *target)
{
        const struct plan *plan = &target->part->resolved.plan;
        uint64_t needed = target_needs(target), unused = device_unused(target->device);
        writer_kstr(w, "device", target->device->name);
        writer_ku64(w, "needed", needed);
        writer_ku64(w, "free", unused);
        writer_ku64(w, "budget", device_budget(target->device));
        writer_kbool(w, "fits", target->resident || needed <= unused);
        writer_ku64(w, "segments", plan->n_segments);
        writer_ku64(w, "blocks", plan->n_blocks);
        writer_ku64(w, "copied_bytes", plan->copied_bytes);
        writer_kbool(w, "resident", target->resident);
        write_outlook(w, target);
}

#define ESTIMATE_FIELDS 11u

void reply_estimate(struct writer *w, const struct load *load, uint64_t id)
{
        bool several = load->n_targets > 1;
        uint64_t files = 0, tensors = 0, bytes = 0;
        /* Replicas are of the same files, ranks each of their own. */
        for (size_t i = 0; i < (load->pattern != NULL ? load->n_targets : 1); i++) {
                const struct resolved *resolved = &load->targets[i].part->resolved;
                files += resolved->set.n_objects;
                tensors += resolved->plan.n_tensors;
                bytes += resolved->plan.bytes;
        }
        writer_reply(w, id, 5 + (several ? 1 : ESTIMATE_FIELDS));
        writer_kstr(w, "name", load->name);
        reply_source(w, load->source);
        writer_ku64(w, "files", files);
        writer_ku64(w, "tensors", tensors);
        writer_ku64(w, "bytes", bytes);
        if (!several) {
                write_estimate(w, &load->targets[0]);
                return;
        }
        writer_karray(w, "devices", load->n_targets);
        load_each_target (t, load) {
                writer_map(w, ESTIMATE_FIELDS);
                write_estimate(w, t);
        }
}
