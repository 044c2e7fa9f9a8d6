/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in an S3 store: OpenStack Swift with s3api, started here. What is listed, how keys are named,
 * whose keys are taken, and what is said where the store refuses. Faults are put between by a small
 * endpoint that forwards.
 */
#include "tests/integration/s3_stage.h"
#include "tests/lib/ctl.h"

#include <openssl/sha.h>

/* ---- what makes a model ---- */

START_TEST(a_key_is_a_model)
{
        model = model_mixed(1, 5 << 20);
        put_model(model, "one/tiny llama.safetensors");
        load_equals("s3://models/one/tiny llama.safetensors", "tiny llama", model);
}
END_TEST

START_TEST(a_prefix_is_a_folder)
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
END_TEST

static void put_shards(const char *folder, const char *prefix, int n)
{
        put_file(format_text("%s/model.safetensors.index.json", prefix),
                 format_text("%s/model.safetensors.index.json", folder));
        for (int i = 1; i <= n; i++) {
                char *name = format_text("model-%05d-of-%05d.safetensors", i, n);
                put_file(format_text("%s/%s", prefix, name), format_text("%s/%s", folder, name));
        }
}

START_TEST(an_index_decides)
{
        model = model_mixed(3, 6 << 20);
        model_write_sharded(model, stage_path("shards"), 3, true);
        put_shards(stage_path("shards"), "sharded", 3);
        load_equals("s3://models/sharded/", "sharded", model);
}
END_TEST

START_TEST(a_shard_that_the_index_names_is_not_there)
{
        model = model_mixed(4, 1 << 20);
        model_write_sharded(model, stage_path("halved"), 2, false);
        put_shards(stage_path("halved"), "halved", 1 + 1);
        store_do(&store, "delete\tmodels\thalved/model-00002-of-00002.safetensors");
        assert_fails("s3://models/halved/", STREAMER_EFAILED, "named by the index, but");
        assert_says("NoSuchKey");
}
END_TEST

/* Pages of this store hold 10 keys; the model is on the third. */
START_TEST(a_list_of_several_pages)
{
        model = model_mixed(5, 1 << 18);
        store_do(&store, "many\tmodels\tpaged/a file\t25");
        put_model(model, "paged/model.safetensors");
        load_equals("s3://models/paged/", "paged", model);
}
END_TEST

static const char *const keys[] = {
        "a b",       "a+b",  "a=b",         "a%41b",
        "%",         "%2F",  "a//b",        "/a",
        "a..",       "..",   "\xc3\xa9",    "\xe4\xb8\xad\xf0\x9f\x98\x80",
        "a&b=c?d#e", "\"'`", "[a]{b}|c\\d", "~!@$^*()_-,;:<>",
};

START_TEST(a_key_of_any_characters)
{
        model = model_mixed(6 + (uint64_t)_i, 1 << 18);
        put_model(model, format_text("odd/%s.safetensors", keys[_i]));
        client_load(client, format_text("s3://models/odd/%s.safetensors", keys[_i]), "odd");
        client_equals(client, "odd", model);
        client_unload(client, "odd");
}
END_TEST

START_TEST(a_prefix_of_any_characters)
{
        model = model_mixed(6 + (uint64_t)_i, 1 << 18);
        put_model(model, format_text("odd-prefix/%s/x%s.safetensors", keys[_i], keys[0]));
        client_load(client, format_text("s3://models/odd-prefix/%s/", keys[_i]), "odd");
        client_equals(client, "odd", model);
        client_unload(client, "odd");
}
END_TEST

/* ---- who asks, and where ---- */

START_TEST(a_bucket_as_a_host)
{
        model = model_mixed(30, 2 << 20);
        model_write(model, suite_path("upload"));
        store_do(&store, "put\tvirtual\tm/v.safetensors\t%s", suite_path("upload"));
        load_equals("s3://virtual/m/", "m", model);
}
END_TEST

START_TEST(a_store_behind_tls_of_a_private_ca)
{
        if (nginx_unavailable())
                SKIP(nginx_unavailable());
        model = model_mixed(32, 3 << 20);
        put_model(model, "tls/a b+c.safetensors");
        load_equals("s3://models/tls/", "tls", model);
        assert_fails("s3://models/no-ca/", STREAMER_EFAILED, "certificate");
}
END_TEST

