/* SPDX-License-Identifier: Apache-2.0
 *
 * The helpers of tests/lib.
 */
#include "tests/lib/fuse_file.h"
#include "tests/lib/model.h"
#include "tests/lib/ports.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sched.h>
#include <uv.h>

TEST(a_file_holds_the_contents_that_follow_from_its_seed)
{
        struct model *m = model_mixed(1, 1 << 20);
        char *path = suite_path("m.safetensors"), *data;
        size_t size;

        model_place_data(m, 512, 8);
        model_write(m, path);
        data = file_read(path, &size);
        uint64_t at = model_data_offset(m);
        ck_assert_uint_eq(at % 512, 8);
        ck_assert_uint_eq(size, at + m->bytes);
        for (size_t i = 0; i < m->n; at += m->tensors[i++].bytes)
                ck_assert(model_check(m, i, data + at));
        data[size - 1] ^= 1;
        ck_assert(!model_check(m, m->n - 1, data + at - m->tensors[m->n - 1].bytes));
}

TEST(contents_are_independent_of_the_read_offset)
{
        struct model *m = model_mixed(2, 1 << 20);
        unsigned char whole[100], part[100];

        model_contents(m, 0, 0, whole, sizeof(whole));
        for (size_t from = 0; from < sizeof(whole); from++) {
                model_contents(m, 0, from, part, sizeof(whole) - from);
                ck_assert_mem_eq(part, whole + from, sizeof(whole) - from);
        }
}

/* The kernel may drop any page, and does not drop those in use. */
static bool is_cached(void *path)
{
        file_cache(path);
        return file_cached_bytes(path) == 1 << 20;
}

static bool is_uncached(void *path)
{
        file_uncache(path);
        return file_cached_bytes(path) == 0;
}

TEST(cached_pages_are_counted_and_dropped)
{
        char *path = suite_path("cached"), *data = must_alloc(1 << 20);

        file_write(path, data, 1 << 20);
        ck_assert(eventually(is_cached, path, 10000));
        ck_assert(eventually(is_uncached, path, 10000));
        ck_assert(eventually(is_cached, path, 10000));
}

/* A child that has the file mapped until `end` is closed. */
static pid_t map_in_child(const char *path, int end)
{
        struct held_file held;
        int mapped[2];
        char byte;

        must(pipe2(mapped, O_CLOEXEC));
        pid_t pid = must(fork());
        if (pid == 0) {
                file_map_cached(&held, path);
                _exit(write(mapped[1], "m", 1) != 1 || read(end, &byte, 1) != 0);
        }
        close(mapped[1]);
        ck_assert_int_eq(read(mapped[0], &byte, 1), 1);
        close(mapped[0]);
        return pid;
}

TEST(process_memory_excludes_shared_mappings)
{
        enum { SIZE = 4 << 20 };
        char *path = suite_path("mapped"), *data = must_alloc(SIZE);
        int end[2];

        must(pipe2(end, O_CLOEXEC));
        file_write(path, data, SIZE);
        uint64_t none = process_own_memory(getpid());
        pid_t pid = map_in_child(path, end[0]);
        uint64_t alone = process_own_memory(pid), pss = process_memory(pid);
        pid_t other = map_in_child(path, end[0]);
        uint64_t beside = process_own_memory(pid); /* a sanitizer's thread may touch a page meanwhile */
        ck_assert_uint_lt(beside, alone + SIZE / 4);
        ck_assert_uint_gt(beside + SIZE / 4, alone);
        ck_assert_uint_lt(process_memory(pid), pss - SIZE / 4);
        ck_assert_uint_ge(alone, SIZE);
        ck_assert_uint_lt(none, alone);
        must(kill(pid, SIGKILL));
        must(kill(other, SIGKILL));
        must(wait(NULL));
        must(wait(NULL));
}

/* Claims ports, reports the first, and holds them until `end` is closed. */
static _Noreturn void claim_ports(int tell, int end)
{
        unsigned first = free_ports(PORTS_MAX);
        char byte;

        _exit(write(tell, &first, sizeof(first)) != sizeof(first) || read(end, &byte, 1) != 0);
}

/* No process listens on them, so only the claim distinguishes them. */
TEST(ports_are_given_to_one_process_at_a_time)
{
        enum { PROCESSES = 40 };
        unsigned firsts[PROCESSES];
        int told[2], end[2];

        must(pipe2(told, O_CLOEXEC));
        must(pipe2(end, O_CLOEXEC));
        for (int i = 0; i < PROCESSES; i++) {
                pid_t pid = must(fork());
                if (pid == 0) {
                        close(end[1]);
                        claim_ports(told[1], end[0]);
                }
        }
        for (int i = 0; i < PROCESSES; i++) {
                ck_assert_int_eq(read(told[0], &firsts[i], sizeof(firsts[i])), sizeof(firsts[i]));
                for (int k = 0; k < i; k++)
                        ck_assert_uint_ge(firsts[i] > firsts[k] ? firsts[i] - firsts[k] : firsts[k] - firsts[i],
                                          PORTS_MAX);
        }
        close(end[1]);
        for (int i = 0; i < PROCESSES; i++)
                must(wait(NULL));
}

