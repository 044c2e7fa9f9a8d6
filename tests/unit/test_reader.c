/* SPDX-License-Identifier: Apache-2.0
 *
 * The block reader, with real files: every byte where it belongs and no other byte touched, through
 * the page cache and past it, in place and through slots; files that fail or end early; loads that
 * share threads and slots with one that hangs; threads that are counted out and come back.
 *
 * "Hangs" is a closed gate in the device's prepare (blocks in place) or put (blocks through slots):
 * to the reader a thread that moves no byte is the same wherever it waits.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/io/reader.h"
#include "daemon/io/reader_pread.h"
#include "tests/lib/hang.h"
#include "tests/lib/storage.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)
#define BLOCK (2 * MiB)

static struct reader reader;
static bool reading;

static void reader_begin(unsigned concurrency, uint64_t memory_limit)
{
        struct error error = {0};
        struct reader_opts opts = {
                .concurrency = concurrency, .block_size = BLOCK, .memory_limit = memory_limit, .stall_ns = 0};
        ck_assert_msg(reader_init(&reader, &opts, core_wake, &error) == 0, "%s", error.text);
        reading = true;
}

static void reader_end(void)
{
        if (reading)
                ck_assert(reader_deinit(&reader, now_ns() + 20 * SECOND));
        reading = false;
        ck_assert_uint_eq(threads_named("reader"), 0);
}

/* ---- a load's reading ---- */

struct reading {
        struct read_job job;
        struct resolved resolved;
        struct fake_device device;
        struct segment segments[PLAN_MAX_SEGMENTS];
        unsigned char *image; /* of the file */
        size_t image_size;
        uint32_t *landed; /* atomic: how often, by block */
        uint32_t n_landed;
        bool ended;
};

static void on_landed(struct read_job *job, const struct plan_block *block)
{
        struct reading *r = container_of(job, struct reading, job);
        __atomic_add_fetch(&r->landed[block - r->resolved.plan.blocks], 1, __ATOMIC_SEQ_CST);
        __atomic_add_fetch(&r->n_landed, 1, __ATOMIC_SEQ_CST);
}

static void on_ended(struct read_job *job)
{
        struct reading *r = container_of(job, struct reading, job);
        ck_assert_msg(!r->ended, "ended twice");
        r->ended = true;
}

static void reading_plan(struct reading *r, const char *path, bool hidden)
{
        struct error error = {0};
        *r = (struct reading){0};
        fake_device_init(&r->device, "fake", 1024 * MiB, hidden);
        core_resolve(&r->resolved, path, &r->device.device.layout, BLOCK);
        const struct plan *plan = &r->resolved.plan;
        for (size_t i = 0; i < plan->n_segments; i++)
                ck_assert_int_eq(
                        r->device.device.ops->alloc(&r->device.device, plan->segments[i], &r->segments[i], &error), 0);
        r->landed = must_alloc(plan->n_blocks * sizeof(*r->landed));
        r->job = (struct read_job){.plan = plan,
                                   .objects = r->resolved.set.objects,
                                   .segments = r->segments,
                                   .leaves = must_alloc((plan->n_leaves + 1) * DIGEST_SIZE),
                                   .landed = on_landed,
                                   .ended = on_ended};
}

static void reading_begin(struct reading *r, const char *path, bool hidden)
{
        reading_plan(r, path, hidden);
        r->image = (unsigned char *)file_read(path, &r->image_size);
}

static void reading_end(struct reading *r)
{
        for (size_t i = 0; i < r->resolved.plan.n_segments; i++)
                r->device.device.ops->release(&r->segments[i]);
        fake_device_deinit(&r->device);
        resolve_deinit(&r->resolved);
        free(r->job.leaves);
        free(r->landed);
        free(r->image);
}

/* What the segments should hold once these blocks have landed: poison everywhere else. */
static bool as_expected(const struct reading *r, const struct plan_block *blocks, size_t n)
{
        bool same = true;
        for (size_t s = 0; s < r->resolved.plan.n_segments; s++) {
                unsigned char *want = must_alloc(r->segments[s].size);
                memset(want, FAKE_POISON, r->segments[s].size);
                for (size_t i = 0; i < n; i++) {
                        struct plan_cursor cursor;
                        struct plan_piece p;
                        plan_pieces_begin(&blocks[i], &cursor);
                        while (plan_pieces_next(&r->resolved.plan, &blocks[i], &cursor, &p))
                                if (p.segment == s)
                                        memcpy(want + p.offset, r->image + blocks[i].file_off + p.in_block, p.len);
                }
                same = same && memcmp(want, fake_memory(&r->segments[s]), r->segments[s].size) == 0;
                free(want);
        }
        return same;
}

