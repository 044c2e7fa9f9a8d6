/* SPDX-License-Identifier: Apache-2.0
 *
 * Local sources: a file, a folder with an index, a snapshot of the Hugging Face cache. The tests of daemon/source and
 * daemon/load have the rules.
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/streamerctl.h"

/* ---- files ---- */

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(a_file_by_its_path_its_uri_and_a_relative_path)
{
        struct model *m = model_mixed(1, 1 << 18);
        load_equals(fixture_write(m, "a b.safetensors"), "a b", m);
        load_equals(format_text("file://%s/a%%20b.safetensors", fixture_root()), "a b", m);
        must(chdir(fixture_root()));
        load_equals("./a b.safetensors", "a b", m);
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

TEST(stale_copies_in_other_shards_are_ignored)
{
        struct model *m = model_mixed(11, 4 << 20);
        model_write_sharded(m, fixture_path("stale"), 3, true);
        load_equals(fixture_path("stale"), "stale", m);
}

/* ---- what the layout of a folder leaves out ---- */

/* A folder with one file of this name, and an index. */
static char *make_indexed(const char *folder, const struct model *m, const char *weight_map)
{
        char *path = fixture_path("%s", folder), *text = format_text("{\"weight_map\":{%s}}", weight_map);
        must(mkdir(path, 0755));
        model_write(m, format_text("%s/a.safetensors", path));
        file_put(path, "model.safetensors.index.json", text);
        return path;
}

static struct model *model_of(const char *first, const char *second)
{
        struct model *m = model_new(31);
        model_add(m, first, "U8", (uint64_t[]){100}, 1);
        if (second != NULL)
                model_add(m, second, "U8", (uint64_t[]){100}, 1);
        return m;
}

TEST(a_tensor_that_the_index_does_not_list_is_loaded)
{
        struct model *m = model_of("listed", "unlisted");
        load_equals(make_indexed("unlisted", m, "\"listed\":\"a.safetensors\""), "unlisted", m);
}

TEST(an_entry_of_the_index_without_a_tensor_is_reported)
{
        struct model *m = model_of("listed", NULL);
        char *folder = make_indexed("entries", m, "\"listed\":\"a.safetensors\",\"mtp.fc\":\"a.safetensors\"");
        struct ctl r;
        ctl_says(test_daemon.socket, 0, "\"missing_tensors\":1,\"missing\":[\"mtp.fc\"]", "load", folder, "--dry-run",
                 "--json", NULL);
        ctl(&r, test_daemon.socket, "load", folder, NULL);
        ck_assert_msg(r.code == 0, "%s", r.err);
        ck_assert_ptr_nonnull(
                strstr(r.err, "streamerctl: entries: 1 tensor of the index is in none of its files: mtp.fc"));
        ctl_says(test_daemon.socket, 0, "missing     1 tensor of the index is in none of its files: mtp.fc", "show",
                 "entries", NULL);
        const json_t *shown = client_show(client, "entries");
        ck_assert_uint_eq(json_number(shown, "missing_tensors"), 1);
        ck_assert_str_eq(json_text(shown, "missing.0"), "mtp.fc");
        client_equals(client, "entries", m);
        client_unload(client, "entries");
}

TEST(weights_that_are_left_out_are_named)
{
        struct model *m = model_of("listed", NULL);
        char *folder = make_indexed("left", m, "\"listed\":\"a.safetensors\"");
        struct ctl r;
        model_write(m, format_text("%s/mtp.safetensors", folder));
        ctl(&r, test_daemon.socket, "load", folder, "--dry-run", NULL);
        ck_assert_str_eq(r.err, "streamerctl: left: left out, not part of the model: mtp.safetensors\n");
        ctl_says(test_daemon.socket, 0, "\"left_out\":[\"mtp.safetensors\"]", "load", folder, "--dry-run", "--json",
                 NULL);
        for (int again = 0; again < 2; again++) { /* also where it is resident */
                ctl(&r, test_daemon.socket, "load", folder, NULL);
                ck_assert_msg(r.code == 0, "%s", r.err);
                ck_assert_str_eq(r.err, "streamerctl: left: left out, not part of the model: mtp.safetensors\n");
                ctl_says(test_daemon.socket, 0, "\"left_out\":[\"mtp.safetensors\"]", "load", folder, "--json", NULL);
        }
        ctl_says(test_daemon.socket, 0, "left out    mtp.safetensors", "show", "left", NULL);
        ck_assert_str_eq(json_text(client_show(client, "left"), "left_out.0"), "mtp.safetensors");
        ctl(&r, test_daemon.socket, "load", "-q", folder, NULL);
        ck_assert_str_eq(r.err, "");
        client_unload(client, "left");
}

/* ---- published digests ---- */

static char *summed; /* a folder with a model and its SHA256SUMS */

static void publish_sums(const char *hex)
{
        char *text = format_text("%s  model.safetensors\n", hex);
        file_put(summed, "SHA256SUMS", text);
}

/* The list is compared with the digests of what was read. */
TEST(a_changed_list_of_digests_is_noticed_without_reading)
{
        char text[1024], right[65], wrong[65];
        struct model *m = model_mixed(21, 1 << 20);
        summed = fixture_path("summed");
        must(mkdir(summed, 0755));
        model_write(m, format_text("%s/model.safetensors", summed));
        file_sha256(format_text("%s/model.safetensors", summed), right);
        memset(wrong, '0', 64);
        wrong[64] = '\0';
        publish_sums(right);
        ck_assert_msg(client_load_sha256(client, summed, "summed", text) == 0, "%s", text);
        uint64_t generation = json_number(client_show(client, "summed"), "generation");
        double read = client_metric(client, "streamerd_read_bytes_total{source=\"file\"}");
        ck_assert_msg(client_load_sha256(client, summed, "summed", text) == 0, "%s", text);
        ck_assert_uint_eq(json_number(client_show(client, "summed"), "generation"), generation);
        publish_sums(wrong);
        ck_assert_int_eq(client_load_sha256(client, summed, "summed", text), STREAMER_EFAILED);
        ck_assert_msg(strstr(text, "SHA-256 differs: 0000") != NULL, "%s", text);
        ck_assert_msg(strstr(text, right) != NULL, "%s", text);
        ck_assert(client_metric(client, "streamerd_read_bytes_total{source=\"file\"}") == read);
        client_equals(client, "summed", m);
        publish_sums(right);
        ck_assert_msg(client_load_sha256(client, summed, "summed", text) == 0, "%s", text);
        client_unload(client, "summed");
}

/* ---- the HF cache ---- */

#define REVISION "0123456789abcdef0123456789abcdef01234567"

/* HF_HUB_CACHE with one model whose blob is named by its SHA-256. */
static void make_hub(const struct model *m)
{
        char hex[65], *hub = fixture_path("hub"), *base = format_text("%s/models--org--tiny", hub);
        char *blob = format_text("%s/blobs/new", base);
        must(mkdir(hub, 0755));
        file_put(hub, "models--org--tiny/refs/main", REVISION);
        file_put(base, "blobs/new", "");
        file_put(base, "snapshots/" REVISION "/README.md", "");
        model_write(m, blob);
        file_sha256(blob, hex);
        must(rename(blob, format_text("%s/blobs/%s", base, hex)));
        must(symlink(format_text("../../blobs/%s", hex),
                     format_text("%s/snapshots/" REVISION "/model.safetensors", base)));
        setenv("HF_HUB_CACHE", hub, 1);
}

TEST(a_model_of_the_hf_cache_by_its_name)
{
        struct model *m = model_mixed(20, 1 << 20);
        make_hub(m);
        load_equals("org/tiny", "org/tiny", m);
        load_equals("org/tiny@main", "org/tiny", m);
        load_equals("org/tiny@" REVISION, "org/tiny", m);
        client_load_fails(client, "org/huge", NULL, STREAMER_ENOENT, "huge");
        assert_verified("org/tiny", m);
}
