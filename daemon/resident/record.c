/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing: into a memfd by write(), so that no writable map stands in the way of F_SEAL_WRITE; then
 * the seals; then it is opened again for reading, since kernels before 6.7 refuse shared maps of a
 * write-sealed descriptor that is open for writing.
 *
 * Reading trusts nothing but a record that is sealed and whose checksum fits: it may be of another
 * version, or somebody else's descriptor under our name.
 */
#include "daemon/resident/record.h"

#include "daemon/base/log.h"
#include "proto/codec.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC "strmrec1"
#define VERSION 1u
#define DETAILS_MAX MiB
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

struct foot {
        char magic[8];
        uint32_t version, reserved;
        uint64_t manifest_size, details_size;
        unsigned char checksum[DIGEST_SIZE];
};

/* ---- the record itself ---- */

int record_of(struct record *record, const struct generation *g, uint64_t id)
{
        *record = (struct record){.id = id,
                                  .number = g->number,
                                  .name = strdup(generation_name(g)),
                                  .source = strdup(g->source),
                                  .identity = g->identity,
                                  .has_identity = g->has_identity,
                                  .verified = g->verified,
                                  .data_bytes = g->data_bytes,
                                  .n_tensors = g->n_tensors,
                                  .load_ns = g->load_ns,
                                  .charged = g->charged,
                                  .n_segments = g->n_segments};
        const struct origin *o = &g->origin;
        if (record->name == NULL || record->source == NULL ||
            origin_init(&record->origin, o->uid, o->gid, o->groups, o->n_groups, NULL) < 0) {
                record_deinit(record);
                return STREAMER_ENOMEM;
        }
        snprintf(record->device, sizeof(record->device), "%s", g->device->uuid);
        memcpy(record->digest, g->digest, DIGEST_SIZE);
        for (unsigned i = 0; i < g->n_segments; i++) {
                record->sizes[i] = g->segments[i].size;
                record->pages[i] = g->segments[i].pages;
        }
        return 0;
}

void record_deinit(struct record *record)
{
        origin_deinit(&record->origin);
        free(record->name);
        free(record->source);
        *record = (struct record){0};
}

/* ---- writing ---- */

static void write_details(struct writer *w, const struct record *r)
{
        writer_map(w, 14);
        writer_ku64(w, "id", r->id);
        writer_ku64(w, "number", r->number);
        writer_kstr(w, "name", r->name);
        writer_kstr(w, "source", r->source);
        writer_kstr(w, "device", r->device);
        writer_key(w, "identity");
        writer_bin(w, r->identity.digest, r->has_identity ? sizeof(r->identity.digest) : 0);
        writer_kbool(w, "verified", r->verified);
        writer_key(w, "digest");
        writer_bin(w, r->digest, sizeof(r->digest));
        writer_key(w, "origin");
        origin_write(w, &r->origin);
        writer_ku64(w, "bytes", r->data_bytes);
        writer_ku64(w, "tensors", r->n_tensors);
        writer_ku64(w, "load_ns", r->load_ns);
        writer_ku64(w, "charged", r->charged);
        writer_key(w, "segments");
        writer_array(w, r->n_segments);
        for (unsigned i = 0; i < r->n_segments; i++) {
                writer_map(w, 2);
                writer_ku64(w, "size", r->sizes[i]);
                writer_ku64(w, "pages", (uint64_t)r->pages[i]);
        }
}

static int put(int fd, struct hash *hash, const void *data, size_t len)
{
        const char *p = data;
        if (hash != NULL)
                hash_update(hash, data, len);
        while (len > 0) {
                ssize_t n = write(fd, p, len);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n < 0)
                        return -1;
                p += n;
                len -= (size_t)n;
        }
        return 0;
}

static int fill(int fd, const struct record *record, const struct table *manifest)
{
        struct hash *hash = hash_new();
        struct writer w;
        writer_init(&w);
        write_details(&w, record);
        struct foot foot = {
                .magic = MAGIC, .version = VERSION, .manifest_size = manifest->size, .details_size = w.buf.size};
        int r = hash != NULL && !w.failed ? 0 : -1;
        if (r < 0)
                errno = ENOMEM;
        if (r == 0)
                r = put(fd, hash, manifest->map, manifest->size);
        if (r == 0)
                r = put(fd, hash, w.buf.data, w.buf.size);
        if (r == 0) {
                hash_update(hash, &foot, offsetof(struct foot, checksum));
                hash_final(hash, foot.checksum);
                r = put(fd, NULL, &foot, sizeof(foot));
        }
        writer_deinit(&w);
        hash_free(hash);
        return r;
}

static int reopen_for_reading(int fd)
{
        char path[64];
        snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
        return open(path, O_RDONLY | O_CLOEXEC);
}

