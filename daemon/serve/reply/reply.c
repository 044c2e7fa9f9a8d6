/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/reply/reply.h"

#include "daemon/base/text/secret.h"
#include "daemon/device/cuda/cuda.h"

#include <string.h>

struct pair reply_source(const char *source)
{
        bool url = source[0] == 'h' && (strncmp(source, "http://", 7) == 0 || strncmp(source, "https://", 8) == 0);
        return kstrn("source", source, url ? strcspn(source, "?") : SIZE_MAX);
}

struct pair reply_digest_bytes(const char *key, const unsigned char *digest)
{
        return digest != NULL ? khex(key, digest, DIGEST_SIZE) : kstr(key, "");
}

struct pair reply_digest(const struct generation *g)
{
        bool known = g->state == GENERATION_READY || generation_drains(g) || g->state == GENERATION_CACHED;
        return reply_digest_bytes("digest", known ? g->digest : NULL);
}

void reply_ring(struct writer *w, const void *data)
{
        static const char *const pinned[] = {
                [RING_NOT_PINNED] = "no", [RING_PINNED] = "yes", [RING_PIN_REFUSED] = "refused"};
        struct reader *reader = ((const struct server *)data)->loads->reader;
        struct reader_usage usage;
        char numa[256];
        reader_usage(reader, &usage);
        writer_map_of(w, ku64("bytes", reader->staging.bytes), kstr("page_kind", page_kind_name(reader->staging.pages)),
                      kstr("pinned", pinned[load_relaxed(&reader->staging.pinned)]),
                      ku64("threads", reader->engines[READ_PREAD].base), ku64("stuck", usage.stuck_threads),
                      kstr("numa", numa_text(&reader->opts.numa, numa, sizeof(numa))));
}

/* ---- models ---- */

static void write_member(struct writer *w, const void *data, size_t i)
{
        const struct model_set *set = data;
        const struct generation *g = set->members[i];
        bool allocated = (g->state == GENERATION_READY || generation_drains(g)) && g->n_segments > 0;
        uint64_t small = generation_small_page_bytes(g);
        writer_map_of(
                w, kstr("device", g->device->name), ku64("bytes", g->charged),
                kstr("page_kind", page_kind_name(allocated && !g->releasing ? g->segments[0].pages : g->device->pages)),
                kif(small > 0, ku64("small_page_bytes", small)), kstr("state", generation_listed_state(g)),
                reply_digest(g), ku64("leases", g->n_leases), kbool("pinned", model_set_member_pinned(set, g)),
                kif(g->n_ranks > 0, ku64("rank", g->rank)),
                kif(g->state == GENERATION_FAILED, kstr("error", generation_error(g)->text)));
}

static void write_stages(struct writer *w, const void *data)
{
        const struct generation *g = data;
        writer_map(w, STAGE_COUNT);
        for (enum stage stage = 0; stage < STAGE_COUNT; stage++)
                writer_ku64(w, stage_key(stage), g->stages.ns[stage]);
}

static void write_key(struct writer *w, const void *data)
{
        const struct published *p = data;
        writer_map(w, p->n_key);
        for (size_t i = 0; i < p->n_key; i++) {
                size_t len = strcspn(p->key[i], "=");
                writer_strn(w, p->key[i], len);
                writer_str(w, p->key[i] + len + 1);
        }
}

static void write_published(struct writer *w, const void *data)
{
        const struct generation *g = data;
        const struct published_base *base = &g->published->base;
        char shown[REDACTED_SOURCE];
        if (base->source != NULL)
                redact_source(shown, base->source);
        writer_map_of(w, ku64("uid", g->caller->uid), kstr("base", base->source != NULL ? shown : NULL),
                      kif(base->has_digest, reply_digest_bytes("base_digest", base->digest)),
                      kcall("key", write_key, g->published));
}

void reply_text(struct writer *w, const void *texts, size_t i)
{
        writer_str(w, ((char *const *)texts)[i]);
}

