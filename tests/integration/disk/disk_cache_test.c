/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache of a daemon: what loads store and read, and what they do with a copy that is damaged.
 */
#include "tests/integration/disk_fixture.h"

#include <fcntl.h>

static struct model *model, *other;

static void begin(void)
{
        model = model_mixed(91, 6 << 20);
        other = model_mixed(92, 5 << 20);
        begin_store_with(model);
        start();
}

FIXTURE(.each = {begin, stop});

#define ONE "s3://b/one/model.safetensors"
#define MANY "s3://b/many/"

TEST(a_second_load_reads_the_copy)
{
        ck_assert_str_eq(load_from(ONE, model), "store");
        store_behind(ONE, model, 1);
        count_anew();
        ck_assert_str_eq(load_from(ONE, model), "disk");
        ck_assert_uint_eq(store_gets, 1); /* which version it has */
        ck_assert_uint_le(store_bytes, 8);
}

TEST(of_a_prefix_the_list_and_the_versions_are_requested)
{
        store_behind(MANY, model, 4);
        count_anew();
        ck_assert_str_eq(load_from(MANY, model), "disk");
        ck_assert_uint_eq(store_lists, 1);
        ck_assert_uint_eq(store_gets, 4); /* of the index, with the list, and of the files */
        ck_assert_uint_le(store_bytes, 4 * 8);
}

TEST(a_daemon_finds_what_an_earlier_one_has_stored)
{
        store_behind(MANY, model, 4);
        restart();
        await_entries(4);
        count_anew();
        ck_assert_str_eq(load_from(MANY, model), "disk");
        ck_assert(client_metric(client, "streamerd_read_bytes_total{source=\"s3\"}") == 0);
}

TEST(a_start_that_fails_removes_nothing)
{
        struct daemon failed;
        store_behind(MANY, model, 4);
        stop();
        daemon_init(&failed, suite_path("failed-%d", (int)getpid()));
        ck_assert_int_ne(
                daemon_run(&failed, (const char *const[]){"--device", "cuda:7=8MiB", "--root", "/tmp", "--disk-cache",
                                                          format_text("%s=64MiB", cache_path()), NULL}),
                0);
        start();
        await_entries(4);
        count_anew();
        ck_assert_str_eq(load_from(MANY, model), "disk");
}

TEST(an_object_that_was_replaced_is_read_from_its_store)
{
        put(model, "changes/model.safetensors");
        store_behind("s3://b/changes/model.safetensors", model, 1);
        put(other, "changes/model.safetensors");
        ck_assert_str_eq(load_from("s3://b/changes/model.safetensors", other), "store");
        store_behind("s3://b/changes/model.safetensors", other, 2);
        ck_assert_str_eq(load_from("s3://b/changes/model.safetensors", other), "disk");
        /* And one that came back. */
        put(model, "changes/model.safetensors");
        ck_assert_str_eq(load_from("s3://b/changes/model.safetensors", model), "disk");
}

TEST(files_that_are_stored_are_read_from_the_disk_and_the_others_from_the_store)
{
        client_load(client, "s3://b/many/model-00002-of-00003.safetensors", "part");
        await_entries(1);
        client_unload(client, "part");
        uint64_t part = disk_number("used");
        double before = client_metric(client, "streamerd_read_bytes_total{source=\"s3\"}");
        ck_assert_str_eq(load_from(MANY, model), "store");
        double read = client_metric(client, "streamerd_read_bytes_total{source=\"s3\"}") - before;
        double of_disk = client_metric(client, "streamerd_disk_cache_read_bytes_total");
        ck_assert(of_disk > (double)part / 2 && read + of_disk == (double)model->bytes);
}

/* Which is not kept in memory from when it was parsed. */
TEST(an_object_with_a_long_header_is_stored, .slow = true)
{
        struct model *m = model_mixed(93, 1 << 20);
        model_place_data(m, 9 << 20, 0);
        put(m, "long/model.safetensors");
        store_behind("s3://b/long/model.safetensors", m, 1);
        count_anew();
        ck_assert_str_eq(load_from("s3://b/long/model.safetensors", m), "disk");
        ck_assert_uint_le(store_bytes, 8);
}

