/* SPDX-License-Identifier: Apache-2.0
 *
 * Invalid files and sources are refused with an error that names the rule, and leave the daemon unchanged.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/sysmacros.h>

/* After a test of a file that is bad. */
static void check_failed(void)
{
        ck_assert_str_eq(client_state(client, "bad"), "failed");
        client_unload(client, "bad");
        fixture_disconnect();
}

/* After a test of a source that must not be loaded. */
static void check_no_row(void)
{
        ck_assert_str_eq(client_state(client, "bad"), "");
        fixture_disconnect();
}

static void refused(const char *path, int code, const char *text)
{
        client_load_fails(client, path, "bad", code, text);
}

/* ---- headers: one rule each ---- */

#define T(name, dtype, shape, begin, end)                                                                              \
        "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end "]}"

// clang-format off
static const struct {
        const char *rule, *header;
        uint64_t data;
} headers[] = {
        {"not-utf8", "{" T("a\xff", "U8", "[4]", "0", "4") "}", 4},
        {"not-json", "{" T("a", "U8", "[4]", "0", "4"), 4},
        {"not-json", "[]", 0},
        {"not-json", "{} x", 0},
        {"not-json", "", 0},
        {"duplicate-key", "{" T("a", "U8", "[4]", "0", "4") "," T("a", "U8", "[4]", "4", "8") "}", 8},
        {"duplicate-key", "{" T("a", "U8", "[4]", "0", "4") "," T("\\u0061", "U8", "[4]", "4", "8") "}", 8},
        {"nul-in-name", "{" T("a\\u0000", "U8", "[4]", "0", "4") "}", 4},
        {"bad-metadata", "{\"__metadata__\":{\"a\":1}}", 0},
        {"bad-metadata", "{\"__metadata__\":[]}", 0},
        {"bad-entry", "{\"a\":7}", 0},
        {"bad-entry", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4]}}", 4},
        {"unknown-dtype", "{" T("a", "U9", "[4]", "0", "4") "}", 4},
        {"bad-shape", "{" T("a", "U8", "[-4]", "0", "4") "}", 4},
        {"bad-shape", "{" T("a", "U8", "[4.0]", "0", "4") "}", 4},
        {"bad-shape", "{" T("a", "U8", "[4294967296,4294967296,4294967296]", "0", "4") "}", 4},
        {"bad-offsets", "{" T("a", "U8", "[4]", "4", "0") "}", 4},
        {"bad-offsets", "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,2,4]}}", 4},
        {"size-mismatch", "{" T("a", "U16", "[4]", "0", "4") "}", 4},
        {"not-whole-bytes", "{" T("a", "F4", "[3]", "0", "2") "}", 2},
        {"hole-or-overlap", "{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "5", "9") "}", 9},
        {"hole-or-overlap", "{" T("a", "U8", "[4]", "0", "4") "," T("b", "U8", "[4]", "3", "7") "}", 7},
        {"hole-or-overlap", "{" T("a", "U8", "[4]", "1", "5") "}", 5},
        {"file-size", "{" T("a", "U8", "[4]", "0", "4") "}", 3},
        {"file-size", "{" T("a", "U8", "[4]", "0", "4") "}", 5},
};
// clang-format on

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, check_failed});

TEST(a_header_that_breaks_a_rule_fails_with_the_rule, EACH(headers))
{
        const char *header = headers[_i].header;
        char *path = fixture_path("header-%d.safetensors", _i);

        model_write_raw(path, header, strlen(header), headers[_i].data);
        refused(path, STREAMER_EFAILED, headers[_i].rule);
}

static const struct {
        const char *bytes;
        size_t n;
        off_t size; /* the rest is a hole */
        const char *rule;
} lengths[] = {
        {"", 0, 0, "file-too-small"},
        {"1234567", 7, 7, "file-too-small"},
        {"\x01\xe1\xf5\x05\0\0\0\0{}", 10, 200000000, "header-too-large"},
        {"\x00\x01\0\0\0\0\0\0{}", 10, 10, "header-beyond-file"},
};

TEST(a_length_of_the_header_that_cannot_be, EACH(lengths))
{
        char *path = fixture_path("length.safetensors");

        file_write(path, lengths[_i].bytes, lengths[_i].n);
        must(truncate(path, lengths[_i].size));
        char *text = format_text("not a safetensors file: %s", lengths[_i].rule);
        refused(path, STREAMER_EFAILED, text);
}

TEST(a_truncated_file)
{
        struct model *m = model_mixed(1, 1 << 20);
        char *path = fixture_write(m, "cut.safetensors");

        must(truncate(path, (off_t)file_size(path) - 1));
        refused(path, STREAMER_EFAILED, "file-size");
}

static bool memory_is_below(void *most)
{
        return fixture_memory() < *(uint64_t *)most;
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
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_EFAILED);
        uint64_t most = before + (16 << 20); /* a worker frees the header after the reply */
        ck_assert(eventually(memory_is_below, &most, 20000));
        unlink(path);
}

/* ---- special files ---- */

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, check_failed});

