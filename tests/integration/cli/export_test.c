/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl export: a resident model becomes a safetensors file, whole or not at all.
 */
#include "tests/integration/cli_fixture.h"

#include <dirent.h>
#include <sys/stat.h>

static void start(void)
{
        fixture_connect();
}

static const char *digest_of(const char *model)
{
        return json_text(client_show(client, model), "digest");
}

/* What the tests have written is all that the folder has: no part of a file is left. */
static void check_entries(const char *folder, size_t expected)
{
        size_t n = 0;
        DIR *dir = opendir(folder);
        ck_assert_ptr_nonnull(dir);
        for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
                n += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
        closedir(dir);
        ck_assert_uint_eq(n, expected);
}

/* A folder that nothing is in. */
static char *new_folder(const char *name)
{
        char *path = fixture_path("%s", name);
        must(mkdir(path, 0777));
        return path;
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {start, fixture_disconnect});

/* Names, dtypes, shapes, contents and metadata: the digest has the first four. */
TEST(the_file_is_the_model)
{
        struct model *m = model_mixed(5, 1 << 20);
        char *folder = new_folder("whole"), *file = format_text("%s/copy.safetensors", folder);
        model_add(m, "empty", "F32", (uint64_t[]){0, 7}, 2);
        model_add(m, "scalar", "I64", NULL, 0);
        model_set_metadata(m, "{\"format\":\"pt\",\"quoted\":\"a \\\"b\\\" \\u00e9\"}");
        RUN(0, "load", fixture_write(m, "original.safetensors"), "--name", "original");
        struct ctl r = RUN(0, "export", "original", file);
        ck_assert_str_eq(r.out, format_text("original  exported to %s: %zu tensors, 1.0 MiB\n", file, m->n));
        RUN(0, "load", file, "--name", "copy");
        ck_assert_str_eq(digest_of("copy"), digest_of("original"));
        streamer_lease *lease = client_attach(client, "copy");
        ck_assert_str_eq(streamer_metadata(lease, "format"), "pt");
        ck_assert_str_eq(streamer_metadata(lease, "quoted"), "a \"b\" \xc3\xa9");
        ck_assert_uint_eq(streamer_metadata_count(lease), 2);
        streamer_detach(lease);
        check_entries(folder, 1);
        RUN(0, "rm", "original", "copy");
}

TEST(data_begins_where_every_tensor_is_aligned)
{
        size_t size;
        uint64_t header = 0;
        struct model *m = model_new(1);
        char *file = fixture_path("aligned.safetensors");
        model_add(m, "a", "U8", (uint64_t[]){3}, 1);
        model_add(m, "b", "F64", (uint64_t[]){2}, 1);
        model_add(m, "c", "F16", (uint64_t[]){5}, 1);
        RUN(0, "load", fixture_write(m, "unaligned.safetensors"), "--name", "unaligned");
        json_t *o = JSON("export", "unaligned", file, "--json");
        char *bytes = file_read(file, &size);
        memcpy(&header, bytes, sizeof(header));
        ck_assert_uint_eq(header % 8, 0);
        ck_assert_uint_eq(size, 8 + header + 29);
        ck_assert_uint_eq(json_number(o, "bytes"), size);
        ck_assert_uint_eq(json_number(o, "tensors"), 3);
        ck_assert_ptr_nonnull(strstr(bytes + 8, "{\"b\":{\"dtype\":\"F64\",\"shape\":[2],\"data_offsets\":[0,16]},"
                                                "\"c\":{\"dtype\":\"F16\",\"shape\":[5],\"data_offsets\":[16,26]},"
                                                "\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[26,29]}}"));
        free(bytes);
        RUN(0, "rm", "unaligned");
}

TEST(metadata_without_pairs_is_kept, EACH(((const char *const[]){NULL, "{}"})))
{
        size_t size;
        struct model *m = model_new(1);
        char *file = fixture_path("metadata.safetensors");
        model_add(m, "a", "U8", (uint64_t[]){3}, 1);
        if (_i == 1)
                model_set_metadata(m, "{}");
        RUN(0, "load", fixture_write(m, "m.safetensors"), "--name", "m");
        RUN(0, "export", "m", file);
        char *bytes = file_read(file, &size);
        ck_assert((strstr(bytes + 8, "\"__metadata__\":{}") != NULL) == (_i == 1));
        free(bytes);
        RUN(0, "rm", "m");
}

