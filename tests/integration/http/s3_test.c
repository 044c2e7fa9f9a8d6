/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in an S3 store (OpenStack Swift with s3api): lists, names of keys, credentials, and errors of the store.
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/nginx.h"
#include "tests/lib/s3_store.h"

static struct s3_store store;
static struct model *model;

static struct nginx tls;

static char *settings(void)
{
        return format_text(
                "http:\n"
                "  allow_plain: ['virtual.s3.localhost:%u']\n"
                "  backoff: 10ms\n"
                "s3:\n"
                "  sources:\n"
                "    - {source: 's3://models/not-mine/', access_key: 'test:tester', secret_key: notthesecret}\n"
                "    - {source: 's3://models/nobody/', access_key: nobody, secret_key: notthesecret}\n"
                "    - {source: 's3://models/region/', region: nowhere-1, access_key: 'test:tester',\n"
                "       secret_key: 'file:%s'}\n"
                "    - {source: 's3://virtual', endpoint: 'http://s3.localhost:%u', addressing: virtual,\n"
                "       access_key: 'test:tester', secret_key: 'credential:store'}\n"
                "    - {source: 's3://models/tls/', endpoint: 'https://localhost:%u', ca: '%s',\n"
                "       access_key: 'test:tester', secret_key: storesecret}\n"
                "    - {source: 's3://models/no-ca/', endpoint: 'https://localhost:%u',\n"
                "       access_key: 'test:tester', secret_key: storesecret}\n",
                store.port, suite_path("secret"), store.port, tls.https, tls.ca, tls.https);
}

/* A reverse proxy in front of the store, which passes the signed Host unchanged. */
static void start_tls(void)
{
        if (nginx_unavailable())
                return;
        nginx_start(&tls, suite_path("nginx"), suite_folder()); /* makes its certificates */
        nginx_stop(&tls);
        nginx_start_with(&tls, suite_path("nginx"),
                         nginx_tls_server(&tls, tls.https, store.port, "proxy_set_header Host $http_host;"), tls.https);
}

static void begin(void)
{
        s3_store_start(&store, "swift", suite_path("swift"));
        s3_store_do(&store, "bucket\tmodels");
        s3_store_do(&store, "bucket\tvirtual");
        start_tls();
        file_write(suite_path("secret"), "storesecret\n", 12);
        file_write(suite_path("store"), "storesecret\n", 12);
        char *config = suite_file("config.yaml", settings());
        setenv("CREDENTIALS_DIRECTORY", suite_folder(), 1);
        setenv("AWS_ACCESS_KEY_ID", store.access, 1);
        setenv("AWS_SECRET_ACCESS_KEY", store.secret, 1);
        setenv("AWS_ENDPOINT_URL_S3", store.url, 1);
        fixture_begin((const char *const[]){"--config", config, "--device", "host=256MiB", "--block-size", "1MiB",
                                            "--log-level", "debug", NULL});
}

static void end(void)
{
        fixture_end();
        nginx_stop(&tls);
        s3_store_stop(&store);
}

/* ---- requests of the test ---- */

static void put_file(const char *key, const char *path)
{
        s3_store_do(&store, "put\tmodels\t%s\t%s", key, path);
}

static void put_model(const struct model *m, const char *key)
{
        char *path = suite_path("upload");
        model_write(m, path);
        put_file(key, path);
}

static void put_text(const char *key, const char *content)
{
        char *path = suite_file("upload", content);
        put_file(key, path);
}

/* ---- model files ---- */

static const char *no_swift(void)
{
        return s3_store_missing("swift");
}

FIXTURE(.all = {begin, end}, .each = {fixture_connect, fixture_disconnect}, .unavailable = no_swift);

TEST(a_key_is_a_model)
{
        model = model_mixed(1, 5 << 20);
        put_model(model, "one/tiny llama.safetensors");
        load_equals("s3://models/one/tiny llama.safetensors", "tiny llama", model);
}

TEST(a_prefix_is_a_folder)
{
        model = model_mixed(2, 3 << 20);
        put_model(model, "folder/model.safetensors");
        put_text("folder/extra.safetensors", "no model");
        put_text("folder/below/model.safetensors", "no model");
        put_text("folder-2/model.safetensors", "no model");
        put_text("folder/config.json", "{}");
        load_equals("s3://models/folder", "folder", model);
        load_equals("s3://models/folder/", "folder", model);
}

