/* SPDX-License-Identifier: Apache-2.0
 *
 * A commit record restores a generation; a damaged one is refused.
 */
#include "daemon/device/host/host_private.h"
#include "daemon/resident/persist/commit_record.h"
#include "tests/unit/resident_fixture.h"

#include <sys/resource.h>

#define SEGMENT (4 * MiB)
#define SMALL (2 * MiB)

/* ---- a kernel that has no huge page ---- */

static int collapse_refused(void *base, uint64_t len)
{
        return -1;
}

static uint64_t nothing(void)
{
        return 0;
}

static const struct collapse_kernel no_huge_pages = {
        .calls = {.collapse = collapse_refused, .clock = nothing, .compactions = nothing}, .supported = true};

/* ---- a model ---- */

static struct error error;

/* Of one segment and one tensor. */
static void make_manifest(struct generation *g)
{
        const struct manifest_counts counts = {.n_records = 1, .n_shapes = 1, .n_segments = 1, .strings_len = 2};
        struct manifest_fill fill = {.header = manifest_init(g->manifest.map, &counts)};
        unsigned char *base = g->manifest.map;
        struct manifest_segment *segment = (void *)(base + fill.header->segments_off);
        struct manifest_record *record = (void *)(base + fill.header->records_off);
        g->manifest.size = manifest_size(&counts);
        fill.header->generation = g->number;
        memcpy(fill.header->digest, g->digest, sizeof(g->digest));
        segment->size = SEGMENT;
        *record = (struct manifest_record){
                .name_off = manifest_add_text(&fill, "t", 1), .name_len = 1, .dtype = DTYPE_U8, .rank = 1};
}

static struct generation *full(const char *name)
{
        snprintf(fakes[0].device.uuid, sizeof(fakes[0].device.uuid), "uuid-0");
        struct generation *g = loading_with(name, SEGMENT);
        if (g->segments == NULL)
                ck_assert_int_eq(generation_make_segments(g, 1), 0);
        g->segments[0].pages = PAGES_THP;
        g->verified = g->has_identity = g->settings.pinned = true;
        const struct caller caller = {.uid = 1000, .gid = 1001, .groups = {7, 8}, .n_groups = 2};
        ck_assert_int_eq(generation_set_caller(g, &caller), 0);
        g->pattern = strdup("rank-{rank}");
        memset(g->identity.digest, 3, sizeof(g->identity.digest));
        memset(g->digest, 4, sizeof(g->digest));
        g->data_bytes = UINT64_C(1) << 40;
        g->n_tensors = 1;
        g->load_ns = 7;
        make_manifest(g);
        return g;
}

/* Its commit record, as the next run reads it. */
static struct commit_record record_of(const struct generation *g)
{
        struct commit_record record;
        msgpack_sbuffer details;
        int fd;
        ck_assert_int_eq(commit_record_pack(&details, g, 9), 0);
        ck_assert_int_eq(commit_record_write(&details, &g->manifest, &fd, &error), 0);
        ck_assert_msg(commit_record_open_consume_fd(&record, fd, &error) == 0, "%s", error.text);
        return record;
}

CORE_FIXTURE(begin, end);

TEST(a_commit_record_restores_all_fields_of_a_generation)
{
        struct generation *was = full("m"), *is = loading("n");
        struct commit_record record = record_of(was);
        ck_assert_uint_eq(record.id, 9);
        ck_assert_str_eq(record.name, "m");
        ck_assert_str_eq(record.source, was->source);
        ck_assert_str_eq(record.device, fakes[0].device.uuid);
        ck_assert_uint_eq(record.charged, SEGMENT);
        ck_assert_uint_eq(record.n_segments, 1);
        ck_assert_uint_eq(record.segments[0].size, SEGMENT);
        ck_assert_int_eq((int)record.segments[0].pages, (int)PAGES_THP);
        ck_assert_msg(commit_record_restore(&record, is, &error) == 0, "%s", error.text);
        commit_record_deinit(&record);
        ck_assert_str_eq(is->pattern, "rank-{rank}");
        ck_assert_int_eq(memcmp(is->caller, was->caller, sizeof(*is->caller)), 0);
        ck_assert_int_eq(memcmp(&is->identity, &was->identity, sizeof(is->identity)), 0);
        ck_assert_int_eq(memcmp(is->digest, was->digest, sizeof(is->digest)), 0);
        ck_assert(is->verified && is->has_identity && !is->settings.pinned);
        ck_assert_uint_eq(is->number, was->number);
        ck_assert_uint_eq(is->data_bytes, was->data_bytes);
        ck_assert_uint_eq(is->n_tensors, was->n_tensors);
        ck_assert_uint_eq(is->load_ns, was->load_ns);
        ck_assert_int_eq(memcmp(is->manifest.map, was->manifest.map, was->manifest.size), 0);
}

