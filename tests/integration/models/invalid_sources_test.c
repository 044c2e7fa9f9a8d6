/* SPDX-License-Identifier: Apache-2.0
 *
 * Invalid files and sources are refused with an error that names the rule, and leave the daemon unchanged. The tests of
 * daemon/source and daemon/model have each rule.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect});

static void refused(const char *path, const char *text)
{
        client_load_fails(client, path, "bad", STREAMER_EFAILED, text);
        ck_assert_str_eq(client_state(client, "bad"), "failed");
        client_unload(client, "bad");
}

TEST(a_header_that_breaks_a_rule_fails_with_the_rule)
{
        static const char header[] = "{\"a\":{\"dtype\":\"U9\",\"shape\":[4],\"data_offsets\":[0,4]}}";
        char *path = fixture_path("header.safetensors");
        model_write_raw(path, header, strlen(header), 4);
        refused(path, "unknown-dtype: tensor 'a': the dtype 'U9' is not known");
}

TEST(a_hostile_header_of_100_million_bytes_costs_neither_memory_nor_the_others_time, .slow = true)
{
        uint64_t before = fixture_memory();
        size_t size = 99999990, at = 1;
        char *header = must_alloc(size), *path = fixture_path("hostile.safetensors");
        memset(header, ' ', size);
        header[0] = '{';
        for (unsigned i = 0; at + 100 < size; i++)
                at += (size_t)snprintf(header + at, 100, "%s\"%u\":{}", i ? "," : "", i);
        header[size - 1] = '}';
        model_write_raw(path, header, size, 0);
        streamer_op *op = client_load_begin(client, path, "bad");
        client_equals(client, "witness", fixture_witness);
        ck_assert_int_eq(streamer_op_wait(op, PATIENCE_MS, NULL), STREAMER_EFAILED);
        AWAIT(fixture_memory() < before + (16 << 20)); /* a worker frees the header after the reply */
        client_unload(client, "bad");
        unlink(path);
}

TEST(an_index_that_names_a_tensor_its_file_does_not_have)
{
        static const char index[] = "{\"weight_map\":{\"ghost\":\"model.safetensors\"}}";
        must(mkdir(fixture_path("ghost"), 0755));
        fixture_write(model_mixed(3, 1 << 18), "ghost/model.safetensors");
        file_write(fixture_path("ghost/model.safetensors.index.json"), index, strlen(index));
        refused(fixture_path("ghost"), "tensor 'ghost' is in the index but not in model.safetensors (");
}

static const struct {
        const char *bytes;
        size_t size;
        const char *what;
} foreign[] = {
#define BYTES(text) text, sizeof(text) - 1
        {BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:ab\n"),
         "it is a Git LFS pointer: the weights were"},
        {BYTES("\n<!doctype html><html><body>Sign in</body></html>"), "it is an HTML page"},
        {BYTES("<?xml version=\"1.0\"?><Error></Error>"), "it is an XML document"},
        {BYTES("GGUF\x03\0\0\0\0\0\0\0"), "it is a GGUF file"},
        {BYTES("PK\x03\x04\0\0\0\0\0\0\0\0"), "it is a zip archive, as torch.save() writes it"},
        {BYTES("\x80\x02}q\0\0\0\0\0\0\0\0"), "it is a pickle, as torch.save() writes it"},
        {BYTES("\x89HDF\r\n\x1a\n\0\0\0\0"), "it is an HDF5 file"},
        {BYTES("{\"weight_map\": {\"a\": \"b\"}}"), "it is JSON text"},
        {BYTES("\x80\x02\0\0\0\0\0\0{}"), "header-beyond-file"}, /* a header of 640 bytes, cut short */
};

TEST(a_file_of_another_format_is_named, EACH(foreign))
{
        char *path = fixture_path("foreign.safetensors");
        file_write(path, foreign[_i].bytes, foreign[_i].size);
        refused(path, "not a safetensors file: ");
        refused(path, foreign[_i].what);
}

TEST(a_path_outside_the_roots_is_not_listed)
{
        char *path = suite_path("outside.safetensors");
        model_write(model_mixed(4, 1 << 16), path);
        client_load_fails(client, path, "bad", STREAMER_EFAILED, "root");
        ck_assert_str_eq(client_state(client, "bad"), "");
}
