/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache's folder and its limits: whose it is, what is evicted, and what is left after a kill.
 */
#include "tests/integration/disk_fixture.h"

#include <sys/file.h>

/* Three models of about 4 MiB each. */
static struct model *models[3];

static const char *source(int i)
{
        return format_text("s3://b/m%d/model.safetensors", i);
}

static void begin(void)
{
        begin_store();
        for (int i = 0; i < 3; i++) {
                models[i] = model_mixed(70 + (uint64_t)i, 4 << 20);
                put(models[i], format_text("m%d/model.safetensors", i));
        }
}

static void start_with_budget(const char *budget)
{
        start_with(format_text("%s=%s", cache_path(), budget), NULL);
}

static bool is_stored(int i)
{
        return strcmp(load_from(source(i), models[i]), "disk") == 0;
}

FIXTURE(.each = {begin, NULL});

/* ---- the folder ---- */

TEST(the_folder_is_the_daemons_alone)
{
        struct stat st;
        start();
        ck_assert_int_eq(stat(cache_path(), &st), 0);
        ck_assert_int_eq(st.st_mode & 07777, 0700);
        struct daemon second;
        daemon_init(&second, suite_path("second-%d", (int)getpid()));
        ck_assert_int_eq(
                daemon_run(&second, (const char *const[]){"--device", "host=8MiB", "--root", "/tmp", "--disk-cache",
                                                          format_text("%s=1MiB", cache_path()), NULL}),
                6);
        ck_assert(log_wait_for(second.log, "another daemon uses it"));
        stop();
}

TEST(a_folder_that_cannot_be_used_prevents_the_start)
{
        struct daemon d;
        daemon_init(&d, suite_path("refused-%d", (int)getpid()));
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){"--device", "host=8MiB", "--root", "/tmp", "--disk-cache",
                                                              format_text("%s/no/folder=1MiB", suite_folder()), NULL}),
                         1);
        ck_assert(log_wait_for(d.log, "cannot be made: No such file or directory"));
}

TEST(a_folder_of_others_is_refused)
{
        struct daemon d;
        struct stat st;
        daemon_init(&d, suite_path("refused-%d", (int)getpid()));
        const char *folder = suite_path("others-%d", (int)getpid());
        must(mkdir(folder, 0755));
        const char *const args[] = {
                "--device", "host=8MiB", "--root", "/tmp", "--disk-cache", format_text("%s=1MiB", folder), NULL};
        ck_assert_int_eq(daemon_run(&d, args), 1);
        ck_assert(log_wait_for(d.log, "is open to other users (mode 0755)"));
        must(stat(folder, &st));
        ck_assert_int_eq(st.st_mode & 07777, 0755);
        must(chmod(folder, 0700));
        file_write(format_text("%s/notes", folder), "x", 1);
        ck_assert_int_eq(daemon_run(&d, args), 1);
        ck_assert(log_wait_for(d.log, "has 'notes', which is no disk cache's"));
        ck_assert_uint_eq(file_size(format_text("%s/notes", folder)), 1);
}

TEST(status_shows_the_cache)
{
        start();
        store_behind(source(0), models[0], 1);
        json_t *status = client_call(client, "status", "{}");
        const json_t *disk = json_object_get(status, "disk_cache");
        ck_assert_str_eq(json_text(disk, "path"), cache_path());
        ck_assert_uint_eq(json_number(disk, "budget"), 64 << 20);
        ck_assert_uint_gt(json_number(disk, "used"), models[0]->bytes);
        ck_assert_uint_lt(json_number(disk, "used"), models[0]->bytes + (1 << 20));
        stop();
}

TEST(doctor_compares_the_budget_with_the_space)
{
        start();
        ctl_says(disk_daemon.socket, 0, format_text("%s: 0 B of 64.0 MiB", cache_path()), "doctor", NULL);
        stop();
        start_with_budget("1000TiB");
        ctl_says(disk_daemon.socket, 0, "less than the budget of 1000.0 TiB", "doctor", NULL);
        stop();
        start_with(format_text("%s=64MiB", cache_path()), "disk_cache: {min_free: 1000TiB}\n");
        ctl_says(disk_daemon.socket, 0,
                 "min_free leaves it nothing: the file system is to keep 1000.0 TiB free, and has ", "doctor", NULL);
        stop();
}

TEST(doctor_compares_the_disk_with_the_store)
{
        struct model *large = model_mixed(76, 40 << 20);
        put(large, "large/model.safetensors");
        start();
        ctl_says(disk_daemon.socket, 0, format_text("%s: ", cache_path()), "doctor", NULL);
        store_behind("s3://b/large/model.safetensors", large, 1);
        ck_assert_str_eq(load_from("s3://b/large/model.safetensors", large), "disk");
        json_t *facts = client_call(client, "doctor", "{}");
        const json_t *disk = json_object_get(facts, "disk_cache");
        ck_assert_uint_gt(json_number(disk, "disk_bytes_per_s"), 0);
        ck_assert_uint_gt(json_number(disk, "store_bytes_per_s"), 0);
        ck_assert_str_ne(json_text(disk, "file_system"), "");
        bool slow = json_number(disk, "disk_bytes_per_s") < json_number(disk, "store_bytes_per_s");
        ctl_says(disk_daemon.socket, 0, slow ? "the last one from a store" : "; stores ", "doctor", NULL);
        stop();
}

