/* SPDX-License-Identifier: Apache-2.0
 *
 * Sizes in messages, and how much two names differ.
 */
#include "daemon/base/text/text.h"
#include "proto/distance.h"
#include "tests/lib/suite.h"

static const struct {
        uint64_t bytes;
        const char *text;
} sizes[] = {{0, "0 B"},
             {1023, "1023 B"},
             {1024, "1.0 KiB"},
             {1536, "1.5 KiB"},
             {UINT64_C(4) << 30, "4.0 GiB"},
             {UINT64_MAX, "16.0 EiB"}};

TEST(a_size_has_its_largest_unit, EACH(sizes))
{
        char text[SIZE_TEXT];
        ck_assert_str_eq(size_text(text, sizes[_i].bytes), sizes[_i].text);
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
