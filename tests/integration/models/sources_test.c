/* SPDX-License-Identifier: Apache-2.0
 *
 * Local sources: a file, a directory with and without an index, a snapshot of the Hugging Face cache; default names;
 * published SHA-256 digests.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

static void load_equals(const char *source, const char *name, const struct model *m)
{
        client_load(client, source, NULL);
        client_equals(client, name, m);
        client_unload(client, name);
}

/* ---- files ---- */

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(a_file_has_its_name_without_the_ending)
{
        struct model *m = model_mixed(1, 1 << 20);

        load_equals(fixture_write(m, "tiny llama.safetensors"), "tiny llama", m);
}

TEST(a_file_uri)
{
        struct model *m = model_mixed(2, 1 << 18);

        fixture_write(m, "a b.safetensors");
        load_equals(format_text("file://%s/a%%20b.safetensors", fixture_root()), "a b", m);
}

TEST(a_relative_path_of_the_caller)
{
        struct model *m = model_mixed(3, 1 << 18);

        fixture_write(m, "relative.safetensors");
        must(chdir(fixture_root()));
        load_equals("./relative.safetensors", "relative", m);
}

TEST(data_at_any_offset, .to = 8)
{
        struct model *m = model_mixed((uint64_t)_i, 3 << 20);

        /* Odd offsets misalign every tensor that is not made of bytes. */
        model_place_data(m, 4096, (uint64_t[]){0, 8, 512, 4088, 1, 4095, 2, 514}[_i]);
        load_equals(fixture_write(m, format_text("offset-%d.safetensors", _i)), format_text("offset-%d", _i), m);
}

TEST(a_tensor_is_aligned_to_its_element_size)
{
        struct model *m = model_mixed(4, 1 << 20);
        streamer_tensor t = STREAMER_TENSOR_INIT;

        model_place_data(m, 8, 3);
        client_load(client, fixture_write(m, "odd.safetensors"), "odd");
        streamer_lease *lease = client_attach(client, "odd");
        client_ok(client, streamer_tensor_find(lease, "head.weight", &t), "find");
        ck_assert_uint_eq((uintptr_t)t.data % 4, 0);
        client_ok(client, streamer_tensor_find(lease, "layers.0.norm", &t), "find");
        ck_assert_uint_eq((uintptr_t)t.data % 8, 0);
        streamer_detach(lease);
        client_unload(client, "odd");
}

TEST(a_model_without_tensors_is_ready_and_empty)
{
        struct model *m = model_new(5);

        model_set_metadata(m, "{\"a\":\"b\"}");
        client_load(client, fixture_write(m, "none.safetensors"), "none");
        streamer_lease *lease = client_attach(client, "none");
        ck_assert_uint_eq(streamer_segment_count(lease), 0);
        ck_assert_str_eq(streamer_metadata(lease, "a"), "b");
        ck_assert_ptr_null(streamer_metadata(lease, "b"));
        streamer_detach(lease);
        client_equals(client, "none", m);
        client_unload(client, "none");
}

TEST(only_empty_tensors)
{
        struct model *m = model_new(6);

        model_add(m, "a", "F32", (uint64_t[]){0}, 1);
        model_add(m, "b", "F32", (uint64_t[]){0, 1099511627776, 1099511627776}, 3);
        load_equals(fixture_write(m, "zero.safetensors"), "zero", m);
}

TEST(names_of_tensors_are_any_utf8)
{
        struct model *m = model_new(7);
        uint64_t four = 4;

        model_add(m, "quote\"backslash\\newline\n", "U8", &four, 1);
        model_add(m, "\xe6\xa8\xa1\xe5\x9e\x8b", "U8", &four, 1);
        model_add(m, "", "U8", &four, 1);
        load_equals(fixture_write(m, "utf8.safetensors"), "utf8", m);
}

/* ---- folders ---- */

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(a_folder_with_an_index)
{
        struct model *m = model_mixed(10, 4 << 20);

        model_write_sharded(m, fixture_path("sharded"), 3, false);
        load_equals(fixture_path("sharded"), "sharded", m);
        load_equals(fixture_path("sharded/"), "sharded", m);
}

TEST(stale_copies_in_other_shards_are_ignored)
{
        struct model *m = model_mixed(11, 4 << 20);

        model_write_sharded(m, fixture_path("stale"), 3, true);
        load_equals(fixture_path("stale"), "stale", m);
}

TEST(a_folder_with_one_model_file)
{
        struct model *m = model_mixed(12, 1 << 18), *other = model_mixed(13, 1 << 18);

        must(mkdir(fixture_path("single"), 0755));
        fixture_write(m, "single/model.safetensors");
        fixture_write(other, "single/other.safetensors");
        load_equals(fixture_path("single"), "single", m);
}

TEST(a_folder_with_several_files_and_no_index)
{
        struct model *m = model_new(14), *a = model_new(14), *b = model_new(14);
        uint64_t bytes = 100000;

        must(mkdir(fixture_path("parts"), 0755));
        model_add(m, "x", "U8", &bytes, 1);
        model_add(m, "y", "U8", &bytes, 1);
        model_add(a, "x", "U8", &bytes, 1);
        model_add(b, "y", "U8", &bytes, 1);
        fixture_write(a, "parts/a.safetensors");
        fixture_write(b, "parts/b.safetensors");
        fixture_write(a, "parts/consolidated.safetensors");
        load_equals(fixture_path("parts"), "parts", m);
}

