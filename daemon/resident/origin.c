/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/origin.h"

#include "daemon/base/util.h"
#include "proto/codes.h"

#include <string.h>

int origin_init(struct origin *origin, uid_t uid, gid_t gid, const gid_t *groups, size_t n_groups, const char *pattern)
{
        *origin = (struct origin){.uid = uid, .gid = gid};
        origin->groups = calloc(n_groups + 1, sizeof(*groups));
        origin->pattern = pattern != NULL ? strdup(pattern) : NULL;
        if (origin->groups == NULL || !origin->pattern != !pattern) {
                origin_deinit(origin);
                return STREAMER_ENOMEM;
        }
        for (size_t i = 0; i < n_groups; i++)
                origin->groups[i] = groups[i];
        origin->n_groups = n_groups;
        return 0;
}

void origin_deinit(struct origin *origin)
{
        free(origin->groups);
        free(origin->pattern);
        *origin = (struct origin){0};
}

void origin_write(struct writer *w, const struct origin *origin)
{
        writer_map(w, 4);
        writer_ku64(w, "uid", origin->uid);
        writer_ku64(w, "gid", origin->gid);
        writer_key(w, "groups");
        writer_array(w, origin->n_groups);
        for (size_t i = 0; i < origin->n_groups; i++)
                writer_u64(w, origin->groups[i]);
        writer_kstr(w, "pattern", origin->pattern != NULL ? origin->pattern : "");
}

static bool read_groups(const msgpack_object *o, gid_t groups[ORIGIN_GROUPS], size_t *n)
{
        const msgpack_object *list = object_get(o, "groups");
        if (list == NULL || list->type != MSGPACK_OBJECT_ARRAY || list->via.array.size > ORIGIN_GROUPS)
                return false;
        for (uint32_t i = 0; i < list->via.array.size; i++) {
                const msgpack_object *item = &list->via.array.ptr[i];
                if (item->type != MSGPACK_OBJECT_POSITIVE_INTEGER || item->via.u64 >= UINT32_MAX)
                        return false;
                groups[i] = (gid_t)item->via.u64;
        }
        *n = list->via.array.size;
        return true;
}

int origin_read(struct origin *origin, const msgpack_object *o)
{
        uint64_t uid, gid;
        gid_t groups[ORIGIN_GROUPS];
        const char *pattern;
        size_t n, len;
        *origin = (struct origin){0};
        /* The highest is no user and no group: a call that takes it leaves things as they are. */
        if (o == NULL || !object_u64(o, "uid", &uid) || !object_u64(o, "gid", &gid) || uid >= UINT32_MAX ||
            gid >= UINT32_MAX || !read_groups(o, groups, &n) || !object_str(o, "pattern", &pattern, &len))
                return -1;
        cleanup_free char *text = len > 0 ? strndup(pattern, len) : NULL;
        return origin_init(origin, (uid_t)uid, (gid_t)gid, groups, n, text) == 0 ? 0 : -1;
}
