/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of files: which of a directory form a model, and which changes make it another; the names of files beside the
 * weights, which are listed, and the URI that access rules check.
 */
#include "daemon/source/listing.h"
#include "tests/unit/source_fixture.h"

/* ---- names beside the weights ---- */

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
        FAILS_WITH(error, sidecar_check_name(bad_names[_i], &error), STREAMER_EINVAL, "'.' or '..'");
}

TEST(a_name_has_a_length_that_is_bounded)
{
        char name[SIDECAR_NAME_MAX + 2];
        memset(name, 'a', sizeof(name));
        name[SIDECAR_NAME_MAX + 1] = '\0';
        FAILS_SAYING(error, sidecar_check_name(name, &error), STREAMER_EINVAL,
                     "the file's name is longer than 512 bytes");
        name[SIDECAR_NAME_MAX] = '\0';
        ck_assert_int_eq(sidecar_check_name(name, &error), 0);
}

/* ---- their lists ---- */

static const struct {
        const char *name;
        bool listed, with_weights;
} files[] = {
        {"config.json", true, true},
        {"model.safetensors.index.json", true, true},
        {"1_Pooling/config.json", true, true},
        {"tokenizer.model", true, true},
        {"model.safetensors", false, true},
        {"original/consolidated.00.pth", false, true},
        {"pytorch_model-00001-of-00002.bin", false, true},
        {"onnx/model.onnx_data", false, true},
        {".gitattributes", false, false},
        {".cache/huggingface/x.json", false, false},
        {"sub/.hidden", false, false},
        {"folder/", false, false},
        {"../config.json", false, false},
        {"a\xff", false, false},
};

TEST(the_listed_files_of_a_source, EACH(files))
{
        for (int weights = 0; weights < 2; weights++) {
                struct listing list = {.shown = "/m", .sidecars = true, .weights = weights};
                ck_assert_int_eq(listing_add(&list, files[_i].name, 7, "", &error), 0);
                ck_assert_msg(list.n == (weights ? files[_i].with_weights : files[_i].listed), "%s", files[_i].name);
        }
}

