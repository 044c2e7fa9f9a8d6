/* SPDX-License-Identifier: Apache-2.0
 *
 * Local files of folders that the configuration names as slow (disk_cache.also): they are stored, and their copies read
 * as long as they are the same files.
 */
#include "tests/integration/disk_fixture.h"
#include "tests/lib/fuse_file.h"
#include "tests/lib/run_as.h"

#include <fcntl.h>
#include <grp.h>

static struct model *model, *other;

#define slow(format, ...) suite_path("slow-%d" format, (int)getpid(), ##__VA_ARGS__)

static void start_also(void)
{
        start_with(format_text("%s=64MiB", cache_path()),
                   format_text("disk_cache: {min_free: 1, also: [%s/]}\n", slow("")));
}

static void begin(void)
{
        model = model_mixed(91, 6 << 20);
        other = model_mixed(92, 6 << 20);
        must(mkdir(slow(""), 0755));
        model_write(model, slow("/m.safetensors"));
        start_also();
}

static void again(void)
{
        stop();
        start_also();
}

FIXTURE(.each = {begin, stop});

TEST(a_second_load_reads_the_copy)
{
        ck_assert_str_eq(load_from(slow("/m.safetensors"), model), "store");
        store_behind(slow("/m.safetensors"), model, 1);
        double before = client_metric(client, "streamerd_read_bytes_total{source=\"file\"}");
        ck_assert_str_eq(load_from(slow("/m.safetensors"), model), "disk");
        ck_assert(client_metric(client, "streamerd_read_bytes_total{source=\"file\"}") == before);
        again();
        ck_assert_str_eq(load_from(slow("/m.safetensors"), model), "disk");
}

TEST(the_text_of_a_load_says_that_a_file_came_from_the_disk_cache)
{
        char *said = ctl_says(disk_daemon.socket, 0, "", "load", slow("/m.safetensors"), "--name", "m", NULL);
        ck_assert_ptr_null(strstr(said, "from "));
        await_entries(1);
        client_unload(client, "m");
        client_wait_used(client, 0);
        ctl_says(disk_daemon.socket, 0, "  from disk\n", "load", slow("/m.safetensors"), "--name", "m", NULL);
}

TEST(the_files_of_a_folder_are_stored)
{
        must(mkdir(slow("/many"), 0755));
        model_write_sharded(model, slow("/many"), 3, false);
        store_behind(slow("/many"), model, 3);
        ck_assert_str_eq(load_from(slow("/many"), model), "disk");
}

TEST(a_file_that_was_changed_is_read_again)
{
        store_behind(slow("/m.safetensors"), model, 1);
        model_write(other, slow("/aside"));
        must(rename(slow("/aside"), slow("/m.safetensors")));
        ck_assert_str_eq(load_from(slow("/m.safetensors"), other), "store");
        store_behind(slow("/m.safetensors"), other, 2);
        ck_assert_str_eq(load_from(slow("/m.safetensors"), other), "disk");
        /* In place. */
        model_write(model, slow("/m.safetensors"));
        ck_assert_str_eq(load_from(slow("/m.safetensors"), model), "store");
}

TEST(files_elsewhere_are_not_stored)
{
        const char *near = suite_path("slow-%d-not.safetensors", (int)getpid());
        model_write(model, near);
        ck_assert_str_eq(load_from(near, model), "store");
        ck_assert_str_eq(load_from(near, model), "store");
        ck_assert_uint_eq(disk_number("entries"), 0);
        ck_assert(client_metric(client, "streamerd_disk_cache_misses_total") == 0);
}

TEST(a_link_leads_to_the_same_copy)
{
        const char *link = suite_path("link-%d.safetensors", (int)getpid());
        must(symlink(slow("/m.safetensors"), link));
        store_behind(link, model, 1);
        ck_assert_str_eq(load_from(slow("/m.safetensors"), model), "disk");
        ck_assert_str_eq(load_from(link, model), "disk");
        ck_assert_uint_eq(disk_number("entries"), 1);
}

TEST(a_folder_that_is_named_by_a_link_is_pointed_out)
{
        const char *link = suite_path("link-%d", (int)getpid());
        must(symlink(slow(""), link));
        stop();
        start_with(format_text("%s=64MiB", cache_path()), format_text("disk_cache: {min_free: 1, also: [%s]}\n", link));
        const char *named = format_text("%s/m.safetensors", link);
        ck_assert_str_eq(load_from(named, model), "store");
        ck_assert(log_wait_for(disk_daemon.log,
                               format_text("%s: not stored: a link leads to %s", named, slow("/m.safetensors"))));
        ck_assert_uint_eq(disk_number("entries"), 0);
}

