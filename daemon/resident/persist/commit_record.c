/* SPDX-License-Identifier: Apache-2.0
 *
 * Writing: into a memfd by write(), since a writable map would make F_SEAL_WRITE fail; then the seals; then it is
 * opened again for reading, since kernels before 6.7 refuse shared maps of a write-sealed descriptor that is open for
 * writing.
 *
 * Reading accepts only a sealed record with a matching checksum: it may be of another version, or somebody else's
 * descriptor under the same name.
 */
#include "daemon/resident/persist/commit_record.h"

#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC "strmrec2"
#define SEALS (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL)

/* ---- facts ---- */

static void segment_facts(struct facts *f, void *list, size_t i)
{
        struct commit_record *r = list;
        uint64_t pages = r->segments[i].pages;
        if (f->w != NULL)
                writer_map(f->w, 3);
        fact_number(f, "size", &r->segments[i].size, 0);
        fact_number(f, "small_bytes", &r->segments[i].small_bytes, 0);
        fact_number(f, "pages", &pages, PAGES_DEVICE);
        r->segments[i].pages = (enum page_kind)pages;
}

static void key_fact(struct facts *f, void *list, size_t i)
{
        fact_text(f, NULL, &((char **)list)[i], 0, 0);
}

/* The cipher is empty where it is not encrypted. */
static void encryption_facts(struct facts *f, struct encryption *e)
{
        fact_text(f, "cipher", &e->cipher, 0, 0);
        fact_text(f, "signer", &e->signer, 0, 0);
        e->n_keys = fact_list(f, "keys", e->n_keys, 0, ENCRYPTION_KEYS_MAX, key_fact, e->keys);
}

#define FACTS 23 /* of the three functions */

static void record_facts(struct facts *f, struct commit_record *r)
{
        fact_text(f, "name", &r->name, 1, PROTO_NAME_MAX);
        fact_text(f, "source", &r->source, 1, 0);
        fact_caller(f, &r->caller);
        fact_number(f, "id", &r->id, 0);
        fact_text(f, "device", &r->device, 1, FACT_DEVICE_MAX);
        fact_number(f, "charged", &r->charged, 0);
        r->n_segments = fact_list(f, "segments", r->n_segments, 0, GENERATION_SEGMENTS, segment_facts, r);
}

static void generation_facts(struct facts *f, struct generation *g)
{
        fact_number(f, "generation", &g->number, 0);
        fact_bool(f, "verified", &g->verified);
        fact_bytes(f, "sums", g->sums, sizeof(g->sums));
        fact_text(f, "pattern", &g->pattern, 0, 0);
        fact_bytes(f, "identity", g->identity.digest, sizeof(g->identity.digest));
        if (fact_exists(f, "sample")) /* not in records of the earlier form */
                fact_bytes(f, "sample", g->identity.sample, sizeof(g->identity.sample));
        fact_bool(f, "has_identity", &g->has_identity);
        fact_bytes(f, "digest", g->digest, sizeof(g->digest));
        fact_number(f, "bytes", &g->data_bytes, 0);
        fact_number(f, "tensors", &g->n_tensors, 0);
        fact_number(f, "load_ns", &g->load_ns, 0);
}

/* ---- writing ---- */

int commit_record_pack(msgpack_sbuffer *details, const struct generation *g, uint64_t id)
{
        struct writer w;
        struct facts facts = {.w = &w};
        struct commit_record record = {.name = (char *)(uintptr_t)generation_name(g),
                                       .id = id,
                                       .device = g->device->uuid,
                                       .charged = g->charged,
                                       .caller = *g->caller,
                                       .n_segments = g->n_segments};
        for (unsigned i = 0; i < g->n_segments; i++) {
                record.segments[i].size = g->segments[i].size;
                record.segments[i].small_bytes = segment_small_bytes(&g->segments[i]);
                record.segments[i].pages = g->segments[i].pages;
        }
        record.source = source_without_query(g->source);
        if (record.source == NULL)
                return STREAMER_ENOMEM;
        writer_init(&w);
        writer_map(&w, FACTS);
        record_facts(&facts, &record);
        generation_facts(&facts, (struct generation *)(uintptr_t)g);
        struct encryption none = {.n_keys = 0};
        encryption_facts(&facts, g->encryption != NULL ? g->encryption : &none);
        free(record.source);
        if (w.failed) {
                writer_deinit(&w);
                return STREAMER_ENOMEM;
        }
        *details = w.buf;
        return 0;
}