int record_write(const struct record *record, const struct table *manifest, int *fd, struct error *error)
{
        cleanup_close int writing = memfd_create("streamerd-record", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (writing < 0 || fill(writing, record, manifest) < 0 || fcntl(writing, F_ADD_SEALS, SEALS) < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "the record of a model");
        *fd = reopen_for_reading(writing);
        return *fd >= 0 ? 0 : error_errno(error, STREAMER_EOS, errno, "the record of a model");
}

/* ---- reading ---- */

static int damaged(struct error *error, const char *what)
{
        return error_set(error, STREAMER_ECORRUPT, "its record is damaged: %s", what);
}

static bool get_bin(const msgpack_object *map, const char *key, unsigned char *to, size_t size, bool *there)
{
        const msgpack_object *o = object_get(map, key);
        if (o == NULL || o->type != MSGPACK_OBJECT_BIN || (o->via.bin.size != size && o->via.bin.size != 0))
                return false;
        *there = o->via.bin.size == size;
        if (*there)
                memcpy(to, o->via.bin.ptr, size);
        return true;
}

static bool get_segments(const msgpack_object *map, struct record *r)
{
        const msgpack_object *list = object_get(map, "segments");
        if (list == NULL || list->type != MSGPACK_OBJECT_ARRAY || list->via.array.size > GENERATION_SEGMENTS)
                return false;
        uint64_t sum = 0;
        for (uint32_t i = 0; i < list->via.array.size; i++) {
                uint64_t pages;
                const msgpack_object *o = &list->via.array.ptr[i];
                if (!object_u64(o, "size", &r->sizes[i]) || !object_u64(o, "pages", &pages) || pages > PAGES_DEVICE ||
                    r->sizes[i] == 0 || __builtin_add_overflow(sum, r->sizes[i], &sum))
                        return false;
                r->pages[i] = (enum page_kind)pages;
                r->n_segments++;
        }
        return sum <= r->charged;
}

static int read_details(struct record *r, const void *data, size_t len, struct error *error)
{
        struct message m;
        const char *name, *source, *device;
        size_t name_len, source_len, device_len;
        bool has_digest = false;
        if (message_decode(&m, data, len) != 0)
                return damaged(error, "its details cannot be read");
        const msgpack_object *o = &m.unpacked.data;
        bool ok = object_u64(o, "id", &r->id) && object_u64(o, "number", &r->number) &&
                  object_str(o, "name", &name, &name_len) && name_len <= PROTO_NAME_MAX &&
                  object_str(o, "source", &source, &source_len) && object_str(o, "device", &device, &device_len) &&
                  device_len < sizeof(r->device) &&
                  get_bin(o, "identity", r->identity.digest, sizeof(r->identity.digest), &r->has_identity) &&
                  object_bool(o, "verified", &r->verified) &&
                  get_bin(o, "digest", r->digest, sizeof(r->digest), &has_digest) && has_digest &&
                  object_u64(o, "bytes", &r->data_bytes) && object_u64(o, "tensors", &r->n_tensors) &&
                  origin_read(&r->origin, object_get(o, "origin")) == 0 && object_u64(o, "load_ns", &r->load_ns) &&
                  object_u64(o, "charged", &r->charged) && get_segments(o, r);
        if (ok) {
                memcpy(r->device, device, device_len);
                r->name = strndup(name, name_len);
                r->source = strndup(source, source_len);
        }
        message_deinit(&m);
        return r->name != NULL && r->source != NULL ? 0 : damaged(error, "its details are incomplete");
}

/* The manifest and the details tell the same story. */
static int check_manifest(const struct record *r, const unsigned char *base, uint64_t size, struct error *error)
{
        struct manifest_view m;
        const char *why;
        if (manifest_open(&m, base, size, &why) < 0)
                return damaged(error, why);
        if (m.header->size != size || m.header->generation != r->number || m.header->n_records != r->n_tensors ||
            m.header->n_segments != r->n_segments || memcmp(m.header->digest, r->digest, DIGEST_SIZE) != 0)
                return damaged(error, "it is another model's");
        for (unsigned i = 0; i < r->n_segments; i++)
                if (m.segments[i].size != r->sizes[i])
                        return damaged(error, "its segments are others");
        for (uint64_t i = 0; i < m.header->n_records; i++)
                if (manifest_check(&m, i, &why) < 0)
                        return damaged(error, why);
        return 0;
}

static int check_foot(const unsigned char *base, uint64_t size, struct foot *foot, struct error *error)
{
        unsigned char sum[DIGEST_SIZE];
        memcpy(foot, base + size - sizeof(*foot), sizeof(*foot));
        if (memcmp(foot->magic, MAGIC, sizeof(foot->magic)) != 0)
                return damaged(error, "wrong magic");
        if (foot->version != VERSION)
                return damaged(error, "unknown version");
        if (foot->details_size > DETAILS_MAX || foot->manifest_size > MANIFEST_MAX_SIZE ||
            foot->manifest_size + foot->details_size + sizeof(*foot) != size)
                return damaged(error, "wrong sizes");
        hash_bytes(base, size - sizeof(foot->checksum), sum);
        return memcmp(sum, foot->checksum, sizeof(sum)) == 0 ? 0 : damaged(error, "wrong checksum");
}

static int read_all(struct record *record, const unsigned char *base, uint64_t size, uint64_t *manifest_size,
                    struct error *error)
{
        struct foot foot;
        int r = check_foot(base, size, &foot, error);
        if (r == 0)
                r = read_details(record, base + foot.manifest_size, foot.details_size, error);
        if (r == 0)
                r = check_manifest(record, base, foot.manifest_size, error);
        *manifest_size = foot.manifest_size;
        return r;
}

/* The map begins with the manifest; the rest of it is not looked at again. */
static int map_table(int fd, uint64_t size, struct table *out, struct error *error)
{
        void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "the record of a model");
        *out = (struct table){.fd = fd, .map = map, .size = size};
        return 0;
}

int record_read_consume_fd(struct record *record, int fd, struct table *out, struct error *error)
{
        cleanup_close int own = fd;
        struct stat st;
        uint64_t manifest_size = 0;
        *record = (struct record){0};
        int seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0 || (seals & SEALS) != SEALS)
                return damaged(error, "it is not sealed");
        if (fstat(fd, &st) < 0 || st.st_size <= (off_t)sizeof(struct foot))
                return damaged(error, "it is too short");
        uint64_t size = (uint64_t)st.st_size;
        void *map = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "the record of a model");
        int r = read_all(record, map, size, &manifest_size, error);
        munmap(map, size);
        if (r == 0)
                r = map_table(fd, manifest_size, out, error);
        if (r < 0)
                record_deinit(record);
        else
                take_fd(&own);
        return r;
}
