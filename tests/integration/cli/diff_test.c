/* SPDX-License-Identifier: Apache-2.0
 *
 * diff: which files and tensors of a resident model a load of a source would change.
 */
#include "tests/integration/cli_fixture.h"

static char *header_file(const char *name, const char *header, size_t data)
{
        char *path = fixture_path("%s", name);
        model_write_raw(path, header, strlen(header), data);
        return path;
}

#define OLD                                                                                                            \
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[4,2],\"data_offsets\":[0,8]},"                                            \
        "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]},"                                              \
        "\"c\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[16,24]}}"
#define NEW                                                                                                            \
        "{\"a\":{\"dtype\":\"U8\",\"shape\":[2,4],\"data_offsets\":[0,8]},"                                            \
        "\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]},"                                              \
        "\"d\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[16,20]}}"

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(an_unchanged_source_changes_nothing)
{
        char *path = header_file("m.safetensors", OLD, 24);
        RUN(0, "load", path);
        struct ctl r = RUN(0, "diff", "m", path);
        ck_assert_ptr_nonnull(strstr(r.out, "files    0 differ, 1 the same\n"));
        ck_assert_ptr_nonnull(strstr(r.out, "tensors  0 added, 0 removed, 0 changed, 0 may differ, 3 the same\n"));
}

TEST(a_changed_file_is_named_with_its_tensors)
{
        char *path = header_file("m.safetensors", OLD, 24);
        RUN(0, "load", path);
        must(unlink(path));
        header_file("m.safetensors", NEW, 20);
        struct ctl r = RUN(0, "diff", "m", path);
        ck_assert_ptr_nonnull(strstr(r.out, "files    1 differ, 0 the same\n  ~ m.safetensors  "));
        ck_assert_ptr_nonnull(strstr(r.out, "tensors  1 added, 1 removed, 1 changed, 1 may differ, 0 the same\n"));
        ck_assert_ptr_nonnull(strstr(r.out, "  ~ a  U8 [4, 2] > U8 [2, 4]\n"));
        ck_assert_ptr_nonnull(strstr(r.out, "  + d  F32 []\n"));
        ck_assert_ptr_nonnull(strstr(r.out, "  - c  U8 [8]\n"));
        json_t *o = JSON("diff", "m", path, "--json");
        json_t *file = json_array_get(json_object_get(o, "files"), 0);
        ck_assert_str_eq(json_text(file, "change"), "changed");
        ck_assert_uint_eq(json_number(file, "old_bytes"), 8 + strlen(OLD) + 24);
        ck_assert_uint_eq(json_number(file, "bytes"), 8 + strlen(NEW) + 20);
        RUN(0, "cat", "m", "c"); /* it is still the old one */
}

TEST(a_directory_has_one_row_for_each_file_that_differs)
{
        must(mkdir(fixture_path("one"), 0755));
        must(mkdir(fixture_path("two"), 0755));
        header_file("one/x.safetensors", "{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8);
        header_file("one/y.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8);
        must(link(fixture_path("one/x.safetensors"), fixture_path("two/x.safetensors")));
        header_file("two/z.safetensors", "{\"b\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]}}", 8);
        RUN(0, "load", fixture_path("one"));
        struct ctl r = RUN(0, "diff", "one", fixture_path("two"));
        ck_assert_ptr_nonnull(strstr(r.out, "files    2 differ, 1 the same\n  + z.safetensors  "));
        ck_assert_ptr_nonnull(strstr(r.out, "  - y.safetensors  "));
        ck_assert_ptr_nonnull(strstr(r.out, "tensors  0 added, 0 removed, 0 changed, 1 may differ, 1 the same\n"));
}

TEST(what_cannot_be_compared_is_an_error)
{
        RUN(3, "diff", "nobody", fixture_path("witness.safetensors"));
        RUN(3, "diff", "witness", fixture_path("none.safetensors"));
        RUN(1, "diff", "witness", "/etc/passwd");
        file_write(fixture_path("bad.safetensors"), "hello, world", 12);
        SAYS(1, "not a safetensors file", "diff", "witness", fixture_path("bad.safetensors"));
}
