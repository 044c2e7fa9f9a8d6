/* SPDX-License-Identifier: Apache-2.0
 *
 * What the block reader reads, with real files: every byte where it belongs and no other byte
 * touched, through the page cache and past it, in place and through slots; files that fail or end
 * early. Who reads when is in test_reader_jobs.c.
 */
#include "tests/lib/reading.h"

#include "daemon/base/util.h"
#include "daemon/io/pread_file.h"
#include "tests/lib/hang.h"
#include "tests/lib/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

/* ---- bytes ---- */

static const uint64_t residues[] = {0, 1, 8, 511, 512, 513, 2049, 4095};

/* Loop tests count ways: offset of the data, past the page cache or through it, in place or not. */
#define WAYS ((int)ARRAY_SIZE(residues) * 4)
#define WAY_RESIDUE(i) residues[(i) / 4]
#define WAY_CACHED(i) (((i)&1) != 0)
#define WAY_HIDDEN(i) (((i)&2) != 0)

START_TEST(every_byte_lands_where_it_belongs)
{
        struct reading r;
        char *path = odd_file("odd", WAY_RESIDUE(_i));
        reading_reader_begin(4, 4 * BLOCK);
        reading_begin(&r, path, WAY_HIDDEN(_i));
        cache_or_not(path, WAY_CACHED(_i));
        read_all(&r);
        ck_assert_msg(!r.job.failed, "%s", r.job.error.text);
        ck_assert(as_expected(&r, r.resolved.plan.blocks, r.resolved.plan.n_blocks));
        ck_assert(leaves_right(&r));
        all_landed_once(&r);
        reading_end(&r);
}
END_TEST

START_TEST(a_block_touches_no_byte_but_its_own)
{
        struct reading r;
        char *path = odd_file("odd", WAY_RESIDUE(_i));
        reading_reader_begin(1, BLOCK);
        reading_begin(&r, path, WAY_HIDDEN(_i));
        cache_or_not(path, WAY_CACHED(_i));
        const struct plan *plan = &r.resolved.plan;
        for (size_t i = 0; i < plan->n_blocks; i++) {
                struct plan one = *plan;
                one.blocks = &plan->blocks[i];
                one.n_blocks = 1;
                r.job.plan = &one;
                r.ended = false;
                for (size_t s = 0; s < plan->n_segments; s++)
                        memset(fake_memory(&r.segments[s]), FAKE_POISON, r.segments[s].size);
                read_all(&r);
                ck_assert_msg(!r.job.failed, "%s", r.job.error.text);
                ck_assert_msg(as_expected(&r, &plan->blocks[i], 1), "block %zu", i);
        }
        r.job.plan = plan;
        reading_end(&r);
}
END_TEST

START_TEST(a_cold_load_leaves_nothing_in_the_page_cache)
{
        struct reading r;
        char *path = odd_file("odd", 8);
        reading_reader_begin(4, 4 * BLOCK);
        reading_begin(&r, path, false);
        if (r.resolved.set.objects[0].direct < 0)
                SKIP("this file system has no O_DIRECT");
        file_uncache(path);
        uint64_t kept = file_cached_bytes(path); /* by the kernel, which may be about to use it */
        read_all(&r);
        ck_assert_uint_le(file_cached_bytes(path), kept + 256 * KiB); /* probes */
        reading_end(&r);
}
END_TEST

START_TEST(a_file_without_a_direct_way_is_read_through_the_cache)
{
        struct reading r;
        char *path = odd_file("odd", 513);
        reading_reader_begin(2, BLOCK);
        reading_begin(&r, path, _i == 1);
        struct object *object = &r.resolved.set.objects[0];
        if (object->direct >= 0)
                close(object->direct);
        object->direct = -1;
        file_uncache(path);
        read_all(&r);
        ck_assert(as_expected(&r, r.resolved.plan.blocks, r.resolved.plan.n_blocks));
        ck_assert(leaves_right(&r));
        reading_end(&r);
}
END_TEST

/* A descriptor that answers EINVAL to every read: a file of /proc that can only be written. -1 where
 * it cannot be opened to read. */
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

