/* SPDX-License-Identifier: Apache-2.0
 *
 * Signatures, compared with values of botocore (S3SigV4Auth at 2025-01-31 23:59:58 UTC), and with botocore itself if
 * it is installed.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"

#define ACCESS "AKIDEXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define TOKEN "FwoGZXIvYXdzEXAMPLE//token+/=="
#define HELD 1738367998

static char *encoded(const char *text)
{
        char *out = http_url_encode(text, "/");
        ck_assert_ptr_nonnull(out);
        return out;
}

/* For S3. */
static struct aws_sign_request asks(const char *method, const char *url, const char *region, time_t when, bool checksum)
{
        return (struct aws_sign_request){
                .method = method, .url = url, .region = region, .when = when, .checksum = checksum};
}

static struct error error;
static struct http_headers out;

static void sign(struct aws_sign_request request, const char *token)
{
        const struct aws_keys keys = {.access = ACCESS, .secret = SECRET, .token = (char *)(uintptr_t)token};
        out = (struct http_headers){.n = 0};
        ck_assert_int_eq(aws_sign(&out, &request, &keys, &error), 0);
}

static const char *authorization(void)
{
        return http_headers_find(&out, "Authorization");
}

/* ---- fixed values ---- */

static const struct {
        const char *method, *host, *bucket, *key, *query, *region, *token;
        bool checksum;
        const char *signature;
} fixed[] = {
        {"GET", "examplebucket.s3.amazonaws.com", "/", "test.txt", "", "us-east-1", NULL, false,
         "37e5e6eb7306497e32bee0e5d98f63875cce27280cad9ec3104447fe15189791"},
        {"HEAD", "127.0.0.1:8080", "/models/", "a b+c=d%e.safetensors", "", "eu-central-1", NULL, false,
         "2ef5be9d4c3ffeea75cc1b3302e13a3ba6b8588d7dc145dc9c7de8808ee469ca"},
        {"GET", "s3.eu-west-3.amazonaws.com", "/models", "", "encoding-type=url&list-type=2&prefix=a%2F%2Fb%20c%2F",
         "eu-west-3", TOKEN, false, "50e46312ca52d23b2e9d0cb5a1ea0421c139fd302283968faf8a0069f2bcc833"},
        {"HEAD", "models.s3.amazonaws.com", "/", "\xe4\xb8\xad\xe6\x96\x87//x/../y.", "", "us-west-2", TOKEN, true,
         "28f1796f3aecd6ec4645b8afe1b77b4f47c22102168f789ad2aba0978e0dd1be"},
        {"GET", "localhost:7480", "/b/", "k", "continuation-token=1%2F%2B%3D%3D&list-type=2", "us-east-1", NULL, true,
         "4e4228327802061c84093a31169b949283d670ef3cd4084f484486e1df7cc562"},
};

TEST(a_signature_is_botocores, EACH(fixed))
{
        char *path = encoded(format_text("%s%s", fixed[_i].bucket, fixed[_i].key));
        const char *mark = fixed[_i].query[0] != '\0' ? "?" : "";
        char *url = format_text("http://%s%s%s%s", fixed[_i].host, path, mark, fixed[_i].query);
        sign(asks(fixed[_i].method, url, fixed[_i].region, HELD, fixed[_i].checksum), fixed[_i].token);
        const char *line = authorization();
        ck_assert_ptr_nonnull(strstr(line, "Credential=" ACCESS "/20250131/"));
        ck_assert_str_eq(strstr(line, "Signature=") + strlen("Signature="), fixed[_i].signature);
        ck_assert_str_eq(http_headers_find(&out, "x-amz-date"), "20250131T235958Z");
        ck_assert_pstr_eq(http_headers_find(&out, "x-amz-security-token"), fixed[_i].token);
}

TEST(neither_the_range_nor_the_condition_is_signed)
{
        sign(asks("GET", "http://h/b/k", "us-east-1", HELD, false), NULL);
        ck_assert_ptr_nonnull(strstr(authorization(), "SignedHeaders=host;x-amz-content-sha256;x-amz-date,"));
}

TEST(the_secret_is_not_sent)
{
        sign(asks("GET", "http://h/b/k", "us-east-1", HELD, true), TOKEN);
        ck_assert_ptr_null(strstr(authorization(), SECRET));
        ck_assert_ptr_null(strstr(authorization(), TOKEN));
}

TEST(a_secret_beyond_the_limit_is_refused)
{
        char secret[AWS_SECRET_MAX + 1];
        memset(secret, 's', AWS_SECRET_MAX);
        secret[AWS_SECRET_MAX] = '\0';
        const struct aws_keys keys = {.access = ACCESS, .secret = secret};
        const struct aws_sign_request request = asks("GET", "http://h/", "us-east-1", HELD, false);
        ck_assert_int_eq(aws_sign(&out, &request, &keys, &error), STREAMER_ENOMEM);
        ck_assert_uint_eq(out.n, 0);
        secret[AWS_SECRET_MAX - 1] = '\0';
        ck_assert_int_eq(aws_sign(&out, &request, &keys, &error), 0);
}

/* ---- against botocore ---- */

/* Several hundred keys with every ASCII byte and other characters. */
static char *odd_key(unsigned i)
{
        static const char *const words[] = {
                "a b",  "+", "=", "%41", "%",  "//", "../", "./", "~", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
                "&x=1", "?", "#", "[]",  "\"", "'",  "end."};
        size_t n = sizeof(words) / sizeof(words[0]);
        char ascii[2] = {(char)(0x21 + i % 0x5e), '\0'};
        return format_text("%s%s%u%s", words[i % n], ascii, i, words[i * 7 % n]);
}

