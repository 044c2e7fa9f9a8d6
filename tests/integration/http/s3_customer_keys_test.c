/* SPDX-License-Identifier: Apache-2.0
 *
 * Objects of S3 that are encrypted with a customer's key (SSE-C). An endpoint answers as S3 does: an object with a key
 * to requests that have this one, which are signed with it, any other object and lists to requests without one.
 */
#include "proto/scope.h"
#include "tests/integration/remote_fixture.h"
#include "tests/lib/endpoint.h"

#include <dirent.h>
#include <openssl/evp.h>
#include <pthread.h>

#define HEADER "x-amz-server-side-encryption-customer-"
#define KEY "0123456789abcdef0123456789abcdef"
#define OTHER "another key of 32 bytes, not it."
#define SHARDS 3

static struct endpoint store;
static struct model *model;

/* Shared by the endpoint's process and the tests'. */
static struct {
        unsigned lists, objects; /* answered with success */
        unsigned wrong;          /* requests that are not as S3 wants them */
} * counted;

/* ---- the store ---- */

static char *base64(const void *bytes, size_t size)
{
        unsigned char *text = must_alloc(size * 2);
        EVP_EncodeBlock(text, bytes, (int)size);
        return (char *)text;
}

static bool signs(const struct endpoint_request *request, const char *header)
{
        const char *authorization = endpoint_header(request, "Authorization");
        return authorization != NULL && strstr(authorization, format_text(";" HEADER "%s", header)) != NULL;
}

static void refuse(struct endpoint_reply *reply, int status, const char *code, const char *message)
{
        reply->status = status;
        reply->headers = format_text("x-amz-request-id: R1\r\n");
        reply->body = format_text("<Error><Code>%s</Code><Message>%s</Message></Error>", code, message);
}

/* False: it is refused. Objects in plain/ have no key. */
static bool check_key(const struct endpoint_request *request, struct endpoint_reply *reply)
{
        unsigned char md5[16];
        const char *key = endpoint_header(request, HEADER "key"), *sum = endpoint_header(request, HEADER "key-MD5");
        const char *algorithm = endpoint_header(request, HEADER "algorithm");
        bool plain = strstr(request->path, "/plain/") != NULL;
        if (key == NULL && !plain) {
                refuse(reply, 400, "InvalidRequest",
                       "The object was stored using a form of Server Side Encryption. The correct parameters must be "
                       "provided to retrieve the object.");
                return false;
        }
        if (key == NULL)
                return true;
        bool valid = algorithm != NULL && strcmp(algorithm, "AES256") == 0 && sum != NULL && strlen(key) == 44 &&
                     signs(request, "algorithm") && signs(request, "key;") && signs(request, "key-md5");
        char *copy = must_alloc(64);
        valid = valid && EVP_DecodeBlock((unsigned char *)copy, (const unsigned char *)key, 44) == 33;
        EVP_Digest(copy, 32, md5, NULL, EVP_md5(), NULL);
        counted->wrong += !valid || strcmp(base64(md5, 16), sum) != 0;
        if (plain)
                refuse(reply, 400, "InvalidRequest", "The encryption parameters are not applicable to this object.");
        else if (memcmp(copy, KEY, 32) != 0)
                refuse(reply, 403, "AccessDenied", "Access Denied");
        else
                return true;
        return false;
}

static void answer_list(const struct endpoint_request *request, struct endpoint_reply *reply)
{
        char prefix[64] = "", *text = format_text("<ListBucketResult><IsTruncated>false</IsTruncated>");
        sscanf(strstr(request->path, "prefix="), "prefix=%63[a-z]", prefix);
        counted->wrong += endpoint_header(request, HEADER "key") != NULL;
        counted->lists++;
        DIR *folder = opendir(suite_path("files"));
        for (struct dirent *d; (d = readdir(folder)) != NULL;)
                if (d->d_name[0] != '.')
                        text = format_text("%s<Contents><Key>%s/%s</Key><Size>%zu</Size><ETag>\"e\"</ETag></Contents>",
                                           text, prefix, d->d_name,
                                           (size_t)file_size(suite_path("files/%s", d->d_name)));
        closedir(folder);
        reply->body = format_text("%s</ListBucketResult>", text);
}

/* One request after the other: each connection has a thread. */
static void answer(struct endpoint *e, const struct endpoint_request *request, struct endpoint_reply *reply)
{
        static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
        lock_scope(&one);
        const char *name = strrchr(request->path, '/') + 1;
        size_t size;
        if (name[0] == '?') {
                answer_list(request, reply);
        } else if (check_key(request, reply)) {
                char *path = suite_path("files/%s", name);
                if (access(path, R_OK) != 0) {
                        reply->status = 404;
                        return;
                }
                char *data = file_read(path, &size);
                reply->headers = format_text("ETag: \"e\"\r\n");
                endpoint_range(request, reply, data, size);
                free(data);
                counted->objects++;
        }
}

/* ---- fixture ---- */

