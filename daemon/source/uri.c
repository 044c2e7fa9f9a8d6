/* SPDX-License-Identifier: Apache-2.0
 *
 * URIs: the table of sources, which are selected by scheme.
 */
#include "daemon/base/hash.h"
#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/http/http.h"
#include "daemon/source/listing.h"
#include "daemon/io/disk/disk_cache.h"
#include "daemon/source/roots/caller.h"
#include "daemon/source/source.h"
#include "daemon/source/stored.h"

#include <ctype.h>
#include <strings.h>

/* In this order. The last one accepts every text: a source without a scheme is local. */
static const struct source_ops *const sources_known[] = {
        &source_probe, &source_web, &source_s3, &source_gcs, &source_azure, &source_hf, &source_local,
};

/* In any case, as in all URIs. */
static const struct source_ops *find_ops(const char *source, size_t *scheme_len)
{
        for (size_t i = 0;; i++)
                for (const char *const *scheme = sources_known[i]->schemes; *scheme != NULL; scheme++) {
                        *scheme_len = strlen(*scheme);
                        if (strncasecmp(source, *scheme, *scheme_len) == 0)
                                return sources_known[i];
                }
}

static const struct source_ops *ops_of(const char *source)
{
        size_t ignored;
        return find_ops(source, &ignored);
}

/* The kinds and all comparisons expect a scheme in small letters. */
int source_canonical(const char *source, char **out, struct error *error)
{
        size_t scheme_len;
        const struct source_ops *ops = find_ops(source, &scheme_len);
        cleanup_free char *text = strdup(source);
        if (text == NULL)
                return error_no_memory(error);
        for (size_t i = 0; i < scheme_len; i++)
                text[i] = (char)tolower((unsigned char)text[i]);
        return ops->canonical(text, out, error);
}

bool source_same(const char *a, const char *b)
{
        if (ops_of(a) != &source_web || ops_of(b) != &source_web)
                return strcmp(a, b) == 0;
        cleanup_free char *x = http_url_without_signature(a);
        cleanup_free char *y = http_url_without_signature(b);
        return x != NULL && y != NULL && strcmp(x, y) == 0;
}

char *source_default_name(const char *canonical, unsigned n)
{
        return ops_of(canonical)->default_name(canonical, n);
}

uint64_t source_lane(const char *canonical)
{
        const struct source_ops *ops = ops_of(canonical);
        if (ops->lane != NULL || ops->fixed_lane != 0)
                return ops->lane != NULL ? ops->lane(canonical) : ops->fixed_lane;
        const char *host = strstr(canonical, "://") + 3;
        unsigned char digest[DIGEST_SIZE];
        uint64_t lane;
        hash_bytes(canonical, (size_t)(host - canonical) + strcspn(host, "/"), digest);
        memcpy(&lane, digest, sizeof(lane));
        return lane | WORK_LANE_REMOTE;
}

bool source_lane_known(const char *canonical, uint64_t *lane)
{
        const struct source_ops *ops = ops_of(canonical);
        if (ops->known_lane != NULL)
                return ops->known_lane(canonical, lane);
        *lane = source_lane(canonical);
        return true;
}

bool source_is_local(const char *canonical)
{
        return ops_of(canonical) == &source_local;
}

char *source_file_uri(const char *canonical, const char *name)
{
        const struct source_ops *ops = ops_of(canonical);
        return ops->file_uri != NULL ? ops->file_uri(canonical, name) : NULL;
}

bool source_is_test(const char *canonical)
{
        return ops_of(canonical) == &source_probe;
}

bool source_has_query(const char *canonical)
{
        return ops_of(canonical) == &source_web && strchr(canonical, '?') != NULL;
}

char *source_without_query(const char *canonical)
{
        return source_has_query(canonical) ? strndup(canonical, strcspn(canonical, "?")) : strdup(canonical);
}

char *source_stored_prefix(const char *canonical)
{
        const struct source_ops *ops = ops_of(canonical);
        const char *at = strchr(canonical, '@');
        size_t len = source_folder_len(canonical);
        if (ops == &source_hf && at != NULL)
                len = (size_t)(at + 1 - canonical);
        else if (ops == &source_web)
                len = (size_t)((const char *)memrchr(canonical, '/', strcspn(canonical, "?")) + 1 - canonical);
        return strndup(canonical, len);
}