static void put_shards(const char *folder, const char *prefix, int n)
{
        put_file(format_text("%s/model.safetensors.index.json", prefix),
                 format_text("%s/model.safetensors.index.json", folder));
        for (int i = 1; i <= n; i++) {
                char *name = format_text("model-%05d-of-%05d.safetensors", i, n);
                put_file(format_text("%s/%s", prefix, name), format_text("%s/%s", folder, name));
        }
}

TEST(an_index_decides)
{
        model = model_mixed(3, 6 << 20);
        model_write_sharded(model, fixture_path("shards"), 3, true);
        put_shards(fixture_path("shards"), "sharded", 3);
        load_equals("s3://models/sharded/", "sharded", model);
}

TEST(a_missing_shard_of_the_index)
{
        model = model_mixed(4, 1 << 20);
        model_write_sharded(model, fixture_path("halved"), 2, false);
        put_shards(fixture_path("halved"), "halved", 1 + 1);
        s3_store_do(&store, "delete\tmodels\thalved/model-00002-of-00002.safetensors");
        assert_fails("s3://models/halved/", STREAMER_EFAILED, "named by the index, but");
        assert_fails("s3://models/halved/", STREAMER_EFAILED, "NoSuchKey");
}

/* Pages of this store hold 10 keys; the model is on the third. */
TEST(a_list_of_several_pages)
{
        model = model_mixed(5, 1 << 18);
        s3_store_do(&store, "many\tmodels\tpaged/a file\t25");
        put_model(model, "paged/model.safetensors");
        load_equals("s3://models/paged/", "paged", model);
}

static const char *const keys[] = {
        "a b",       "a+b",  "a=b",         "a%41b",
        "%",         "%2F",  "a//b",        "/a",
        "a..",       "..",   "\xc3\xa9",    "\xe4\xb8\xad\xf0\x9f\x98\x80",
        "a&b=c?d#e", "\"'`", "[a]{b}|c\\d", "~!@$^*()_-,;:<>",
};

TEST(a_key_of_any_characters, EACH(keys))
{
        model = model_mixed(6 + (uint64_t)_i, 1 << 18);
        put_model(model, format_text("odd/%s.safetensors", keys[_i]));
        client_load_equals(client, format_text("s3://models/odd/%s.safetensors", keys[_i]), "odd", model);
}

TEST(a_prefix_of_any_characters, EACH(keys))
{
        model = model_mixed(6 + (uint64_t)_i, 1 << 18);
        put_model(model, format_text("odd-prefix/%s/x%s.safetensors", keys[_i], keys[0]));
        client_load_equals(client, format_text("s3://models/odd-prefix/%s/", keys[_i]), "odd", model);
}

/* ---- caller and source ---- */

TEST(a_bucket_as_a_host)
{
        model = model_mixed(30, 2 << 20);
        model_write(model, suite_path("upload"));
        s3_store_do(&store, "put\tvirtual\tm/v.safetensors\t%s", suite_path("upload"));
        load_equals("s3://virtual/m/", "m", model);
}

TEST(a_store_behind_tls_of_a_private_ca)
{
        if (nginx_unavailable())
                SKIP(nginx_unavailable());
        model = model_mixed(32, 3 << 20);
        put_model(model, "tls/a b+c.safetensors");
        load_equals("s3://models/tls/", "tls", model);
        assert_fails("s3://models/no-ca/", STREAMER_EFAILED, "certificate");
}

TEST(a_region_is_learnt_from_the_store)
{
        model = model_mixed(31, 1 << 20);
        put_model(model, "region/model.safetensors");
        load_equals("s3://models/region/", "region", model);
        load_equals("s3://models/region/model.safetensors", "model", model);
}

static const struct {
        const char *source;
        int code;
        const char *texts[3];
} refused[] = {
        {"s3://models/not-mine/x.safetensors",
         STREAMER_EPERM,
         {"403 SignatureDoesNotMatch", "s3://models/not-mine/x.safetensors, request tx", "credentials from settings"}},
        {"s3://models/nobody/", STREAMER_EPERM, {"the store answers 403"}},
        {"s3://no-such-bucket/x/", STREAMER_ENOENT, {"404 NoSuchBucket", "credentials from environment"}},
        {"s3://models/none.safetensors", STREAMER_ENOENT, {"404 NoSuchKey"}},
        {"s3://models/none/", STREAMER_ENOENT, {"no safetensors files with this prefix"}},
};

