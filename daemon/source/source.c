/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of sources, and what they have in common: a set of objects, an index among them, and
 * whether these are still what they were.
 */
#include "daemon/source/source.h"

#include "daemon/base/hash.h"
#include "daemon/base/shown.h"
#include "daemon/base/util.h"
#include "daemon/source/hub.h"
#include "daemon/source/s3.h"

#include <string.h>

/* In the order in which they are asked: local sources take what no scheme has taken. */
static const struct source_ops *const sources_known[] = {
        &source_web,
        &source_s3,
        &source_hub,
        &source_local,
};

/* ---- by scheme ---- */

static bool has_scheme(const struct source_ops *ops, const char *source)
{
        for (const char *const *scheme = ops->schemes; *scheme != NULL; scheme++)
                if (strncmp(source, *scheme, strlen(*scheme)) == 0)
                        return true;
        return false;
}

static const struct source_ops *ops_of(const char *source)
{
        size_t i = 0;
        while (!has_scheme(sources_known[i], source))
                i++;
        return sources_known[i];
}

int source_canonical(const char *source, char **out, struct error *error)
{
        const struct source_ops *ops = ops_of(source);
        char shown[SHOWN_SOURCE];
        if (ops == &source_local && strncmp(source, "file://", 7) != 0 && source[0] != '/' &&
            strstr(source, "://") != NULL) {
                shown_source(shown, source);
                return error_set(error, STREAMER_EUNSUPPORTED, "%s: no source of this kind is known", shown);
        }
        return ops->canonical(source, out, error);
}

char *source_default_name(const char *canonical)
{
        return ops_of(canonical)->default_name(canonical);
}

uint64_t source_lane(const char *canonical)
{
        return ops_of(canonical)->lane(canonical);
}

bool source_is_local(const char *canonical)
{
        return ops_of(canonical)->local;
}

int source_open(const struct sources *sources, const char *canonical, const struct source_opts *opts,
                struct source_set *set, struct error *error)
{
        *set = (struct source_set){0};
        int r = ops_of(canonical)->open(sources, canonical, opts, set, error);
        if (r < 0)
                source_set_deinit(set);
        return r;
}

/* ---- sets ---- */

int source_set_reserve(struct source_set *set, size_t n, struct error *error)
{
        set->objects = calloc(n, sizeof(*set->objects));
        return set->objects != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}

bool source_set_streamed(const struct source_set *set)
{
        for (size_t i = 0; i < set->n_objects; i++)
                if (object_streamed(&set->objects[i]))
                        return true;
        return false;
}

int source_set_index(struct source_set *set, struct error *error)
{
        const char *path = set->index_object.path;
        struct st_error st;
        if (st_index_parse(&set->index, set->index_text.data, set->index_text.size, &st) < 0)
                return error_set(error, st.rule == ST_NO_MEMORY ? STREAMER_ENOMEM : STREAMER_EFAILED, "%s (%s)",
                                 st.text, path);
        set->has_index = true;
        if (set->index.n_files == 0)
                return error_set(error, STREAMER_EFAILED, "the index names no file (%s)", path);
        if (set->index.n_files > SOURCE_FILES_MAX)
                return error_set(error, STREAMER_EFAILED, "the index names more than %d files (%s)", SOURCE_FILES_MAX,
                                 path);
        return 0;
}

void source_set_deinit(struct source_set *set)
{
        for (size_t i = 0; i < set->n_objects; i++)
                object_deinit(&set->objects[i]);
        free(set->objects);
        if (set->has_index)
                st_index_deinit(&set->index);
        text_deinit(&set->index_text);
        object_deinit(&set->index_object);
        *set = (struct source_set){0};
}

/* ---- versions ---- */

int source_identity(const struct source_set *set, struct source_identity *out, struct error *error)
{
        struct hash *hash = hash_new();
        if (hash == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        for (size_t i = 0; i < set->n_objects; i++)
                set->objects[i].ops->identify(&set->objects[i], hash);
        if (set->has_index)
                set->index_object.ops->identify(&set->index_object, hash);
        hash_final(hash, out->digest);
        hash_free(hash);
        return 0;
}

int source_check(const struct source_set *set, struct error *error)
{
        const struct object **objects = calloc(set->n_objects + 1, sizeof(*objects));
        size_t n = 0;
        if (objects == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        if (set->has_index)
                objects[n++] = &set->index_object;
        for (size_t i = 0; i < set->n_objects; i++)
                objects[n++] = &set->objects[i];
        int r = object_check_versions(objects, n, error);
        free(objects);
        return r;
}