/* ---- damage ---- */

static long damage_at;

static void flip(const char *path)
{
        flip_bits(path, damage_at, 4);
}

static void cut(const char *path)
{
        must(truncate(path, 4097));
}

/* A load must not wait for a writer. */
static void make_fifo(const char *path)
{
        must(unlink(path));
        must(mkfifo(path, 0600));
}

static void make_folder(const char *path)
{
        must(unlink(path));
        must(mkdir(path, 0700));
        must(mkdir(format_text("%s/in", path), 0700));
}

static void make_link(const char *path)
{
        must(rename(path, format_text("%s-moved", cache_path())));
        must(symlink(format_text("%s-moved", cache_path()), path));
}

static const struct damage {
        const char *file, *says;
        long at; /* from the end where it is negative */
        void (*make)(const char *path);
} damages[] = {
        {"data", "differ from those that were stored", -1, flip},
        {"data", "differ from those that were stored", 3 << 20, flip},
        {"data", "its header differs", 20, flip},
        {"data", "its record is damaged", 0, cut},
        {"entry", "its record is damaged", 9, flip},
        {"entry", "its record is damaged", -1, flip},
        {"entry", "", 0, (void (*)(const char *))(void *)unlink},
        {"data", "is no regular file", 0, make_fifo},
        {"data", "is no regular file", 0, make_folder},
        {"data", "Too many levels of symbolic links", 0, make_link},
        {"entry", "is no regular file", 0, make_fifo},
        {"entry", "is no regular file", 0, make_folder},
        {"entry", "Too many levels of symbolic links", 0, make_link},
};

TEST(a_damaged_copy_is_removed_and_the_object_read_from_its_store, EACH(damages))
{
        const struct damage *d = &damages[_i];
        store_behind(ONE, model, 1);
        damage_at = d->at;
        ck_assert_uint_eq(each_stored(d->file, d->make), 1);
        ck_assert_str_eq(load_from(ONE, model), "store");
        ck_assert(log_wait_for(disk_daemon.log, "its copy is removed, and it is read from its store"));
        ck_assert(log_wait_for(disk_daemon.log, d->says));
        ck_assert(client_metric(client, "streamerd_disk_cache_damaged_total") == 1);
        store_behind(ONE, model, 1);
        ck_assert_str_eq(load_from(ONE, model), "disk");
}

TEST(of_several_files_one_that_is_damaged_is_read_from_the_store)
{
        store_behind(MANY, model, 4);
        damage_at = -1;
        DIR *dir = opendir(format_text("%s/objects", cache_path()));
        const char *largest = "";
        for (struct dirent *e; (e = readdir(dir)) != NULL;) {
                const char *path = format_text("%s/objects/%s/data", cache_path(), e->d_name);
                if (e->d_name[0] != '.' && (!largest[0] || file_size(path) > file_size(largest)))
                        largest = path;
        }
        closedir(dir);
        flip(largest);
        count_anew();
        ck_assert_str_eq(load_from(MANY, model), "store");
        ck_assert(client_metric(client, "streamerd_disk_cache_read_bytes_total") > 0);
        ck_assert_uint_eq(disk_number("entries"), 3);
}

/* ---- what is not stored ---- */

TEST(an_object_without_a_version_is_not_stored)
{
        store_has_no_versions = true;
        ck_assert_str_eq(load_from(ONE, model), "store");
        ck_assert_str_eq(load_from(ONE, model), "store");
        ck_assert(client_metric(client, "streamerd_disk_cache_not_stored_total{reason=\"version\"}") == 2);
        ck_assert_uint_eq(disk_number("entries"), 0);
}

TEST(local_files_are_not_stored)
{
        const char *path = suite_path("local-%d.safetensors", (int)getpid());
        model_write(model, path);
        ck_assert_str_eq(load_from(path, model), "store");
        ck_assert_uint_eq(disk_number("entries"), 0);
}
