/* SPDX-License-Identifier: Apache-2.0
 *
 * The block reader with real files: every byte is at its place and no other byte is changed, through the page cache and
 * with O_DIRECT, in place and through slots; files that fail or end early. reader_jobs_test.c tests the order of jobs.
 */
#include "tests/lib/read_fixture.h"

#include "tests/lib/fuse_file.h"
#include "tests/lib/kernel_counters.h"

#include <fcntl.h>

static struct read_fixture r;

/* ---- bytes ---- */

static const uint64_t residues[] = {0, 1, 8, 511, 512, 513, 2049, 4095};

/* Loop tests count ways: offset of the data, past the page cache or through it, in place or not. */
#define WAYS ((int)ARRAY_SIZE(residues) * 4)
#define WAY_RESIDUE(i) residues[(i) / 4]
#define WAY_CACHED(i) (((i)&1) != 0)
#define WAY_HIDDEN(i) (((i)&2) != 0)

CORE_FIXTURE(NULL, read_fixture_reader_end);

TEST(every_byte_is_written_to_its_place, .to = WAYS)
{
        char *path = odd_file("odd", WAY_RESIDUE(_i));
        read_fixture_reader_begin(4, 4 * BLOCK);
        read_fixture_begin(&r, path, WAY_HIDDEN(_i));
        cache_or_not(path, WAY_CACHED(_i));
        read_all(&r);
        ck_assert_msg(!r.job.failed, "%s", r.job.error.text);
        ck_assert(segments_match(&r, r.resolved.plan.blocks, r.resolved.plan.n_blocks));
        ck_assert(leaf_digests_match(&r));
        all_read_once(&r);
}

TEST(a_buffered_block_has_the_page_offset_of_its_destination_in_its_slot)
{
        char *path = blocks_file("even", 6);
        read_fixture_reader_begin(4, 4 * BLOCK);
        read_fixture_begin(&r, path, true);
        cache_or_not(path, true);
        read_all(&r);
        ck_assert_uint_gt(r.device.puts, 0);
        ck_assert_uint_eq(r.device.unaligned, 0);
}

TEST(a_block_touches_no_byte_but_its_own, .to = WAYS)
{
        char *path = odd_file("odd", WAY_RESIDUE(_i));
        read_fixture_reader_begin(1, BLOCK);
        read_fixture_begin(&r, path, WAY_HIDDEN(_i));
        cache_or_not(path, WAY_CACHED(_i));
        const struct plan *plan = &r.resolved.plan;
        const struct read_job job = r.job;
        for (size_t i = 0; i < plan->n_blocks; i++) {
                struct plan one = *plan;
                one.blocks = &plan->blocks[i];
                one.n_blocks = 1;
                r.job = job;
                r.job.plan = &one;
                r.ended = false;
                for (size_t s = 0; s < plan->n_segments; s++)
                        memset(fake_memory(&r.segments[s]), FAKE_POISON, r.segments[s].size);
                read_all(&r);
                ck_assert_msg(!r.job.failed, "%s", r.job.error.text);
                ck_assert_msg(segments_match(&r, &plan->blocks[i], 1), "block %zu", i);
        }
        r.job.plan = plan;
}

TEST(a_cold_load_adds_nothing_to_the_page_cache)
{
        char *path = odd_file("odd", 8);
        read_fixture_reader_begin(4, 4 * BLOCK);
        read_fixture_begin(&r, path, false);
        if (r.resolved.set.objects[0].direct < 0)
                SKIP("this file system has no O_DIRECT");
        file_uncache(path);
        uint64_t kept = file_cached_bytes(path); /* by the kernel, which may be about to use it */
        read_all(&r);
        ck_assert_uint_le(file_cached_bytes(path), kept + 256 * KiB); /* probes */
}

/* Loop tests count: not cached, cached, cached in a file system without O_DIRECT, which may be a network's. */
TEST(a_cached_file_has_as_many_threads_as_processors, .to = 3)
{
        char *path = blocks_file("even", 6);
        read_fixture_reader_begin(4, 4 * BLOCK);
        reader.processors = 2;
        read_fixture_begin(&r, path, false);
        struct object *object = &r.resolved.set.objects[0];
        if (object->direct < 0)
                SKIP("this file system has no O_DIRECT");
        int direct = object->direct;
        object->direct = _i < 2 ? direct : -1;
        cache_or_not(path, _i > 0);
        if (_i == 0 && file_cached_bytes(path) > 0)
                return; /* the kernel is about to use them */
        read_all(&r);
        ck_assert(segments_match(&r, r.resolved.plan.blocks, r.resolved.plan.n_blocks));
        ck_assert_uint_eq(r.job.limit, _i == 1 ? 2 : 4);
        object->direct = direct;
}

