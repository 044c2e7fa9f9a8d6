/* SPDX-License-Identifier: Apache-2.0
 *
 * The path of a publication, on the loop; the steps run elsewhere. The header draws the states.
 *
 * How it fails: the generation is dropped, and its memory is freed once the client's lease has ended and no step is
 * under way. A publication that has ended stays until then, and is known to nobody.
 */
#include "daemon/publish/publication.h"

#include "daemon/base/util.h"
#include "daemon/base/log/log.h"
#include "daemon/base/metric/metric.h"
#include "daemon/io/http/http.h"
#include "daemon/source/source.h"

#include <inttypes.h>
#include <string.h>

/* ---- states ---- */

static void set_state(struct publication *p, enum publication_state state)
{
#define TO(state) (1u << PUBLICATION_##state)
        static const unsigned allowed[] = {
                [PUBLICATION_CLAIMED] = TO(ADMITTING) | TO(FAILED),
                [PUBLICATION_ADMITTING] = TO(FILLING) | TO(ALLOCATING) | TO(FAILED),
                [PUBLICATION_FILLING] = TO(ADMITTING) | TO(ALLOCATING) | TO(SEALING) | TO(FAILED),
                [PUBLICATION_ALLOCATING] = TO(FILLING) | TO(FAILED),
                [PUBLICATION_SEALING] = TO(CHARGING) | TO(FAILED),
                [PUBLICATION_CHARGING] = TO(HASHING) | TO(FAILED),
                [PUBLICATION_HASHING] = TO(PUBLISHED) | TO(FAILED),
        };
#undef TO
        change_state(p->state, state, allowed);
}

static bool has_ended(const struct publication *p)
{
        return p->state >= PUBLICATION_PUBLISHED;
}

/* ---- the base ---- */

int base_probe_init(struct base_probe *probe, const char *source, const struct caller *caller,
                    struct source_roots *roots)
{
        *probe = (struct base_probe){.source = strdup(source), .caller = *caller, .roots = source_roots_ref(roots)};
        return probe->source != NULL ? 0 : STREAMER_ENOMEM;
}

void base_probe_deinit(struct base_probe *probe)
{
        free(probe->source);
        source_roots_free(probe->roots);
        *probe = (struct base_probe){.source = NULL};
}

void base_probe_run(struct base_probe *probe, const struct sources *sources)
{
        const struct sources below = sources_for(sources, probe->roots, &probe->caller);
        require(probe->roots != NULL);
        struct source_set set;
        probe->error = (struct error){0};
        if (source_open(&below, probe->source, false, &set, &probe->error) == 0) {
                source_identity(&set, &probe->identity);
                probe->has_answers = source_answers(&set, probe->answers);
                source_identity_sample(&set, &probe->identity, &probe->error);
        }
        source_set_deinit(&set);
}

/* ---- life ---- */

void publications_init(struct publications *publications)
{
        long cpus = sysconf(_SC_NPROCESSORS_ONLN);
        publications->hashers = cpus > PUBLICATION_HASHERS ? PUBLICATION_HASHERS : cpus < 1 ? 1 : (unsigned)cpus;
        list_init(&publications->all);
        buckets_init(&publications->by_name);
        publications->last_id = now_ns(); /* no claim of an earlier run has the number of one of this run */
}

struct publication *publications_find(struct publications *publications, const char *name, const struct device *device)
{
        list_each_item (struct publication, p, bucket(&publications->by_name, hash_text(name)), by_name)
                if ((device == NULL || p->device == device) && strcmp(p->name, name) == 0)
                        return p;
        return NULL;
}

struct publication *publication_new(struct publications *publications, const char *name, struct device *device,
                                    const struct caller *caller)
{
        struct publication *p = calloc(1, sizeof(*p));
        require(publications_find(publications, name, device) == NULL);
        if (p == NULL || (p->name = strdup(name)) == NULL ||
            quota_hold(publications->users, caller->uid, &p->claim, QUOTA_CLAIMS, 1) < 0) {
                if (p != NULL)
                        free(p->name);
                free(p);
                return NULL;
        }
        p->caller = *caller;
        p->publications = publications;
        p->id = ++publications->last_id;
        p->device = device;
        p->manifest.fd = -1;
        p->since_ns = now_ns();
        list_init(&p->in_session);
        list_append(&publications->all, &p->link);
        list_append(bucket(&publications->by_name, hash_text(name)), &p->by_name);
        return p;
}