static void write_key(const char *bytes)
{
        char *path = suite_path("key");
        unlink(path);
        file_write(path, bytes, strlen(bytes));
        must(chmod(path, 0400));
}

static void begin(void)
{
        OPENSSL_init_crypto(OPENSSL_INIT_NO_ATEXIT, NULL); /* the endpoint's threads end when they will */
        counted = must_share(sizeof(*counted));
        model = model_mixed(1, 5 << 20);
        model_write_sharded(model, suite_path("files"), SHARDS, false);
        file_put(suite_path("files"), "config.json", "{}");
        write_key(KEY);
        store.answer = answer;
        endpoint_start(&store);
        setenv("AWS_ACCESS_KEY_ID", "id", 1);
        setenv("AWS_SECRET_ACCESS_KEY", "secret", 1);
        setenv("AWS_ENDPOINT_URL_S3", store.url, 1);
        setenv("CREDENTIALS_DIRECTORY", suite_folder(), 1);
        char *config =
                suite_file("config.yaml", format_text("http: {allow_plain: [s3.invalid]}\n"
                                                      "s3:\n"
                                                      "  sources:\n"
                                                      "    - {source: 's3://b/secret/', sse_c_key: 'file:%s'}\n"
                                                      "    - {source: 's3://b/plain/', sse_c_key: "
                                                      "credential:key}\n"
                                                      "    - {source: 's3://far', endpoint: 'http://s3.invalid', "
                                                      "sse_c_key: credential:key}\n"
                                                      "    - {source: 's3://lost', sse_c_key: file:/none}\n",
                                                      suite_path("key")));
        fixture_begin((const char *const[]){"--config", config, "--device", "host=64MiB", "--block-size", "1MiB",
                                            "--disk-cache", format_text("%s=64MiB", suite_path("cache")), "--log-level",
                                            "debug", NULL});
}

static void no_key_is_logged(void)
{
        char *log = file_read(test_daemon.log, NULL);
        ck_assert_ptr_null(strstr(log, KEY));
        ck_assert_ptr_null(strstr(log, base64(KEY, 32)));
        fixture_disconnect();
}

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, no_key_is_logged});

TEST(a_model_is_loaded_with_a_customers_key)
{
        load_equals("s3://b/secret/", "secret", model);
        assert_fetches_text("s3://b/secret/", "config.json", "{}");
        ck_assert_uint_ge(counted->objects, SHARDS + 2);
        ck_assert_uint_ge(counted->lists, 1);
        ck_assert_uint_eq(counted->wrong, 0);
}

TEST(what_the_store_decrypts_is_not_kept_on_the_disk)
{
        static const char passed[] = "streamerd_disk_cache_not_stored_total{reason=\"version\"}";
        double before = client_metric(client, passed);
        load_equals("s3://b/secret/", "secret", model);
        ck_assert_double_eq(client_metric(client, passed) - before, SHARDS);
        ck_assert_uint_eq(json_number(client_call(client, "status", NULL), "disk_cache.entries"), 0);
}

/* Without a reload: the file is read when a load begins. */
TEST(another_key_than_the_objects_is_named)
{
        write_key(OTHER);
        assert_fails("s3://b/secret/", STREAMER_EPERM,
                     format_text("the object may have another key than that of sse_c_key (file:%s), or none: the store "
                                 "answers 403 AccessDenied",
                                 suite_path("key")));
        write_key(KEY);
        load_equals("s3://b/secret/", "secret", model);
}

TEST(an_object_without_a_key_is_not_read_with_one)
{
        assert_fails("s3://b/plain/", STREAMER_EFAILED,
                     "the object may have another key than that of sse_c_key (credential:key), or none: the store "
                     "answers 400 InvalidRequest: The encryption parameters are not applicable");
}

TEST(an_object_with_a_key_is_not_read_without_it)
{
        assert_fails("s3://b/other/", STREAMER_EFAILED,
                     "the object is encrypted with a customer's key (sse_c_key of s3.sources): the store answers 400 "
                     "InvalidRequest: The object was stored using");
}

TEST(a_key_is_not_sent_in_plain_to_another_machine)
{
        assert_fails("s3://far/x/", STREAMER_EPERM, "sse_c_key is sent by https alone, and to this machine (s3://far)");
}

TEST(a_missing_key_fails_the_loads_that_need_it)
{
        assert_fails("s3://lost/x/", STREAMER_EFAILED, "sse_c_key: /none");
        load_equals("s3://b/secret/", "secret", model);
}

TEST(a_key_itself_is_no_setting)
{
        struct daemon d;
        daemon_init(&d, suite_path("other"));
        suite_file("wrong.yaml", format_text("roots: [%s]\ns3: {sources: [{source: 's3://b', sse_c_key: '%s'}]}\n",
                                             suite_folder(), base64(KEY, 32)));
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){"--config", suite_path("wrong.yaml"), NULL}), 2);
        char *log = file_read(d.log, NULL);
        ck_assert_ptr_nonnull(strstr(log, "is neither file:PATH nor credential:NAME"));
        ck_assert_ptr_null(strstr(log, base64(KEY, 32)));
}
