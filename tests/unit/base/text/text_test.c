/* SPDX-License-Identifier: Apache-2.0
 *
 * Small files that are read whole, sizes in messages, and how much two names differ.
 */
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"
#include "proto/distance.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

static struct text text;
static struct error error;

static int read_text(const char *path, uint64_t max)
{
        int fd = must(open(path, O_RDONLY));
        return text_read_fd(&text, fd, max, path, &error);
}

TEST(a_file_is_read_whole_and_terminated, .to = 5)
{
        /* Sizes around a page, where the terminator needs one more. */
        static const size_t sizes[] = {0, 1, 4095, 4096, 4097};
        char *path = suite_path("text"), *data = must_alloc(8192);
        memset(data, 'x', 8192);
        file_write(path, data, sizes[_i]);
        ck_assert_int_eq(read_text(path, 4097), 0);
        ck_assert_uint_eq(text.size, sizes[_i]);
        ck_assert_mem_eq(text.data, data, text.size);
        ck_assert_int_eq(text.data[text.size], '\0');
        text_deinit(&text);
        ck_assert_ptr_null(text.data);
}

TEST(a_file_over_its_limit_is_not_read)
{
        char *path = suite_path("large");
        file_write(path, "12345", 5);
        FAILS_WITH(error, read_text(path, 4), STREAMER_EFAILED, "5 bytes, more than the 4 allowed");
        ck_assert_ptr_null(text.data);
}

TEST(a_folder_is_no_text)
{
        FAILS_WITH(error, read_text(suite_folder(), 100), STREAMER_EFAILED, "not a regular file");
}

/* Files of sysfs state a page as their size, and end before. */
TEST(a_file_that_ends_before_its_size_is_not_read)
{
        FAILS_SAYING(error, read_text("/sys/devices/system/cpu/online", 1 << 20), STREAMER_EFAILED,
                     "became shorter while it was read (/sys/devices/system/cpu/online)");
        ck_assert_ptr_null(text.data);
}

/* ---- words ---- */

static const struct {
        uint64_t bytes;
        const char *text;
} sizes[] = {{0, "0 B"},
             {1023, "1023 B"},
             {MiB - 52, "1023.9 KiB"},
             {MiB - 51, "1.0 MiB"},
             {GiB - 1, "1.0 GiB"},
             {1024, "1.0 KiB"},
             {1536, "1.5 KiB"},
             {UINT64_C(4) << 30, "4.0 GiB"},
             {UINT64_MAX, "16.0 EiB"}};

TEST(a_size_has_its_largest_unit, EACH(sizes))
{
        char out[SIZE_TEXT];
        ck_assert_str_eq(size_text(out, sizes[_i].bytes), sizes[_i].text);
}

static const struct {
        const char *a, *b;
        size_t distance;
} distances[] = {{"", "", 0},
                 {"model", "model", 0},
                 {"model", "", 5},
                 {"modle", "model", 1},
                 {"modl", "model", 1},
                 {"mmodel", "model", 1},
                 {"abc", "xyz", 3},
                 {"abcd", "badc", 2},
                 {"modle.safetensors", "model", 1},
                 {"a.safetensors", "b.safetensors", 1},
                 {".safetensors", "x", 12}};

TEST(the_distance_counts_changes, EACH(distances))
{
        ck_assert_uint_eq(name_distance(distances[_i].a, distances[_i].b), distances[_i].distance);
        ck_assert_uint_eq(name_distance(distances[_i].b, distances[_i].a), distances[_i].distance);
}

TEST(a_short_name_must_agree_in_more)
{
        ck_assert_uint_eq(name_distance_limit("ab.safetensors"), 1);
        ck_assert_uint_eq(name_distance_limit("model"), 2);
        ck_assert_uint_eq(name_distance_limit("witness"), 3);
}

static const struct {
        const char *name, *nearest;
} nearest[] = {{"witnes", "witness"}, {"lits", "list"}, {"lod", "load"}, {"ab", NULL}, {"", NULL}, {"model", NULL}};

TEST(the_nearest_name_is_similar, EACH(nearest))
{
        static const char *const names[] = {"other", "witness", "load", "list", "lists", "abcd"};
        const char *found = name_nearest(nearest[_i].name, names, sizeof(names) / sizeof(names[0]));
        ck_assert_pstr_eq(found, nearest[_i].nearest);
}

TEST(long_names_are_not_compared)
{
        char name[DISTANCE_MAX + 2];
        memset(name, 'x', sizeof(name));
        name[DISTANCE_MAX] = '\0';
        ck_assert_uint_eq(name_distance(name, name), 0);
        name[DISTANCE_MAX] = 'x';
        name[DISTANCE_MAX + 1] = '\0';
        ck_assert_uint_eq(name_distance(name, "x"), SIZE_MAX);
        ck_assert_uint_eq(name_distance("x", name), SIZE_MAX);
}
