/* SPDX-License-Identifier: Apache-2.0
 *
 * Signing, and the handling of a store's refusals. Keys are in a file that is read again when the store rejects them.
 */
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/source/s3/endpoint.h"

#include <openssl/evp.h>

static struct renewal *credentials;
static struct s3_endpoint site;
static struct s3_endpoints *endpoints;
static struct http_access *access_;
static struct error error;

static void write_key(const char *id)
{
        file_write(suite_path("id-%d", (int)getpid()), id, strlen(id));
}

static void begin(void)
{
        char *id = format_text("file:%s", suite_path("id-%d", (int)getpid()));
        log_set_level(LOG_LEVEL_ERROR);
        write_key("K1");
        ck_assert_int_eq(aws_credentials_new(&credentials,
                                             &(struct aws_credentials_opts){.access = id, .secret = "thesecret"},
                                             &error),
                         0);
        site = (struct s3_endpoint){.credentials = credentials};
        ck_assert_int_eq(
                s3_endpoints_new(&endpoints, &(struct s3_endpoint_opts){.is_unsigned = true}, NULL, 0, NULL, &error),
                0);
        ck_assert_int_eq(s3_auth_new(&access_, endpoints, &site, "b", "here", "https://b.host", &error), 0);
}

static void end(void)
{
        http_access_unref(access_);
        s3_endpoints_free(endpoints);
        renewal_free(credentials);
}

/* ---- requests ---- */

static const struct http_request request = {.url = "https://b.host/key", .shown = "s3://b/key"};

/* The number of the keys that sign a try. */
static uint64_t signed_by(const char *access_key)
{
        struct http_headers headers = {.n = 0};
        int r;
        while ((r = access_->ops->authorize(access_, &request, &headers, &error)) == 1)
                usleep(1000); /* the pause between two questions, no more */
        ck_assert_msg(r == 0, "%s", error.text);
        const char *authorization = http_headers_find(&headers, "Authorization");
        ck_assert_ptr_nonnull(strstr(authorization, format_text("Credential=%s/", access_key)));
        return headers.credentials;
}

static int answered(uint64_t by, int status, const char *body)
{
        struct http_answer answer = {
                .status = status, .credentials = by, .body = format_text("<Error>%s</Error>", body)};
        answer.body_len = strlen(answer.body);
        return access_->ops->refused(access_, &request, &answer, &error);
}

static int refused(uint64_t by, int status, const char *code)
{
        return answered(by, status, format_text("<Code>%s</Code><RequestId>R1</RequestId>", code));
}

/* ---- keys that expire ---- */

FIXTURE(.each = {begin, end});

TEST(late_rejections_of_old_keys_do_not_affect_the_new_ones)
{
        uint64_t old = signed_by("K1");
        write_key("K2");
        ck_assert_int_eq(refused(old, 403, "ExpiredToken"), 1);
        for (int late = 0; late < 3; late++) {
                ck_assert_uint_ne(signed_by("K2"), old);
                ck_assert_int_eq(refused(old, 403, "ExpiredToken"), 1);
        }
}

TEST(unchanged_keys_after_a_refresh_fail_with_an_explanation)
{
        ck_assert_int_eq(refused(signed_by("K1"), 403, "InvalidAccessKeyId"), 1);
        FAILS_SAYING(error, refused(signed_by("K1"), 403, "InvalidAccessKeyId"), STREAMER_EPERM,
                     "the store answers 403 InvalidAccessKeyId (s3://b/key, request R1, "
                     "credentials from settings)");
}

/* ---- answers that are worth another try ---- */

TEST(a_request_that_the_store_did_not_wait_for_is_sent_again)
{
        ck_assert_int_eq(refused(signed_by("K1"), 400, "RequestTimeout"), 1);
}

static int skewed(time_t date)
{
        char text[80];
        struct http_answer answer = {.status = 403,
                                     .body = format_text("<Error><Code>RequestTimeTooSkewed</Code></Error>")};
        answer.body_len = strlen(answer.body);
        strftime(text, sizeof(text), "Date: %a, %d %b %Y %H:%M:%S GMT", gmtime(&date));
        ck_assert(http_headers_append(&answer.headers, text));
        return access_->ops->refused(access_, &request, &answer, &error);
}

