/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/publish/base_check.h"

#include "daemon/io/http/http.h"
#include "daemon/load/content/resolve.h"

#include <string.h>

struct base_check *base_check_new(struct work_pool *pool, const struct sources *sources)
{
        struct base_check *check = calloc(1, sizeof(*check));
        if (check == NULL)
                return NULL;
        check->pool = pool;
        check->sources = sources;
        return check;
}

struct base_check *base_check_free(struct base_check *check)
{
        for (size_t i = 0; check != NULL && i < BASE_PROBES; i++) {
                free(check->probes[i].source);
                source_roots_free(check->probes[i].roots);
        }
        free(check);
        return NULL;
}

int base_check_add(struct base_check *check, size_t probe, const char *source, const struct caller *caller,
                   struct source_roots *roots)
{
        struct base_probe *p = &check->probes[probe];
        p->source = strdup(source);
        p->caller = *caller;
        p->roots = source_roots_ref(roots);
        return p->source != NULL ? 0 : STREAMER_ENOMEM;
}

static void check_next(struct base_check *check);

static void open_run(struct work *work)
{
        struct base_check *check = container_of(work, struct base_check, work);
        struct base_probe *p = &check->probes[check->at];
        struct sources sources = *check->sources;
        struct resolved resolved;
        if (p->roots != NULL)
                sources.roots = p->roots;
        bool local = source_is_local(p->source);
        if (!local)
                http_reuse_begin(&check->given_up);
        if (resolve_open(&resolved, &sources, p->source, &p->caller, false, &p->error) == 0)
                source_identity(&resolved.set, &p->identity, &p->error);
        if (!local)
                http_reuse_end();
        resolve_deinit(&resolved);
}

static void open_done(struct work *work)
{
        struct base_check *check = container_of(work, struct base_check, work);
        check->at++;
        check_next(check);
}

static void lane_run(struct work *work)
{
        struct base_check *check = container_of(work, struct base_check, work);
        struct base_probe *p = &check->probes[check->at];
        p->lane = source_lane(p->source);
}

static void lane_done(struct work *work)
{
        struct base_check *check = container_of(work, struct base_check, work);
        if (check->wanted(check))
                work_submit(check->pool, check->probes[check->at].lane, work, open_run, open_done);
        else
                check->done(check);
}

/* Posted through the pool even where nothing is to be checked: done() never runs inside the call that started it. */
static void nothing_run(struct work *work)
{
        (void)work;
}

static void nothing_done(struct work *work)
{
        struct base_check *check = container_of(work, struct base_check, work);
        check->done(check);
}

static void check_next(struct base_check *check)
{
        while (check->at < BASE_PROBES && check->probes[check->at].source == NULL)
                check->at++;
        if (check->at < BASE_PROBES && check->wanted(check))
                work_submit(check->pool, WORK_LANE_INSPECT, &check->work, lane_run, lane_done);
        else
                check->done(check);
}

void base_check_start(struct base_check *check, void (*done)(struct base_check *),
                      bool (*wanted)(const struct base_check *), void *context)
{
        check->done = done;
        check->wanted = wanted;
        check->context = context;
        check->at = 0;
        for (size_t i = 0; i < BASE_PROBES; i++)
                if (check->probes[i].source != NULL) {
                        check_next(check);
                        return;
                }
        work_submit(check->pool, WORK_LANE_CPU, &check->work, nothing_run, nothing_done);
}