START_TEST(a_region_is_learnt_from_the_store)
{
        model = model_mixed(31, 1 << 20);
        put_model(model, "region/model.safetensors");
        load_equals("s3://models/region/", "region", model);
        load_equals("s3://models/region/model.safetensors", "model", model);
}
END_TEST

START_TEST(a_wrong_secret_is_refused_in_words)
{
        assert_fails("s3://models/not-mine/x.safetensors", STREAMER_EPERM, "403 SignatureDoesNotMatch");
        assert_says("s3://models/not-mine/x.safetensors, request tx");
        assert_says("credentials from settings");
}
END_TEST

START_TEST(an_unknown_access_key_is_refused_in_words)
{
        assert_fails("s3://models/nobody/", STREAMER_EPERM, "the store answers 403");
}
END_TEST

START_TEST(no_such_bucket)
{
        assert_fails("s3://no-such-bucket/x/", STREAMER_ENOENT, "404 NoSuchBucket");
        assert_says("credentials from environment");
}
END_TEST

START_TEST(no_such_key_and_no_such_prefix)
{
        assert_fails("s3://models/none.safetensors", STREAMER_ENOENT, "404 NoSuchKey");
        assert_fails("s3://models/none/", STREAMER_ENOENT, "no safetensors files with this prefix");
}
END_TEST

static const char *const bad_sources[] = {"s3://", "s3:///key", "s3://a b/key", "s3://models@evil/key"};

START_TEST(what_names_no_bucket)
{
        ck_assert_int_eq(client_load_result(client, bad_sources[_i], NULL, text), STREAMER_EINVAL);
        assert_says("not the name of a bucket");
}
END_TEST

START_TEST(streamerctl_exits_as_the_error_says)
{
        struct ctl c;
        ctl(&c, stage.socket, "load", "s3://models/none.safetensors", NULL);
        ck_assert_int_eq(c.code, 3);
        ctl_free(&c);
        ctl(&c, stage.socket, "load", "s3://models/not-mine/", NULL);
        ck_assert_int_eq(c.code, 8);
        ctl_free(&c);
        client_unload(client, "none");
        client_unload(client, "not-mine");
}
END_TEST

/* ---- what happens meanwhile ---- */

START_TEST(an_object_that_is_replaced_in_mid_load_fails_it)
{
        struct model *other = model_mixed(41, 8 << 20);
        model = model_mixed(40, 8 << 20);
        model_write(other, replacement);
        put_model(model, "proxy/replaced.safetensors");
        assert_fails("s3://models/proxy/replaced.safetensors", STREAMER_EFAILED, "replaced");
        assert_says("s3://models/proxy/replaced.safetensors");
        gets = 100; /* the replacement stays */
        load_equals("s3://models/proxy/replaced.safetensors", "replaced", other);
}
END_TEST

START_TEST(a_store_that_lists_etags_without_quotes)
{
        model = model_mixed(44, 2 << 20);
        put_model(model, "proxy/bare/model.safetensors");
        load_equals("s3://models/proxy/bare/", "bare", model);
}
END_TEST

START_TEST(an_unchanged_object_is_resident_already)
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
END_TEST

/* ---- SHA-256 ---- */

static char *sums_of(const char *path, const char *name, unsigned char change)
{
        unsigned char digest[32];
        char hex[65];
        size_t size;
        char *data = file_read(path, &size);

        SHA256((unsigned char *)data, size, digest);
        digest[0] ^= change;
        for (int i = 0; i < 32; i++)
                snprintf(hex + 2 * i, 3, "%02x", digest[i]);
        free(data);
        return format_text("%s  %s\n", hex, name);
}

START_TEST(sha256_from_a_list_with_the_same_prefix)
{
        model = model_mixed(50, 2 << 20);
        put_model(model, "sums/model.safetensors");
        put_text("sums/SHA256SUMS", sums_of(stage_write(model, "sums"), "model.safetensors", 0));
        ck_assert_msg(client_load_sha256(client, "s3://models/sums/", "sha", text) == 0, "%s", text);
        client_equals(client, "sha", model);
        client_unload(client, "sha");
        ck_assert_msg(client_load_sha256(client, "s3://models/sums/model.safetensors", "sha", text) == 0, "%s", text);
        client_unload(client, "sha");
}
END_TEST