/* ---- limits ---- */

TEST(the_least_recently_used_entry_is_evicted)
{
        start_with_budget("9MiB");
        store_behind(source(0), models[0], 1);
        store_behind(source(1), models[1], 2);
        ck_assert(is_stored(0));
        client_load(client, source(2), "m");
        AWAIT(client_metric(client, "streamerd_disk_cache_evictions_total") == 1 && disk_number("entries") == 2);
        client_unload(client, "m");
        ck_assert(is_stored(2));
        ck_assert(is_stored(0));
        stop();
        /* The order outlives the daemon. */
        start_with_budget("9MiB");
        store_behind(source(1), models[1], 2);
        ck_assert(is_stored(0));
        stop();
}

TEST(an_object_beyond_the_budget_is_not_stored_and_evicts_nothing)
{
        struct model *large = model_mixed(75, 12 << 20);
        put(large, "large/model.safetensors");
        start_with_budget("9MiB");
        store_behind(source(0), models[0], 1);
        client_load(client, "s3://b/large/model.safetensors", "large");
        client_equals(client, "large", large);
        AWAIT(client_metric(client, "streamerd_disk_cache_not_stored_total{reason=\"space\"}") == 1);
        ck_assert(log_wait_for(disk_daemon.log, "no further one is named until one is: the budget (9.0 MiB) leaves 9.0 "
                                                "MiB, it needs 12.0 MiB"));
        ck_assert_uint_eq(disk_number("entries"), 1);
        stop();
}

/* The first source. */
static void load_pinned(void)
{
        client_ok(client,
                  client_load_with(
                          client,
                          (streamer_load_opts){.source = source(0), .name = "pinned", .flags = STREAMER_LOAD_PIN}),
                  "load");
}

/* Of two entries, which fit, when a third is stored. */
static void the_pinned_one_stays(void)
{
        client_load(client, source(1), "second");
        await_entries(2);
        client_load(client, source(2), "third");
        AWAIT(client_metric(client, "streamerd_disk_cache_evictions_total") == 1 && disk_number("entries") == 2);
        client_unload(client, "second");
        client_unload(client, "third");
        client_unload(client, "pinned");
        client_wait_used(client, 0);
        ck_assert(is_stored(0));
        stop();
}

TEST(what_a_pinned_model_has_is_not_evicted)
{
        start_with_budget("9MiB");
        load_pinned();
        await_entries(1);
        the_pinned_one_stays();
}

/* By its URL, and then pinned as an object of the store. */
TEST(what_a_pinned_model_has_was_stored_under_another_name)
{
        const char *url = format_text("%s/b/m0/model.safetensors", store.url);
        start_with_budget("9MiB");
        store_behind(url, models[0], 1);
        load_pinned();
        ck_assert_str_eq(from_of("pinned"), "disk");
        the_pinned_one_stays();
}

TEST(the_file_system_keeps_what_min_free_says)
{
        start_with(format_text("%s=64MiB", cache_path()), "disk_cache: {min_free: 99%}\n");
        client_load(client, source(0), "m");
        AWAIT(client_metric(client, "streamerd_disk_cache_not_stored_total{reason=\"space\"}") == 1);
        ck_assert(log_wait_for(disk_daemon.log, "no further one is named until one is: min_free (99 % = "));
        client_equals(client, "m", models[0]);
        ck_assert_uint_eq(disk_number("entries"), 0);
        stop();
}

TEST(a_reload_changes_the_limits)
{
        const char *config =
                suite_file(format_text("limits-%d.yaml", (int)getpid()),
                           format_text("disk_cache: {path: %s, budget: 1MiB, min_free: 1}\n", cache_path()));
        DAEMON_START(&disk_daemon, suite_path("daemon-%d", (int)getpid()), "--device", "host=256MiB", "--root", "/tmp",
                     "--config", config);
        client = client_open(&disk_daemon);
        client_load(client, source(0), "m");
        AWAIT(client_metric(client, "streamerd_disk_cache_not_stored_total{reason=\"space\"}") == 1);
        client_unload(client, "m");
        suite_file(format_text("limits-%d.yaml", (int)getpid()),
                   format_text("disk_cache: {path: %s, budget: 32MiB, min_free: 1}\n", cache_path()));
        json_t *reply = client_call(client, "reload", "{}");
        ck_assert_ptr_nonnull(reply);
        ck_assert_uint_eq(disk_number("budget"), 32 << 20);
        store_behind(source(0), models[0], 1);
        stop();
}

TEST(a_start_with_a_lower_budget_evicts)
{
        start();
        for (int i = 0; i < 3; i++)
                store_behind(source(i), models[i], (uint64_t)i + 1);
        ck_assert(is_stored(0));
        stop();
        start_with_budget("9MiB");
        AWAIT(disk_number("entries") == 2);
        ck_assert(disk_number("used") <= 9 << 20);
        ck_assert(is_stored(0) && is_stored(2));
        ck_assert(!is_stored(1));
        stop();
}

