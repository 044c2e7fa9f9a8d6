/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads while the store cannot be asked: what is stored is used if that is allowed, and said to be stale; a refusal is
 * no outage.
 */
#include "tests/integration/disk_fixture.h"
#include "tests/lib/proxy.h"

static struct model *model, *other;

#define ONE "s3://b/one/model.safetensors"
#define MANY "s3://b/many/"
#define ALLOW "http: {backoff: 5ms, tries: 2, patience: 0s}\ndisk_cache: {min_free: 1, offline: allow}\n"

static void begin(void)
{
        model = model_mixed(91, 6 << 20);
        other = model_mixed(92, 5 << 20);
        begin_store_with(model);
}

static void start_offline(const char *more)
{
        start_with(format_text("%s=64MiB", cache_path()), format_text(ALLOW "%s", more));
}

/* Its files are stored, and what it consists of. */
static void store_source(const char *source, const struct model *m, uint64_t entries)
{
        store_behind(source, m, entries);
        AWAIT(load_from(source, m)[0] == 'd');
        ck_assert(log_wait_for(disk_daemon.log,
                               format_text("a source of %d objects is stored", strcmp(source, MANY) == 0 ? 4 : 1)));
}

/* Of the note of the only source. */
static ino_t note_inode(void)
{
        struct stat st = {0};
        DIR *dir = opendir(format_text("%s/sources", cache_path()));
        for (struct dirent *e; (e = readdir(dir)) != NULL;)
                if (e->d_name[0] != '.' && e->d_name[0] != 'n')
                        stat(format_text("%s/sources/%s", cache_path(), e->d_name), &st);
        closedir(dir);
        return st.st_ino;
}

/* How many sources of one object this daemon has noted. */
static unsigned count_notes(void)
{
        unsigned n = 0;
        size_t size;
        char *log = file_read(disk_daemon.log, &size);
        for (const char *at = log; (at = strstr(at, "a source of 1 objects is stored")) != NULL; at++)
                n++;
        free(log);
        return n;
}

static void assert_stale(const char *source, const struct model *m)
{
        client_load(client, source, "m");
        client_equals(client, "m", m);
        const json_t *shown = client_show(client, "m");
        ck_assert_str_eq(json_text(shown, "from"), "disk");
        ck_assert(json_is_true(json_object_get(shown, "stale")));
        client_unload(client, "m");
        client_wait_used(client, 0);
}

/* The Hub's API: one commit with one file. */
#define COMMIT "0123456789abcdef0123456789abcdef01234567"
static struct endpoint hub;
static _Atomic unsigned hub_requests;
static _Atomic bool hub_is_down;

static void answer_hub(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        size_t size;
        hub_requests++;
        if (hub_is_down) {
                reply->status = 503;
                return;
        }
        if (strncmp(request->path, "/api/", 5) == 0) {
                reply->body = strdup("{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"model.safetensors\"}]}");
                return;
        }
        char *data = file_read(bucket("/one/model.safetensors"), &size);
        reply->headers = format_text("ETag: \"%s\"\r\n", etag_of(data, size));
        endpoint_range(request, reply, data, size);
        free(data);
}

static void begin_hub(void)
{
        hub.answer = answer_hub;
        endpoint_start(&hub);
        setenv("HF_ENDPOINT", hub.url, 1);
}

FIXTURE(.each = {begin, NULL});

TEST(a_commit_that_is_named_in_full_needs_no_request)
{
        begin_hub();
        start();
        store_source("hf://org/name@" COMMIT, model, 1);
        hub_requests = 0;
        client_load(client, "hf://org/name@" COMMIT, "m");
        client_equals(client, "m", model);
        ck_assert_str_eq(from_of("m"), "disk");
        ck_assert_ptr_null(json_object_get(client_show(client, "m"), "stale"));
        ck_assert_uint_eq(hub_requests, 0);
        client_unload(client, "m");
        client_wait_used(client, 0);
        /* A branch may lead elsewhere by now. */
        ck_assert_str_eq(load_from("hf://org/name@main", model), "disk");
        ck_assert_uint_gt(hub_requests, 0);
        stop();
}

