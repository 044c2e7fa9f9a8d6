/* SPDX-License-Identifier: Apache-2.0
 *
 * streamerctl cache: what the disk cache has, and its removal and verification.
 */
#include "tests/integration/disk_fixture.h"

static struct model *model;

#define ONE "s3://b/one/model.safetensors"
#define MANY "s3://b/many/"

static void begin(void)
{
        begin_store();
        model = model_mixed(91, 6 << 20);
        put(model, "one/model.safetensors");
        must(mkdir(bucket("/many"), 0755));
        model_write_sharded(model, bucket("/many"), 3, false);
        start();
}

FIXTURE(.each = {begin, stop});

/* Of `cache ACTION [OF]`, which must end with this code, and say this. */
static char *cache(int code, const char *text, const char *action, const char *of)
{
        return ctl_says(disk_daemon.socket, code, text, "cache", action, of, NULL);
}

static json_t *entries(const char *of)
{
        char *said = ctl_says(disk_daemon.socket, 0, "{", "--json", "cache", "list", of, NULL);
        return json_object_get(json_loads(said, 0, NULL), "entries");
}

TEST(entries_are_listed_by_the_beginning_of_their_names)
{
        store_behind(ONE, model, 1);
        store_behind(MANY, model, 5);
        ck_assert_uint_eq(json_array_size(entries(NULL)), 5);
        ck_assert_uint_eq(json_array_size(entries(MANY)), 4);
        json_t *one = entries(ONE);
        ck_assert_str_eq(json_text(one, "0.name"), ONE);
        ck_assert_uint_eq(json_number(one, "0.bytes"), (uint64_t)file_size(bucket("/one/model.safetensors")));
        ck_assert_uint_eq(strlen(json_text(one, "0.id")), 64);
        ck_assert(strstr(cache(0, ONE, "list", ONE), "6.0 MiB") != NULL);
        cache(3, "no entry of the disk cache is 's3://other/', or begins so\n", "list", "s3://other/");
}

TEST(the_bytes_of_an_entry_are_those_of_the_source)
{
        char *said;
        store_behind(ONE, model, 1);
        json_t *one = entries(NULL);
        cache(0, json_text(one, "0.path"), "show", format_text("%.8s", json_text(one, "0.id")));
        int status = shell(&said, "cmp %s %s", json_text(one, "0.path"), bucket("/one/model.safetensors"));
        ck_assert_msg(status == 0, "%s", said);
}

TEST(entries_that_are_removed_are_read_from_their_store)
{
        store_behind(MANY, model, 4);
        cache(0, "removed 4 entries, ", "remove", MANY);
        ck_assert_uint_eq(disk_number("entries"), 0);
        ck_assert_uint_eq(disk_number("used"), 0);
        ck_assert_uint_eq(each_stored("data", NULL), 0);
        ck_assert_str_eq(load_from(MANY, model), "store");
}

/* Loaded by its URL, and then as an object of the store. */
TEST(an_entry_is_removed_by_each_of_its_names)
{
        const char *url = format_text("%s/b/one/model.safetensors", store.url);
        store_behind(url, model, 1);
        cache(3, "no entry of the disk cache is ", "remove", ONE);
        ck_assert_str_eq(load_from(ONE, model), "disk");
        cache(0, url, "list", ONE);
        cache(0, "removed 1 entries, ", "remove", "s3://b/one/");
        ck_assert_uint_eq(disk_number("entries"), 0);
}

TEST(verify_finds_what_is_damaged_and_removes_it)
{
        store_behind(ONE, model, 1);
        store_behind(MANY, model, 5);
        cache(0, "verified 5 entries, ", "verify", NULL);
        const char *path = json_text(entries(ONE), "0.path");
        flip_bits(path, (long)file_size(path) / 2, 1);
        cache(1, ONE ": was damaged, and is removed: the bytes up to offset ", "verify", NULL);
        cache(0, "verified 4 entries, ", "verify", NULL);
        ck_assert_uint_eq(disk_number("entries"), 4);
        ck_assert_str_eq(load_from(ONE, model), "store");
}

static void spoil_header(const char *path)
{
        flip_bits(path, 100, 1);
}
static void spoil_end(const char *path)
{
        flip_bits(path, -1, 1);
}
static void remove_file(const char *path)
{
        must(unlink(path));
}

static const struct {
        const char *file;
        void (*damage)(const char *path);
} damages[] = {{"data", spoil_header},  {"data", spoil_end},  {"data", remove_file},
               {"entry", spoil_header}, {"entry", spoil_end}, {"entry", remove_file}};

TEST(verify_finds_each_damage, EACH(damages))
{
        store_behind(ONE, model, 1);
        ck_assert_uint_eq(each_stored(damages[_i].file, damages[_i].damage), 1);
        cache(1, ONE ": was damaged, and is removed: ", "verify", NULL);
        ck_assert_uint_eq(disk_number("entries"), 0);
        ck_assert(client_metric(client, "streamerd_disk_cache_damaged_total") == 1);
        cache(0, "verified 0 entries, 0 B", "verify", NULL);
}

TEST(verify_is_no_hit)
{
        store_behind(ONE, model, 1);
        double hits = client_metric(client, "streamerd_disk_cache_hits_total");
        cache(0, "verified 1 entries, ", "verify", NULL);
        ck_assert(client_metric(client, "streamerd_disk_cache_hits_total") == hits);
}

TEST(wrong_usage_is_refused)
{
        cache(2, "'lost' is not list, show, remove or verify", "lost", NULL);
        cache(2, "cache show: names no entry", "show", NULL);
        cache(2, "cache remove: names no entry", "remove", NULL);
}

/* Each name begins with it. */
TEST(an_empty_name_names_no_entry)
{
        static const char *const actions[] = {"list", "show", "remove", "verify"};
        static const char *const verbs[] = {"cache", "cache_remove", "cache_verify"};
        char *reply = NULL;
        store_behind(ONE, model, 1);
        for (size_t i = 0; i < sizeof(actions) / sizeof(*actions); i++)
                cache(2, format_text("cache %s: names no entry", actions[i]), actions[i], "");
        for (size_t i = 0; i < sizeof(verbs) / sizeof(*verbs); i++) {
                ck_assert_int_eq(streamer_call(client, verbs[i], "{\"of\":\"\"}", &reply), STREAMER_EINVAL);
                ck_assert_str_eq(streamer_last_error(client), "cache: an empty name names no entry");
        }
        ck_assert_uint_eq(disk_number("entries"), 1);
}

TEST(a_daemon_without_a_cache_says_so)
{
        struct daemon plain;
        daemon_start_simple(&plain, suite_path("plain-%d", (int)getpid()), "/tmp", "8MiB");
        ctl_says(plain.socket, 1, "no disk cache is configured (disk_cache)", "cache", "list", NULL);
        ck_assert_int_eq(daemon_stop(&plain), 0);
}