static void ask(FILE *script, unsigned i)
{
        char *path = encoded(format_text("/bucket/%s", odd_key(i)));
        fprintf(script, "%s\thttp://127.0.0.1:8080%s\t%s\t%s\t%u\t\n", i % 2 ? "GET" : "HEAD", path,
                i % 3 ? "us-east-1" : "eu-west-3", i % 5 ? "" : TOKEN, i % 7 == 0);
}

static void compare(char *answer, unsigned i)
{
        char *date = strtok(answer, "\t"), *expected = strtok(NULL, "\n");
        struct tm tm = {0};
        ck_assert_ptr_nonnull(strptime(date, "%Y%m%dT%H%M%SZ", &tm));
        sign(asks(i % 2 ? "GET" : "HEAD",
                  format_text("http://127.0.0.1:8080%s", encoded(format_text("/bucket/%s", odd_key(i)))),
                  i % 3 ? "us-east-1" : "eu-west-3", timegm(&tm), i % 7 == 0),
             i % 5 ? NULL : TOKEN);
        ck_assert_msg(strcmp(authorization(), expected) == 0, "%s", odd_key(i));
}

TEST(signatures_of_odd_keys_are_botocores)
{
        enum { KEYS = 300 };
        char *script = suite_path("keys"), *line = NULL;
        size_t size = 0;
        if (system("python3 -c 'import botocore' >/dev/null 2>&1") != 0)
                SKIP("python3-botocore is not installed");
        FILE *f = fopen(script, "w");
        for (unsigned i = 0; i < KEYS; i++)
                ask(f, i);
        fclose(f);
        FILE *answers = popen(format_text("python3 tests/lib/sigv4.py <%s", script), "r");
        for (unsigned i = 0; i < KEYS; i++) {
                ck_assert_int_gt((int)getline(&line, &size, answers), 0);
                compare(line, i);
        }
        ck_assert_int_eq(pclose(answers), 0);
}

/* ---- forms for another service ---- */

#define FORM "Action=AssumeRole&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&Version=2011-06-15"

static const struct aws_sign_request form = {.method = "POST",
                                             .url = "https://sts.eu-west-3.amazonaws.com/",
                                             .region = "eu-west-3",
                                             .when = HELD,
                                             .service = "sts",
                                             .type = "application/x-www-form-urlencoded",
                                             .body = FORM};

TEST(a_form_is_signed_with_its_type_and_body)
{
        sign(form, TOKEN);
        ck_assert_ptr_nonnull(strstr(authorization(),
                                     "/20250131/eu-west-3/sts/aws4_request, SignedHeaders=content-type;"
                                     "host;x-amz-date;x-amz-security-token, "));
        ck_assert_ptr_null(http_headers_find(&out, "x-amz-content-sha256"));
        char *first = format_text("%s", authorization());
        struct aws_sign_request other = form;
        other.body = FORM "1";
        sign(other, TOKEN);
        ck_assert_str_ne(authorization(), first);
}

TEST(a_forms_signature_is_botocores)
{
        char *script = suite_path("form"), *line = NULL;
        size_t size = 0;
        if (system("python3 -c 'import botocore' >/dev/null 2>&1") != 0)
                SKIP("python3-botocore is not installed");
        for (int i = 0; i < 2; i++) {
                const char *token = i ? TOKEN : "";
                char *ask_line = format_text("POST\t%s\t%s\t%s\t0\t%s\n", form.url, form.region, token, FORM);
                file_write(script, ask_line, strlen(ask_line));
                FILE *answers = popen(format_text("python3 tests/lib/sigv4.py <%s", script), "r");
                ck_assert_int_gt((int)getline(&line, &size, answers), 0);
                pclose(answers);
                struct aws_sign_request then = form;
                struct tm tm = {0};
                ck_assert_ptr_nonnull(strptime(strtok(line, "\t"), "%Y%m%dT%H%M%SZ", &tm));
                then.when = timegm(&tm);
                sign(then, i ? TOKEN : NULL);
                ck_assert_str_eq(authorization(), strtok(NULL, "\n"));
        }
}

/* ---- the parts of a URL ---- */

TEST(every_reserved_byte_is_encoded_once)
{
        ck_assert_str_eq(http_url_encode("a b+c=d%25/x~.-_", ""), "a%20b%2Bc%3Dd%2525%2Fx~.-_");
        ck_assert_str_eq(http_url_encode("a//b/", "/"), "a//b/");
        ck_assert_str_eq(http_url_encode("\xc3\xa9\x7f", "/"), "%C3%A9%7F");
}

TEST(a_query_is_sorted_and_encoded)
{
        struct aws_param params[] = {{"prefix", "a/ b&c"}, {"list-type", "2"}, {"continuation-token", "1/+=="}};
        ck_assert_str_eq(aws_query(params, 3), "continuation-token=1%2F%2B%3D%3D&list-type=2&prefix=a%2F%20b%26c");
        ck_assert_str_eq(aws_query(params, 0), "");
}

static const struct {
        const char *url, *host;
} hosts[] = {
        {"https://minio.example:443/b/k", "minio.example"},       {"http://minio.example:80/b/k", "minio.example"},
        {"https://minio.example:80/b/k", "minio.example:80"},     {"http://minio.example:443", "minio.example:443"},
        {"https://minio.example:8443/b/k", "minio.example:8443"}, {"https://[::1]:443/b", "[::1]"},
        {"https://minio.example/b:443", "minio.example"},         {"HTTPS://minio.example:443?x", "minio.example"},
};

TEST(a_host_is_signed_without_its_schemes_own_port, EACH(hosts))
{
        ck_assert_str_eq(aws_host(hosts[_i].url), hosts[_i].host);
}
