/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/reply.h"

#include "daemon/resident/expiry.h"

#include <string.h>

void reply_source(struct writer *w, const char *source)
{
        bool url = strncmp(source, "http://", 7) == 0 || strncmp(source, "https://", 8) == 0;
        writer_key(w, "source");
        writer_strn(w, source, url ? strcspn(source, "?") : strlen(source));
}

void reply_digest(struct writer *writer, const char *key, const struct generation *generation)
{
        writer_key(writer, key);
        bool known = generation->state == GENERATION_READY || generation->state == GENERATION_DRAINING ||
                     generation->state == GENERATION_CACHED;
        if (known)
                writer_hex(writer, generation->digest, DIGEST_SIZE);
        else
                writer_str(writer, "");
}

void reply_progress(struct writer *w, const struct load_progress *p)
{
        writer_ku64(w, "generation", p->generation);
        writer_kstr(w, "state", load_state_name(p->state));
        writer_ku64(w, "bytes", p->bytes);
        writer_ku64(w, "total", p->total);
        writer_ku64(w, "tensors", p->tensors);
        writer_ku64(w, "tensors_total", p->tensors_total);
        writer_ku64(w, "elapsed_ns", p->elapsed_ns);
}

static enum page_kind pages_of(const struct generation *g)
{
        bool allocated = g->state == GENERATION_READY || g->state == GENERATION_DRAINING;
        return allocated && g->n_segments > 0 && !g->releasing ? g->segments[0].pages : g->device->pages;
}

static void write_on_device(struct writer *w, const struct generation *g)
{
        bool failed = g->state == GENERATION_FAILED, ranks = g->n_ranks > 0;
        writer_map(w, 7u + failed + ranks);
        writer_kstr(w, "device", g->device->name);
        writer_ku64(w, "bytes", g->charged);
        writer_kstr(w, "page_kind", page_kind_name(pages_of(g)));
        writer_kstr(w, "state", generation_state_name(g->state));
        reply_digest(w, "digest", g);
        writer_ku64(w, "leases", g->n_leases);
        writer_kbool(w, "pinned", group_member_pinned(g));
        if (ranks)
                writer_ku64(w, "rank", g->rank);
        if (failed)
                writer_kstr(w, "error", g->error.text);
}

void reply_group_digest(struct writer *w, const struct group *group)
{
        const unsigned char *digest = group_digest(group);
        writer_key(w, "digest");
        if (digest != NULL)
                writer_hex(w, digest, DIGEST_SIZE);
        else
                writer_str(w, "");
}

static const struct generation *representative(const struct group *group)
{
        for (size_t i = 0; i < group->n; i++)
                if (group->members[i]->state == group_state(group))
                        return group->members[i];
        return group->members[0];
}

static uint64_t count_leases(const struct group *group)
{
        uint64_t n = 0;
        for (size_t i = 0; i < group->n; i++)
                n += group->members[i]->n_leases;
        return n;
}

/* Since the last lease of any of its devices ended. */
static uint64_t idle_ns(const struct group *group, uint64_t now)
{
        uint64_t last = 0;
        for (size_t i = 0; i < group->n; i++)
                if (group->members[i]->last_used_ns > last)
                        last = group->members[i]->last_used_ns;
        return now > last ? now - last : 0;
}

/* Whether there is anything for unpin to end: what is there on any of its devices, or a load to come. */
static bool is_pinned(const struct group *group, const struct wanted *wanted)
{
        bool drains = group_state(group) == GENERATION_DRAINING; /* what is wanted is another model */
        return group_pinned(group) || (wanted != NULL && wanted->pinned && !drains);
}

static void write_tries(struct writer *w, const struct wanted *wanted, uint64_t now)
{
        writer_ku64(w, "tries", wanted->tries);
        if (wanted->retry_at_ns > 0)
                writer_ku64(w, "retry_ns", wanted->retry_at_ns > now ? wanted->retry_at_ns - now : 1);
}

static uint32_t count_tries(const struct wanted *wanted)
{
        return wanted->retry_at_ns > 0 ? 2 : 1;
}

void reply_wanted(struct writer *w, const struct wanted *wanted)
{
        uint64_t now = now_ns();
        writer_map(w, 16u + wanted->failed + (wanted->failed ? count_tries(wanted) : 0));
        writer_kstr(w, "name", wanted->name);
        writer_ku64(w, "generation", 0);
        writer_kstr(w, "digest", "");
        reply_source(w, wanted->source);
        writer_kstr(w, "state", wanted->failed ? "failed" : "queued");
        writer_ku64(w, "bytes", 0);
        writer_ku64(w, "tensors", 0);
        writer_key(w, "devices");
        writer_array(w, 0);
        writer_ku64(w, "leases", 0);
        writer_kbool(w, "pinned", wanted->pinned);
        writer_kstr(w, "tier", "device");
        writer_ku64(w, "idle_ns", 0);
        writer_ku64(w, "keep_alive_ns", 0);
        writer_ku64(w, "expires_in_ns", 0);
        writer_ku64(w, "priority", wanted->priority);
        writer_ku64(w, "load_ns", 0);
        if (wanted->failed) {
                writer_kstr(w, "error", wanted->error);
                write_tries(w, wanted, now);
        }
}

void reply_model(struct writer *w, const struct group *group, const struct wanted *wanted)
{
        uint64_t now = now_ns();
        const struct generation *g = representative(group);
        bool failed = g->state == GENERATION_FAILED, tried = wanted != NULL && wanted->failed;
        writer_map(w, 16u + failed + (tried ? count_tries(wanted) : 0));
        writer_kstr(w, "name", group->name);
        writer_ku64(w, "generation", g->number);
        reply_group_digest(w, group);
        reply_source(w, g->source);
        writer_kstr(w, "state", generation_state_name(g->state));
        writer_ku64(w, "bytes", group_bytes(group));
        writer_ku64(w, "tensors", group_tensors(group));
        writer_key(w, "devices");
        writer_array(w, group->n);
        for (size_t i = 0; i < group->n; i++)
                write_on_device(w, group->members[i]);
        writer_ku64(w, "leases", count_leases(group));
        writer_kbool(w, "pinned", is_pinned(group, wanted));
        writer_kstr(w, "tier", g->state == GENERATION_CACHED ? "host" : "device");
        writer_ku64(w, "idle_ns", count_leases(group) > 0 ? 0 : idle_ns(group, now));
        writer_ku64(w, "keep_alive_ns", g->keep_alive_ns);
        writer_ku64(w, "expires_in_ns", generation_expires_in(g, now));
        writer_ku64(w, "priority", g->priority);
        writer_ku64(w, "load_ns", g->state == GENERATION_LOADING ? 0 : g->load_ns);
        if (failed)
                writer_kstr(w, "error", g->error.text);
        if (tried)
                write_tries(w, wanted, now);
}
