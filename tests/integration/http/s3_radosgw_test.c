/* SPDX-License-Identifier: Apache-2.0
 *
 * A second store, Ceph's radosgw: STS sessions, one of which expires during a load; public buckets; keys as its lists
 * encode them.
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/endpoint.h"
#include "tests/lib/s3_store.h"

static struct s3_store store;
static struct model *model;
static struct endpoint proxy, container;

/* Shared by the endpoints' process and the tests'. */
static struct shared {
        unsigned sessions, refused, gets;
        bool armed;
        char first[256]; /* access key of the first session */
} * shared;

/* ---- endpoints ---- */

/* Hands out real sessions of the store's STS. */
static void answer_container(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        char *session = s3_store_do(&store, "session\tarn:aws:iam:::role/reader\t900"), *save;
        const char *access = strtok_r(session, "\t", &save), *secret = strtok_r(NULL, "\t", &save);
        const char *token = strtok_r(NULL, "\t", &save);
        if (shared->sessions++ == 0)
                snprintf(shared->first, sizeof(shared->first), "%s", access);
        reply->body = format_text("{\"AccessKeyId\":\"%s\",\"SecretAccessKey\":\"%s\",\"Token\":\"%s\","
                                  "\"Expiration\":\"2099-01-01T00:00:00Z\"}",
                                  access, secret, token);
}

/* Forwards requests; once armed, the first session has expired from the third object request on. */
static void answer_proxy(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        bool object = strstr(request->path, ".safetensors") != NULL;
        const char *authorization = endpoint_header(request, "Authorization");
        unsigned n = object ? __atomic_add_fetch(&shared->gets, 1, __ATOMIC_SEQ_CST) : 0;
        if (shared->armed && n > 2 && authorization && strstr(authorization, shared->first)) {
                __atomic_add_fetch(&shared->refused, 1, __ATOMIC_SEQ_CST);
                reply->status = 403;
                reply->body = format_text("<?xml version=\"1.0\"?><Error><Code>ExpiredToken</Code></Error>");
                return;
        }
        endpoint_forward(request, reply, store.port);
}

/* ---- fixture ---- */

static char *settings(void)
{
        return format_text("http:\n"
                           "  backoff: 10ms\n"
                           "s3:\n"
                           "  endpoint: '%s'\n"
                           "  sources:\n"
                           "    - {source: 's3://models/own/', endpoint: '%s', access_key: TESTACCESS,\n"
                           "       secret_key: testsecret}\n"
                           "    - {source: 's3://models/region/', endpoint: '%s', access_key: TESTACCESS,\n"
                           "       secret_key: testsecret, region: eu-nowhere-7}\n"
                           "    - {source: 's3://public', endpoint: '%s', unsigned: true}\n"
                           "    - {source: 's3://models/unsigned/', endpoint: '%s', unsigned: true}\n"
                           "    - {source: 's3://models/role/', endpoint: '%s', profile: reader}\n"
                           "    - {source: 's3://models/other-role/', endpoint: '%s', profile: stranger}\n"
                           "    - {source: 's3://models/customer/', endpoint: '%s', access_key: TESTACCESS,\n"
                           "       secret_key: testsecret, sse_c_key: 'file:%s'}\n",
                           proxy.url, store.url, store.url, store.url, store.url, store.url, store.url, store.url,
                           suite_path("customers-key"));
}

/* No default profile, so the chain continues with the container. */
static void write_profiles(void)
{
        const char *profiles = "[profile base]\naws_access_key_id = TESTACCESS\naws_secret_access_key = testsecret\n"
                               "[profile reader]\nrole_arn = arn:aws:iam:::role/reader\nsource_profile = base\n"
                               "[profile stranger]\nrole_arn = arn:aws:iam:::role/none\nsource_profile = base\n";
        suite_file("profiles", profiles);
        setenv("AWS_CONFIG_FILE", suite_path("profiles"), 1);
        setenv("AWS_ENDPOINT_URL_STS", store.url, 1);
}

static void begin(void)
{
        shared = must_share(sizeof(*shared));
        s3_store_start(&store, "radosgw", suite_path("radosgw"));
        s3_store_do(&store, "bucket\tmodels");
        s3_store_do(&store, "bucket\tpublic");
        proxy.answer = answer_proxy;
        container.answer = answer_container;
        endpoint_start(&proxy);
        endpoint_start(&container);
        char *config = suite_file("config.yaml", settings());
        write_profiles();
        setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", container.url, 1);
        fixture_begin((const char *const[]){"--config", config, "--device", "host=256MiB", "--block-size", "1MiB",
                                            "--log-level", "debug", NULL});
}

static void end(void)
{
        fixture_end();
        s3_store_stop(&store);
}