TEST(a_fifo_is_refused_without_waiting_for_a_writer)
{
        char *path = fixture_path("fifo.safetensors");

        must(mkfifo(path, 0600));
        refused(path, STREAMER_EFAILED, "FIFO");
        unlink(path);
}

TEST(a_device_is_refused)
{
        char *path = fixture_path("device.safetensors"), text[1024];

        /* Only root may create one; otherwise a link to one is used. */
        if (mknod(path, S_IFCHR | 0600, makedev(1, 5)))
                must(symlink("/dev/zero", path));
        client_load_result(client, path, "bad", text);
        ck_assert_msg(strstr(text, "device") || strstr(text, "root"), "%s", text);
        unlink(path);
}

TEST(a_socket_is_refused)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        char *path = fixture_path("s");

        memcpy(address.sun_path, path, strlen(path) + 1);
        must(bind(fd, (struct sockaddr *)&address, sizeof(address)));
        refused(path, STREAMER_EFAILED, "socket");
        close(fd);
        unlink(path);
}

TEST(a_loop_of_links)
{
        char *path = fixture_path("loop.safetensors");

        must(symlink("loop.safetensors", path));
        refused(path, STREAMER_EFAILED, "loop");
}

TEST(an_index_that_names_a_missing_file)
{
        struct model *m = model_mixed(2, 1 << 18);
        char *path = fixture_path("missing-shard");

        model_write_sharded(m, path, 2, false);
        must(unlink(fixture_path("missing-shard/model-00002-of-00002.safetensors")));
        refused(path, STREAMER_EFAILED, "model-00002-of-00002");
}

TEST(an_index_that_names_a_tensor_its_file_does_not_have)
{
        static const char index[] = "{\"weight_map\":{\"ghost\":\"model.safetensors\"}}";
        struct model *m = model_mixed(3, 1 << 18);

        must(mkdir(fixture_path("ghost"), 0755));
        fixture_write(m, "ghost/model.safetensors");
        file_write(fixture_path("ghost/model.safetensors.index.json"), index, strlen(index));
        refused(fixture_path("ghost"), STREAMER_EFAILED,
                "tensor 'ghost' is in the index but not in model.safetensors (");
}

TEST(an_index_that_names_files_outside_its_folder)
{
        static const char index[] = "{\"weight_map\":{\"a\":\"../witness.safetensors\"}}";

        must(mkdir(fixture_path("climb"), 0755));
        file_write(fixture_path("climb/model.safetensors.index.json"), index, strlen(index));
        refused(fixture_path("climb"), STREAMER_EFAILED, NULL);
}

/* ---- outside the roots, or not found ---- */

static char *outside(void)
{
        char *path = suite_path("outside.safetensors");
        struct model *m = model_mixed(4, 1 << 16);

        model_write(m, path);
        return path;
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, check_no_row});

TEST(a_path_outside_the_roots)
{
        refused(outside(), STREAMER_EFAILED, "root");
}

TEST(a_path_outside_cannot_be_distinguished_from_a_missing_one)
{
        char there[1024], not_there[1024];

        client_load_result(client, outside(), "bad", there);
        client_load_result(client, suite_path("nothing.safetensors"), "bad", not_there);
        ck_assert_ptr_nonnull(strstr(there, " (/"));
        *strstr(there, " (/") = '\0'; /* where */
        *strstr(not_there, " (/") = '\0';
        ck_assert_str_eq(there, not_there);
}

TEST(a_path_that_climbs_out_by_dots)
{
        outside();
        refused(fixture_path("../outside.safetensors"), STREAMER_EFAILED, NULL);
}

TEST(a_relative_link_that_climbs_out)
{
        outside();
        must(symlink("../outside.safetensors", fixture_path("link-out.safetensors")));
        refused(fixture_path("link-out.safetensors"), STREAMER_EFAILED, "root");
}

TEST(an_absolute_link_even_into_the_root)
{
        must(symlink(fixture_path("witness.safetensors"), fixture_path("link-back.safetensors")));
        refused(fixture_path("link-back.safetensors"), STREAMER_EFAILED, "link");
}

TEST(a_root_is_a_whole_name_not_a_prefix)
{
        char *path = format_text("%s-too/m.safetensors", fixture_root());
        struct model *m = model_mixed(5, 1 << 16);

        mkdir(format_text("%s-too", fixture_root()), 0755);
        model_write(m, path);
        refused(path, STREAMER_EFAILED, NULL);
}

TEST(a_folder_without_safetensors)
{
        char *path = fixture_path("folder");

        must(mkdir(path, 0755));
        file_write(fixture_path("folder/README.md"), "# no model", 10);
        refused(path, STREAMER_ENOENT, "safetensors");
}

TEST(an_empty_source)
{
        refused(fixture_path("nothing.safetensors"), STREAMER_ENOENT, "nothing.safetensors");
}

/* ---- size limits ---- */

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, check_failed});

TEST(a_model_larger_than_the_budget)
{
        struct model *m = model_new(6);
        uint64_t bytes = UINT64_C(300) << 20;

        model_add(m, "large", "U8", &bytes, 1);
        refused(fixture_write(m, "large.safetensors"), STREAMER_ENOMEM, NULL);
        unlink(fixture_path("large.safetensors"));
}
