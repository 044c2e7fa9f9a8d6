/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of files beside the weights, which files are listed, and the URI that access rules check.
 */
#include "daemon/source/sidecar.h"
#include "tests/lib/suite.h"
#include "tests/unit/source_fixture.h"

static const char *const good_names[] = {
        "config.json", "1_Pooling/config.json", ".gitattributes", "..x", "...", "a/..b/c", "a b", "\xc3\xa9",
};

TEST(a_relative_name_is_accepted, EACH(good_names))
{
        ck_assert_int_eq(sidecar_check_name(good_names[_i], &error), 0);
}

static const char *const bad_names[] = {
        "", "/", "/etc/passwd", ".", "..", "../x", "a/..", "a/../b", "./a", "a/./b", "a//b", "a/", "a/.",
};

TEST(a_name_that_could_leave_the_directory_is_refused, EACH(bad_names))
{
        ck_assert_int_eq(sidecar_check_name(bad_names[_i], &error), STREAMER_EINVAL);
        ck_assert_ptr_nonnull(strstr(error.text, "'.' or '..'"));
}

TEST(a_name_has_a_length_that_is_bounded)
{
        char name[SIDECAR_NAME_MAX + 2];
        memset(name, 'a', sizeof(name));
        name[SIDECAR_NAME_MAX + 1] = '\0';
        ck_assert_int_eq(sidecar_check_name(name, &error), STREAMER_EINVAL);
        ck_assert_str_eq(error.text, "the file's name is longer than 512 bytes");
        name[SIDECAR_NAME_MAX] = '\0';
        ck_assert_int_eq(sidecar_check_name(name, &error), 0);
}

/* ---- lists ---- */

static const struct {
        const char *name;
        bool listed;
} files[] = {
        {"config.json", true},
        {"model.safetensors.index.json", true},
        {"1_Pooling/config.json", true},
        {"tokenizer.model", true},
        {"model.safetensors", false},
        {"original/consolidated.00.pth", false},
        {"pytorch_model-00001-of-00002.bin", false},
        {"onnx/model.onnx_data", false},
        {".gitattributes", false},
        {".cache/huggingface/x.json", false},
        {"sub/.hidden", false},
        {"folder/", false},
        {"../config.json", false},
        {"a\xff", false},
};

TEST(the_listed_files_of_a_source, EACH(files))
{
        struct sidecar_list list = {0};
        ck_assert_int_eq(sidecar_list_add(&list, files[_i].name, 7, "/m", &error), 0);
        ck_assert_msg(list.n == files[_i].listed, "%s", files[_i].name);
        sidecar_list_deinit(&list);
}

TEST(a_list_is_sorted_and_bounded)
{
        struct sidecar_list list = {0};
        for (int i = SIDECAR_FILES_MAX; i > 0; i--)
                ck_assert_int_eq(sidecar_list_add(&list, format_text("%04d", i), UINT64_MAX, "/m", &error), 0);
        sidecar_list_sort(&list);
        ck_assert_str_eq(list.v[0].name, "0001");
        ck_assert_int_eq(sidecar_list_add(&list, "model.safetensors", 1, "/m", &error), 0);
        ck_assert_int_eq(sidecar_list_add(&list, "more", 1, "/m", &error), STREAMER_EFAILED);
        ck_assert_str_eq(error.text, "more than 1000 files beside the weights (/m)");
        sidecar_list_deinit(&list);
}

/* ---- URIs ---- */

static const struct {
        const char *source, *name, *uri;
} uris[] = {
        {"s3://b/p/", "config.json", "s3://b/p/config.json"},
        {"s3://b/p/", "", "s3://b/p/"},
        {"s3://b/p/m.safetensors", "config.json", "s3://b/p/config.json"},
        {"s3://b/", "a b", "s3://b/a b"},
        {"https://h/p/m.safetensors", "config.json", "https://h/p/config.json"},
        {"https://h/p/m.safetensors?sig=1", "a/b c?.json", "https://h/p/a/b%20c%3F.json"},
        {"https://h/p/m.safetensors", "%2e%2e", "https://h/p/%252e%252e"},
        {"https://h/p/m.safetensors", "", "https://h/p/m.safetensors"},
        {"hf://org/name@main", "config.json", "hf://org/name@main"},
        {"/m", "config.json", "/m"},
};

TEST(rules_apply_to_the_uri_of_a_file, EACH(uris))
{
        char *uri = source_sidecar_uri(uris[_i].source, uris[_i].name);
        ck_assert_str_eq(uri, uris[_i].uri);
}

/* ---- local files ---- */

static struct sidecar_list list;

static void assert_lists(const char *source, const char *expected)
{
        char *text = format_text("%s", "");
        ck_assert_msg(source_list_sidecars(&(struct sources){.roots = roots}, at(source), &list, &error) == 0, "%s",
                      error.text);
        for (size_t i = 0; i < list.n; i++)
                text = format_text("%s%s:%d ", text, list.v[i].name, (int)list.v[i].bytes);
        ck_assert_str_eq(text, expected);
        sidecar_list_deinit(&list);
}

FIXTURE(.each = {make_stage, strike_stage});

TEST(files_below_a_directory_are_listed)
{
        make_folder("root/m");
        make_folder("root/m/sub");
        make_folder("root/m/sub/deeper");
        make_folder("root/m/.git");
        make_file("root/m/model.safetensors", "weights");
        make_file("root/m/config.json", "{}");
        make_file("root/m/sub/deeper/x.txt", "abc");
        make_file("root/m/.git/config", "hidden");
        make_file("root/blob", "blob");
        make_link("../blob", "root/m/linked.json");
        make_link("../../outside/secret.safetensors", "root/m/secret.json");
        make_link(at("root/blob"), "root/m/absolute.json");
        make_link("none", "root/m/broken.json");
        make_link("sub", "root/m/sub-link");
        make_link("..", "root/m/sub/loop");
        must(mkfifo(at("root/m/fifo"), 0644));
        assert_lists("root/m", "config.json:2 linked.json:4 sub/deeper/x.txt:3 ");
        assert_lists("root/m/model.safetensors", "config.json:2 linked.json:4 sub/deeper/x.txt:3 ");
        assert_lists("root/m/sub", "deeper/x.txt:3 ");
}

TEST(directories_are_entered_to_a_depth)
{
        char *path = "root";
        for (int i = 0; i < 10; i++) {
                path = format_text("%s/d", path);
                make_folder(path);
                make_file(format_text("%s/f", path), "x");
        }
        assert_lists("root/d", "d/d/d/d/d/d/d/d/f:1 d/d/d/d/d/d/d/f:1 d/d/d/d/d/d/f:1 d/d/d/d/d/f:1 d/d/d/d/f:1 "
                               "d/d/d/f:1 d/d/f:1 d/f:1 f:1 ");
}