static const char *limits_file(const char *budget, const char *more)
{
        return suite_file(
                format_text("limits-%d.yaml", (int)getpid()),
                format_text("disk_cache: {path: %s, budget: %s, min_free: 1}\n%s", cache_path(), budget, more));
}

static void start_with_limits(const char *budget, const char *more)
{
        DAEMON_START(&disk_daemon, suite_path("daemon-%d", (int)getpid()), "--device", "host=256MiB", "--root", "/tmp",
                     "--config", limits_file(budget, more));
        client = client_open(&disk_daemon);
}

TEST(a_reload_that_lowers_the_budget_evicts)
{
        start_with_limits("64MiB", "");
        for (int i = 0; i < 3; i++)
                store_behind(source(i), models[i], (uint64_t)i + 1);
        limits_file("5MiB", "");
        client_call(client, "reload", "{}");
        AWAIT(disk_number("entries") == 1);
        ck_assert(is_stored(2));
        limits_file("64KiB", "");
        client_call(client, "reload", "{}");
        AWAIT(disk_number("entries") == 0);
        ck_assert_uint_eq(disk_number("used"), 0);
        stop();
}

TEST(entries_of_pinned_models_stay_beyond_the_budget_until_they_are_unpinned)
{
        const char *preload = format_text("preload: [{source: '%s', name: pinned, pin: true}]\n", source(0));
        start_with_limits("64MiB", preload);
        await_entries(1);
        for (int i = 1; i < 3; i++) {
                client_load(client, source(i), "m");
                await_entries((uint64_t)i + 1);
                client_unload(client, "m");
        }
        stop();
        start_with_limits("1MiB", preload);
        AWAIT(disk_number("entries") == 1);
        AWAIT(strcmp(client_state(client, "pinned"), "ready") == 0);
        ck_assert_str_eq(from_of("pinned"), "disk");
        ctl_says(disk_daemon.socket, 0, "more than the budget of 1.0 MiB: pinned models have them, or they are in use",
                 "doctor", NULL);
        client_unload(client, "pinned");
        limits_file("1MiB", "");
        client_call(client, "reload", "{}");
        AWAIT(disk_number("entries") == 0);
        ctl_says(disk_daemon.socket, 0, format_text("%s: 0 B of 1.0 MiB", cache_path()), "doctor", NULL);
        stop();
}

/* ---- ends of the daemon ---- */

TEST(after_a_kill_there_is_a_whole_entry_or_none)
{
        for (int i = 0; i < 8; i++) {
                start();
                uint64_t before = disk_number("entries");
                streamer_op *op = client_load_begin(client, source(i % 3), "m");
                /* At some time while it is loaded or written. */
                for (int spin = 0; spin < i * 40 && disk_number("entries") == before; spin++)
                        ;
                daemon_kill(&disk_daemon);
                streamer_op_free(op);
                streamer_close(client);
        }
        start();
        AWAIT(log_wait_for(disk_daemon.log, "entries, "));
        unsigned entries = each_stored("entry", NULL);
        ck_assert_uint_eq(entries, disk_number("entries"));
        ck_assert_uint_eq(entries, each_stored("data", NULL));
        for (int i = 0; i < 3; i++) {
                client_load(client, source(i), "m");
                client_equals(client, "m", models[i]);
                client_unload(client, "m");
        }
        stop();
}

/* What an interrupted daemon can leave. */
static void leave(const char *name, const char *file)
{
        char *folder = format_text("%s/objects/%s", cache_path(), name);
        must(mkdir(folder, 0700));
        if (file)
                file_write(format_text("%s/%s", folder, file), "left", 4);
}

TEST(a_start_removes_what_is_no_entry)
{
        start();
        store_behind(source(0), models[0], 1);
        stop();
        leave("new.7", "data");
        leave("00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "data");
        leave("11112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", "entry");
        leave("22112233445566778899aabbccddeeff00112233445566778899aabbccddeeff", NULL);
        file_write(format_text("%s/objects/stray", cache_path()), "x", 1);
        leave("zz", NULL);
        leave("zz/y", "f");
        must(mkfifo(format_text("%s/objects/fifo", cache_path()), 0600));
        start();
        ck_assert(log_wait_for(disk_daemon.log, "7 incomplete entries were removed"));
        ck_assert_uint_eq(each_stored("data", NULL), 1);
        ck_assert_uint_eq(each_stored("entry", NULL), 1);
        ck_assert(is_stored(0));
        stop();
}

TEST(what_was_not_written_when_the_model_was_unloaded_is_no_entry)
{
        start();
        for (int i = 0; i < 20; i++) {
                client_load(client, source(i % 3), "m");
                client_unload(client, "m");
        }
        client_wait_used(client, 0);
        stop();
        start();
        ck_assert(log_wait_for(disk_daemon.log, "entries, "));
        ck_assert_uint_eq(each_stored("entry", NULL), disk_number("entries"));
        for (int i = 0; i < 3; i++) {
                client_load(client, source(i), "m");
                client_equals(client, "m", models[i]);
                client_unload(client, "m");
        }
        stop();
}