TEST(a_refusal_has_an_explanation, EACH(refused))
{
        for (int i = 0; i < 3 && refused[_i].texts[i] != NULL; i++)
                assert_fails(refused[_i].source, refused[_i].code, refused[_i].texts[i]);
}

/* ---- concurrent changes ---- */

TEST(an_unchanged_object_is_already_resident)
{
        struct model *other = model_mixed(43, 1 << 20);
        model = model_mixed(42, 1 << 20);
        put_model(model, "again/model.safetensors");
        client_load(client, "s3://models/again/", NULL);
        client_load(client, "s3://models/again/", NULL);
        client_equals(client, "again", model);
        put_model(other, "again/model.safetensors");
        client_load(client, "s3://models/again/", NULL);
        client_equals(client, "again", other);
        client_unload(client, "again");
}

/* ---- SHA-256 ---- */

TEST(sha256_from_a_list_with_the_same_prefix)
{
        char digest[65];
        model = model_mixed(50, 2 << 20);
        put_model(model, "sums/model.safetensors");
        file_sha256(fixture_write(model, "sums"), digest);
        put_text("sums/SHA256SUMS", format_text("%s  model.safetensors\n", digest));
        assert_verified("s3://models/sums/", model);
        assert_verified("s3://models/sums/model.safetensors", model);
}

/* ---- secrets ---- */

/* Last, when everything has been said: the daemon logs all that it does here. */
TEST(no_log_line_or_reply_contains_a_secret)
{
        static const char *const secrets[] = {"storesecret", "notthesecret", "Signature=", "AWS4-HMAC"};
        static const char *const verbs[] = {"status", "list", "ps"};
        char *log = file_read(test_daemon.log, NULL);
        for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++) {
                ck_assert_msg(strstr(log, secrets[i]) == NULL, "%s", secrets[i]);
                for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++)
                        ck_assert_ptr_null(strstr(json_dumps(client_call(client, verbs[v], NULL), 0), secrets[i]));
        }
        ck_assert_ptr_nonnull(strstr(log, "credentials: from environment"));
}

/* ---- files beside the weights ---- */

TEST(files_beside_the_weights)
{
        static const char list[] =
                "{\"files\":[{\"name\":\"a b+c.json\",\"bytes\":1},{\"name\":\"config.json\",\"bytes\":2},"
                "{\"name\":\"sub/more.txt\",\"bytes\":4}]}";
        put_model(model_mixed(40, 1 << 18), "beside/model.safetensors");
        put_text("beside/config.json", "{}");
        put_text("beside/a b+c.json", "c");
        put_text("beside/sub/more.txt", "more");
        put_text("beside/.hidden", "hidden");
        put_text("beside-2/config.json", "another");
        assert_lists("s3://models/beside", list);
        assert_lists("s3://models/beside/model.safetensors", list);
        assert_fetches_text("s3://models/beside/", "config.json", "{}");
        assert_fetches_text("s3://models/beside", "a b+c.json", "c");
        assert_fetches_text("s3://models/beside/model.safetensors", "sub/more.txt", "more");
}

TEST(files_on_several_pages)
{
        char *json;
        s3_store_do(&store, "many\tmodels\tpaged-files/a file\t25");
        client_ok(client, streamer_fetch_list(client, "s3://models/paged-files/", &json), "list");
        json_t *reply = json_loads(json, 0, NULL);
        ck_assert_uint_eq(json_array_size(json_object_get(reply, "files")), 25);
}

/* The region in the settings is wrong; the store reports the right one. */
TEST(files_of_a_bucket_in_another_region)
{
        put_text("region/config.json", "{}");
        assert_lists("s3://models/region/", "{\"files\":[{\"name\":\"config.json\",\"bytes\":2}]}");
        assert_fetches_text("s3://models/region/", "config.json", "{}");
}

TEST(files_missing_in_the_store)
{
        assert_refuses("s3://models/beside/", "none.json", STREAMER_ENOENT, "NoSuchKey");
        assert_refuses("s3://models/not-mine/", "config.json", STREAMER_EPERM, "");
        assert_refuses("s3://none/x/", "config.json", STREAMER_ENOENT, "");
        assert_refuses("s3://models/a/", "../b/config.json", STREAMER_EINVAL, "");
}