/* EINVAL at a read, not at open: as a file system that takes O_DIRECT for some of its files. */
START_TEST(a_direct_way_that_is_refused_gives_way_to_the_cache)
{
        struct reading r;
        char *path = odd_file("odd", 513);
        reading_reader_begin(2, BLOCK);
        reading_begin(&r, path, _i == 1);
        struct object *object = &r.resolved.set.objects[0];
        if (object->direct >= 0)
                close(object->direct);
        object->direct = refusing_fd();
        if (object->direct < 0)
                SKIP("not root");
        file_uncache(path);
        read_all(&r);
        ck_assert_msg(!r.job.failed, "%s", r.job.error.text);
        ck_assert(as_expected(&r, r.resolved.plan.blocks, r.resolved.plan.n_blocks));
        ck_assert(leaves_right(&r));
        reading_end(&r);
}
END_TEST

START_TEST(the_header_is_read_at_any_offset)
{
        unsigned char *buffer = aligned_alloc(4096, 2 * MiB);
        struct reading r;
        struct error error = {0};
        char *path = odd_file("odd", 4095);
        reading_begin(&r, path, false);
        for (size_t i = 0; i < ARRAY_SIZE(residues) * 2; i++) {
                uint64_t at = residues[i / 2], len = r.image_size - at < MiB ? r.image_size - at : MiB - 3;
                cache_or_not(path, i % 2 == 1);
                ck_assert_int_eq(pread_range(&r.resolved.set.objects[0], at, len, buffer + at, &error), 0);
                ck_assert_mem_eq(buffer + at, r.image + at, len);
        }
        free(buffer);
        reading_end(&r);
}
END_TEST

/* ---- files that fail ---- */

/* Loop tests count: in place or through slots, past the cache or through it. */
START_TEST(a_file_cut_short_is_an_error_that_says_where)
{
        struct reading r;
        char *path = odd_file("odd", 100);
        reading_reader_begin(2, 2 * BLOCK);
        reading_begin(&r, path, (_i & 2) != 0);
        must(truncate(path, 3 * MiB + 77));
        cache_or_not(path, (_i & 1) != 0);
        read_all(&r);
        ck_assert(r.job.failed);
        ck_assert_int_eq(r.job.error.code, STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(r.job.error.text, "cut short"));
        ck_assert_ptr_nonnull(strstr(r.job.error.text, path));
        const char *offset = strstr(r.job.error.text, "offset ");
        ck_assert_ptr_nonnull(offset);
        uint64_t at = strtoull(offset + strlen("offset "), NULL, 10);
        ck_assert_uint_ge(at, 3 * MiB + 77);
        ck_assert_uint_lt(at, r.image_size);
        reading_end(&r);
}
END_TEST