static bool leaves_right(const struct reading *r)
{
        const struct plan *plan = &r->resolved.plan;
        for (size_t i = 0; i < plan->n_tensors; i++) {
                const struct plan_tensor *t = &plan->tensors[i];
                for (uint64_t at = 0; at < t->bytes; at += PLAN_LEAF) {
                        unsigned char want[DIGEST_SIZE];
                        hash_bytes(r->image + t->file_off + at, t->bytes - at < PLAN_LEAF ? t->bytes - at : PLAN_LEAF,
                                   want);
                        if (memcmp(want, r->job.leaves[t->leaf + at / PLAN_LEAF], DIGEST_SIZE) != 0)
                                return false;
                }
        }
        return true;
}

static void read_all(struct reading *r)
{
        reader_start(&reader, &r->job);
        core_until(r->ended);
}

static void all_landed_once(const struct reading *r)
{
        for (size_t i = 0; i < r->resolved.plan.n_blocks; i++)
                ck_assert_uint_eq(r->landed[i], 1);
}

/* ---- files ---- */

/* Tensors of odd sizes, some of several blocks, one of many leaves; data at any offset. */
static char *odd_file(const char *name, uint64_t residue)
{
        struct model *m = model_new(residue + 1);
        model_place_data(m, 4096, residue);
        model_add(m, "a", "U8", (uint64_t[]){1}, 1);
        model_add(m, "b", "U8", (uint64_t[]){4097}, 1);
        model_add(m, "c", "U8", (uint64_t[]){5 * MiB + 123}, 1);
        model_add(m, "d", "U8", (uint64_t[]){0, 3}, 2);
        model_add_many(m, "e", 300, 77);
        model_add(m, "f", "BF16", (uint64_t[]){3, MiB / 2 + 1}, 2);
        model_add(m, "g", "U8", (uint64_t[]){2 * MiB}, 1);
        model_add(m, "h", "U8", (uint64_t[]){13}, 1);
        char *path = core_write(m, name);
        model_free(m);
        return path;
}

/* A file of n blocks, each a tensor, at a page boundary. */
static char *even_file(const char *name, size_t n)
{
        struct model *m = model_new(n);
        model_place_data(m, 4096, 0);
        model_add_many(m, name, n, BLOCK);
        char *path = core_write(m, name);
        model_free(m);
        return path;
}

static void cache_or_not(const char *path, bool cached)
{
        if (cached)
                file_cache(path);
        else
                file_uncache(path);
}

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
        reader_begin(4, 4 * BLOCK);
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
        reader_begin(1, BLOCK);
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
        reader_begin(4, 4 * BLOCK);
        reading_begin(&r, path, false);
        if (r.resolved.set.objects[0].direct < 0)
                SKIP("this file system has no O_DIRECT");
        file_uncache(path);
        read_all(&r);
        ck_assert_uint_le(file_cached_bytes(path), 256 * KiB); /* probes */
        reading_end(&r);
}
END_TEST

START_TEST(a_file_without_a_direct_way_is_read_through_the_cache)
{
        struct reading r;
        char *path = odd_file("odd", 513);
        reader_begin(2, BLOCK);
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
        reader_begin(2, BLOCK);
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
        reader_begin(2, 2 * BLOCK);
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
        reader_begin(2, 2 * BLOCK);
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
        reader_begin(2, 2 * BLOCK);
        reading_plan(&r, hang.path, false);
        hang_hold(&hang, 3 * MiB);
        reader_start(&reader, &r.job);
        hang_wait_held(&hang);
        hang_fail(&hang);
        core_until(r.ended);
        ck_assert(r.job.failed);
        ck_assert_ptr_nonnull(strstr(r.job.error.text, "Input/output error"));
        reading_end(&r);
        reader_end();
        hang_stop(&hang);
}
END_TEST