TEST(a_list_is_sorted_and_bounded)
{
        struct listing list = {.shown = "/m", .sidecars = true};
        for (int i = SIDECAR_FILES_MAX; i > 0; i--)
                ck_assert_int_eq(listing_add(&list, format_text("%04d", i), UINT64_MAX, "", &error), 0);
        listing_sort(&list);
        ck_assert_str_eq(list.v[0].name, "0001");
        ck_assert_int_eq(listing_add(&list, "model.safetensors", 1, "", &error), 0);
        FAILS_SAYING(error, listing_add(&list, "more", 1, "", &error), STREAMER_EFAILED,
                     "more than 1000 files beside the weights (/m)");
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

/* ---- folders ---- */

#define INDEX "root/model.safetensors.index.json"

FIXTURE(.each = {make_stage, NULL});

static const struct {
        const char *files[8], *model[3];
} folders[] = {
        {{"b.safetensors", "a-10.safetensors", "a-2.safetensors", "README.md", ".hidden.safetensors", ".safetensors"},
         {"a-10.safetensors", "a-2.safetensors", "b.safetensors"}},
        {{"a.safetensors", "model.safetensors", "consolidated.safetensors"}, {"model.safetensors"}},
        {{"adapter_model.safetensors"}, {"adapter_model.safetensors"}},
        {{"adapter_model.safetensors", "consolidated.00.safetensors", "consolidated.01.safetensors"},
         {"consolidated.00.safetensors", "consolidated.01.safetensors"}},
        {{"adapter_model.safetensors", "consolidated.00.safetensors", "weights.safetensors"}, {"weights.safetensors"}},
};

TEST(the_files_of_a_folder_that_are_a_model, EACH(folders))
{
        size_t n = 0;
        make_file("root/original/z.safetensors", "x");
        for (size_t i = 0; i < 8 && folders[_i].files[i] != NULL; i++)
                make_file(format_text("root/%s", folders[_i].files[i]), "x");
        while (n < 3 && folders[_i].model[n] != NULL)
                n++;
        assert_opens("root", n);
        for (size_t i = 0; i < n; i++)
                assert_object(i, format_text("root/%s", folders[_i].model[i]));
        ck_assert_uint_eq(set.index.n_files, 0);
}

TEST(a_folder_without_safetensors_is_not_found)
{
        make_file("root/pytorch_model.bin", "x");
        assert_refuses("root", STREAMER_ENOENT, "no safetensors files in this folder");
}

TEST(what_is_no_file_is_not_listed_whatever_its_name)
{
        make_file("root/a.safetensors", "x");
        make_folder("root/b.safetensors");
        make_link("b.safetensors", "root/c.safetensors");
        must(mkfifo(at("root/d.safetensors"), 0644));
        make_folder(INDEX);
        assert_opens("root", 1);
        assert_object(0, "root/a.safetensors");
}

static const struct {
        const char *files[8], *model[4], *left_out[4], *error;
} layouts[] = {
        /* Variants give way to the files that they are variants of. */
        {{"x.safetensors", "x.fp16.safetensors", "y.bf16.safetensors"},
         {"x.safetensors", "y.bf16.safetensors"},
         {"x.fp16.safetensors"},
         NULL},
        {{"x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors", "x.fp16-00001-of-00001.safetensors"},
         {"x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors"},
         {"x.fp16-00001-of-00001.safetensors"},
         NULL},
        {{"x-00001-of-00001.safetensors", "x-00001-of-00001.fp16.safetensors"},
         {"x-00001-of-00001.safetensors"},
         {"x-00001-of-00001.fp16.safetensors"},
         NULL},
        {{"x.safetensors", "x.part.safetensors"}, {"x.part.safetensors", "x.safetensors"}, {NULL}, NULL},
        {{"model.safetensors", "mtp.safetensors"}, {"model.safetensors"}, {"mtp.safetensors"}, NULL},
        /* Sets are complete, from 1 or from 0 on. */
        {{"a-1-of-2.safetensors", "a-2-of-2.safetensors", "b-0-of-2.safetensors"},
         {NULL},
         {NULL},
         "b-1-of-2.safetensors is missing"},
        {{"a-0-of-2.safetensors", "a-1-of-2.safetensors"},
         {"a-0-of-2.safetensors", "a-1-of-2.safetensors"},
         {NULL},
         NULL},
        {{"x-00001-of-00002.safetensors"}, {NULL}, {NULL}, "x-00002-of-00002.safetensors is missing"},
        {{"x-00001-of-00003.safetensors", "x-00003-of-00003.safetensors"},
         {NULL},
         {NULL},
         "x-00002-of-00003.safetensors is missing: an incomplete download? ("},
        {{"x-00002-of-00002.safetensors"}, {NULL}, {NULL}, "x-00001-of-00002.safetensors is missing"},
        {{"x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors", "x-00001-of-00001.safetensors"},
         {"x-00001-of-00001.safetensors", "x-00001-of-00002.safetensors", "x-00002-of-00002.safetensors"},
         {NULL},
         NULL},
        /* Separators and digits are as they are. */
        {{"x_00001_of_00002.safetensors"}, {NULL}, {NULL}, "x_00002_of_00002.safetensors is missing"},
        {{"x_00001-of-00002.safetensors"}, {NULL}, {NULL}, "x_00002-of-00002.safetensors is missing"},
        {{"x.2.of.3.safetensors"}, {NULL}, {NULL}, "x.1.of.3.safetensors is missing"},
        {{"x-001-of-2.safetensors"}, {NULL}, {NULL}, "x-002-of-2.safetensors is missing"},
        {{"x_00001_of_00002.safetensors", "x_00002_of_00002.safetensors", "x.fp16_00001_of_00002.safetensors"},
         {"x_00001_of_00002.safetensors", "x_00002_of_00002.safetensors"},
         {"x.fp16_00001_of_00002.safetensors"},
         NULL},
        {{"x-10-of-10.safetensors", "x-8-of-10.safetensors", "x-9-of-10.safetensors"},
         {NULL},
         {NULL},
         "x-7-of-10.safetensors is missing"},
        {{"x-10-of-11.safetensors", "x-11-of-11.safetensors"}, {NULL}, {NULL}, "x-09-of-11.safetensors is missing"},
        {{"x-of-2.safetensors", "x-9-of-2.safetensors"}, {"x-9-of-2.safetensors", "x-of-2.safetensors"}, {NULL}, NULL},
};

static size_t count(const char *const *names, size_t max)
{
        size_t n = 0;
        while (n < max && names[n] != NULL)
                n++;
        return n;
}

TEST(a_layout_is_complete_and_leaves_out_what_it_does_not_use, EACH(layouts))
{
        for (size_t i = 0; i < count(layouts[_i].files, 8); i++)
                make_file(format_text("root/%s", layouts[_i].files[i]), "x");
        if (layouts[_i].error != NULL) {
                assert_refuses("root", STREAMER_EFAILED, layouts[_i].error);
                return;
        }
        assert_opens("root", count(layouts[_i].model, 4));
        for (size_t i = 0; i < set.n_objects; i++)
                assert_object(i, format_text("root/%s", layouts[_i].model[i]));
        ck_assert_uint_eq(set.n_left_out, count(layouts[_i].left_out, 4));
        for (size_t i = 0; i < set.n_left_out; i++)
                ck_assert_str_eq(set.left_out[i], layouts[_i].left_out[i]);
}

TEST(a_listed_file_that_cannot_be_found_fails_the_source)
{
        make_file("root/a.safetensors", "x");
        make_link("gone", "root/model.safetensors");
        assert_refuses("root", STREAMER_EFAILED, "listed in its folder, but cannot be found (");
}

TEST(a_folder_of_too_many_files_is_refused)
{
        make_file("root/a.safetensors", "x");
        for (int i = 0; i < SOURCE_FILES_MAX; i++)
                must(link(at("root/a.safetensors"), at(format_text("root/%d.safetensors", i))));
        assert_refuses("root", STREAMER_EFAILED, "more than 4096 safetensors files");
}

/* ---- the index ---- */

TEST(the_index_names_the_files)
{
        make_file(INDEX, "{\"metadata\":{},\"weight_map\":{\"t\":\"b.safetensors\",\"u\":\"a.safetensors\","
                         "\"v\":\"b.safetensors\"}}");
        make_file("root/a.safetensors", "x");
        make_file("root/b.safetensors", "x");
        make_file("root/extra.safetensors", "x");
        make_file("root/model.safetensors", "x");
        assert_opens("root", 2);
        assert_object(0, "root/a.safetensors");
        assert_object(1, "root/b.safetensors");
        ck_assert(set.index.n_files > 0);
        ck_assert_uint_eq(set.index.n_entries, 3);
        ck_assert_str_eq(set.index_object.path, at(INDEX));
        ck_assert_uint_eq(set.n_left_out, 2);
        ck_assert_str_eq(set.left_out[0], "extra.safetensors");
        ck_assert_str_eq(set.left_out[1], "model.safetensors");
}

static const struct {
        const char *name;
        bool is_index;
} indexes[] = {
        {"model.safetensors.index.json", true},      {"diffusion_pytorch_model.safetensors.index.json", true},
        {"model.safetensors.index.fp16.json", true}, {"model.safetensors.index.json.bak", false},
        {"model.safetensors.index.a.b.json", false}, {"model.safetensors.index..json", false},
        {".safetensors.index.json", false},          {"config.json", false},
        {"pytorch_model.bin.index.json", false},
};

TEST(an_index_is_known_by_its_name, EACH(indexes))
{
        ck_assert_int_eq(source_is_index(indexes[_i].name), indexes[_i].is_index);
}

static const char *const main_indexes[] = {"diffusion_pytorch_model.safetensors.index.json",
                                           "model.safetensors.index.json"};

TEST(an_index_of_any_name_counts_unless_it_is_of_a_variant, EACH(main_indexes))
{
        make_file(format_text("root/%s", main_indexes[_i]), "{\"weight_map\":{\"t\":\"./b.safetensors\"}}");
        make_file("root/a.fp16.safetensors.index.json", "{\"weight_map\":{\"t\":\"a.safetensors\"}}");
        make_file("root/consolidated.safetensors.index.json", "{\"weight_map\":{\"t\":\"a.safetensors\"}}");
        make_file("root/a.safetensors", "x");
        make_file("root/b.safetensors", "x");
        assert_opens("root", 1);
        assert_object(0, "root/b.safetensors");
        ck_assert_uint_eq(set.n_left_out, 1);
        ck_assert_str_eq(set.left_out[0], "a.safetensors");
}

TEST(an_index_is_a_source_by_its_path)
{
        make_file(INDEX, "{\"weight_map\":{\"t\":\"b.safetensors\"}}");
        make_file("root/other.safetensors.index.fp16.json", "{\"weight_map\":{\"t\":\"a.safetensors\"}}");
        make_file("root/a.safetensors", "x");
        make_file("root/b.safetensors", "x");
        assert_opens(INDEX, 1);
        assert_object(0, "root/b.safetensors");
        assert_opens("root/other.safetensors.index.fp16.json", 1);
        assert_object(0, "root/a.safetensors");
        assert_refuses("root/gone.safetensors.index.json", STREAMER_ENOENT, "No such file");
}

TEST(files_of_an_index_may_lie_in_folders_below_it)
{
        make_file(INDEX, "{\"weight_map\":{\"t\":\"shards/a.safetensors\",\"u\":\"./b.safetensors\"}}");
        make_file("root/shards/a.safetensors", "x");
        make_file("root/b.safetensors", "x");
        assert_opens("root", 2);
        assert_object(0, "root/b.safetensors");
        assert_object(1, "root/shards/a.safetensors");
        ck_assert_str_eq(object_name(&set.objects[1]), "shards/a.safetensors");
        ck_assert_uint_eq(set.n_left_out, 0);
}

/* It is left from another download. */
TEST(an_index_of_which_no_file_exists_gives_way_to_the_whole_model)
{
        make_file(INDEX, "{\"weight_map\":{\"t\":\"model-00001-of-00002.safetensors\"}}");
        make_file("root/model.safetensors", "x");
        assert_opens("root", 1);
        assert_object(0, "root/model.safetensors");
        ck_assert_uint_eq(set.index.n_files, 0);
        ck_assert_uint_eq(set.n_left_out, 1);
        ck_assert_str_eq(set.left_out[0], "model.safetensors.index.json");
}

TEST(an_index_of_which_a_file_is_missing_fails_and_names_the_whole_model)
{
        make_file(INDEX, "{\"weight_map\":{\"t\":\"a.safetensors\",\"u\":\"b.safetensors\"}}");
        make_file("root/model.safetensors", "x");
        make_file("root/a.safetensors", "x");
        assert_refuses("root", STREAMER_EFAILED, "named by the index, but cannot be found (");
        assert_refuses("root", STREAMER_EFAILED, "model.safetensors beside it can be loaded by its path");
}

static const struct {
        const char *text, *what;
} bad_indexes[] = {
        {"", "not-json"},
        {"{\"weight_map\":{\"t\":\"../outside/secret.safetensors\"}}", "model.safetensors.index.json"},
        {"{\"weight_map\":{\"t\":\"/etc/passwd\"}}", "model.safetensors.index.json"},
        {"{\"weight_map\":{}}", "names no file"},
        {"{\"weight_map\":{\"t\":\"missing.safetensors\",\"u\":\"a.safetensors\"}}",
         "named by the index, but cannot be found ("},
};

TEST(a_bad_index_fails_the_source, EACH(bad_indexes))
{
        make_file(INDEX, bad_indexes[_i].text);
        make_file("root/a.safetensors", "x");
        make_file("root/model.safetensors", "x");
        assert_refuses("root", STREAMER_EFAILED, bad_indexes[_i].what);
}

TEST(an_index_of_too_many_files_fails_the_source)
{
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        for (unsigned i = 0; i <= SOURCE_FILES_MAX; i++)
                fprintf(f, "%s\"t%u\":\"%u.safetensors\"", i > 0 ? "," : "{\"weight_map\":{", i, i);
        fputs("}}", f);
        fclose(f);
        make_file(INDEX, text);
        assert_refuses("root", STREAMER_EFAILED, "the index names more than 4096 files (");
}

TEST(a_dangling_index_is_an_error)
{
        make_link("gone", INDEX);
        make_file("root/model.safetensors", "x");
        assert_refuses("root", STREAMER_EFAILED, "listed in its folder, but cannot be found (");
}

TEST(an_index_that_is_a_fifo_is_not_waited_on)
{
        must(mkfifo(at(INDEX), 0644));
        assert_refuses("root", STREAMER_ENOENT, "no safetensors files in this folder");
        assert_refuses(INDEX, STREAMER_EFAILED, "a FIFO, not a regular file");
}

TEST(an_index_over_its_limit_is_not_read)
{
        make_file(INDEX, "{");
        must(truncate(at(INDEX), 100000001));
        assert_refuses("root", STREAMER_EFAILED, "more than the 100000000 allowed");
}

/* ---- versions ---- */

static struct source_identity identity_of(const char *name)
{
        struct source_identity identity;
        ck_assert_msg(open_source(name) == 0, "%s", error.text);
        source_identity(&set, &identity);
        return identity;
}

static void assert_same(struct source_identity a, struct source_identity b, bool same)
{
        ck_assert_int_eq(memcmp(&a, &b, sizeof(a)) == 0, same);
}

TEST(a_source_is_the_same_by_whatever_path)
{
        make_file("root/m/model.safetensors", "x");
        make_link("m", "root/link");
        struct source_identity first = identity_of("root/m");
        assert_same(first, identity_of("root/m"), true);
        assert_same(first, identity_of("root/link"), true);
        assert_same(first, identity_of("root/m/model.safetensors"), true);
}

TEST(a_changed_file_changes_the_source)
{
        make_file("root/a.safetensors", "x");
        struct source_identity first = identity_of("root");
        make_file("root/b.safetensors", "x");
        struct source_identity second = identity_of("root");
        assert_same(first, second, false);
        make_file("root/new", "x");
        must(rename(at("root/new"), at("root/b.safetensors")));
        assert_same(second, identity_of("root"), false);
}

TEST(a_changed_index_changes_the_source)
{
        make_file("root/a.safetensors", "x");
        make_file(INDEX, "{\"weight_map\":{\"t\":\"a.safetensors\"}}");
        struct source_identity first = identity_of("root");
        make_file(INDEX, "{\"weight_map\":{\"u\":\"a.safetensors\"} }");
        assert_same(first, identity_of("root"), false);
}

TEST(a_check_finds_the_file_that_changed)
{
        make_file("root/a.safetensors", "x");
        make_file("root/b.safetensors", "x");
        assert_opens("root", 2);
        ck_assert_int_eq(source_check(&set, &error), 0);
        must(truncate(at("root/b.safetensors"), 7));
        FAILS_WITH(error, source_check(&set, &error), STREAMER_EFAILED, at("root/b.safetensors"));
}

TEST(a_check_finds_a_file_that_was_replaced)
{
        struct stat tick;
        make_file("root/m.safetensors", "x");
        assert_opens("root/m.safetensors", 1);
        /* Times have the grain of the kernel's tick: wait for the next. */
        do {
                make_file("root/new", "y");
                must(stat(at("root/new"), &tick));
        } while ((uint64_t)tick.st_ctim.tv_sec * 1000000000 + (uint64_t)tick.st_ctim.tv_nsec ==
                 set.objects[0].version.ctime_ns);
        ck_assert_int_eq(source_check(&set, &error), 0);
        must(rename(at("root/new"), at("root/m.safetensors")));
        FAILS_WITH(error, source_check(&set, &error), STREAMER_EFAILED, "changed while it was read");
}

TEST(a_check_finds_a_changed_index)
{
        make_file("root/a.safetensors", "x");
        make_file(INDEX, "{\"weight_map\":{\"t\":\"a.safetensors\"}}");
        assert_opens("root", 1);
        ck_assert_int_eq(source_check(&set, &error), 0);
        must(truncate(at(INDEX), 3));
        FAILS_WITH(error, source_check(&set, &error), STREAMER_EFAILED, "index.json");
}

/* ---- local files beside the weights ---- */

static struct listing list;

static void assert_lists(const char *source, const char *expected)
{
        char *text = format_text("%s", "");
        ck_assert_msg(source_list_sidecars(&(struct sources){.roots = roots}, at(source), false, &list, &error) == 0,
                      "%s", error.text);
        for (size_t i = 0; i < list.n; i++)
                text = format_text("%s%s:%d ", text, list.v[i].name, (int)list.v[i].bytes);
        ck_assert_str_eq(text, expected);
}

TEST(files_below_a_directory_are_listed)
{
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
        assert_lists("root/m", "absolute.json:4 config.json:2 linked.json:4 sub/deeper/x.txt:3 ");
        assert_lists("root/m/model.safetensors", "absolute.json:4 config.json:2 linked.json:4 sub/deeper/x.txt:3 ");
        assert_lists("root/m/sub", "deeper/x.txt:3 ");
}

TEST(directories_are_entered_to_a_depth)
{
        char *path = "root";
        for (int i = 0; i < 10; i++) {
                path = format_text("%s/d", path);
                make_file(format_text("%s/f", path), "x");
        }
        assert_lists("root/d", "d/d/d/d/d/d/d/d/f:1 d/d/d/d/d/d/d/f:1 d/d/d/d/d/d/f:1 d/d/d/d/d/f:1 d/d/d/d/f:1 "
                               "d/d/d/f:1 d/d/f:1 d/f:1 f:1 ");
}