static void put(const char *bucket, const struct model *m, const char *key)
{
        char *path = suite_path("upload");
        model_write(m, path);
        s3_store_do(&store, "put\t%s\t%s\t%s", bucket, key, path);
}

/* ---- tests ---- */

static const char *no_radosgw(void)
{
        return s3_store_missing("radosgw");
}

FIXTURE(.all = {begin, end}, .each = {fixture_connect, fixture_disconnect}, .unavailable = no_radosgw);

/* ---- customers' keys (SSE-C) ---- */

#define CUSTOMERS_KEY "0123456789abcdef0123456789abcdef"

static void write_customers_key(const char *key)
{
        char *path = suite_path("customers-key");
        unlink(path);
        file_write(path, key, strlen(key));
        must(chmod(path, 0400));
}

TEST(an_object_with_a_customers_key_is_read_with_it_alone)
{
        char *path = suite_path("upload");
        model = model_mixed(8, 6 << 20);
        model_write(model, path);
        s3_store_do(&store, "encrypt\tmodels\tcustomer/model.safetensors\t%s\t%s", path, CUSTOMERS_KEY);
        s3_store_do(&store, "encrypt\tmodels\town/customer/model.safetensors\t%s\t%s", path, CUSTOMERS_KEY);
        write_customers_key(CUSTOMERS_KEY);
        load_equals("s3://models/customer/", "customer", model);
        write_customers_key("another key of 32 bytes, not it.");
        /* S3 itself answers 403. */
        assert_fails("s3://models/customer/", STREAMER_EFAILED,
                     "the object may have another key than that of sse_c_key");
        assert_fails("s3://models/own/customer/", STREAMER_EFAILED,
                     "the object is encrypted with a customer's key (sse_c_key of s3.sources): the store answers 400");
}

/* ---- sessions and roles ---- */

/* The session's token is signed with each request, and its role may read. */
TEST(a_session_of_sts)
{
        model = model_mixed(2, 4 << 20);
        put("models", model, "session/model.safetensors");
        load_equals("s3://models/session/", "session", model);
        ck_assert_uint_ge(shared->sessions, 1);
}

TEST(a_session_that_ends_in_mid_load)
{
        model = model_mixed(3, 8 << 20);
        put("models", model, "expired/model.safetensors");
        shared->gets = 0;
        shared->armed = true;
        load_equals("s3://models/expired/", "expired", model);
        shared->armed = false;
        ck_assert_uint_ge(shared->refused, 1);
        ck_assert_uint_eq(shared->sessions, 2); /* one more, for all requests that were refused */
}

/* The store's own STS takes our signature, and its sessions may read. */
TEST(a_role_by_a_profile)
{
        model = model_mixed(6, 4 << 20);
        put("models", model, "role/model.safetensors");
        load_equals("s3://models/role/", "role", model);
        ck_assert(log_wait_for(test_daemon.log, "credentials: from role arn:aws:iam:::role/reader, by profile 'base'"));
}

TEST(a_missing_role)
{
        assert_fails("s3://models/other-role/", STREAMER_EPERM, "STS answers ");
        assert_fails("s3://models/other-role/", STREAMER_EPERM, "role/none, by profile 'base'");
}

TEST(a_public_bucket_unsigned)
{
        model = model_mixed(4, 2 << 20);
        put("public", model, "model.safetensors");
        s3_store_do(&store, "open\tpublic");
        load_equals("s3://public", "public", model);
}

TEST(a_private_bucket_unsigned)
{
        model = model_mixed(5, 1 << 18);
        put("models", model, "unsigned/model.safetensors");
        assert_fails("s3://models/unsigned/", STREAMER_EPERM, "403 AccessDenied");
        assert_fails("s3://models/unsigned/", STREAMER_EPERM, "unsigned)");
}

static const char *const keys[] = {"a b", "a+b", "a=b", "a%41b", "a//b", "\xe4\xb8\xad", "a&b?c#d", "a.."};

TEST(a_prefix_of_any_characters, EACH(keys))
{
        model = model_mixed(10 + (uint64_t)_i, 1 << 18);
        put("models", model, format_text("own/%s/x.safetensors", keys[_i]));
        client_load_equals(client, format_text("s3://models/own/%s/", keys[_i]), "odd", model);
}

/* This store does not look at the region; nothing is learnt, and nothing fails. */
TEST(a_store_that_takes_any_region)
{
        model = model_mixed(30, 1 << 18);
        put("models", model, "region/model.safetensors");
        load_equals("s3://models/region/", "region", model);
}

TEST(no_log_line_contains_a_secret)
{
        char *log = file_read(test_daemon.log, NULL);
        ck_assert_ptr_null(strstr(log, "testsecret"));
        ck_assert_ptr_null(strstr(log, "security-token:"));
        ck_assert_ptr_nonnull(strstr(log, "credentials: from container endpoint"));
}
