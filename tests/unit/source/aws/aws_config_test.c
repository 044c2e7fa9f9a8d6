/* SPDX-License-Identifier: Apache-2.0
 *
 * The shared AWS files in all their notations, and keys as services return them.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/source/aws/aws_config.h"
#include "daemon/source/aws/aws_answer.h"

static struct aws_config config;
static struct error error;

/* As the credentials file, in which the name of a section is that of a profile. */
static int parse(const char *text)
{
        size_t size = strlen(text);
        struct text copy;
        ck_assert_int_eq(text_new(&copy, size, "FILE", &error), 0);
        memcpy(copy.data, text, size);
        return aws_config_parse_consume(&config, AWS_CREDENTIALS, copy, "FILE", &error);
}

/* ---- one file ---- */

static const struct {
        const char *text, *section, *key, *value;
} lines[] = {
        {"[default]\nregion = eu-west-3\n", "default", "region", "eu-west-3"},
        {"[default]\nregion=eu-west-3", "default", "region", "eu-west-3"},
        {"[default]\r\nregion = x\r\n", "default", "region", "x"},
        {"\xef\xbb\xbf[default]\nregion = x\n", "default", "region", "x"},
        {"# c\n; c\n\n[default]\n# c\nregion = x\n", "default", "region", "x"},
        {"[default]\nregion = x # c\n", "default", "region", "x"},
        {"[default]\nregion = x ; c\n", "default", "region", "x"},
        {"[default]\naws_secret_access_key = a#b;c=d/+\n", "default", "aws_secret_access_key", "a#b;c=d/+"},
        {"[default]\nREGION = x\n", "default", "region", "x"},
        {"[ default ]\nregion\t=\tx\t\n", "default", "region", "x"},
        {"[profile   a b]\nregion = x\n", "profile a b", "region", "x"},
        {"[profile \"a b\"]\nregion = x\n", "profile a b", "region", "x"},
        {"[default] # c\nregion = x\n", "default", "region", "x"},
        {"[a]\nregion = x\n[b]\nregion = y\n[a]\nregion = z\n", "a", "region", "z"},
        {"[a]\nregion = x\nregion = y\n", "a", "region", "y"},
        {"[a]\n  region = x\n  output = y\n", "a", "output", "y"},
        {"[a]\ns3 =\n  endpoint_url = u\nregion = x\n", "a", "s3.endpoint_url", "u"},
        {"[a]\ns3 =\n  endpoint_url = u\nregion = x\n", "a", "region", "x"},
        {"[a]\ns3 =\n  region = u\n", "a", "region", "(none)"},
        {"[a]\nendpoint_url = u\n", "a", "s3.endpoint_url", "(none)"},
        {"[a]\nregion =\n", "a", "region", "(none)"},
        {"[a]\n", "a", "region", "(none)"},
        {"", "a", "region", "(none)"},
};

TEST(a_line_is_read, EACH(lines))
{
        ck_assert_msg(parse(lines[_i].text) == 0, "%s", error.text);
        config.profile = format_text("%s", lines[_i].section);
        ck_assert_str_eq(aws_config_get(&config, lines[_i].key) ?: "(none)", lines[_i].value);
}

static const struct {
        const char *text, *why;
} bad_lines[] = {
        {"region = x\n", "a setting before the first section (FILE:1)"},
        {"[a\nregion = x\n", "a section without its ']' (FILE:1)"},
        {"[a]\n\nthesecret\n", "neither a section nor 'key = value' (FILE:3)"},
        {"[a]\n= thesecret\n", "a value without a key (FILE:2)"},
};

TEST(the_error_of_a_bad_line_has_its_number_and_no_quote, EACH(bad_lines))
{
        FAILS_SAYING(error, parse(bad_lines[_i].text), STREAMER_EFAILED, bad_lines[_i].why);
}

/* ---- profiles ---- */

static void write_files(const char *in_config, const char *in_credentials)
{
        suite_file("config", in_config);
        suite_file("credentials", in_credentials);
        setenv("AWS_CONFIG_FILE", suite_path("config"), 1);
        setenv("AWS_SHARED_CREDENTIALS_FILE", suite_path("credentials"), 1);
        unsetenv("AWS_PROFILE");
}

static void open_profile(const char *profile)
{
        ck_assert_msg(aws_config_init(&config, profile, &error) == 0, "%s", error.text);
}

/* As in a container that runs as another user with root's HOME. */
TEST(unreadable_files_in_the_home_directory_are_skipped_unless_named)
{
        char *home = suite_path("home");
        ck_assert(mkdir(home, 0700) == 0 && mkdir(suite_path("home/.aws"), 0700) == 0);
        file_write(suite_path("home/.aws/config"), "bad", 3);
        ck_assert_int_eq(chmod(suite_path("home/.aws"), 0), 0);
        setenv("HOME", home, 1);
        unsetenv("AWS_CONFIG_FILE");
        unsetenv("AWS_SHARED_CREDENTIALS_FILE");
        ck_assert(geteuid() != 0 || seteuid(65534) == 0);
        open_profile(NULL);
        ck_assert(!aws_config_has_profile(&config));
        setenv("AWS_CONFIG_FILE", suite_path("home/.aws/config"), 1);
        ck_assert_int_eq(aws_config_init(&config, NULL, &error), STREAMER_EPERM);
        ck_assert(geteuid() != 65534 || seteuid(0) == 0);
        ck_assert_int_eq(chmod(suite_path("home/.aws"), 0700), 0);
}

TEST(the_long_name_of_the_default_profile_counts)
{
        write_files("[profile default]\nregion = long\n[default]\nregion = short\noutput = o\n", "");
        open_profile(NULL);
        ck_assert_str_eq(aws_config_get(&config, "region"), "long");
        ck_assert_str_eq(aws_config_get(&config, "output"), "o");
}