START_TEST(memory_that_cannot_be_prepared_fails_the_job)
{
        struct reading r;
        char *path = even_file("even", 6);
        reader_begin(2, BLOCK);
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
        reader_begin(4, BLOCK);
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
        reader_begin(2, 2 * BLOCK);
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

/* ---- jobs ---- */

START_TEST(a_job_without_blocks_ends_on_the_next_turn)
{
        struct reading r;
        struct model *m = model_new(1);
        model_add(m, "empty", "F32", (uint64_t[]){0}, 1);
        char *path = core_write(m, "empty");
        model_free(m);
        reader_begin(2, BLOCK);
        reading_begin(&r, path, false);
        ck_assert_uint_eq(r.resolved.plan.n_blocks, 0);
        reader_start(&reader, &r.job);
        ck_assert(!r.ended);
        core_until(r.ended);
        ck_assert(!r.job.failed);
        reading_end(&r);
}
END_TEST

START_TEST(concurrency_one_reads_one_block_at_a_time)
{
        struct reading r;
        reader_begin(1, 4 * BLOCK);
        reading_begin(&r, even_file("even", 5), _i == 1);
        struct gate *gate = _i == 1 ? &r.device.put : &r.device.prepare;
        gate_init(gate, false);
        reader_start(&reader, &r.job);
        for (unsigned i = 1; i <= 5; i++) {
                gate_await(gate, i);
                threads_await_asleep("reader", threads_named("reader"));
                ck_assert_uint_eq(gate_come(gate), i);
                gate_let(gate, 1);
        }
        core_until(r.ended);
        all_landed_once(&r);
        reading_end(&r);
}
END_TEST

START_TEST(a_job_has_no_more_blocks_in_flight_than_the_concurrency)
{
        struct reading r;
        reader_begin(3, 4 * BLOCK);
        reading_begin(&r, even_file("even", 8), false);
        gate_init(&r.device.prepare, false);
        reader_start(&reader, &r.job);
        gate_await(&r.device.prepare, 3);
        threads_await_asleep("reader", threads_named("reader"));
        ck_assert_uint_eq(gate_come(&r.device.prepare), 3);
        gate_open(&r.device.prepare);
        core_until(r.ended);
        all_landed_once(&r);
        reading_end(&r);
}
END_TEST

START_TEST(a_ring_of_one_slot_serves_any_number_of_jobs)
{
        struct reading r[3];
        reader_begin(4, 1);
        ck_assert_uint_eq(reader.staging.n_slots, 1);
        for (size_t i = 0; i < 3; i++) {
                reading_begin(&r[i], odd_file(i == 0 ? "one" : i == 1 ? "two" : "three", i), true);
                reader_start(&reader, &r[i].job);
        }
        core_until(r[0].ended && r[1].ended && r[2].ended);
        for (size_t i = 0; i < 3; i++) {
                ck_assert(!r[i].job.failed);
                ck_assert(as_expected(&r[i], r[i].resolved.plan.blocks, r[i].resolved.plan.n_blocks));
                reading_end(&r[i]);
        }
}
END_TEST

START_TEST(stopping_lets_what_is_in_flight_come_home_and_takes_no_more)
{
        struct reading r;
        reader_begin(2, 4 * BLOCK);
        reading_begin(&r, even_file("even", 8), false);
        gate_init(&r.device.prepare, false);
        reader_start(&reader, &r.job);
        gate_await(&r.device.prepare, 2);
        reader_stop(&reader, &r.job);
        core_settle();
        ck_assert(!r.ended);
        gate_open(&r.device.prepare);
        core_until(r.ended);
        ck_assert(!r.job.failed);
        ck_assert_uint_eq(r.n_landed, 2);
        reading_end(&r);
}
END_TEST

START_TEST(stopping_twice_or_after_the_end_is_nothing)
{
        struct reading r;
        reader_begin(2, 4 * BLOCK);
        reading_begin(&r, even_file("even", 3), false);
        reader_start(&reader, &r.job);
        reader_stop(&reader, &r.job);
        reader_stop(&reader, &r.job);
        core_until(r.ended);
        reader_stop(&reader, &r.job);
        core_settle();
        reading_end(&r);
}
END_TEST

/* ---- one that hangs, and the others ---- */

START_TEST(a_job_that_hangs_leaves_threads_to_the_next)
{
        struct reading hung, next;
        reader_begin(4, 8 * BLOCK);
        reading_begin(&hung, even_file("hung", 20), false);
        reading_begin(&next, even_file("next", 20), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, 4);
        read_all(&next);
        all_landed_once(&next);
        ck_assert(!hung.ended);
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        all_landed_once(&hung);
        reading_end(&hung);
        reading_end(&next);
}
END_TEST

START_TEST(each_job_that_hangs_takes_half_of_what_is_left_so_that_one_more_is_served)
{
        struct reading hung[3], next;
        unsigned share[] = {4, 2, 1};
        reader_begin(4, 8 * BLOCK);
        for (size_t i = 0; i < 3; i++) {
                reading_begin(&hung[i], even_file(i == 0 ? "h0" : i == 1 ? "h1" : "h2", 12), false);
                gate_init(&hung[i].device.prepare, false);
                reader_start(&reader, &hung[i].job);
                gate_await(&hung[i].device.prepare, share[i]);
                threads_await_asleep("reader", 8);
                ck_assert_uint_eq(gate_come(&hung[i].device.prepare), share[i]);
        }
        reading_begin(&next, even_file("next", 12), false);
        read_all(&next);
        all_landed_once(&next);
        reading_end(&next);
        for (size_t i = 0; i < 3; i++) {
                gate_open(&hung[i].device.prepare);
                core_until(hung[i].ended);
                reading_end(&hung[i]);
        }
}
END_TEST

START_TEST(a_job_that_hangs_leaves_slots_to_the_next)
{
        struct reading hung, next;
        reader_begin(4, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 20), true);
        reading_begin(&next, even_file("next", 20), true);
        gate_init(&hung.device.put, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.put, 2);
        threads_await_asleep("reader", 8);
        ck_assert_uint_eq(gate_come(&hung.device.put), 2);
        read_all(&next);
        all_landed_once(&next);
        gate_open(&hung.device.put);
        core_until(hung.ended);
        reading_end(&hung);
        reading_end(&next);
}
END_TEST

