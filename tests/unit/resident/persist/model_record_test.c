/* SPDX-License-Identifier: Apache-2.0
 *
 * The facts of a model that outlive a run: a commit record restores those of a generation, and a record of one store is
 * refused by another.
 */
#include "daemon/device/host/collapse.h"
#include "daemon/resident/persist/commit_record.h"
#include "tests/unit/resident_fixture.h"

#include <sys/resource.h>

#define SEGMENT (4 * MiB)
#define SMALL (2 * MiB)

/* ---- a kernel that has no huge page ---- */

static int collapse_refused(void *base, uint64_t len)
{
        (void)base;
        (void)len;
        return -1;
}

static uint64_t nothing(void)
{
        return 0;
}

static const struct collapse_kernel no_huge_pages = {
        .calls = {.collapse = collapse_refused, .clock = nothing, .compactions = nothing}, .supported = true};

/* ---- a model ---- */

static struct generation *full(const char *name)
{
        snprintf(fakes[0].device.uuid, sizeof(fakes[0].device.uuid), "uuid-0");
        struct generation *g = loading_with(name, SEGMENT);
        g->segments[0].pages = PAGES_THP;
        g->verified = g->has_identity = g->settings.pinned = true;
        g->caller = (struct caller){.uid = 1000, .gid = 1001, .groups = {7, 8}, .n_groups = 2};
        g->pattern = strdup("rank-{rank}");
        memset(g->identity.digest, 3, sizeof(g->identity.digest));
        memset(g->digest, 4, sizeof(g->digest));
        g->data_bytes = UINT64_C(1) << 40;
        g->n_tensors = 6;
        g->load_ns = 7;
        return g;
}

/* The contents of its commit record. */
static struct model_record record_of(const struct generation *g)
{
        struct model_record record;
        msgpack_sbuffer details;
        struct message map;
        ck_assert_int_eq(commit_record_pack(&details, g, 9), 0);
        ck_assert_int_eq(message_decode(&map, details.data, details.size), 0);
        ck_assert_ptr_null(model_record_read(&record, &map.unpacked.data, STORE_COMMIT));
        message_deinit(&map);
        msgpack_sbuffer_destroy(&details);
        return record;
}

CORE_FIXTURE(begin, end);

TEST(a_commit_record_restores_all_fields_of_a_generation)
{
        struct generation *was = full("m"), *is = loading("n");
        struct model_record record = record_of(was);
        ck_assert_uint_eq(record.id, 9);
        ck_assert_str_eq(record.name, "m");
        ck_assert_str_eq(record.device, fakes[0].device.uuid);
        ck_assert_uint_eq(record.charged, SEGMENT);
        ck_assert_uint_eq(record.n_segments, 1);
        ck_assert_uint_eq(record.segments[0].size, SEGMENT);
        ck_assert_int_eq((int)record.segments[0].pages, (int)PAGES_THP);
        model_record_move(&record, is);
        model_record_deinit(&record);
        ck_assert_str_eq(is->source, was->source);
        ck_assert_str_eq(is->pattern, "rank-{rank}");
        ck_assert_int_eq(memcmp(&is->caller, &was->caller, sizeof(is->caller)), 0);
        ck_assert_int_eq(memcmp(&is->identity, &was->identity, sizeof(is->identity)), 0);
        ck_assert_int_eq(memcmp(is->digest, was->digest, sizeof(is->digest)), 0);
        ck_assert(is->verified && is->has_identity && !is->settings.pinned);
        ck_assert_uint_eq(is->number, was->number);
        ck_assert_uint_eq(is->data_bytes, was->data_bytes);
        ck_assert_uint_eq(is->n_tensors, was->n_tensors);
        ck_assert_uint_eq(is->load_ns, was->load_ns);
        ready(was);
        failed(is, "of no use");
}

/* They are not counted for a restored segment. */
TEST(small_pages_are_restored)
{
        struct generation *g = full("m");
        cleanup_close int fd = memfd_create("segment", MFD_CLOEXEC);
        struct collapse *collapse = collapse_new(&no_huge_pages, NULL, fd, SEGMENT, 0);
        ck_assert_int_eq(collapse_prepare(collapse, 0, SMALL), 0);
        g->segments[0].collapse = collapse;
        ck_assert_uint_eq(segment_small_bytes(&g->segments[0]), SMALL);
        struct model_record record = record_of(g);
        ck_assert_uint_eq(record.segments[0].small_bytes, SMALL);
        g->segments[0].collapse = collapse_free(collapse);
        g->segments[0].small_bytes = record.segments[0].small_bytes;
        ck_assert_uint_eq(segment_small_bytes(&g->segments[0]), SMALL);
        model_record_deinit(&record);
        record = record_of(g); /* and so they are after the next restart */
        ck_assert_uint_eq(record.segments[0].small_bytes, SMALL);
        model_record_deinit(&record);
        ready(g);
}

TEST(a_record_of_another_store_is_refused)
{
        struct generation *g = full("m");
        struct model_record record = model_record_of(g), read;
        struct writer w;
        struct message map;
        writer_init(&w);
        model_record_write(&w, &record, STORE_STATE);
        ck_assert_int_eq(message_decode(&map, w.buf.data, w.buf.size), 0);
        ck_assert_str_eq(model_record_read(&read, &map.unpacked.data, STORE_COMMIT), "id");
        ck_assert_ptr_null(read.name);
        ck_assert_str_eq(model_record_read(&read, &map.unpacked.data, STORE_STATE),
                         "devices"); /* no record is stored */
        message_deinit(&map);
        writer_deinit(&w);
        ready(g);
}

/* ---- the file ---- */

static struct error error;
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
        msgpack_sbuffer_destroy(&details);
        table_drop(&manifest);
        return fd;
}

static void refused(int fd, const char *text)
{
        struct model_record record;
        struct table table;
        ck_assert_int_eq(commit_record_read_consume_fd(&record, fd, &table, &error), STREAMER_ECORRUPT);
        ck_assert_str_eq(error.text, text);
        ck_assert_ptr_null(record.name);
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
        ck_assert_int_eq(r, STREAMER_ENOMEM);
        ck_assert_str_eq(error.text, "the record of a model: Too many open files");
        msgpack_sbuffer_destroy(&details);
        table_drop(&manifest);
}