START_TEST(sha256_that_differs_fails_the_load)
{
        model = model_mixed(51, 1 << 20);
        put_model(model, "bad-sums/model.safetensors");
        put_text("bad-sums/SHA256SUMS", sums_of(stage_write(model, "sums"), "model.safetensors", 1));
        ck_assert_int_eq(client_load_sha256(client, "s3://models/bad-sums/", "sha", text), STREAMER_EFAILED);
        assert_says("SHA-256 differs");
        client_unload(client, "sha");
}
END_TEST

START_TEST(sha256_that_nobody_published)
{
        model = model_mixed(52, 1 << 18);
        put_model(model, "no-sums/model.safetensors");
        ck_assert_int_eq(client_load_sha256(client, "s3://models/no-sums/", "sha", text), STREAMER_EFAILED);
        assert_says("no published SHA-256");
        client_unload(client, "sha");
}
END_TEST

/* ---- secrets ---- */

/* Last, when everything has been said: the daemon logs all that it does here. */
START_TEST(no_secret_is_in_the_log_or_in_a_reply)
{
        static const char *const secrets[] = {"storesecret", "notthesecret", "Signature=", "AWS4-HMAC"};
        static const char *const verbs[] = {"status", "list", "ps"};
        char *log = file_read(stage.log, NULL);

        for (size_t i = 0; i < sizeof(secrets) / sizeof(secrets[0]); i++) {
                ck_assert_msg(strstr(log, secrets[i]) == NULL, "%s", secrets[i]);
                for (size_t v = 0; v < sizeof(verbs) / sizeof(verbs[0]); v++)
                        ck_assert_ptr_null(strstr(json_dumps(client_call(client, verbs[v], NULL), 0), secrets[i]));
        }
        ck_assert_ptr_nonnull(strstr(log, "credentials: from environment"));
}
END_TEST

/* ---- all of it ---- */

static const char *missing;

START_TEST(a_store_can_be_started)
{
        SKIP(missing);
}
END_TEST

static void add_tests(TCase *s3)
{
        tcase_add_checked_fixture(s3, connect_client, check_stage);
        tcase_add_test(s3, a_key_is_a_model);
        tcase_add_test(s3, a_prefix_is_a_folder);
        tcase_add_test(s3, an_index_decides);
        tcase_add_test(s3, a_shard_that_the_index_names_is_not_there);
        tcase_add_test(s3, a_list_of_several_pages);
        LOOP(s3, a_key_of_any_characters, keys);
        LOOP(s3, a_prefix_of_any_characters, keys);
        tcase_add_test(s3, a_bucket_as_a_host);
        tcase_add_test(s3, a_store_behind_tls_of_a_private_ca);
        tcase_add_test(s3, a_region_is_learnt_from_the_store);
        tcase_add_test(s3, a_wrong_secret_is_refused_in_words);
        tcase_add_test(s3, an_unknown_access_key_is_refused_in_words);
        tcase_add_test(s3, no_such_bucket);
        tcase_add_test(s3, no_such_key_and_no_such_prefix);
        LOOP(s3, what_names_no_bucket, bad_sources);
        tcase_add_test(s3, streamerctl_exits_as_the_error_says);
        tcase_add_test(s3, an_object_that_is_replaced_in_mid_load_fails_it);
        tcase_add_test(s3, a_store_that_lists_etags_without_quotes);
        tcase_add_test(s3, an_unchanged_object_is_resident_already);
        tcase_add_test(s3, sha256_from_a_list_with_the_same_prefix);
        tcase_add_test(s3, sha256_that_differs_fails_the_load);
        tcase_add_test(s3, sha256_that_nobody_published);
        tcase_add_test(s3, no_secret_is_in_the_log_or_in_a_reply);
}

int main(void)
{
        suite_begin("s3");
        missing = store_missing("swift");
        if (missing)
                tcase_add_test(suite_group("s3", NULL, NULL, 10), a_store_can_be_started);
        else
                add_tests(suite_group("s3", begin, end, 60));
        return suite_run();
}