int commit_record_write(msgpack_sbuffer *details, const struct table *manifest, int *fd, struct error *error)
{
        char path[64];
        cleanup_close int writing = memfd_create("streamerd-record", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (record_seal(details, manifest->map, manifest->size, MAGIC) < 0)
                return error_set(error, STREAMER_ENOMEM, "the record of a model: no memory");
        if (writing < 0 || text_write_fd(writing, manifest->map, manifest->size) < 0 ||
            text_write_fd(writing, details->data, details->size) < 0 || fcntl(writing, F_ADD_SEALS, SEALS) < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "the record of a model");
        snprintf(path, sizeof(path), "/proc/self/fd/%d", writing);
        *fd = open(path, O_RDONLY | O_CLOEXEC);
        return *fd >= 0 ? 0 : error_errno(error, STREAMER_EOS, errno, "the record of a model");
}

/* ---- reading ---- */

static int damaged(struct error *error, const char *what)
{
        return error_set(error, STREAMER_ECORRUPT, "its record is damaged: %s", what);
}

static int check_facts(const struct facts *facts, struct error *error)
{
        return facts->wrong == NULL
                       ? 0
                       : error_set(error, STREAMER_ECORRUPT, "its record is damaged: '%s' is not valid", facts->wrong);
}

/* The segments and the manifest hold together. */
static int check_manifest(const struct commit_record *r, struct error *error)
{
        struct manifest_view m;
        const char *why;
        uint64_t sum = 0, size = r->manifest_size;
        for (size_t i = 0; i < r->n_segments; i++)
                if (r->segments[i].size == 0 || __builtin_add_overflow(sum, r->segments[i].size, &sum) ||
                    r->segments[i].small_bytes > r->segments[i].size)
                        return damaged(error, "wrong sizes of segments");
        if (sum > r->charged)
                return damaged(error, "wrong sizes of segments");
        if (manifest_open(&m, r->file.map, size, &why) < 0)
                return damaged(error, why);
        if (m.header->size != size || m.header->n_segments != r->n_segments)
                return damaged(error, "it is another model's");
        for (unsigned i = 0; i < r->n_segments; i++)
                if (manifest_segment(&m, i)->size != r->segments[i].size)
                        return damaged(error, "its segments are others");
        for (uint64_t i = 0; i < m.header->n_records; i++)
                if (manifest_check(&m, i, &why) < 0)
                        return damaged(error, why);
        return 0;
}

/* The pages of the record are also the store's, and clients map only these. */
static int copy_manifest(struct commit_record *record, struct error *error)
{
        return host_table_copy(&record->manifest, "streamerd-manifest", record->file.map, record->manifest_size, error);
}

int commit_record_open_consume_fd(struct commit_record *record, int fd, struct error *error)
{
        struct facts facts = {.from = &record->map.unpacked.data};
        struct stat st;
        size_t manifest_size = 0;
        *record = (struct commit_record){.file.fd = fd, .manifest.fd = -1};
        int seals = fcntl(fd, F_GET_SEALS);
        if (seals < 0 || (seals & SEALS) != SEALS)
                return damaged(error, "it is not sealed");
        if (fstat(fd, &st) < 0 || st.st_size <= 0)
                return damaged(error, "it is too short");
        void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "the record of a model");
        record->file = (struct table){.fd = fd, .map = map, .size = (size_t)st.st_size};
        const char *wrong = record_open(map, (size_t)st.st_size, MAGIC, &manifest_size, &record->map);
        if (wrong == NULL && manifest_size == 0)
                wrong = "wrong sizes";
        if (wrong != NULL)
                return damaged(error, wrong);
        record->manifest_size = manifest_size;
        record_facts(&facts, record);
        return check_facts(&facts, error) ?: check_manifest(record, error) ?: copy_manifest(record, error);
}

/* The facts and the manifest agree. */
static int check_generation(const struct commit_record *record, const struct generation *g, struct error *error)
{
        const struct manifest_header *header = record->manifest.map;
        if (g->number == 0 || header->generation != g->number || header->n_records != g->n_tensors ||
            memcmp(header->digest, g->digest, DIGEST_SIZE) != 0)
                return damaged(error, "it is another model's");
        return 0;
}

/* Records of the earlier form have none. */
static int restore_encryption(struct facts *facts, struct generation *g, struct error *error)
{
        struct encryption *encryption = NULL;
        if (!fact_exists(facts, "cipher"))
                return 0;
        encryption = encryption_alloc();
        if (encryption == NULL)
                return error_no_memory(error);
        encryption_facts(facts, encryption);
        for (size_t i = 0; i < encryption->n_keys; i++) /* an empty text was read */
                if (encryption->keys[i] == NULL && (encryption->keys[i] = strdup("")) == NULL)
                        facts->wrong = facts_no_memory;
        if (encryption->cipher != NULL && encryption->signer == NULL && (encryption->signer = strdup("")) == NULL)
                facts->wrong = facts_no_memory;
        if (encryption->cipher != NULL)
                g->encryption = encryption;
        else
                encryption_free(encryption);
        return check_facts(facts, error);
}

int commit_record_restore(struct commit_record *record, struct generation *g, struct error *error)
{
        struct facts facts = {.from = &record->map.unpacked.data};
        generation_facts(&facts, g);
        const struct source_identity identity = g->identity;
        require(record->manifest.fd >= 0); /* it was opened */
        int r = check_facts(&facts, error)
                        ?: restore_encryption(&facts, g, error) ?: check_generation(record, g, error);
        if (r == 0 && strncmp(record->source, PUBLISHED_SOURCE, strlen(PUBLISHED_SOURCE)) == 0) {
                const struct manifest_view view = table_manifest(&record->manifest);
                r = published_read(&g->published, &view, error);
        }
        if (r == 0 && generation_set_caller(g, &record->caller) < 0)
                r = error_no_memory(error);
        if (r < 0)
                return r;
        g->manifest = record->manifest;
        record->manifest = (struct table){.fd = -1};
        generation_set_number(g, g->number);
        if (g->has_identity)
                generation_set_identity(g, &identity);
        return 0;
}

void commit_record_deinit(struct commit_record *record)
{
        message_deinit(&record->map);
        table_drop(&record->file);
        table_drop(&record->manifest);
        free(record->name);
        free(record->source);
        free(record->device);
}
