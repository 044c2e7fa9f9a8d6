/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets: what all sources have in common, namely their objects, an index among these, and the check whether
 * they have changed.
 */
#include "daemon/source/source.h"

#include "daemon/base/hash.h"
#include "daemon/base/util.h"

#include <string.h>

/* ---- sets ---- */

int source_set_reserve(struct source_set *set, size_t n, struct error *error)
{
        set->objects = calloc(n, sizeof(*set->objects));
        return set->objects != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
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