START_TEST(a_read_that_fails_is_an_error_that_says_why)
{
        struct reading r;
        char *path = odd_file("odd", 100);
        reading_reader_begin(2, 2 * BLOCK);
        reading_begin(&r, path, _i == 1);
        struct object *object = &r.resolved.set.objects[0];
        close(object->fd);
        object->fd = must(open(suite_folder(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
        if (object->direct >= 0)
                close(object->direct);
        object->direct = -1;
        read_all(&r);
        ck_assert(r.job.failed);
        ck_assert_int_eq(r.job.error.code, STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(r.job.error.text, "read at offset "));
        ck_assert_ptr_nonnull(strstr(r.job.error.text, "Is a directory"));
        ck_assert_ptr_nonnull(strstr(r.job.error.text, path));
        reading_end(&r);
}
END_TEST

START_TEST(an_io_error_of_the_storage_fails_the_job)
{
        const char *why_not = hang_unavailable();
        struct reading r;
        struct hang hang;
        if (why_not != NULL)
                SKIP(why_not);
        char *path = odd_file("odd", 100);
        char *folder = suite_path("hang-%d", (int)getpid());
        hang_start(&hang, folder, "odd", path);
        reading_reader_begin(2, 2 * BLOCK);
        reading_plan(&r, hang.path, false);
        hang_hold(&hang, 3 * MiB);
        reader_start(&reader, &r.job);
        hang_wait_held(&hang);
        hang_fail(&hang);
        core_until(r.ended);
        ck_assert(r.job.failed);
        ck_assert_ptr_nonnull(strstr(r.job.error.text, "Input/output error"));
        reading_end(&r);
        reading_reader_end();
        hang_stop(&hang);
}
END_TEST

START_TEST(memory_that_cannot_be_prepared_fails_the_job)
{
        struct reading r;
        char *path = even_file("even", 6);
        reading_reader_begin(2, BLOCK);
        reading_begin(&r, path, false);
        r.device.fail_prepare = 3;
        read_all(&r);
        ck_assert(r.job.failed);
        ck_assert_int_eq(r.job.error.code, STREAMER_ENOMEM);
        ck_assert_uint_lt(r.n_landed, 6);
        reading_end(&r);
}
END_TEST

START_TEST(a_job_that_fails_in_many_threads_ends_once)
{
        struct reading r;
        char *path = even_file("even", 12);
        reading_reader_begin(4, BLOCK);
        reading_begin(&r, path, false);
        gate_init(&r.device.prepare, false);
        must(truncate(path, 4096));
        reader_start(&reader, &r.job);
        gate_await(&r.device.prepare, 4);
        gate_open(&r.device.prepare);
        core_until(r.ended);
        core_settle();
        ck_assert(r.job.failed);
        ck_assert_uint_eq(r.n_landed, 0);
        reading_end(&r);
}
END_TEST

/* Those that no thread has touched yet are on their way. */
static unsigned free_slots(void)
{
        pthread_mutex_lock(&reader.mutex);
        unsigned n = reader.staging.n_free;
        pthread_mutex_unlock(&reader.mutex);
        return n;
}

START_TEST(a_job_that_failed_leaves_the_reader_fit_for_others)
{
        struct reading bad, good;
        reading_reader_begin(2, 2 * BLOCK);
        char *path = even_file("short", 4);
        reading_begin(&bad, path, true);
        must(truncate(path, 4096));
        read_all(&bad);
        ck_assert(bad.job.failed);
        reading_begin(&good, even_file("good", 4), true);
        read_all(&good);
        ck_assert(!good.job.failed);
        all_landed_once(&good);
        while (free_slots() != reader.staging.n_slots)
                sched_yield();
        reading_end(&bad);
        reading_end(&good);
}
END_TEST

static bool died;

static void on_died(struct read_target *target)
{
        (void)target;
        died = true;
}

/* Whoever has the lock does it. */
START_TEST(a_target_is_dropped_without_waiting_for_the_lock)
{
        struct reading r;
        struct error why = {0};
        reading_reader_begin(2, 2 * BLOCK);
        reading_begin(&r, even_file("even", 4), true);
        gate_init(&r.device.put, false);
        r.target.died = on_died;
        reader_start(&reader, &r.job);
        gate_await(&r.device.put, 1);
        error_set(&why, STREAMER_ECORRUPT, "the files' own digests say otherwise");
        pthread_mutex_lock(&reader.mutex);
        reader_drop(&reader, &r.job, &r.target, &why);
        reader_drop(&reader, &r.job, &r.target, &(struct error){.code = STREAMER_EFAILED});
        core_settle();
        ck_assert(!died && !r.target.dead);
        reader_unlock(&reader);
        core_until(died);
        ck_assert(r.target.dead);
        ck_assert_int_eq(r.target.error.code, STREAMER_ECORRUPT);
        gate_open(&r.device.put);
        core_until(r.ended);
        ck_assert(r.job.failed);
        ck_assert_str_eq(r.job.error.text, why.text);
        reader_drop(&reader, &r.job, &r.target, &why); /* it is dead */
        reading_end(&r);
}
END_TEST

int main(void)
{
        suite_begin("reader");
        TCase *bytes = core_group("bytes", NULL, reading_reader_end);
        tcase_add_loop_test(bytes, every_byte_lands_where_it_belongs, 0, WAYS);
        tcase_add_loop_test(bytes, a_block_touches_no_byte_but_its_own, 0, WAYS);
        tcase_add_test(bytes, a_cold_load_leaves_nothing_in_the_page_cache);
        tcase_add_loop_test(bytes, a_file_without_a_direct_way_is_read_through_the_cache, 0, 2);
        tcase_add_loop_test(bytes, a_direct_way_that_is_refused_gives_way_to_the_cache, 0, 2);
        tcase_add_test(bytes, the_header_is_read_at_any_offset);
        TCase *failing = core_group("files that fail", NULL, reading_reader_end);
        tcase_add_loop_test(failing, a_file_cut_short_is_an_error_that_says_where, 0, 4);
        tcase_add_loop_test(failing, a_read_that_fails_is_an_error_that_says_why, 0, 2);
        tcase_add_test(failing, an_io_error_of_the_storage_fails_the_job);
        tcase_add_test(failing, memory_that_cannot_be_prepared_fails_the_job);
        tcase_add_test(failing, a_job_that_fails_in_many_threads_ends_once);
        tcase_add_test(failing, a_job_that_failed_leaves_the_reader_fit_for_others);
        TCase *lock = core_group("the lock", NULL, reading_reader_end);
        tcase_add_test(lock, a_target_is_dropped_without_waiting_for_the_lock);
        return suite_run();
}