/* A descriptor whose reads fail with EINVAL: a write-only file of /proc. -1 if it cannot be opened for reading. */
static int refusing_fd(void)
{
        char byte;
        int fd = open("/proc/self/clear_refs", O_RDWR | O_CLOEXEC);
        if (fd >= 0) {
                ck_assert_int_lt(pread(fd, &byte, 1, 0), 0);
                ck_assert_int_eq(errno, EINVAL);
        }
        return fd;
}

/* Loop tests count: in place or through slots; the second two get EINVAL at a read, not at open, as from a file system
 * that supports O_DIRECT for some files. */
TEST(without_o_direct_a_file_is_read_through_the_page_cache, .to = 4)
{
        char *path = odd_file("odd", 513);
        read_fixture_reader_begin(2, BLOCK);
        read_fixture_begin(&r, path, _i % 2 == 1);
        struct object *object = &r.resolved.set.objects[0];
        object->direct = _i < 2 ? -1 : refusing_fd();
        if (_i >= 2 && object->direct < 0)
                SKIP("not root");
        file_uncache(path);
        read_all(&r);
        ck_assert_msg(!r.job.failed, "%s", r.job.error.text);
        ck_assert(segments_match(&r, r.resolved.plan.blocks, r.resolved.plan.n_blocks));
        ck_assert(leaf_digests_match(&r));
}

TEST(the_header_is_read_at_any_offset)
{
        unsigned char *buffer = aligned_alloc(4096, 2 * MiB);
        struct error error = {0};
        char *path = odd_file("odd", 4095);
        read_fixture_begin(&r, path, false);
        for (size_t i = 0; i < ARRAY_SIZE(residues) * 2; i++) {
                uint64_t at = residues[i / 2], len = r.image_size - at < MiB ? r.image_size - at : MiB - 3;
                cache_or_not(path, i % 2 == 1);
                ck_assert_int_eq(object_read_range(&r.resolved.set.objects[0], at, len, buffer + at, &error), 0);
                ck_assert_mem_eq(buffer + at, r.image + at, len);
        }
}

/* ---- failing files ---- */

/* Loop tests count: in place or through slots, past the cache or through it. */
TEST(a_truncated_file_is_an_error_with_its_offset, .to = 4)
{
        char *path = odd_file("odd", 100);
        read_fixture_reader_begin(2, 2 * BLOCK);
        read_fixture_begin(&r, path, (_i & 2) != 0);
        must(truncate(path, 3 * MiB + 77));
        cache_or_not(path, (_i & 1) != 0);
        read_all(&r);
        ck_assert(r.job.failed);
        FAILS_WITH(r.job.error, r.job.error.code, STREAMER_EFAILED, "cut short");
        ck_assert_ptr_nonnull(strstr(r.job.error.text, path));
        const char *offset = strstr(r.job.error.text, "offset ");
        ck_assert_ptr_nonnull(offset);
        uint64_t at = strtoull(offset + strlen("offset "), NULL, 10);
        ck_assert_uint_ge(at, 3 * MiB + 77);
        ck_assert_uint_lt(at, r.image_size);
}

