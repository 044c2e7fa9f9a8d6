/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files belong to which rank: names in any order, and missing, duplicate and surplus files.
 */
#include "daemon/model/ranks.h"
#include "tests/lib/suite.h"

static struct rank_file files[16];
static size_t n_files;
static struct error why;

static int make(const char *const *names, const char *pattern, size_t n_devices)
{
        size_t n = 0;
        while (names[n] != NULL)
                n++;
        why.text[0] = '\0';
        return ranks_list(files, &n_files, names, n, pattern, n_devices, &why);
}

#define MAKE(pattern, n_devices, ...) make((const char *const[]){__VA_ARGS__, NULL}, pattern, n_devices)

static void refused(int r, const char *says)
{
        ck_assert_int_lt(r, 0);
        ck_assert_msg(strstr(why.text, says) != NULL, "'%s' does not say '%s'", why.text, says);
}

/* The numbers of a rank's names. */
static void has(size_t rank, size_t n, const uint32_t *numbers)
{
        size_t found = 0;
        for (size_t i = 0; i < n_files; i++) {
                if (files[i].rank != rank)
                        continue;
                ck_assert_uint_lt(found, n);
                ck_assert_uint_eq(files[i].file, numbers[found++]);
        }
        ck_assert_uint_eq(found, n);
}

/* ---- complete sets ---- */

TEST(files_are_assigned_to_their_rank_in_the_order_of_parts)
{
        int r = MAKE(RANKS_PATTERN, 2, "model-rank-1-part-0.safetensors", "model-rank-0-part-1.safetensors",
                     "model-rank-0-part-0.safetensors");
        ck_assert_msg(r == 0, "%s", why.text);
        ck_assert_uint_eq(n_files, 3);
        has(0, 2, (const uint32_t[]){2, 1});
        has(1, 1, (const uint32_t[]){0});
}

TEST(numbers_are_compared_as_numbers)
{
        char text[12][64];
        const char *names[13] = {NULL};
        for (size_t i = 0; i < 12; i++) {
                snprintf(text[i], sizeof(text[i]), "model-rank-0-part-%zu.safetensors", 11 - i);
                names[i] = text[i];
        }
        ck_assert_int_eq(make(names, RANKS_PATTERN, 1), 0);
        for (uint32_t i = 0; i < 12; i++)
                ck_assert_uint_eq(files[i].file, 11 - i);
}

TEST(leading_zeros_are_optional)
{
        ck_assert_int_eq(MAKE("shard-{rank}-of-2.safetensors", 2, "shard-00001-of-2.safetensors",
                              "shard-00000-of-2.safetensors"),
                         0);
        has(0, 1, (const uint32_t[]){1});
        has(1, 1, (const uint32_t[]){0});
}

TEST(files_with_other_names_do_not_belong_to_the_model)
{
        ck_assert_int_eq(MAKE("r{rank}.safetensors", 1, "model.safetensors", "r0.safetensors", "r0.safetensors.bak",
                              "xr0.safetensors", "r.safetensors", "r-1.safetensors", "r0x.safetensors"),
                         0);
        has(0, 1, (const uint32_t[]){1});
}

TEST(a_part_may_precede_its_rank)
{
        ck_assert_int_eq(MAKE("p{part}r{rank}", 2, "p0r0", "p0r1", "p1r0"), 0);
        has(0, 2, (const uint32_t[]){0, 2});
        has(1, 1, (const uint32_t[]){1});
}

/* ---- incomplete sets ---- */

TEST(a_missing_rank_is_named)
{
        refused(MAKE("r{rank}", 3, "r0", "r2"), "rank 1 is missing, and 'r2' is there");
        refused(MAKE("r{rank}", 1, "r1"), "rank 0 is missing");
}

TEST(a_missing_part_is_named)
{
        refused(MAKE("r{rank}p{part}", 1, "r0p0", "r0p2"), "rank 0: part 1 is missing, and 'r0p2' is there");
        refused(MAKE("r{rank}p{part}", 2, "r0p0", "r1p1"), "rank 1: part 0 is missing");
}

TEST(a_duplicate_part_is_named)
{
        refused(MAKE("r{rank}p{part}", 1, "r0p1", "r0p0", "r00p01"), "rank 0, part 1 is there twice");
        refused(MAKE("r{rank}", 1, "r0", "r00"), "rank 0, part 0 is there twice");
}

TEST(the_number_of_ranks_must_equal_that_of_devices)
{
        refused(MAKE("r{rank}", 1, "r0", "r1"), "2 ranks for 1 device: each rank goes to a device of its own");
        refused(MAKE("r{rank}", 2, "r0"), "1 rank for 2 devices: each rank goes to a device of its own");
}

TEST(a_pattern_that_matches_no_file_is_refused)
{
        refused(MAKE(RANKS_PATTERN, 1, "model.safetensors"), "no file's name is like 'model-rank-{rank}");
        refused(make((const char *const[]){NULL}, RANKS_PATTERN, 1), "no file's name is like");
}

TEST(an_overflowing_number_is_invalid)
{
        refused(MAKE("r{rank}", 1, "r0000000000", "r4294967296"), "no file's name is like");
}

static const struct {
        const char *pattern, *says;
} wrong[] = {
        {"", "must stand in it once"},
        {"model.safetensors", "must stand in it once"},
        {"p{part}.safetensors", "must stand in it once"},
        {"r{rank}r{rank}", "must stand in it once"},
        {"r{rank}p{part}p{part}", "must stand in it once"},
        {"r{rank}{part}", "text between"},
        {"{part}{rank}", "text between"},
        {"a/r{rank}", "no '/'"},
};

TEST(wrong_patterns_are_refused, EACH(wrong))
{
        refused(ranks_check_pattern(wrong[_i].pattern, &why), wrong[_i].says);
}

/* Untrusted text is quoted and truncated. */
TEST(errors_are_one_line_of_text)
{
        char name[400] = "r1\n";
        memset(name + 3, 'x', sizeof(name) - 4);
        char *pattern = format_text("r{rank}%s", name + 2);
        refused(MAKE(pattern, 2, name), "rank 0 is missing");
        ck_assert_ptr_null(strchr(why.text, '\n'));
}