static int assume(const struct source_ops *ops, const struct sources *sources, struct assumed *assumed,
                  struct error *error)
{
        return ops == &source_local && sources->caller != NULL ? caller_assume(sources->caller, assumed, error) : 0;
}

void source_reach_deinit(struct source_reach *reach)
{
        http_access_unref(reach->access);
        free(reach->url);
        *reach = (struct source_reach){.access = NULL};
}

/* Nothing where the settings are wrong: then the store is not asked at all. */
static void find_reach(const struct source_ops *ops, const struct sources *sources, const char *canonical,
                       struct source_reach *reach)
{
        struct error ignored;
        if (ops->reach != NULL && ops->reach(sources, canonical, reach, &ignored) < 0)
                source_reach_deinit(reach);
}

/* Without the store, which cannot be asked, as `error` says. A refusal takes the error's place. */
static bool open_offline(const struct source_ops *ops, const struct sources *sources, const char *canonical,
                         struct source_set *set, struct error *error)
{
        cleanup_with(source_reach_deinit) struct source_reach reach = {.access = NULL};
        struct error refusal;
        require(error->unreachable);
        find_reach(ops, sources, canonical, &reach);
        if (!source_open_stored(sources, canonical, &reach, set))
                return false;
        if (source_ask(set, &reach, &refusal) < 0) {
                source_set_deinit(set);
                *error = refusal;
                return false;
        }
        set->stale = true;
        return true;
}

int source_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                struct error *error)
{
        const struct source_ops *ops = ops_of(canonical);
        cleanup_with(caller_drop) struct assumed assumed = {.ids = IDS_OWN};
        *set = (struct source_set){0};
        bool may_be_stored = !want_sha256 && sources->disk != NULL; /* digests that are published are not stored */
        if (may_be_stored && ops->is_fixed != NULL && ops->is_fixed(canonical)) {
                cleanup_with(source_reach_deinit) struct source_reach reach = {.access = NULL};
                find_reach(ops, sources, canonical, &reach);
                if (source_open_stored(sources, canonical, &reach, set))
                        return 0;
        }
        int r = assume(ops, sources, &assumed, error) ?: ops->open(sources, canonical, want_sha256, set, error);
        if (r == 0)
                return 0;
        source_set_deinit(set);
        if (!may_be_stored || !error->unreachable || !disk_cache_serves_offline(sources->disk) ||
            !open_offline(ops, sources, canonical, set, error))
                return error->code;
        log_warn("the store cannot be asked, and what the disk cache has of the source is used, which may be stale: %s",
                 error->text);
        *error = (struct error){.code = 0};
        return 0;
}

char *source_sidecar_uri(const char *canonical, const char *name)
{
        const struct source_ops *ops = ops_of(canonical);
        return ops->sidecar_uri != NULL ? ops->sidecar_uri(canonical, name) : strdup(canonical);
}

int source_list_sidecars(const struct sources *sources, const char *canonical, bool weights, struct listing *list,
                         struct error *error)
{
        const struct source_ops *ops = ops_of(canonical);
        cleanup_with(caller_drop) struct assumed assumed = {.ids = IDS_OWN};
        *list = (struct listing){.shown = canonical, .sidecars = true, .weights = weights};
        int r = assume(ops, sources, &assumed, error);
        if (r == 0 && ops->list_sidecars != NULL)
                r = ops->list_sidecars(sources, canonical, list, error);
        listing_sort(list);
        return r;
}

int source_open_sidecar(const struct sources *sources, const char *canonical, const char *name, struct object *object,
                        struct error *error)
{
        const struct source_ops *ops = ops_of(canonical);
        cleanup_with(caller_drop) struct assumed assumed = {.ids = IDS_OWN};
        *object = (struct object){.ops = NULL};
        int r = assume(ops, sources, &assumed, error) ?: sidecar_check_name(name, error);
        if (r == 0)
                r = ops->open_sidecar != NULL ? ops->open_sidecar(sources, canonical, name, object, error)
                                              : error_set(error, STREAMER_ENOENT, "%s has no file %s", canonical, name);
        if (r < 0)
                object_deinit(object);
        return r;
}