static time_t signed_at(void)
{
        struct http_headers headers = {.n = 0};
        struct tm tm = {0};
        signed_by("K1");
        ck_assert_int_eq(access_->ops->authorize(access_, &request, &headers, &error), 0);
        ck_assert_ptr_nonnull(strptime(http_headers_find(&headers, "x-amz-date"), "%Y%m%dT%H%M%SZ", &tm));
        return timegm(&tm);
}

TEST(a_clock_that_differs_is_corrected_once)
{
        time_t there = time(NULL) + 86400;
        ck_assert_int_eq(skewed(there), 1);
        ck_assert_int_ge(signed_at(), there);
        ck_assert_int_lt(signed_at(), there + 300);
        FAILS_WITH(error, skewed(there), STREAMER_EPERM, "the store answers 403 RequestTimeTooSkewed");
}

/* ---- words ---- */

static const struct {
        int status;
        const char *body;
        int code;
        const char *words;
} words[] = {
        {404, "<Code>NoSuchKey</Code>", STREAMER_ENOENT, "the store answers 404 NoSuchKey (s3://b/key, "},
        {403, "<Code>AccessDenied</Code><Message>no</Message><RequestId>R1</RequestId>", STREAMER_EPERM,
         "the store answers 403 AccessDenied: no (s3://b/key, request R1, "},
        {416, "<Code>InvalidRange</Code><RequestId>R1</RequestId>", STREAMER_EFAILED,
         "the store answers 416 InvalidRange (s3://b/key, request R1, "},
        {301, "<Code>PermanentRedirect</Code><Region>there</Region><RequestId>R1</RequestId>", STREAMER_EFAILED,
         "the bucket is in region there, not in here: the store answers 301 PermanentRedirect (s3://b/key, request "
         "R1, "},
        {400, "<Code>AuthorizationHeaderMalformed</Code><Region>there</Region>", STREAMER_EFAILED,
         "the bucket is in region there, not in here: the store answers 400 AuthorizationHeaderMalformed "
         "(s3://b/key, "},
};

TEST(an_error_reports_status_code_request_id_and_credentials, EACH(words))
{
        FAILS_SAYING(error, answered(signed_by("K1"), words[_i].status, words[_i].body), words[_i].code,
                     format_text("%scredentials from settings)", words[_i].words));
}

/* ---- customers' keys ---- */

#define KEY "0123456789abcdef0123456789abcdef"
#define KEY_BASE64 "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
#define KEY_MD5 "hRasmdxgYDKV3nvbahU1MA=="

static char *key_file(const void *bytes, size_t size, mode_t mode)
{
        char *path = suite_path("sse-%d", (int)getpid());
        file_write(path, bytes, size);
        must(chmod(path, mode));
        site.sse_c_key = format_text("file:%s", path);
        return path;
}

static int make_access(const char *base)
{
        access_ = http_access_unref(access_);
        return s3_auth_new(&access_, endpoints, &site, "b", "here", base, &error);
}

static struct http_headers authorized(const char *url)
{
        struct http_headers headers = {.n = 0};
        struct http_request sent = request;
        sent.url = url;
        int r;
        while ((r = access_->ops->authorize(access_, &sent, &headers, &error)) == 1)
                usleep(1000); /* the pause between two questions, no more */
        ck_assert_msg(r == 0, "%s", error.text);
        return headers;
}

static const struct {
        const char *bytes;
} key_forms[] = {{KEY}, {KEY_BASE64}, {KEY_BASE64 "\n"}, {"MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY\r\n"}};