/* The record goes on behind the manifest, with the loader's user, groups and source. */
TEST(a_restored_generation_has_a_manifest_of_its_own)
{
        struct generation *was = full("m"), *is = loading("n");
        struct commit_record record = record_of(was);
        struct stat st;
        ck_assert_int_eq(commit_record_restore(&record, is, &error), 0);
        must(fstat(is->manifest.fd, &st));
        ck_assert_int_eq(st.st_size, (off_t)was->manifest.size);
        ck_assert_uint_eq(is->manifest.size, was->manifest.size);
}

TEST(the_query_of_a_url_is_not_recorded)
{
        struct generation *was = full("m");
        was->source = strdup("https://host/m.safetensors?X-Signature=s");
        struct commit_record record = record_of(was);
        ck_assert_str_eq(record.source, "https://host/m.safetensors");
        ck_assert_ptr_null(memmem(record.file.map, record.file.size, "X-Signature", 11));
}

/* The earlier form has no sample of the files. */
TEST(a_commit_record_of_the_earlier_form_is_read)
{
        struct generation *was = full("m"), *is = loading("n");
        struct commit_record record;
        msgpack_sbuffer details;
        int fd;
        memset(was->identity.sample, 7, sizeof(was->identity.sample));
        ck_assert_int_eq(commit_record_pack(&details, was, 9), 0);
        char *key = memmem(details.data, details.size, "sample", 6);
        ck_assert_ptr_nonnull(key);
        memcpy(key, "absent", 6);
        key = memmem(details.data, details.size, "cipher", 6);
        ck_assert_ptr_nonnull(key);
        memcpy(key, "missed", 6);
        ck_assert_int_eq(commit_record_write(&details, &was->manifest, &fd, &error), 0);
        ck_assert_int_eq(commit_record_open_consume_fd(&record, fd, &error), 0);
        ck_assert_msg(commit_record_restore(&record, is, &error) == 0, "%s", error.text);
        ck_assert_int_eq(memcmp(is->identity.digest, was->identity.digest, sizeof(is->identity.digest)), 0);
        for (size_t i = 0; i < sizeof(is->identity.sample); i++)
                ck_assert_int_eq(is->identity.sample[i], 0);
}

/* Who may attach depends on it. A key may have no id. */
TEST(a_commit_record_restores_how_a_model_was_encrypted, .to = 2)
{
        struct generation *was = full("m"), *is = loading("n");
        was->encryption = encryption_alloc();
        was->encryption->cipher = strdup("aes256gcm, aes128gcm");
        was->encryption->signer = strdup(_i == 0 ? "sig" : "");
        was->encryption->keys[0] = strdup("k1");
        was->encryption->keys[1] = strdup(_i == 0 ? "k2" : "");
        was->encryption->n_keys = 2;
        struct commit_record record = record_of(was);
        ck_assert_msg(commit_record_restore(&record, is, &error) == 0, "%s", error.text);
        ck_assert_ptr_nonnull(is->encryption);
        ck_assert_str_eq(is->encryption->cipher, "aes256gcm, aes128gcm");
        ck_assert_str_eq(is->encryption->signer, was->encryption->signer);
        ck_assert_uint_eq(is->encryption->n_keys, 2);
        ck_assert_str_eq(is->encryption->keys[0], "k1");
        ck_assert_str_eq(is->encryption->keys[1], was->encryption->keys[1]);
}