TEST(a_failed_read_is_an_error_with_its_cause, .to = 2)
{
        char *path = odd_file("odd", 100);
        read_fixture_reader_begin(2, 2 * BLOCK);
        read_fixture_begin(&r, path, _i == 1);
        struct object *object = &r.resolved.set.objects[0];
        object->fd = must(open(suite_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        object->direct = -1;
        read_all(&r);
        ck_assert(r.job.failed);
        FAILS_WITH(r.job.error, r.job.error.code, STREAMER_EFAILED, "read at offset ");
        ck_assert_ptr_nonnull(strstr(r.job.error.text, "Is a directory"));
        ck_assert_ptr_nonnull(strstr(r.job.error.text, path));
}

TEST(an_io_error_of_the_storage_fails_the_job)
{
        const char *why_not = fuse_file_unavailable();
        struct fuse_file hang = {0};
        if (why_not != NULL)
                SKIP(why_not);
        char *path = odd_file("odd", 100);
        char *folder = suite_path("hang-%d", (int)getpid());
        fuse_file_start(&hang, folder, "odd", path);
        read_fixture_reader_begin(2, 2 * BLOCK);
        read_fixture_plan(&r, hang.path, false);
        fuse_file_hold(&hang, 3 * MiB);
        reader_start(&reader, &r.job);
        fuse_file_wait_held(&hang);
        fuse_file_fail(&hang);
        core_until(r.ended);
        ck_assert(r.job.failed);
        ck_assert_ptr_nonnull(strstr(r.job.error.text, "Input/output error"));
        read_fixture_reader_end();
        fuse_file_stop(&hang);
}

TEST(memory_that_cannot_be_prepared_fails_the_job)
{
        char *path = blocks_file("even", 6);
        read_fixture_reader_begin(2, BLOCK);
        read_fixture_begin(&r, path, false);
        r.device.fail_prepare = 3;
        read_all(&r);
        ck_assert(r.job.failed);
        ck_assert_int_eq(r.job.error.code, STREAMER_ENOMEM);
        ck_assert_uint_lt(r.n_landed, 6);
}

TEST(a_job_that_fails_in_many_threads_ends_once)
{
        char *path = blocks_file("even", 12);
        read_fixture_reader_begin(4, BLOCK);
        read_fixture_begin(&r, path, false);
        gate_init(&r.device.prepare, false);
        must(truncate(path, 4096));
        reader_start(&reader, &r.job);
        gate_await(&r.device.prepare, 4);
        gate_open(&r.device.prepare);
        core_until(r.ended);
        core_settle();
        ck_assert(r.job.failed);
        ck_assert_uint_eq(r.n_landed, 0);
}

/* Blocks that no thread has started count as in flight. */
static unsigned free_slots(void)
{
        lock_scope(&reader.mutex);
        return reader.staging.n_free;
}

TEST(a_failed_job_does_not_affect_later_ones)
{
        struct read_fixture bad, good;
        read_fixture_reader_begin(2, 2 * BLOCK);
        char *path = blocks_file("short", 4);
        read_fixture_begin(&bad, path, true);
        must(truncate(path, 4096));
        read_all(&bad);
        ck_assert(bad.job.failed);
        read_fixture_begin(&good, blocks_file("good", 4), true);
        read_all(&good);
        ck_assert(!good.job.failed);
        all_read_once(&good);
        while (free_slots() != reader.staging.n_slots)
                sched_yield();
}

TEST(dropping_a_target_fails_its_job)
{
        struct error why = {0};
        read_fixture_reader_begin(2, 2 * BLOCK);
        read_fixture_begin(&r, blocks_file("even", 4), true);
        gate_init(&r.device.put, false);
        reader_start(&reader, &r.job);
        gate_await(&r.device.put, 1);
        error_set(&why, STREAMER_ECORRUPT, "the files' own digests say otherwise");
        ck_assert(reader_drop_target(&reader, &r.job, &r.target, &why)); /* a copy is in flight */
        reader_drop_target(&reader, &r.job, &r.target, &(struct error){.code = STREAMER_EFAILED});
        ck_assert(r.target.dead);
        gate_open(&r.device.put);
        core_until(r.ended);
        ck_assert(r.job.failed);
        ck_assert_str_eq(r.job.error.text, why.text);
}

static bool all_is_read(void)
{
        lock_scope(&reader.mutex);
        return list_empty(&reader.jobs);
}

TEST(a_target_dropped_after_the_last_read_has_no_copy_in_flight)
{
        read_fixture_reader_begin(2, 2 * BLOCK);
        read_fixture_begin(&r, blocks_file("even", 4), true);
        reader_start(&reader, &r.job);
        AWAIT(all_is_read());
        ck_assert(!reader_drop_target(&reader, &r.job, &r.target, &(struct error){.code = STREAMER_EFAILED}));
        ck_assert(r.target.dead && !r.ended);
        core_until(r.ended);
        ck_assert(!r.job.failed);
}