TEST(a_customers_key_goes_with_each_request_for_an_object, EACH(key_forms))
{
        key_file(key_forms[_i].bytes, strlen(key_forms[_i].bytes), 0400);
        ck_assert_msg(make_access("https://b.host") == 0, "%s", error.text);
        struct http_headers headers = authorized("https://b.host/key");
        ck_assert_str_eq(http_headers_find(&headers, "x-amz-server-side-encryption-customer-algorithm"), "AES256");
        ck_assert_str_eq(http_headers_find(&headers, "x-amz-server-side-encryption-customer-key"), KEY_BASE64);
        ck_assert_str_eq(http_headers_find(&headers, "x-amz-server-side-encryption-customer-key-MD5"), KEY_MD5);
        /* S3 refuses headers of its own that are not signed. */
        ck_assert_ptr_nonnull(strstr(http_headers_find(&headers, "Authorization"),
                                     ";x-amz-date;x-amz-server-side-encryption-customer-algorithm;x-amz-server-side-"
                                     "encryption-customer-key;x-amz-server-side-encryption-customer-key-md5,"));
        headers = authorized("https://b.host/?list-type=2");
        ck_assert_ptr_null(http_headers_find(&headers, "x-amz-server-side-encryption-customer-key"));
        ck_assert_ptr_null(strstr(http_headers_find(&headers, "Authorization"), "customer"));
}

TEST(a_customers_key_goes_with_unsigned_requests)
{
        key_file(KEY, strlen(KEY), 0400);
        site.credentials = NULL;
        ck_assert_int_eq(make_access("http://127.0.0.1:1/b"), 0);
        struct http_headers headers = authorized("http://127.0.0.1:1/b/key");
        ck_assert_str_eq(http_headers_find(&headers, "x-amz-server-side-encryption-customer-key"), KEY_BASE64);
        ck_assert_ptr_null(http_headers_find(&headers, "Authorization"));
}

static const struct {
        const char *bytes;
        mode_t mode;
        const char *base, *words;
        int code;
} wrong_keys[] = {
        {KEY "\n", 0400, "https://h", "sse_c_key: neither 32 bytes nor these in base64: a key of AES256 (",
         STREAMER_EFAILED},
        {"AAAA", 0400, "https://h", "sse_c_key: neither 32 bytes nor these in base64", STREAMER_EFAILED},
        {"", 0400, "https://h", "sse_c_key: the file is empty, or larger than 1.0 KiB (", STREAMER_EFAILED},
        {KEY, 0444, "https://h", "sse_c_key: other users can read or write the file (mode 0444; chmod 400) (",
         STREAMER_EFAILED},
        {KEY, 0400, "http://h:80", "sse_c_key is sent by https alone, and to this machine (", STREAMER_EPERM},
};

TEST(a_customers_key_that_cannot_be_used_is_refused, EACH(wrong_keys))
{
        key_file(wrong_keys[_i].bytes, strlen(wrong_keys[_i].bytes), wrong_keys[_i].mode);
        site.source = "s3://b";
        FAILS_WITH(error, make_access(wrong_keys[_i].base), wrong_keys[_i].code, wrong_keys[_i].words);
        ck_assert_ptr_null(strstr(error.text, "0123456789"));
}

TEST(a_customers_key_needs_md5)
{
        key_file(KEY, strlen(KEY), 0400);
        ck_assert_int_eq(EVP_set_default_properties(NULL, "fips=yes"), 1);
        FAILS_SAYING(error, make_access("https://h"), STREAMER_EFAILED,
                     "sse_c_key: OpenSSL does not compute MD5, which S3 takes");
}

TEST(a_missing_customers_key_is_named)
{
        site.sse_c_key = "file:/nowhere/key";
        FAILS_WITH(error, make_access("https://h"), STREAMER_EFAILED, "sse_c_key: /nowhere/key");
}

TEST(a_refusal_says_what_customers_keys_may_have_to_do_with_it)
{
        char *path = key_file(KEY, strlen(KEY), 0400);
        ck_assert_int_eq(make_access("https://b.host"), 0);
        FAILS_SAYING(error, refused(0, 403, "AccessDenied"), STREAMER_EPERM,
                     format_text("the object may have another key than that of sse_c_key (file:%s), or none: the store "
                                 "answers 403 AccessDenied (s3://b/key, request R1, no credentials)",
                                 path));
        site.sse_c_key = NULL;
        ck_assert_int_eq(make_access("https://b.host"), 0);
        FAILS_WITH(error,
                   answered(0, 400,
                            "<Code>InvalidRequest</Code><Message>The object was stored using a form of Server Side "
                            "Encryption.</Message>"),
                   STREAMER_EFAILED,
                   "the object is encrypted with a customer's key (sse_c_key of s3.sources): the store answers 400");
}