TEST(a_model_that_was_not_encrypted_stays_so)
{
        struct generation *was = full("m"), *is = loading("n");
        struct commit_record record = record_of(was);
        ck_assert_int_eq(commit_record_restore(&record, is, &error), 0);
        ck_assert_ptr_null(is->encryption);
}

/* They are not counted for a restored segment. */
TEST(small_pages_are_restored)
{
        struct generation *g = full("m");
        cleanup_close int fd = memfd_create("segment", MFD_CLOEXEC);
        must(ftruncate(fd, SEGMENT));
        void *base = host_memfd_map(fd, SEGMENT, PROT_READ | PROT_WRITE);
        struct collapse *collapse = collapse_new(&no_huge_pages, base, fd, SEGMENT, 0);
        ck_assert_int_eq(collapse_prepare(collapse, 0, SMALL, &(uint64_t){0}), 0);
        g->segments[0].collapse = collapse;
        ck_assert_uint_eq(segment_small_bytes(&g->segments[0]), SMALL);
        struct commit_record record = record_of(g);
        ck_assert_uint_eq(record.segments[0].small_bytes, SMALL);
        g->segments[0].collapse = collapse_free(collapse);
        g->segments[0].small_bytes = record.segments[0].small_bytes;
        ck_assert_uint_eq(segment_small_bytes(&g->segments[0]), SMALL);
        record = record_of(g); /* and so they are after the next restart */
        ck_assert_uint_eq(record.segments[0].small_bytes, SMALL);
}

/* ---- the file ---- */

static struct table manifest;

/* These details, behind a manifest of zeros. */
static msgpack_sbuffer details_of(const char *bytes, size_t size)
{
        msgpack_sbuffer details;
        msgpack_sbuffer_init(&details);
        ck_assert_int_eq(msgpack_sbuffer_write(&details, bytes, size), 0);
        ck_assert_int_eq(host_table_new(&manifest, "m", 4096, &error), 0);
        return details;
}

/* A sealed record of them. */
static int record_fd(const char *bytes, size_t size)
{
        int fd = -1;
        msgpack_sbuffer details = details_of(bytes, size);
        ck_assert_int_eq(commit_record_write(&details, &manifest, &fd, &error), 0);
        return fd;
}

static void refused(int fd, const char *text)
{
        struct commit_record record;
        FAILS_SAYING(error, commit_record_open_consume_fd(&record, fd, &error), STREAMER_ECORRUPT, text);
}

/* Under another number: the manifest is that of the old one. */
TEST(a_manifest_of_another_generation_is_refused)
{
        struct generation *was = full("m"), *is = loading("n");
        was->number++;
        struct commit_record record = record_of(was);
        FAILS_SAYING(error, commit_record_restore(&record, is, &error), STREAMER_ECORRUPT,
                     "its record is damaged: it is another model's");
}

TEST(a_damaged_commit_record_is_refused_with_the_reason)
{
        refused(must(memfd_create("record", MFD_CLOEXEC | MFD_ALLOW_SEALING)),
                "its record is damaged: it is not sealed");
        refused(record_fd("\xc1", 1), "its record is damaged: it cannot be read");
        refused(record_fd("\x80", 1), "its record is damaged: 'name' is not valid");
}

TEST(a_commit_record_that_cannot_be_written_is_an_error)
{
        struct rlimit limit, none;
        int fd;
        msgpack_sbuffer details = details_of("\x80", 1);
        must(getrlimit(RLIMIT_NOFILE, &limit));
        none = (struct rlimit){.rlim_cur = 0, .rlim_max = limit.rlim_max};
        must(setrlimit(RLIMIT_NOFILE, &none));
        int r = commit_record_write(&details, &manifest, &fd, &error);
        must(setrlimit(RLIMIT_NOFILE, &limit));
        FAILS_WITH(error, r, STREAMER_ELIMIT, "the record of a model: Too many open files: the daemon may open ");
}
