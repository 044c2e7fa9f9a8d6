/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/disk/disk_local.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/io/file/file_object.h"
#include "daemon/io/file/file_version.h"

#include <inttypes.h>
#include <openssl/evp.h>

#define SAMPLED_AS 4u /* a file's sample is as large as if its source had so many files, however many it has */

struct disk_local {
        unsigned char id[DISK_ID_SIZE], place[DISK_ID_SIZE];
        char *version; /* for people */
};

/* ---- operations ---- */

static int local_read_ranges(const struct object_range *ranges, size_t n, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < n; i++) {
                const struct object_range *range = &ranges[i];
                const struct object_copy *copy = range->object->copy;
                if (copy != NULL && range->offset + range->len <= copy->header)
                        memcpy(range->to, copy->first + range->offset, range->len);
                else
                        r = object_file_ops.read_ranges(range, 1, error);
        }
        return r;
}

static int local_check_versions(const struct object *const *objects, size_t n, struct error *error)
{
        return object_file_ops.check_versions(objects, n, error);
}

static bool local_label(const struct object *object, struct object_label *label)
{
        const struct disk_local *local = object->local;
        *label = (struct object_label){.etag = local->version};
        memcpy(label->id, local->id, DISK_ID_SIZE);
        memcpy(label->place, local->place, DISK_ID_SIZE);
        return object->version.size > 0;
}

static void local_free(struct disk_local *local)
{
        free(local->version);
        free(local);
}

static void local_deinit(struct object *object)
{
        object_file_ops.deinit(object);
        local_free(object->local);
}

static const struct object_ops object_local_ops = {
        .engine = READ_PREAD,
        .read_ranges = local_read_ranges,
        .check_versions = local_check_versions,
        .identify = file_version_identify,
        .sample = file_version_sample,
        .label = local_label,
        .deinit = local_deinit,
};

/* ---- opening ---- */

static bool is_below(const char *path, const char *const *folders, size_t n)
{
        for (size_t i = 0; i < n; i++) {
                size_t len = trimmed_len(folders[i], '/');
                if (strncmp(path, folders[i], len) == 0 && path[len] == '/')
                        return true;
        }
        return false;
}

/* Of the file's bytes, where its times do not suffice; else "". */
static int read_sample(const struct object *object, char text[2 * DIGEST_SIZE + 1], struct error *error)
{
        struct hash hash;
        unsigned char digest[DIGEST_SIZE];
        text[0] = '\0';
        if (file_version_is_durable(&object->version))
                return 0;
        hash_init(&hash);
        int r = file_version_sample(object, SAMPLED_AS, &hash, error);
        if (r < 0)
                return r;
        hash_final(&hash, digest);
        hex_encode(text, digest, DIGEST_SIZE);
        return 0;
}

static bool sha256_of(unsigned char out[DISK_ID_SIZE], const char *text)
{
        return EVP_Digest(text, strlen(text), out, NULL, EVP_sha256(), NULL) == 1;
}

static int identify(struct disk_local *local, const struct object *object, const char *path, struct error *error)
{
        const struct object_version *v = &object->version;
        char sample[2 * DIGEST_SIZE + 1];
        int r = read_sample(object, sample, error);
        if (r < 0)
                return r;
        /* Inode numbers that a file system makes up are no part of it. */
        local->version = format_new("%" PRIx64 "-%" PRIx64 "-%" PRIx64 "-%" PRIx64 "%s%s", v->place == 0 ? v->ino : 0,
                                    v->size, v->mtime_ns, v->ctime_ns, sample[0] != '\0' ? "-" : "", sample);
        cleanup_free char *place = format_new("file:%s", path);
        cleanup_free char *id =
                place != NULL && local->version != NULL ? format_new("%s\n%s", place, local->version) : NULL;
        bool ok = id != NULL && sha256_of(local->place, place) && sha256_of(local->id, id);
        return ok ? 0 : error_no_memory(error);
}

/* A folder that is named by a link, or has links that lead out of it. Said once. */
static void warn_of_link(const char *named, const char *path)
{
        static bool said;
        if (!__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
                log_warn("disk cache: %s: not stored: a link leads to %s, and disk_cache.also names no folder there",
                         named, path);
}

int disk_local_init(struct object *object, struct disk_cache *cache, const char *const *folders, size_t n_folders,
                    struct error *error)
{
        require(object->ops == &object_file_ops && object->copy == NULL);
        cleanup_free char *path = file_version_path(object->fd, object->path);
        if (path == NULL)
                return error_no_memory(error);
        if (!is_below(path, folders, n_folders)) {
                if (is_below(object->path, folders, n_folders))
                        warn_of_link(object->path, path);
                return 0;
        }
        struct disk_local *local = calloc(1, sizeof(*local));
        if (local == NULL)
                return error_no_memory(error);
        int r = identify(local, object, path, error);
        if (r < 0) {
                local_free(local);
                return r;
        }
        object->local = local;
        object->ops = &object_local_ops;
        object->copy =
                object->version.size > 0 ? disk_cache_open(cache, local->id, object->version.size, object->path) : NULL;
        if (object->copy != NULL)
                object->first_read = object->copy->header;
        return 0;
}