/* Also if it was loaded by the name of a branch, and also its files. */
TEST(the_commit_of_a_branch_that_was_loaded_needs_no_request)
{
        static const char *const fixed[] = {"hf://org/name@" COMMIT, "hf://org/name@" COMMIT "/model.safetensors"};
        begin_hub();
        start();
        store_behind("hf://org/name@main", model, 1);
        AWAIT(count_notes() == 2);
        hub_is_down = true;
        for (int turn = 0; turn < 2; turn++) {
                hub_requests = 0;
                for (size_t i = 0; i < sizeof(fixed) / sizeof(*fixed); i++) {
                        client_load(client, fixed[i], "m");
                        client_equals(client, "m", model);
                        ck_assert_str_eq(from_of("m"), "disk");
                        ck_assert_ptr_null(json_object_get(client_show(client, "m"), "stale"));
                        client_unload(client, "m");
                        client_wait_used(client, 0);
                }
                ck_assert_uint_eq(hub_requests, 0);
                restart();
        }
        /* A branch, which may lead elsewhere, is asked for. */
        client_load_fails(client, "hf://org/name@main", "m", STREAMER_EFAILED, "503");
        stop();
}

TEST(a_file_of_the_hub_is_known_by_its_own_name_offline)
{
        begin_hub();
        start_offline("");
        store_behind("hf://org/name@main", model, 1);
        AWAIT(count_notes() == 2);
        hub_is_down = true;
        assert_stale("hf://org/name@main/model.safetensors", model);
        assert_stale("hf://org/name", model);
        stop();
}

TEST(a_file_that_was_loaded_with_its_prefix_is_known_by_its_own_name_offline)
{
        put(model, "prefix/model.safetensors");
        start_offline("");
        store_behind("s3://b/prefix/", model, 1);
        AWAIT(count_notes() == 1);
        store_status = 503;
        assert_stale("s3://b/prefix/model.safetensors", model);
        stop();
        start_offline("");
        assert_stale("s3://b/prefix/model.safetensors", model);
        store_status = 403;
        client_load_fails(client, "s3://b/prefix/model.safetensors", "m", STREAMER_EPERM, "403");
        store_status = 503;
        client_load_fails(client, "s3://b/prefix/other.safetensors", "m", STREAMER_EFAILED, "503");
        stop();
}

TEST(of_a_file_and_its_prefix_the_last_that_was_loaded_counts_offline)
{
        put(model, "prefix/model.safetensors");
        start_offline("");
        store_behind("s3://b/prefix/model.safetensors", model, 1);
        AWAIT(count_notes() == 1);
        put(other, "prefix/model.safetensors");
        store_behind("s3://b/prefix/", other, 2);
        AWAIT(count_notes() == 2);
        store_status = 503;
        assert_stale("s3://b/prefix/model.safetensors", other);
        stop();
        start_offline("");
        assert_stale("s3://b/prefix/model.safetensors", other);
        assert_stale("s3://b/prefix/", other);
        stop();
}

static const int outages[] = {500, 501, 502, 503, 504, 505, 507, 599};

TEST(a_store_that_cannot_serve_is_replaced_by_what_is_stored_of_it, EACH(outages))
{
        start_offline("");
        store_source(MANY, model, 4);
        client_load(client, MANY, "m");
        ck_assert_ptr_null(json_object_get(client_show(client, "m"), "stale"));
        client_unload(client, "m");
        client_wait_used(client, 0);
        store_status = outages[_i];
        assert_stale(MANY, model);
        ck_assert(log_wait_for(disk_daemon.log, "is used, which may be stale: "));
        /* Of what it consists of, it cannot be asked; then the files cannot be. */
        store_status = 0;
        store_list_status = outages[_i];
        assert_stale(MANY, model);
        store_list_status = 0;
        store_object_status = outages[_i];
        assert_stale(MANY, model);
        store_object = "00002-of";
        assert_stale(MANY, model);
        stop();
}

TEST(a_store_whose_answers_break_off_cannot_be_asked)
{
        struct proxy proxy;
        proxy_start(&proxy, (unsigned)atoi(strrchr(store.url, ':') + 1));
        setenv("AWS_ENDPOINT_URL_S3", proxy_url(&proxy, ""), 1);
        start_offline("");
        store_source(ONE, model, 1);
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_SHORT, .what = PROXY_ALL, .bytes = 4});
        assert_stale(ONE, model);
        store_object = "model.safetensors"; /* but for what is refused */
        store_object_status = 403;
        client_load_fails(client, ONE, "m", STREAMER_EPERM, "403");
        stop();
        proxy_stop(&proxy);
}

static const int others[] = {400, 405, 408, 412, 418, 429};

TEST(another_error_is_no_outage, EACH(others))
{
        start_offline("");
        store_source(ONE, model, 1);
        store_status = others[_i];
        client_load_fails(client, ONE, "m", STREAMER_EFAILED, format_text("%d", others[_i]));
        stop();
}

static void assert_resident(bool stale)
{
        const char *text = stale ? "already resident, may be stale\n" : "already resident\n";
        ctl_says(disk_daemon.socket, 0, text, "load", MANY, "--name", "m", NULL);
        json_t *said =
                json_loads(ctl_says(disk_daemon.socket, 0, "{", "--json", "load", MANY, "--name", "m", NULL), 0, NULL);
        ck_assert_str_eq(json_text(said, "from"), "resident");
        ck_assert_int_eq(json_is_true(json_object_get(said, "stale")), stale);
        ck_assert_int_eq(json_is_true(json_object_get(client_show(client, "m"), "stale")), stale);
}