static void publication_free(struct publication *p)
{
        list_remove(&p->in_session);
        table_drop(&p->manifest);
        base_probe_deinit(&p->base);
        if (p->generation != NULL)
                generation_put(p->generation);
        else
                published_free(p->published);
        encryption_free(p->encryption);
        free(p->hashers);
        free(p->name);
        free(p);
}

/* Answers the request that is under way, if any. */
static void answer(struct publication *p, const struct error *error)
{
        static const struct error none = {0};
        publication_done_fn *done = p->done;
        p->done = NULL;
        if (done != NULL)
                done(p, error != NULL ? error : &none, p->context);
}

/* NULL error: it is published. May free it, and with it an error that is part of it. */
static void end(struct publication *p, const struct error *error)
{
        set_state(p, error == NULL ? PUBLICATION_PUBLISHED : PUBLICATION_FAILED);
        list_remove(&p->link);
        list_remove(&p->by_name);
        list_remove(&p->in_session);
        quota_discharge(&p->claim);
        if (p->generation != NULL)
                metric_add_label(METRIC_PUBLICATIONS,
                                 error == NULL                       ? RESULT_READY
                                 : error->code == STREAMER_ECANCELED ? RESULT_CANCELLED
                                                                     : RESULT_FAILED,
                                 1);
        if (p->generation != NULL && error != NULL) {
                log_warn("%s: generation %" PRIu64 " was not published: %s", p->name, p->generation->number,
                         error->text);
                generation_fail_unlisted(p->generation, error);
        }
        answer(p, error);
        p->publications->ended(p);
        if (p->in_flight == 0)
                publication_free(p);
}

void publication_abort(struct publication *p, const struct error *error)
{
        require(!has_ended(p));
        if (p->state == PUBLICATION_ADMITTING || p->state == PUBLICATION_CHARGING)
                admission_withdraw(&p->admission);
        store_relaxed(&p->stop, true);
        end(p, error);
}

bool publications_cancel(struct publications *publications, const char *name)
{
        bool found = false;
        struct error error;
        error_set(&error, STREAMER_ECANCELED, "%s: cancelled", name);
        list_each_item_safe (struct publication, p, &publications->all, link)
                if (p->generation != NULL && strcmp(p->name, name) == 0) {
                        publication_abort(p, &error);
                        found = true;
                }
        return found;
}

void publication_abandon(struct publication *p)
{
        struct error error;
        if (p->state >= PUBLICATION_SEALING) {
                list_remove(&p->in_session);
                return;
        }
        error_set(&error, STREAMER_ECANCELED, "the connection of its publisher was closed before the commit");
        publication_abort(p, &error);
}

/* A step is done. False: it failed, or the publication has ended meanwhile; the publication may be freed. */
static bool step_done(struct publication *p)
{
        p->in_flight--;
        if (!has_ended(p) && p->error.code == 0)
                return true;
        if (!has_ended(p))
                end(p, &p->error);
        else if (p->in_flight == 0)
                publication_free(p);
        return false;
}

static int check_state(const struct publication *p, enum publication_state state, struct error *error)
{
        if (p->done != NULL)
                return error_set(error, STREAMER_EBUSY, "%s: another request of this publication is under way",
                                 p->name);
        if (p->state != state)
                return error_set(error, STREAMER_EINVAL, "%s: the publication %s", p->name,
                                 p->state == PUBLICATION_CLAIMED ? "has not begun" : "has begun already");
        return 0;
}

static void begin_request(struct publication *p, enum publication_state state, publication_done_fn *done, void *context)
{
        set_state(p, state);
        p->done = done;
        p->context = context;
        p->error = (struct error){0};
}

/* ---- begin ---- */

int publication_check_name(struct resident *resident, const char *name, const struct device *device,
                           struct error *error)
{
        const struct generation *g = resident_on(resident, name, GENERATION_READY, device);
        if (g == NULL || g->published != NULL)
                return 0;
        return error_set(error, STREAMER_EBUSY, "%s: a model that was loaded has this name (%s)", name, g->source);
}

/* Of the generation, for what it takes besides what it has been granted. */
static void ask_for(struct publication *p, uint64_t bytes, unsigned priority,
                    void (*answered)(struct admission_request *request, const struct error *error))
{
        p->part = (struct admission_part){p->device, bytes, p->generation};
        p->admission = (struct admission_request){
                .parts = &p->part, .n_parts = 1, .priority = priority, .evict = true, .answered = answered};
        admission_submit(p->publications->loads->resident->admission, &p->admission);
}