TEST(a_file_that_exists_is_replaced)
{
        char *folder = new_folder("replaced"), *file = format_text("%s/m.safetensors", folder);
        file_put(folder, "m.safetensors", "hello, world");
        RUN(0, "export", "witness", file);
        RUN(0, "load", file, "--name", "again");
        ck_assert_str_eq(digest_of("again"), digest_of("witness"));
        check_entries(folder, 1);
        RUN(0, "rm", "again");
}

static const mode_t modes[] = {0600, 0640, 0444, 0777};

TEST(a_file_that_is_replaced_keeps_its_permissions, EACH(modes))
{
        struct stat st;
        char *folder = new_folder(format_text("permissions-%o", modes[_i])),
             *file = format_text("%s/m.safetensors", folder);
        file_put(folder, "m.safetensors", "hello, world");
        must(chmod(file, modes[_i]));
        RUN(0, "export", "witness", file);
        must(stat(file, &st));
        ck_assert_uint_eq(st.st_mode & 07777, modes[_i]);
        ck_assert_int_gt(st.st_size, 100);
}

TEST(a_new_file_has_the_permissions_that_the_umask_leaves)
{
        char *said, *folder = new_folder("umask"), *file = format_text("%s/m.safetensors", folder);
        ck_assert_int_eq(shell(&said, "umask 027; %s --socket %s export witness %s && stat -c %%a %s",
                               build_path("streamerctl"), test_daemon.socket, file, file),
                         0);
        ck_assert_ptr_nonnull(strstr(said, "\n640\n"));
}

/* A limit of this process stands for a full disk. */
TEST(a_file_that_cannot_be_written_whole_leaves_the_old_one)
{
        char *said;
        char *folder = new_folder("full"), *file = format_text("%s/m.safetensors", folder);
        file_put(folder, "m.safetensors", "hello, world");
        int status = shell(&said, "trap '' XFSZ; ulimit -f 1; %s --socket %s export witness %s 2>&1",
                           build_path("streamerctl"), test_daemon.socket, file);
        ck_assert_int_eq(status, 1);
        ck_assert_str_eq(said, format_text("streamerctl: %s: cannot be written: File too large\n", file));
        ck_assert_str_eq(file_read(file, &(size_t){0}), "hello, world");
        check_entries(folder, 1);
}

TEST(only_a_regular_file_is_replaced)
{
        char *folder = new_folder("others"), *pipe = format_text("%s/pipe", folder),
             *link = format_text("%s/link", folder);
        must(mkfifo(pipe, 0666));
        must(symlink("nowhere", link));
        SAYS(1, "exists, and is no regular file", "export", "witness", pipe);
        SAYS(1, "exists, and is no regular file", "export", "witness", link);
        SAYS(1, "exists, and is no regular file", "export", "witness", folder);
        SAYS(1, "its directory cannot be opened: No such file or directory", "export", "witness",
             format_text("%s/none/m", folder));
        SAYS(1, "cannot be examined: File name too long", "export", "witness", format_text("%s/%0300d", folder, 1));
        SAYS(2, "is not the name of a file", "export", "witness", format_text("%s/", folder));
        SAYS(2, "is not the name of a file", "export", "witness", "");
        SAYS(3, "no such model", "export", "nobody", format_text("%s/m", folder));
        check_entries(folder, 2);
}

TEST(a_name_in_the_current_folder_needs_no_slash)
{
        char *said;
        char *folder = new_folder("here");
        int status = shell(&said, "cd %s && $OLDPWD/%s --socket %s -q export witness m.safetensors 2>&1", folder,
                           build_path("streamerctl"), test_daemon.socket);
        ck_assert_msg(status == 0, "%s", said);
        ck_assert_str_eq(said, "witness\n");
        check_entries(folder, 1);
}