START_TEST(a_stalled_job_is_known_and_the_others_are_not_blamed)
{
        struct reading hung, fine;
        reader_begin(2, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 4), false);
        reading_begin(&fine, even_file("fine", 4), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, 2);
        ck_assert(!reader_job_stalled(&reader, &hung.job));
        read_all(&fine);
        reader_watch(&reader);
        ck_assert(reader_job_stalled(&reader, &hung.job));
        ck_assert(!reader_job_stalled(&reader, &fine.job));
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        ck_assert(!reader_job_stalled(&reader, &hung.job));
        reading_end(&hung);
        reading_end(&fine);
}
END_TEST

START_TEST(threads_that_hang_are_replaced_up_to_the_cap)
{
        struct reading hung[5];
        reader_begin(1, 4 * BLOCK); /* base 2, cap 6 */
        threads_await_asleep("reader", 2);
        for (unsigned i = 0; i < 5; i++) {
                char *name = format_text("h%u", i);
                reading_begin(&hung[i], even_file(name, 2), false);
                free(name);
                gate_init(&hung[i].device.prepare, false);
                reader_start(&reader, &hung[i].job);
                gate_await(&hung[i].device.prepare, 1);
                reader_watch(&reader);
                unsigned want = i + 3 < 6 ? i + 3 : 6;
                threads_await_asleep("reader", want);
                ck_assert_uint_eq(reader.alive, want);
                ck_assert_uint_eq(reader.stuck, i + 1);
        }
        for (size_t i = 0; i < 5; i++)
                gate_open(&hung[i].device.prepare);
        for (size_t i = 0; i < 5; i++) {
                core_until(hung[i].ended);
                all_landed_once(&hung[i]);
                reading_end(&hung[i]);
        }
}
END_TEST

/* What was counted out comes home and finds its place taken: it goes, but its job must go on. */
START_TEST(a_job_that_hung_goes_on_when_its_storage_answers)
{
        struct reading hung;
        unsigned concurrency = (unsigned)_i;
        reader_begin(concurrency, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 20), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, concurrency);
        reader_watch(&reader);
        threads_await_asleep("reader", 3 * concurrency);
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        all_landed_once(&hung);
        threads_await_asleep("reader", 2 * concurrency);
        ck_assert_uint_eq(reader.stuck, 0);
        ck_assert_uint_eq(reader.busy, 0);
        reading_end(&hung);
}
END_TEST