static void admitted(struct admission_request *request, const struct error *error)
{
        struct publication *p = container_of(request, struct publication, admission);
        if (error->code != 0) {
                end(p, error);
                return;
        }
        set_state(p, PUBLICATION_FILLING);
        answer(p, NULL);
}

/* So that it can be rounded. */
static int check_bytes(const struct publication *p, uint64_t bytes, struct error *error)
{
        if (bytes > 0 && bytes <= UINT64_MAX - p->device->layout.granularity)
                return 0;
        return error_set(error, STREAMER_EINVAL, "%s: bytes: out of range", p->name);
}

/* Of this device, made as tensors, and called so first: it serves, or leases hold its memory. */
static bool is_kept(const struct publication *p, const struct generation *g)
{
        bool in_memory = g->state == GENERATION_READY || (generation_drains(g) && g->n_leases > 0);
        return in_memory && g->device == p->device && g->published != NULL && g->published->as_tensors &&
               strcmp(generation_name(g), p->name) == 0;
}

/* A process that makes one generation after the other has a fixed footprint, whoever reads them. */
static int check_kept(const struct publication *p, struct error *error)
{
        uint64_t n = 0, oldest = 0;
        unsigned leases = 0;
        resident_each_named(name, p->publications->loads->resident, p->name)
        {
                const struct generation *g = name->generation;
                if (!is_kept(p, g))
                        continue;
                if (n++ == 0) {
                        oldest = g->number;
                        leases = g->n_leases;
                }
        }
        if (n < p->publications->keep)
                return 0;
        return error_set(error, STREAMER_ELIMIT,
                         "%s: %" PRIu64 " generations are in memory (publish.keep: %" PRIu64 "); generation %" PRIu64
                         " has %u lease%s, and the one that serves stays until the next one is ready: let readers copy "
                         "and release, or raise publish.keep",
                         p->name, n, p->publications->keep, oldest, leases, leases == 1 ? "" : "s");
}

/* Charges the client's user. More than the user can have beside the generation that serves is refused for good. */
static int charge_user(const struct publication *p, struct generation *g, uint64_t bytes,
                       const struct quota_limits *limits, struct error *error)
{
        struct quotas *users = p->publications->users;
        const struct generation *serves = resident_on(g->resident, p->name, GENERATION_READY, p->device);
        const uid_t uid = p->caller.uid;
        const uint64_t max = limits->max[QUOTA_BYTES];
        const bool is_own =
                serves != NULL && serves->quota_charge.user != NULL && serves->quota_charge.user->uid == uid;
        const uint64_t stays = is_own ? serves->quota_charge.amount : 0;
        int r = quota_charge(users, uid, &g->quota_charge, QUOTA_BYTES, bytes, limits, error);
        if (r < 0) {
                error->hopeless = stays > max || bytes > max - stays;
                return r;
        }
        r = resident_charge_model(g->resident, p->name, p->device, users, uid, limits, &g->model_charge, error);
        if (r < 0)
                error->hopeless = serves == NULL;
        return r;
}

int publication_begin(struct publication *p, uint64_t bytes, bool as_tensors, const struct model_settings *settings,
                      const struct quota_limits *limits, publication_done_fn *done, void *context, struct error *error)
{
        struct resident *resident = p->publications->loads->resident;
        char source[sizeof(PUBLISHED_SOURCE) + 16];
        int r = check_state(p, PUBLICATION_CLAIMED, error)
                        ?: publication_check_name(resident, p->name, p->device, error)
                        ?: check_bytes(p, bytes, error)
                        ?: as_tensors ? check_kept(p, error) : 0;
        if (r < 0)
                return r;
        const uint64_t rounded = round_up(bytes, plan_segment_unit(&p->device->layout));
        p->published->as_tensors = as_tensors;
        snprintf(source, sizeof(source), PUBLISHED_SOURCE "%u", (unsigned)p->caller.uid);
        struct generation *g = generation_new(resident, p->name, source, p->device, p->caller.uid);
        if (g == NULL)
                return error_no_memory(error);
        r = generation_set_caller(g, &p->caller) < 0 ? error_no_memory(error) : 0;
        r = r ?: charge_user(p, g, rounded, limits, error);
        if (r < 0) {
                generation_discard(g);
                generation_put(g);
                return r;
        }
        model_name_set_settings(g->standing, settings, 0);
        g->published = p->published;
        g->encryption = encryption_ref(p->encryption);
        generation_assign_number(g);
        p->generation = g;
        p->bytes = rounded;
        begin_request(p, PUBLICATION_ADMITTING, done, context);
        ask_for(p, rounded, settings->priority, admitted);
        return 0;
}

