/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache on a file system that is full, and on a volume that outlives the container of its daemon. Mounts are
 * in a namespace of the test's process.
 */
#include "tests/integration/disk_fixture.h"

#include <sys/statvfs.h>

static struct model *models[3];

static const char *source(int i)
{
        return format_text("s3://b/m%d/model.safetensors", i);
}

static void begin(void)
{
        begin_mounts();
        begin_store();
        for (int i = 0; i < 3; i++) {
                models[i] = model_mixed(70 + (uint64_t)i, 4 << 20);
                put(models[i], format_text("m%d/model.safetensors", i));
        }
}

FIXTURE(.each = {begin, NULL}, .unavailable = mounts_unavailable);

/* ---- full file systems ---- */

static void start_on(const char *options)
{
        must(mkdir(cache_path(), 0700));
        must(mount("disk", cache_path(), "tmpfs", MS_NOSUID | MS_NODEV, options));
        start_with(format_text("%s=64MiB", cache_path()), "disk_cache: {min_free: 1}\n");
}

static double not_stored(const char *reason)
{
        return client_metric(client, format_text("streamerd_disk_cache_not_stored_total{reason=\"%s\"}", reason));
}

TEST(entries_are_evicted_for_others_where_the_file_system_is_smaller_than_the_budget)
{
        start_on("size=10m,mode=700");
        for (int turn = 0; turn < 2; turn++)
                for (int i = 0; i < 3; i++) {
                        client_load(client, source(i), "m");
                        client_equals(client, "m", models[i]);
                        AWAIT(client_metric(client, "streamerd_disk_cache_written_bytes_total") >=
                              (double)(turn * 3 + i + 1) * (double)models[i]->bytes);
                        client_unload(client, "m");
                        client_wait_used(client, 0);
                }
        ck_assert_uint_eq(disk_number("entries"), 2);
        ck_assert(not_stored("space") == 0 && not_stored("io") == 0);
        stop();
}

static void link_data(const char *path)
{
        static int n;
        must(link(path, format_text("%s/link-%d", cache_path(), n++)));
}

/* Of entries whose bytes have another link, none becomes free. */
TEST(no_more_is_evicted_than_was_missing)
{
        start_on("size=15m,mode=700");
        for (int i = 0; i < 3; i++)
                store_behind(source(i), models[i], (uint64_t)i + 1);
        ck_assert_uint_eq(each_stored("data", link_data), 3);
        put(models[0], "m3/model.safetensors");
        client_load(client, source(3), "m");
        AWAIT(not_stored("space") == 1);
        ck_assert(log_wait_for(disk_daemon.log, ", and what was evicted is not free yet"));
        ck_assert_uint_eq(disk_number("entries"), 2);
        stop();
}

TEST(a_file_system_that_others_have_filled_costs_the_entry_and_not_the_load)
{
        struct statvfs fs;
        start_on("size=10m,mode=700");
        must(statvfs(cache_path(), &fs));
        size_t rest = fs.f_bavail * fs.f_frsize - (1 << 20);
        char *bytes = calloc(1, rest);
        file_write(format_text("%s/others", cache_path()), bytes, rest);
        free(bytes);
        ck_assert_str_eq(load_from(source(0), models[0]), "store");
        AWAIT(not_stored("space") == 1);
        must(unlink(format_text("%s/others", cache_path())));
        store_behind(source(0), models[0], 1);
        ck_assert_str_eq(load_from(source(0), models[0]), "disk");
        stop();
}

/* Which statvfs() does not tell, and a call finds in the middle. */
TEST(a_file_system_without_inodes_costs_the_entry_and_not_the_load)
{
        struct statvfs fs;
        start_on("size=64m,nr_inodes=12,mode=700");
        must(statvfs(cache_path(), &fs));
        for (unsigned i = 0; i + 2 < fs.f_ffree; i++)
                file_write(format_text("%s/other-%u", cache_path(), i), "x", 1);
        client_load(client, source(0), "m");
        client_equals(client, "m", models[0]);
        AWAIT(not_stored("io") == 1);
        ck_assert(log_wait_for(disk_daemon.log, "No space left on device"));
        ck_assert_uint_eq(disk_number("entries"), 0);
        client_unload(client, "m");
        client_wait_used(client, 0);
        ck_assert_uint_eq(each_stored("data", NULL), 0);
        must(unlink(format_text("%s/other-0", cache_path())));
        must(unlink(format_text("%s/other-1", cache_path())));
        store_behind(source(0), models[0], 1);
        stop();
}

/* ---- a pod ---- */

#define pod(format, ...) suite_path("pod-%d" format, (int)getpid(), ##__VA_ARGS__)

/* A new file system as a container has, with the volume of the node. */
static void start_pod(void)
{
        must(mount("pod", pod(""), "tmpfs", MS_NOSUID | MS_NODEV, "mode=755"));
        must(mkdir(pod("/cache"), 0700));
        must(mount(suite_path("volume-%d", (int)getpid()), pod("/cache"), NULL, MS_BIND, NULL));
        DAEMON_START(
                &disk_daemon, pod("/daemon"), "--device", "host=256MiB", "--root", "/tmp", "--log-level", "debug",
                "--disk-cache", format_text("%s=64MiB", pod("/cache")), "--config",
                suite_file(
                        format_text("pod-%d.yaml", (int)getpid()),
                        format_text("http: {backoff: 5ms, tries: 2, patience: 0s}\n"
                                    "disk_cache: {min_free: 1, offline: allow}\npreload: [{source: '%s', name: p}]\n",
                                    source(0))));
        client = client_open(&disk_daemon);
        AWAIT(strcmp(client_state(client, "p"), "ready") == 0);
        client_equals(client, "p", models[0]);
}

static void end_pod(void)
{
        streamer_close(client);
        daemon_kill(&disk_daemon);
        must(umount2(pod("/cache"), MNT_DETACH));
        must(umount2(pod(""), MNT_DETACH));
}

TEST(a_pod_that_was_replaced_has_its_model_without_the_store)
{
        must(mkdir(suite_path("volume-%d", (int)getpid()), 0700));
        must(mkdir(pod(""), 0755));
        start_pod();
        ck_assert_str_eq(from_of("p"), "store");
        await_entries(1);
        ck_assert(log_wait_for(disk_daemon.log, "a source of 1 objects is stored"));
        end_pod();
        store_status = 503;
        start_pod();
        ck_assert_str_eq(from_of("p"), "disk");
        ck_assert(json_is_true(json_object_get(client_show(client, "p"), "stale")));
        end_pod();
}