static void spoil(const char *path)
{
        int fd = must(open(path, O_RDWR));
        ck_assert_int_eq(pwrite(fd, "spoiled", 7, 3 << 20), 7);
        close(fd);
}

TEST(a_damaged_copy_is_removed_and_the_file_is_read)
{
        store_behind(slow("/m.safetensors"), model, 1);
        ck_assert_uint_eq(each_stored("data", spoil), 1);
        ck_assert_str_eq(load_from(slow("/m.safetensors"), model), "store");
        ck_assert(client_metric(client, "streamerd_disk_cache_damaged_total") == 1);
}

TEST(a_pinned_models_files_are_not_evicted)
{
        stop();
        model_write(other, slow("/other.safetensors"));
        start_with(format_text("%s=9MiB", cache_path()),
                   format_text("disk_cache: {min_free: 1, also: [%s]}\n", slow("")));
        client_ok(client,
                  client_load_with(client, (streamer_load_opts){.source = slow("/m.safetensors"),
                                                                .name = "pinned",
                                                                .flags = STREAMER_LOAD_PIN}),
                  "load");
        await_entries(1);
        client_load(client, slow("/other.safetensors"), "second");
        AWAIT(client_metric(client, "streamerd_disk_cache_not_stored_total{reason=\"space\"}") == 1);
        client_unload(client, "pinned");
        client_unload(client, "second");
        client_wait_used(client, 0);
        ck_assert_str_eq(load_from(slow("/m.safetensors"), model), "disk");
}

TEST(a_header_of_many_bytes_is_stored)
{
        struct model *m = model_mixed(93, 3 << 20);
        model_place_data(m, 10 << 20, 0);
        model_write(m, slow("/header.safetensors"));
        store_behind(slow("/header.safetensors"), m, 1);
        ck_assert_str_eq(load_from(slow("/header.safetensors"), m), "disk");
}

/* ---- whose files ---- */

#define SOMEBODY 4711

static const char *shared_path;

static int load_as_somebody(void)
{
        streamer_client *own = client_open(&disk_daemon);
        client_load(own, shared_path, "m");
        client_unload(own, "m");
        streamer_close(own);
        return 0;
}

TEST(what_is_read_as_another_user_is_neither_stored_nor_read_from_a_copy)
{
        ROOT_ONLY();
        stop();
        must(chmod(suite_folder(), 0755));
        shared_path = slow("/m.safetensors");
        must(chmod(shared_path, 0644));
        start_with(format_text("%s=64MiB", cache_path()),
                   format_text("disk_cache: {min_free: 1, also: [%s]}\naccess: {roles: [{role: load, users: [%d]}]}\n",
                               slow(""), SOMEBODY));
        must(chmod(disk_daemon.socket, 0666));
        ck_assert_int_eq(run_as(SOMEBODY, SOMEBODY, load_as_somebody), 0);
        client_wait_used(client, 0);
        ck_assert_uint_eq(disk_number("entries"), 0);
        store_behind(slow("/m.safetensors"), model, 1);
        double hits = client_metric(client, "streamerd_disk_cache_hits_total");
        ck_assert_int_eq(run_as(SOMEBODY, SOMEBODY, load_as_somebody), 0);
        ck_assert(client_metric(client, "streamerd_disk_cache_hits_total") == hits);
}

/* ---- file systems whose times say little ---- */

static struct fuse_file fs;

static void write_backing(const struct model *m)
{
        model_write(m, slow("/backing"));
}

TEST(where_times_say_little_the_bytes_tell)
{
        if (fuse_file_unavailable())
                SKIP(fuse_file_unavailable());
        stop();
        write_backing(model);
        fs.odd = (struct fuse_oddities){.constant_times = true, .unstable_inodes = true};
        fuse_file_start(&fs, slow("/fuse"), "m.safetensors", slow("/backing"));
        start_also();
        store_behind(fs.path, model, 1);
        again();
        ck_assert_str_eq(load_from(fs.path, model), "disk");
        write_backing(other);
        again(); /* its pages may be cached */
        ck_assert_str_eq(load_from(fs.path, other), "store");
        stop();
        fuse_file_stop(&fs);
        start_also();
}