/* ---- segments ---- */

static void lend_run(struct work *work)
{
        struct publication *p = container_of(work, struct publication, work);
        struct segment *next = &p->generation->segments[p->generation->n_segments];
        p->device->ops->lend(p->device, next->size, next, &p->error);
}

static void lend_done(struct work *work)
{
        struct publication *p = container_of(work, struct publication, work);
        if (p->error.code == 0)
                p->generation->n_segments++;
        if (!step_done(p))
                return;
        set_state(p, PUBLICATION_FILLING);
        answer(p, NULL);
}

/* Allocates the segment that follows. */
static void lend(struct publication *p)
{
        p->in_flight++;
        work_submit(p->device->thread, WORK_LANE_CPU, &p->work, lend_run, lend_done);
}

static void enlarged(struct admission_request *request, const struct error *error)
{
        struct publication *p = container_of(request, struct publication, admission);
        if (error->code != 0) {
                end(p, error);
                return;
        }
        p->bytes += p->part.bytes;
        set_state(p, PUBLICATION_ALLOCATING);
        lend(p);
}

int publication_add_segment(struct publication *p, uint64_t bytes, const struct quota_limits *limits,
                            publication_done_fn *done, void *context, struct error *error)
{
        struct generation *g = p->generation;
        uint64_t used = 0;
        int r = check_state(p, PUBLICATION_FILLING, error) ?: check_bytes(p, bytes, error);
        if (r < 0)
                return r;
        const uint64_t size = plan_segment_size(&p->device->layout, bytes);
        if (g->n_segments == GENERATION_SEGMENTS)
                return error_set(error, STREAMER_ELIMIT, "%s: a model has %u segments at most", p->name,
                                 GENERATION_SEGMENTS);
        for (unsigned i = 0; i < g->n_segments; i++)
                used += g->segments[i].size;
        require(used <= p->bytes);
        const uint64_t left = p->bytes - used, more = size > left ? size - left : 0;
        if (generation_make_segments(g, g->n_segments + 1) < 0)
                return error_no_memory(error);
        if (more > 0 && (r = quota_raise(&g->quota_charge, more, limits, error)) < 0)
                return r;
        g->segments[g->n_segments] = (struct segment){.size = size};
        begin_request(p, more > 0 ? PUBLICATION_ADMITTING : PUBLICATION_ALLOCATING, done, context);
        if (more > 0)
                ask_for(p, more, g->settings.priority, enlarged);
        else
                lend(p);
        return 0;
}

/* ---- commit ---- */

static void publish(struct publication *p)
{
        struct generation *g = p->generation;
        const struct manifest_view m = table_manifest(&p->manifest);
        g->manifest = p->manifest;
        p->manifest = (struct table){.fd = -1};
        g->data_bytes = m.header->data_bytes;
        g->n_tensors = m.header->n_records;
        memcpy(g->digest, m.header->digest, DIGEST_SIZE);
        g->load_ns = now_ns() - p->since_ns;
        /* A model may have been loaded under the name meanwhile. */
        if (publication_check_name(g->resident, p->name, p->device, &p->error) < 0) {
                end(p, &p->error);
                return;
        }
        char size[SIZE_TEXT];
        log_info("%s: generation %" PRIu64 " published by uid %u: %s in %u segments of %s", p->name, g->number,
                 (unsigned)p->caller.uid, size_text(size, g->data_bytes), g->n_segments, g->device->name);
        generation_ready(g);
        end(p, NULL);
}

/* The last one to end computes the model's digest, which counts if none has failed. */
static void hash_run(struct work *work)
{
        struct hasher *hasher = container_of(work, struct hasher, work);
        struct publication *p = hasher->publication;
        struct manifest_header *header = p->manifest.map;
        int r = digest_job_run(&p->hash, &hasher->error);
        hasher->more = r == DIGEST_MORE;
        if (hasher->more)
                return;
        bool last = __atomic_sub_fetch(&p->n_hashing, 1, __ATOMIC_ACQ_REL) == 0;
        if (last && r == 0)
                hash_model(&p->hash.manifest, header->digest);
}

static void hash_done(struct work *work);

/* The next piece. */
static void hash_next(struct hasher *hasher)
{
        struct publication *p = hasher->publication;
        hasher->work.user = p->user;
        work_submit(p->publications->loads->pool, WORK_LANE_DEVICE(p->device->number), &hasher->work, hash_run,
                    hash_done);
}