/* Reads the whole file in a child process; *to has the result: the bytes read, or -errno. */
static pid_t read_in_child(const char *path, int *result)
{
        int ends[2];

        must(pipe(ends));
        pid_t pid = must(fork());
        if (pid == 0) {
                char buf[65536];
                int fd = must(open(path, O_RDONLY)), sum = 0;
                ssize_t n;
                while ((n = read(fd, buf, sizeof(buf))) > 0)
                        sum += (int)n;
                sum = n < 0 ? -errno : sum;
                _exit(write(ends[1], &sum, sizeof(sum)) != sizeof(sum));
        }
        close(ends[1]);
        *result = ends[0];
        return pid;
}

static int wait_result(pid_t pid, int from)
{
        int result;

        ck_assert_int_eq(read(from, &result, sizeof(result)), sizeof(result));
        waitpid(pid, NULL, 0);
        return result;
}

static void hang_one_megabyte(struct fuse_file *h)
{
        char *data = must_alloc(1 << 20);

        file_write(suite_path("backing"), data, 1 << 20);
        fuse_file_start(h, suite_path("hang"), "m.safetensors", suite_path("backing"));
        free(data);
}

TEST(a_held_read_returns_the_files_later_contents)
{
        const char *why = fuse_file_unavailable();
        struct fuse_file h;
        int result;

        if (why)
                SKIP(why);
        hang_one_megabyte(&h);
        fuse_file_hold(&h, 500000);
        pid_t pid = read_in_child(h.path, &result);
        fuse_file_wait_held(&h);
        must(truncate(suite_path("backing"), 400000));
        fuse_file_release(&h);
        ck_assert_int_lt(wait_result(pid, result), 1 << 20);
        ck_assert_uint_eq(file_size(h.path), 400000);
        fuse_file_stop(&h);
}

TEST(a_held_read_can_be_made_to_fail)
{
        const char *why = fuse_file_unavailable();
        struct fuse_file h;
        int result;

        if (why)
                SKIP(why);
        hang_one_megabyte(&h);
        fuse_file_hold(&h, 500000);
        pid_t pid = read_in_child(h.path, &result);
        fuse_file_wait_held(&h);
        fuse_file_fail(&h);
        ck_assert_int_eq(wait_result(pid, result), -EIO);
        fuse_file_stop(&h);
}

static void fail_with_a_long_log(int row)
{
        char text[DIE_TEXT - 1];

        (void)row;

        memset(text, 'x', sizeof(text));
        die("%.*s", (int)sizeof(text), text);
}

static _Noreturn void see_failure(void)
{
        static const TTest failing = {"failing", fail_with_a_long_log, __FILE__, __LINE__};
        Suite *inner = suite_create("inner");
        TCase *tests = tcase_create("inner");
        SRunner *runner = srunner_create(inner);

        suite_add_tcase(inner, tests);
        tcase_add_test(tests, &failing);
        srunner_run_all(runner, CK_SILENT);
        _exit(srunner_ntests_failed(runner) != 1 || strlen(tr_msg(srunner_failures(runner)[0])) != DIE_TEXT - 1);
}

/* Check has a limit, over which a program ends and its reason is lost. */
TEST(the_longest_reason_for_a_failure_is_shown_whole)
{
        int status;
        pid_t pid = must(fork());

        if (pid == 0)
                see_failure();
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(status, 0);
}

static void *open_and_close(void *closed)
{
        uv_loop_t loop;
        uv_tcp_t socket;

        uv_loop_init(&loop);
        uv_tcp_init_ex(&loop, &socket, AF_INET);
        uv_close((uv_handle_t *)&socket, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
        uv_loop_close(&loop);
        atomic_store_explicit((atomic_bool *)closed, true, memory_order_relaxed);
        return NULL;
}

/* Relaxed: nothing but the descriptor's number connects the threads. */
TEST(tsan_sees_that_libuv_closes_a_descriptor)
{
        atomic_bool closed = false;
        pthread_t thread;
        ck_assert_int_eq(pthread_create(&thread, NULL, open_and_close, &closed), 0);
        while (!atomic_load_explicit(&closed, memory_order_relaxed))
                sched_yield();
        DIR *used_again = opendir(suite_path("."));
        ck_assert_ptr_nonnull(used_again);
        closedir(used_again);
        pthread_join(thread, NULL);
}