void reply_encryption(struct writer *w, const void *data)
{
        const struct encryption *e = data;
        writer_map_of(w, kstr("cipher", e->cipher), karray("keys", reply_text, e->keys, e->n_keys),
                      kstr("signer", e->signer));
}

/* The name of the set. A generation that drains is listed under the last name that it had. */
static const struct model_name *name_of(const struct generation *g, const char *name)
{
        const struct model_name *known = generation_find_name(g, name);
        if (known != NULL)
                return known;
        require(g->last_name != NULL && strcmp(g->last_name->text, name) == 0);
        return g->last_name;
}

const struct source_notes reply_no_notes;

const struct source_notes *reply_notes(const struct generation *g)
{
        return g != NULL && g->notes != NULL ? g->notes : &reply_no_notes;
}

void reply_model(struct writer *w, const struct model_set *group, const struct desired_model *desired,
                 const struct source_notes *notes)
{
        static const struct generation absent; /* for the values of a model of which nothing is resident */
        uint64_t now = now_ns(), leases = 0, last_used_ns = 0;
        bool resident = group->n > 0, tried = desired != NULL && desired_failed(desired);
        const struct generation *g = resident ? model_set_leading(group) : &absent;
        const struct model_name *name = resident ? name_of(g, group->name) : NULL;
        const struct model_settings *settings = resident ? &name->settings : &desired->spec.settings;
        const struct model_size size = model_set_size(group);
        bool failed = resident ? g->state == GENERATION_FAILED : tried;
        bool read = g->state != GENERATION_LOADING && g->stages.ns[STAGE_begin] > 0; /* in this run */
        /* Whether unpin would change something: on any of its devices, or for a desired load. One that drains has lost
         * its name, which another model is desired under. */
        bool pinned =
                model_set_pinned(group) || (desired != NULL && desired->spec.settings.pinned && !generation_drains(g));
        for (size_t i = 0; i < group->n; i++) {
                leases += group->members[i]->n_leases;
                if (group->members[i]->last_used_ns > last_used_ns)
                        last_used_ns = group->members[i]->last_used_ns;
        }
        bool idle = resident && leases == 0 && now > last_used_ns;
        writer_map_of(w, kstr("name", group->name), ku64("generation", g->number),
                      reply_digest_bytes("digest", model_set_digest(group)),
                      reply_source(resident ? model_name_source(name) : desired->spec.source),
                      kstr("state", resident ? generation_listed_state(g)
                                    : failed ? "failed"
                                             : "queued"),
                      ku64("bytes", size.bytes), ku64("tensors", size.tensors),
                      karray("devices", write_member, group, group->n), ku64("leases", leases), kbool("pinned", pinned),
                      kstr("tier", g->state == GENERATION_CACHED ? "host" : "device"),
                      ku64("idle_ns", idle ? now - last_used_ns : 0), ku64("keep_alive_ns", settings->keep_alive_ns),
                      ku64("expires_in_ns", generation_expires_in(g, now)),
                      ku64("priority", resident ? settings->priority : desired_priority(desired)),
                      ku64("load_ns", g->state == GENERATION_LOADING ? 0 : g->load_ns),
                      kif(read, kcall("stages", write_stages, g)),
                      kif(g->origin != ORIGIN_UNKNOWN, kstr("from", model_origin_name(g->origin))),
                      kif(g->stale, kbool("stale", true)),
                      kif(g->published != NULL, kcall("published", write_published, g)),
                      kif(g->encryption != NULL, kcall("encryption", reply_encryption, g->encryption)),
                      kif(failed, kstr("error", resident ? generation_error(g)->text : desired->error.text)),
                      kif(tried, ku64("tries", desired->attempts)),
                      kif(tried && desired->retry_at_ns > 0,
                          ku64("retry_in_ns", desired->retry_at_ns > now ? desired->retry_at_ns - now : 1)),
                      REPLY_NOTES(notes));
}
