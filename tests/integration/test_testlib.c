/* SPDX-License-Identifier: Apache-2.0
 *
 * The tests' own tools do what the other suites trust them to do.
 */
#include "tests/lib/hang.h"
#include "tests/lib/model.h"
#include "tests/lib/storage.h"
#include "tests/lib/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

START_TEST(a_file_holds_the_contents_that_follow_from_its_seed)
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
        model_free(m);
}
END_TEST

START_TEST(contents_do_not_depend_on_where_one_begins)
{
        struct model *m = model_mixed(2, 1 << 20);
        unsigned char whole[100], part[100];

        model_contents(m, 0, 0, whole, sizeof(whole));
        for (size_t from = 0; from < sizeof(whole); from++) {
                model_contents(m, 0, from, part, sizeof(whole) - from);
                ck_assert_mem_eq(part, whole + from, sizeof(whole) - from);
        }
        model_free(m);
}
END_TEST

START_TEST(cached_pages_are_counted_and_dropped)
{
        char *path = suite_path("cached"), *data = must_alloc(1 << 20);

        file_write(path, data, 1 << 20);
        ck_assert_uint_eq(file_cached_bytes(path), 1 << 20);
        file_uncache(path);
        ck_assert_uint_eq(file_cached_bytes(path), 0);
        file_cache(path);
        ck_assert_uint_eq(file_cached_bytes(path), 1 << 20);
}
END_TEST

/* Reads all of the file in a child; *to tells how that ended: the bytes read, or -errno. */
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

static void hang_one_megabyte(struct hang *h)
{
        char *data = must_alloc(1 << 20);

        file_write(suite_path("backing"), data, 1 << 20);
        hang_start(h, suite_path("hang"), "m.safetensors", suite_path("backing"));
        free(data);
}

START_TEST(a_held_read_goes_on_with_what_the_file_then_holds)
{
        const char *why = hang_unavailable();
        struct hang h;
        int result;

        if (why)
                SKIP(why);
        hang_one_megabyte(&h);
        hang_hold(&h, 500000);
        pid_t pid = read_in_child(h.path, &result);
        hang_wait_held(&h);
        must(truncate(suite_path("backing"), 400000));
        hang_release(&h);
        ck_assert_int_lt(wait_result(pid, result), 1 << 20);
        ck_assert_uint_eq(file_size(h.path), 400000);
        hang_stop(&h);
}
END_TEST

START_TEST(a_held_read_can_be_made_to_fail)
{
        const char *why = hang_unavailable();
        struct hang h;
        int result;

        if (why)
                SKIP(why);
        hang_one_megabyte(&h);
        hang_hold(&h, 500000);
        pid_t pid = read_in_child(h.path, &result);
        hang_wait_held(&h);
        hang_fail(&h);
        ck_assert_int_eq(wait_result(pid, result), -EIO);
        hang_stop(&h);
}
END_TEST

int main(void)
{
        suite_begin("the tests' own tools");
        TCase *models = suite_group("models", NULL, NULL, 30);
        tcase_add_test(models, a_file_holds_the_contents_that_follow_from_its_seed);
        tcase_add_test(models, contents_do_not_depend_on_where_one_begins);
        TCase *kernel = suite_group("kernel", NULL, NULL, 30);
        tcase_add_test(kernel, cached_pages_are_counted_and_dropped);
        tcase_add_test(kernel, a_held_read_goes_on_with_what_the_file_then_holds);
        tcase_add_test(kernel, a_held_read_can_be_made_to_fail);
        return suite_run();
}