TEST(a_tensor_in_two_files_is_refused)
{
        struct model *m = model_mixed(15, 1 << 16);

        must(mkdir(fixture_path("twice"), 0755));
        fixture_write(m, "twice/a.safetensors");
        fixture_write(m, "twice/b.safetensors");
        client_load_fails(client, fixture_path("twice"), "twice", STREAMER_EFAILED, "embed.weight");
        client_unload(client, "twice");
}

TEST(shards_and_one_file_have_the_same_digest)
{
        struct model *m = model_mixed(16, 4 << 20);
        streamer_lease *a, *b;

        model_write_sharded(m, fixture_path("as-shards"), 4, false);
        client_load(client, fixture_path("as-shards"), "as-shards");
        client_load(client, fixture_write(m, "as-file.safetensors"), "as-file");
        a = client_attach(client, "as-shards");
        b = client_attach(client, "as-file");
        ck_assert_str_eq(streamer_digest(a), streamer_digest(b));
        streamer_detach(a);
        streamer_detach(b);
        client_unload(client, "as-shards");
        client_unload(client, "as-file");
}

/* ---- the HF cache ---- */

#define REVISION "0123456789abcdef0123456789abcdef01234567"

/* HF_HUB_CACHE with one model whose blob has this name; NULL: its real SHA-256. */
static void make_hub(const char *folder, const struct model *m, const char *blob)
{
        char hex[65], *base = fixture_path("%s/models--org--tiny", folder);

        must(mkdir(fixture_path("%s", folder), 0755));
        must(mkdir(base, 0755));
        must(mkdir(format_text("%s/blobs", base), 0755));
        must(mkdir(format_text("%s/refs", base), 0755));
        must(mkdir(format_text("%s/snapshots", base), 0755));
        must(mkdir(format_text("%s/snapshots/" REVISION, base), 0755));
        file_write(format_text("%s/refs/main", base), REVISION, strlen(REVISION));
        model_write(m, format_text("%s/blobs/new", base));
        file_sha256(format_text("%s/blobs/new", base), hex);
        if (!blob)
                blob = hex;
        must(rename(format_text("%s/blobs/new", base), format_text("%s/blobs/%s", base, blob)));
        must(symlink(format_text("../../blobs/%s", blob),
                     format_text("%s/snapshots/" REVISION "/model.safetensors", base)));
        setenv("HF_HUB_CACHE", fixture_path("%s", folder), 1);
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(a_model_of_the_hf_cache_by_its_name)
{
        struct model *m = model_mixed(20, 1 << 20);

        make_hub("hub", m, NULL);
        load_equals("org/tiny", "org/tiny", m);
        load_equals("org/tiny@main", "org/tiny", m);
        load_equals("org/tiny@" REVISION, "org/tiny", m);
        client_load_fails(client, "org/huge", NULL, STREAMER_ENOENT, "huge");
}

/* ---- SHA-256 ---- */

TEST(sha256_of_a_blob_that_matches_its_name)
{
        struct model *m = model_mixed(21, 3 << 20);
        char text[1024];

        make_hub("hub-good", m, NULL);
        ck_assert_msg(client_load_sha256(client, "org/tiny", "good", text) == 0, "%s", text);
        client_equals(client, "good", m);
        client_unload(client, "good");
}

TEST(sha256_of_a_blob_that_does_not_match_its_name)
{
        struct model *m = model_mixed(22, 3 << 20);
        char text[1024];

        make_hub("hub-bad", m, "00000000000000000000000000000000000000000000000000000000deadbeef");
        ck_assert_int_eq(client_load_sha256(client, "org/tiny", "bad", text), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(text, "model.safetensors"));
        ck_assert_str_eq(client_state(client, "bad"), "failed");
        client_unload(client, "bad");
}

static void write_sums(const char *folder, const char *file, bool good)
{
        char hex[65], *line;

        file_sha256(fixture_path("%s/%s", folder, file), hex);
        if (!good)
                hex[0] = hex[0] == '0' ? '1' : '0';
        line = format_text("%s  %s\n", hex, file);
        file_write(fixture_path("%s/SHA256SUMS", folder), line, strlen(line));
        free(line);
}

TEST(sha256_from_a_list_beside_the_file)
{
        struct model *m = model_mixed(23, 3 << 20);
        char text[1024];

        must(mkdir(fixture_path("sums"), 0755));
        char *path = fixture_write(m, "sums/model.safetensors");
        write_sums("sums", "model.safetensors", true);
        ck_assert_int_eq(client_load_sha256(client, path, "sums", text), 0);
        client_equals(client, "sums", m);
        client_unload(client, "sums");
        write_sums("sums", "model.safetensors", false);
        ck_assert_int_eq(client_load_sha256(client, path, "sums", text), STREAMER_EFAILED);
        client_unload(client, "sums");
}