TEST(the_last_load_of_a_resident_model_tells_whether_it_may_be_stale)
{
        start_offline("");
        store_source(MANY, model, 4);
        client_load(client, MANY, "m");
        assert_resident(false);
        store_status = 503;
        assert_resident(true);
        store_status = 0;
        assert_resident(false);
        client_unload(client, "m");
        client_wait_used(client, 0);
        store_status = 503;
        client_load(client, MANY, "m");
        ck_assert(json_is_true(json_object_get(client_show(client, "m"), "stale")));
        assert_resident(true);
        store_status = 0;
        assert_resident(false);
        stop();
}

TEST(a_daemon_that_starts_without_a_network_has_its_models)
{
        start_offline("");
        store_source(MANY, model, 4);
        stop();
        setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1", 1); /* where nothing listens */
        start_offline("preload: [{source: 's3://b/many/', name: preloaded}]\n");
        AWAIT(strcmp(client_state(client, "preloaded"), "ready") == 0);
        client_equals(client, "preloaded", model);
        ck_assert(json_is_true(json_object_get(client_show(client, "preloaded"), "stale")));
        stop();
}

TEST(without_permission_a_store_that_cannot_be_asked_fails_the_load)
{
        start();
        store_source(ONE, model, 1);
        store_status = 503;
        client_load_fails(client, ONE, "m", STREAMER_EFAILED, "503");
        stop();
}

static const struct refusal {
        int status, code;
} refusals[] = {{401, STREAMER_EPERM}, {403, STREAMER_EPERM}, {404, STREAMER_ENOENT}, {410, STREAMER_ENOENT}};

TEST(a_refusal_is_no_outage, EACH(refusals))
{
        start_offline("");
        store_source(ONE, model, 1);
        store_status = refusals[_i].status;
        client_load_fails(client, ONE, "m", refusals[_i].code, NULL);
        stop();
}

TEST(what_is_not_stored_fails_as_without_a_cache)
{
        start_offline("");
        store_source(ONE, model, 1);
        put(other, "other/model.safetensors");
        store_status = 503;
        client_load_fails(client, "s3://b/other/model.safetensors", "m", STREAMER_EFAILED, "503");
        /* One of its files is not stored any more. */
        store_status = 0;
        store_source(MANY, model, 5);
        store_status = 503;
        DIR *dir = opendir(format_text("%s/objects", cache_path()));
        for (struct dirent *e; (e = readdir(dir)) != NULL;)
                if (e->d_name[0] != '.')
                        unlink(format_text("%s/objects/%s/entry", cache_path(), e->d_name));
        closedir(dir);
        client_load_fails(client, MANY, "m", STREAMER_EFAILED, "503");
        ck_assert(log_wait_for(disk_daemon.log, "it is not in the disk cache any more"));
        stop();
}

/* By a daemon that has ended. */
static void store_two_versions(void)
{
        start_offline("");
        store_source(ONE, model, 1);
        ino_t before = note_inode();
        put(other, "one/model.safetensors");
        store_behind(ONE, other, 2);
        AWAIT(note_inode() != before);
        stop();
}

TEST(the_newest_version_is_used)
{
        store_two_versions();
        start_offline("");
        store_status = 503;
        assert_stale(ONE, other);
        stop();
}

static void spoil(const char *path)
{
        if (file_size(path) == file_size(bucket("/one/model.safetensors")))
                flip_bits(path, -1, 4);
}

/* Nor is an older one whose copy is whole. */
TEST(what_is_damaged_is_not_replaced_by_what_was_stored_before)
{
        store_two_versions();
        ck_assert_uint_eq(each_stored("data", spoil), 2);
        for (int turn = 0; turn < 2; turn++) {
                store_status = 503;
                start_offline("");
                client_load_fails(client, ONE, "m", STREAMER_EFAILED, "503");
                client_load_fails(client, ONE, "m", STREAMER_EFAILED, "503");
                ck_assert_uint_eq(disk_number("entries"), 1);
                store_status = 0;
                if (turn == 0)
                        stop();
        }
        store_source(ONE, other, 2);
        stop();
}

TEST(a_load_that_is_to_be_verified_asks_its_store)
{
        char text[1024];
        start_offline("");
        store_source(ONE, model, 1);
        store_status = 503;
        ck_assert_int_eq(client_load_sha256(client, ONE, "m", text), STREAMER_EFAILED);
        stop();
}
