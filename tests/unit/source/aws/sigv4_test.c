/* SPDX-License-Identifier: Apache-2.0
 *
 * Signatures, compared with botocore's.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/source/aws/sigv4.h"

#define ACCESS "AKIDEXAMPLE"
#define SECRET "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
#define TOKEN "FwoGZXIvYXdzEXAMPLE//token+/=="
#define FORM "Action=AssumeRole&RoleArn=arn%3Aaws%3Aiam%3A%3A1%3Arole%2Fr&Version=2011-06-15"
#define KEYS 300u

static struct error error;
static struct http_headers out;

/* ---- against botocore ---- */

/* Lists; hosts with ports, of which the scheme's own is not signed; and forms of STS. */
static const struct row {
        const char *method, *url, *token;
        bool checksum;
        const char *form;
        bool customer; /* with a customer's key */
} rows[] = {
        {"GET", "http://examplebucket.s3.amazonaws.com/test.txt", "", false, "", false},
        {"GET", "https://s3.eu-west-3.amazonaws.com/b?encoding-type=url&list-type=2&prefix=a%2F%2Fb%20c%2F", TOKEN,
         false, "", false},
        {"GET", "http://localhost:7480/b/k?continuation-token=1%2F%2B%3D%3D&list-type=2", "", true, "", false},
        {"GET", "https://minio.example:443/b/k", "", false, "", true},
        {"HEAD", "https://minio.example/b/k", TOKEN, true, "", true},
        {"GET", "http://minio.example:80/b/k", "", false, "", false},
        {"GET", "https://minio.example:80/b/k", "", false, "", false},
        {"GET", "http://minio.example:443/", "", false, "", false},
        {"GET", "https://[::1]:443/b", "", false, "", false},
        {"GET", "https://minio.example/b:443", "", false, "", false},
        {"GET", "HTTPS://minio.example:443/?x=1", "", false, "", false},
        {"POST", "https://sts.eu-west-3.amazonaws.com/", "", false, FORM, false},
        {"POST", "http://127.0.0.1:8080", TOKEN, false, FORM, false},
};

/* Keys with every ASCII byte and other characters. */
static char *odd_key(unsigned i)
{
        static const char *const words[] = {
                "a b",  "+", "=", "%41", "%",  "//", "../", "./", "~", "\xc3\xa9", "\xe4\xb8\xad", "\xf0\x9f\x98\x80",
                "&x=1", "?", "#", "[]",  "\"", "'",  "end."};
        size_t n = sizeof(words) / sizeof(words[0]);
        char ascii[2] = {(char)(0x21 + i % 0x5e), '\0'};
        return format_text("%s%s%u%s", words[i % n], ascii, i, words[i * 7 % n]);
}

static struct row row_of(unsigned i)
{
        if (i < ARRAY_SIZE(rows))
                return rows[i];
        char *path = http_url_encode(format_text("/bucket/%s", odd_key(i)), "/");
        return (struct row){i % 2 ? "GET" : "HEAD",
                            format_text("http://127.0.0.1:8080%s", path),
                            i % 5 ? "" : TOKEN,
                            i % 7 == 0,
                            "",
                            i % 3 == 0};
}

static const char *region_of(unsigned i)
{
        return i % 3 ? "us-east-1" : "eu-west-3";
}

static void add_customers_key(struct http_headers *headers)
{
        http_headers_add(headers, "x-amz-server-side-encryption-customer-algorithm", "AES256", NULL);
        http_headers_add(headers, "x-amz-server-side-encryption-customer-key", "a2V5", NULL);
        http_headers_add(headers, "x-amz-server-side-encryption-customer-key-MD5", "bWQ1", NULL);
}

/* At botocore's time. */
static void assert_signs(char *answer, unsigned i)
{
        const struct row row = row_of(i);
        char *date = strtok(answer, "\t"), *expected = strtok(NULL, "\n");
        const char *token = filled(row.token), *form = filled(row.form);
        const struct credential keys = {.access = ACCESS, .secret = SECRET, .token = (char *)(uintptr_t)token};
        struct http_headers headers = {.n = 0}, added = {.n = 0};
        const struct http_request request = {.method = row.method,
                                             .url = row.url,
                                             .headers = &headers,
                                             .body = form,
                                             .body_len = form != NULL ? strlen(form) : 0};
        if (form != NULL)
                http_headers_add(&headers, "Content-Type", "application/x-www-form-urlencoded", NULL);
        if (row.checksum)
                http_headers_add(&headers, "x-amz-checksum-mode", "ENABLED", NULL);
        if (row.customer)
                add_customers_key(i % 2 == 0 ? &headers : &added);
        struct tm tm = {0};
        ck_assert_ptr_nonnull(strptime(date, "%Y%m%dT%H%M%SZ", &tm));
        out = added;
        ck_assert_int_eq(aws_sign(&out, &request, region_of(i), timegm(&tm), &keys, &error), 0);
        ck_assert_msg(strcmp(http_headers_find(&out, "Authorization"), expected) == 0, "%s: %s, not %s", row.url,
                      http_headers_find(&out, "Authorization"), expected);
        ck_assert_str_eq(http_headers_find(&out, "x-amz-date"), date);
        ck_assert_pstr_eq(http_headers_find(&out, "x-amz-security-token"), token);
        ck_assert_int_eq(http_headers_find(&out, "x-amz-content-sha256") == NULL, form != NULL);
}

TEST(a_signature_is_botocores)
{
        char *script = suite_path("requests"), *line = NULL;
        size_t size = 0;
        if (system("python3 -c 'import botocore' >/dev/null 2>&1") != 0)
                SKIP("python3-botocore is not installed");
        FILE *f = fopen(script, "w");
        for (unsigned i = 0; i < ARRAY_SIZE(rows) + KEYS; i++) {
                const struct row row = row_of(i);
                fprintf(f, "%s\t%s\t%s\t%s\t%u\t%s\t%u\n", row.method, row.url, region_of(i), row.token, row.checksum,
                        row.form, row.customer);
        }
        fclose(f);
        FILE *answers = popen(format_text("python3 tests/lib/sigv4.py <%s", script), "r");
        for (unsigned i = 0; i < ARRAY_SIZE(rows) + KEYS; i++) {
                ck_assert_int_gt((int)getline(&line, &size, answers), 0);
                assert_signs(line, i);
        }
        ck_assert_int_eq(pclose(answers), 0);
}

TEST(a_secret_beyond_the_limit_is_refused)
{
        char secret[CREDENTIAL_SECRET_MAX + 1];
        memset(secret, 's', CREDENTIAL_SECRET_MAX);
        secret[CREDENTIAL_SECRET_MAX] = '\0';
        const struct credential keys = {.access = ACCESS, .secret = secret};
        const struct http_request request = {.url = "http://h/"};
        ck_assert_int_eq(aws_sign(&out, &request, "us-east-1", 0, &keys, &error), STREAMER_ENOMEM);
        ck_assert_uint_eq(out.n, 0);
        secret[CREDENTIAL_SECRET_MAX - 1] = '\0';
        ck_assert_int_eq(aws_sign(&out, &request, "us-east-1", 0, &keys, &error), 0);
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