static void hash_done(struct work *work)
{
        struct hasher *hasher = container_of(work, struct hasher, work);
        struct publication *p = hasher->publication;
        if (hasher->error.code != 0)
                p->error = hasher->error;
        if (hasher->more && p->error.code == 0 && !has_ended(p)) {
                hash_next(hasher);
                return;
        }
        if (p->in_flight > 1)
                p->in_flight--;
        else if (step_done(p))
                publish(p);
}

/* Of a segment that is sealed already nothing is done. */
static void seal_run(struct work *work)
{
        struct publication *p = container_of(work, struct publication, work);
        struct generation *g = p->generation;
        for (unsigned i = 0; i < g->n_segments && !load_relaxed(&p->stop); i++)
                if (g->device->ops->seal != NULL && g->device->ops->seal(&g->segments[i], &p->error) < 0)
                        return;
        published_manifest_build(&p->manifest, g->published, g->segments, g->n_segments, &p->table, &p->stop,
                                 &p->error);
}

static void charged(struct admission_request *request, const struct error *error)
{
        struct publication *p = container_of(request, struct publication, admission);
        struct publications *publications = p->publications;
        struct manifest_header *header = p->manifest.map;
        if (error->code == 0)
                p->hashers = calloc(publications->hashers, sizeof(*p->hashers));
        if (error->code != 0 || p->hashers == NULL) {
                p->error = *error;
                if (error->code == 0)
                        error_no_memory(&p->error);
                end(p, &p->error);
                return;
        }
        header->generation = p->generation->number;
        p->hash = (struct digest_job){.generation = p->generation,
                                      .manifest = table_manifest(&p->manifest),
                                      .reader = publications->loads->reader,
                                      .stop = &p->stop,
                                      .records = (void *)((unsigned char *)header + header->records_off)};
        set_state(p, PUBLICATION_HASHING);
        p->in_flight = p->n_hashing = publications->hashers;
        for (unsigned i = 0; i < publications->hashers; i++) {
                p->hashers[i] = (struct hasher){.publication = p};
                hash_next(&p->hashers[i]);
        }
}

static void seal_done(struct work *work)
{
        struct publication *p = container_of(work, struct publication, work);
        if (!step_done(p))
                return;
        uint64_t bytes = generation_needs(NULL, 0, p->manifest.size);
        set_state(p, PUBLICATION_CHARGING);
        if (quota_raise(&p->generation->quota_charge, bytes, &p->limits, &p->error) < 0)
                end(p, &p->error);
        else
                ask_for(p, bytes, p->generation->settings.priority, charged);
}

static void seal(struct publication *p)
{
        p->in_flight++;
        p->work.user = p->user;
        work_submit(p->publications->loads->pool, WORK_LANE_DEVICE(p->device->number), &p->work, seal_run, seal_done);
}

/* The files of the base have not changed since the claim. */
static void check_run(struct work *work)
{
        struct publication *p = container_of(work, struct publication, work);
        const struct published_base *base = &p->published->base;
        if (load_relaxed(&p->stop))
                return;
        http_reuse_begin(&p->stop);
        base_probe_run(&p->base, p->publications->loads->sources);
        http_reuse_end();
        if (p->base.error.code != 0)
                error_set(&p->error, STREAMER_EFAILED, "%s: its base cannot be checked: %s", p->name,
                          p->base.error.text);
        else if (memcmp(&p->base.identity, &base->identity, sizeof(base->identity)) != 0)
                error_set(&p->error, STREAMER_EFAILED, "%s: its base has changed since (%s)", p->name, base->source);
}

static void check_done(struct work *work)
{
        struct publication *p = container_of(work, struct publication, work);
        if (step_done(p))
                seal(p);
}

int publication_commit(struct publication *p, const struct published_storage *table, const struct quota_limits *limits,
                       publication_done_fn *done, void *context, struct error *error)
{
        int r = check_state(p, PUBLICATION_FILLING, error);
        if (r < 0)
                return r;
        p->table = *table;
        p->limits = *limits;
        begin_request(p, PUBLICATION_SEALING, done, context);
        if (p->base.source == NULL) {
                seal(p);
                return 0;
        }
        p->in_flight++;
        p->work.user = p->user;
        work_submit_routed(p->publications->loads->pool, source_lane, p->base.source, &p->work, check_run, check_done);
        return 0;
}

void publications_stop(struct publications *publications)
{
        struct error error;
        error_set(&error, STREAMER_ECANCELED, "the daemon ends");
        list_each_item_safe (struct publication, p, &publications->all, link)
                publication_abort(p, &error);
}