START_TEST(stopping_a_job_that_hangs_waits_for_its_threads)
{
        struct reading hung;
        reader_begin(2, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 8), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, 2);
        reader_watch(&reader);
        reader_stop(&reader, &hung.job);
        core_settle();
        ck_assert(!hung.ended);
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        ck_assert_uint_eq(hung.n_landed, 2);
        reading_end(&hung);
}
END_TEST

START_TEST(a_reader_whose_threads_hang_gives_up_at_its_deadline)
{
        struct reading hung;
        reader_begin(2, 4 * BLOCK);
        reading_begin(&hung, even_file("hung", 8), false);
        gate_init(&hung.device.prepare, false);
        reader_start(&reader, &hung.job);
        gate_await(&hung.device.prepare, 2);
        reader_stop(&reader, &hung.job);
        ck_assert(!reader_deinit(&reader, now_ns() + SECOND / 50));
        gate_open(&hung.device.prepare);
        core_until(hung.ended);
        reader_end();
        reading_end(&hung);
}
END_TEST

int main(void)
{
        suite_begin("reader");
        TCase *bytes = core_group("bytes", NULL, reader_end);
        tcase_add_loop_test(bytes, every_byte_lands_where_it_belongs, 0, WAYS);
        tcase_add_loop_test(bytes, a_block_touches_no_byte_but_its_own, 0, WAYS);
        tcase_add_test(bytes, a_cold_load_leaves_nothing_in_the_page_cache);
        tcase_add_loop_test(bytes, a_file_without_a_direct_way_is_read_through_the_cache, 0, 2);
        tcase_add_loop_test(bytes, a_direct_way_that_is_refused_gives_way_to_the_cache, 0, 2);
        tcase_add_test(bytes, the_header_is_read_at_any_offset);
        TCase *failing = core_group("files that fail", NULL, reader_end);
        tcase_add_loop_test(failing, a_file_cut_short_is_an_error_that_says_where, 0, 4);
        tcase_add_loop_test(failing, a_read_that_fails_is_an_error_that_says_why, 0, 2);
        tcase_add_test(failing, an_io_error_of_the_storage_fails_the_job);
        tcase_add_test(failing, memory_that_cannot_be_prepared_fails_the_job);
        tcase_add_test(failing, a_job_that_fails_in_many_threads_ends_once);
        tcase_add_test(failing, a_job_that_failed_leaves_the_reader_fit_for_others);
        TCase *jobs = core_group("jobs", NULL, reader_end);
        tcase_add_test(jobs, a_job_without_blocks_ends_on_the_next_turn);
        tcase_add_loop_test(jobs, concurrency_one_reads_one_block_at_a_time, 0, 2);
        tcase_add_test(jobs, a_job_has_no_more_blocks_in_flight_than_the_concurrency);
        tcase_add_test(jobs, a_ring_of_one_slot_serves_any_number_of_jobs);
        tcase_add_test(jobs, stopping_lets_what_is_in_flight_come_home_and_takes_no_more);
        tcase_add_test(jobs, stopping_twice_or_after_the_end_is_nothing);
        TCase *hanging = core_group("one that hangs", NULL, reader_end);
        tcase_add_test(hanging, a_job_that_hangs_leaves_threads_to_the_next);
        tcase_add_test(hanging, each_job_that_hangs_takes_half_of_what_is_left_so_that_one_more_is_served);
        tcase_add_test(hanging, a_job_that_hangs_leaves_slots_to_the_next);
        tcase_add_test(hanging, a_stalled_job_is_known_and_the_others_are_not_blamed);
        tcase_add_test(hanging, threads_that_hang_are_replaced_up_to_the_cap);
        tcase_add_loop_test(hanging, a_job_that_hung_goes_on_when_its_storage_answers, 1, 5);
        tcase_add_test(hanging, stopping_a_job_that_hangs_waits_for_its_threads);
        tcase_add_test(hanging, a_reader_whose_threads_hang_gives_up_at_its_deadline);
        return suite_run();
}