TEST(an_endpoint_of_one_service_precedes_the_common_one)
{
        write_files("[default]\nservices = mine\nendpoint_url = http://all\n"
                    "[services mine]\ns3 =\n  endpoint_url = http://s3\n",
                    "");
        open_profile(NULL);
        ck_assert_str_eq(aws_config_endpoint(&config, "s3"), "http://s3");
        ck_assert_str_eq(aws_config_endpoint(&config, "sts"), "http://all");
}

TEST(the_default_files_are_in_the_home_directory)
{
        unsetenv("AWS_CONFIG_FILE");
        unsetenv("AWS_SHARED_CREDENTIALS_FILE");
        must(mkdir(suite_path(".aws"), 0700));
        file_write(suite_path(".aws/credentials"), "[default]\nregion = home\n", 24);
        setenv("HOME", suite_folder(), 1);
        open_profile(NULL);
        ck_assert_str_eq(aws_config_get(&config, "region"), "home");
        setenv("AWS_CONFIG_FILE", suite_path("nothing"), 1); /* a missing file is empty */
        unsetenv("HOME");
        open_profile(NULL);
        ck_assert_ptr_null(aws_config_get(&config, "region"));
}

/* ---- keys ---- */

static int parse_json(struct credential *keys, const char *text)
{
        char *copy = format_text("%s", text);
        return aws_keys_parse_json(keys, copy, strlen(copy), "TEST", &error);
}

TEST(keys_from_json)
{
        struct credential keys;
        ck_assert_int_eq(parse_json(&keys, "{\"Code\":\"Success\",\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\\/\","
                                           "\"Token\":\"T\",\"Other\":[1,{}],\"Expiration\":\"2031-02-28T12:00:00Z\"}"),
                         1);
        ck_assert_str_eq(keys.access, "A");
        ck_assert_str_eq(keys.secret, "S/");
        ck_assert_str_eq(keys.token, "T");
        ck_assert_str_eq(keys.origin, "TEST");
        ck_assert_int_eq(keys.expires, 1930046400);
}

static const struct {
        const char *text, *why;
} bad_json[] = {
        {"", "not valid JSON"},
        {"[]", "not valid JSON"},
        {"{\"SecretAccessKey\":\"thesecret\"", "not valid JSON"},
        {"{} x", "not valid JSON"},
        {"{}", "holds no credentials"},
        {"{\"AccessKeyId\":\"A\"}", "holds no credentials"},
        {"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":7}", "holds no credentials"},
        {"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"\"}", "holds no credentials"},
        {"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"thesecret\",\"Expiration\":\"soon\"}", "not a time"},
        {"{\"AccessKeyId\":\"A\\r\\nX: y\",\"SecretAccessKey\":\"thesecret\"}", "no header may hold"},
        {"{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"thesecret\",\"Token\":\"a\\nb\"}", "no header may hold"},
};

TEST(the_error_of_bad_keys_does_not_quote_them, EACH(bad_json))
{
        struct credential keys;
        FAILS_WITH(error, parse_json(&keys, bad_json[_i].text), STREAMER_EFAILED, bad_json[_i].why);
        ck_assert_ptr_null(strstr(error.text, "thesecret"));
}

TEST(a_secret_that_cannot_be_signed_with_is_refused)
{
        struct credential keys;
        char *secret = must_alloc(CREDENTIAL_SECRET_MAX + 1);
        memset(secret, 's', CREDENTIAL_SECRET_MAX);
        FAILS_SAYING(error,
                     parse_json(&keys, format_text("{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"%s\"}", secret)),
                     STREAMER_EFAILED, "an empty or overlong secret key (TEST)");
}

TEST(keys_from_xml)
{
        struct credential keys;
        char text[] = "<AssumeRoleWithWebIdentityResponse xmlns='x'><R><Credentials><AccessKeyId>A</AccessKeyId>"
                      "<SecretAccessKey>S</SecretAccessKey><SessionToken>T</SessionToken>"
                      "<Expiration>2031-02-28T12:00:00.123Z</Expiration></Credentials></R>"
                      "</AssumeRoleWithWebIdentityResponse>";
        ck_assert_int_eq(aws_keys_parse_xml(&keys, text, strlen(text), "TEST", &error), 1);
        ck_assert_str_eq(keys.secret, "S");
        ck_assert_int_eq(keys.expires, 1930046400);
        char cut[] = "<R><SecretAccessKey>thesecret</SecretAccessKey>";
        ck_assert_int_eq(aws_keys_parse_xml(&keys, cut, strlen(cut), "TEST", &error), STREAMER_EFAILED);
        ck_assert_msg(strncmp(error.text, "the answer is not valid XML: ", 29) == 0, "%s", error.text);
        ck_assert_ptr_null(strstr(error.text, "thesecret"));
}

static const struct {
        const char *text;
        time_t time; /* 0: refused */
} times[] = {
        {"1970-01-02T00:00:01Z", 86401}, {"1970-01-02T00:00:01.5Z", 86401}, {"1970-01-02T00:00:01+00:00", 86401},
        {"1970-01-02T00:00:01", 0},      {"1970-01-02T00:00:01+02:00", 0},  {"1", 0},
};

TEST(keys_expire_at_a_time_in_utc, EACH(times))
{
        struct credential keys;
        const char *text =
                format_text("{\"AccessKeyId\":\"A\",\"SecretAccessKey\":\"S\",\"Expiration\":\"%s\"}", times[_i].text);
        ck_assert_int_eq(parse_json(&keys, text), times[_i].time != 0 ? 1 : STREAMER_EFAILED);
        if (times[_i].time != 0)
                ck_assert_int_eq(keys.expires, times[_i].time);
}
