/* SPDX-License-Identifier: Apache-2.0
 *
 * The URL of a bucket: hosts of AWS and of other stores, and the precedence of configuration, environment and shared
 * files.
 */
#include "tests/lib/suite.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "daemon/source/s3/endpoint.h"

static struct s3_endpoints *endpoints;
static struct error error;

static void begin(void)
{
        log_set_level(LOG_LEVEL_ERROR);
        setenv("AWS_CONFIG_FILE", suite_path("config"), 1);
        file_write(suite_path("config"), "", 0);
}

static void write_config(const char *text)
{
        suite_file("config", text);
}

/* ---- hosts ---- */

static const struct {
        const char *endpoint;
        enum s3_addressing addressing;
        const char *bucket, *region, *base; /* NULL: cannot be */
} hosts[] = {
        {NULL, S3_AUTO, "models", "eu-west-3", "https://models.s3.eu-west-3.amazonaws.com"},
        {NULL, S3_AUTO, "models", "cn-north-1", "https://models.s3.cn-north-1.amazonaws.com.cn"},
        /* AWS's certificate is for one name below its own. */
        {NULL, S3_AUTO, "my.models", "us-east-1", "https://s3.us-east-1.amazonaws.com/my.models"},
        {NULL, S3_AUTO, "Models_1", "us-east-1", "https://s3.us-east-1.amazonaws.com/Models_1"},
        {NULL, S3_PATH, "models", "us-east-1", "https://s3.us-east-1.amazonaws.com/models"},
        {NULL, S3_VIRTUAL, "my.models", "us-east-1", "https://my.models.s3.us-east-1.amazonaws.com"},
        {"http://store:9000", S3_AUTO, "models", "r", "http://store:9000/models"},
        {"http://store:9000", S3_VIRTUAL, "my.models", "r", "http://my.models.store:9000"},
        {"https://store", S3_VIRTUAL, "models", "r", "https://models.store"},
        {"https://store", S3_VIRTUAL, "Models_1", "r", NULL},
        {"https://store", S3_VIRTUAL, "-models", "r", NULL},
};

FIXTURE(.each = {begin, NULL});

TEST(the_host_of_a_bucket, EACH(hosts))
{
        struct s3_endpoint store = {.url = (char *)(uintptr_t)hosts[_i].endpoint, .addressing = hosts[_i].addressing};
        char *base = NULL;
        int r = s3_endpoint_base(&store, hosts[_i].bucket, hosts[_i].region, &base, &error);
        ck_assert_int_eq(r, hosts[_i].base != NULL ? 0 : STREAMER_EINVAL);
        if (hosts[_i].base != NULL)
                ck_assert_str_eq(base, hosts[_i].base);
}

/* ---- endpoint ---- */

/* One default, and one for s3://own. */
static void make(const struct s3_endpoint_opts *rest, struct s3_endpoint_opts own)
{
        own.source = "s3://own";
        ck_assert_msg(s3_endpoints_new(&endpoints, rest, &own, 1, NULL, &error) == 0, "%s", error.text);
}

TEST(the_longest_source_counts)
{
        static const struct s3_endpoint_opts rest = {.endpoint = "http://rest"};
        static const struct s3_endpoint_opts opts[] = {{.source = "s3://b/llama", .endpoint = "http://llama"},
                                                       {.source = "s3://b", .endpoint = "http://bucket"},
                                                       {.source = "s3://b/llama-3/", .endpoint = "http://three"}};
        static const struct {
                const char *source, *endpoint;
        } finds[] = {{"s3://b/x/", "http://bucket"},      {"s3://b/", "http://bucket"},
                     {"s3://b/llama/", "http://llama"},   {"s3://b/llama-2/", "http://llama"},
                     {"s3://b/llama-3/", "http://three"}, {"s3://b-2/llama/", "http://rest"},
                     {"s3://other/", "http://rest"}};
        ck_assert_int_eq(s3_endpoints_new(&endpoints, &rest, opts, ARRAY_SIZE(opts), NULL, &error), 0);
        for (size_t i = 0; i < ARRAY_SIZE(finds); i++)
                ck_assert_str_eq(s3_endpoints_find(endpoints, finds[i].source)->url, finds[i].endpoint);
}

/* ---- addressing ---- */

static const struct {
        enum s3_addressing own, rest;
        const char *profile; /* its style */
        enum s3_addressing used;
} styles[] = {
        {S3_AUTO, S3_AUTO, "virtual", S3_VIRTUAL}, {S3_AUTO, S3_AUTO, "path", S3_PATH},
        {S3_AUTO, S3_AUTO, "auto", S3_AUTO},       {S3_AUTO, S3_PATH, "virtual", S3_PATH},
        {S3_VIRTUAL, S3_PATH, "path", S3_VIRTUAL},
};

TEST(the_profile_has_a_style_of_addresses, EACH(styles))
{
        write_config(format_text("[default]\ns3 =\n  addressing_style = %s\n", styles[_i].profile));
        const struct s3_endpoint_opts rest = {.endpoint = "http://rest", .addressing = styles[_i].rest};
        make(&rest, (struct s3_endpoint_opts){.addressing = styles[_i].own});
        ck_assert_int_eq(s3_endpoints_find(endpoints, "s3://own/x/")->addressing, styles[_i].used);
}

/* ---- precedence ---- */

#define PROFILE "[default]\nregion = profile\nendpoint_url = http://profile\nca_bundle = /profile\n"

static const char *region_of(const char *source)
{
        static char region[S3_REGION];
        s3_endpoints_get_region(endpoints, s3_endpoints_find(endpoints, source), "bucket", region);
        return region;
}

static void assert_default(const struct s3_endpoint_opts *rest, const char *url, const char *region, const char *ca)
{
        make(rest, (struct s3_endpoint_opts){.endpoint = "own", .region = "own", .ca = "/own"});
        ck_assert_pstr_eq(s3_endpoints_find(endpoints, "s3://x/")->url, url);
        ck_assert_str_eq(region_of("s3://x/"), region);
        ck_assert_pstr_eq(s3_endpoints_find(endpoints, "s3://x/")->ca, ca);
        ck_assert_str_eq(s3_endpoints_find(endpoints, "s3://own/")->url, "https://own");
        ck_assert_str_eq(region_of("s3://own/"), "own");
        ck_assert_str_eq(s3_endpoints_find(endpoints, "s3://own/")->ca, "/own");
        endpoints = s3_endpoints_free(endpoints);
}

TEST(the_environment_precedes_settings_precede_the_profile)
{
        struct s3_endpoint_opts rest = {.is_unsigned = true};
        assert_default(&rest, NULL, "us-east-1", NULL);
        write_config(PROFILE);
        assert_default(&rest, "http://profile", "profile", "/profile");
        rest = (struct s3_endpoint_opts){
                .is_unsigned = true, .endpoint = "http://settings", .region = "settings", .ca = "/settings"};
        assert_default(&rest, "http://settings", "settings", "/settings");
        setenv("AWS_ENDPOINT_URL", "http://all", 1);
        setenv("AWS_DEFAULT_REGION", "default", 1);
        setenv("AWS_CA_BUNDLE", "/variable", 1);
        assert_default(&rest, "http://all", "default", "/variable");
        setenv("AWS_ENDPOINT_URL_S3", "http://s3/", 1);
        setenv("AWS_REGION", "region", 1);
        assert_default(&rest, "http://s3", "region", "/variable");
        make(&rest, (struct s3_endpoint_opts){.region = "r"});
        ck_assert_str_eq(s3_endpoints_find(endpoints, "s3://own/")->url, "http://s3");
}

/* By a request that the store refuses since the bucket is in another region. */
static void learn(const struct s3_endpoint *endpoint, const char *bucket, const char *region)
{
        const struct http_request request = {.url = "https://host/key", .shown = "key"};
        struct http_answer answer = {.status = 301};
        struct http_access *access;
        ck_assert_int_eq(s3_auth_new(&access, endpoints, endpoint, bucket, "assumed", "https://host", &error), 0);
        ck_assert(http_headers_append(&answer.headers, format_text("x-amz-bucket-region: %s", region)));
        ck_assert_int_eq(access->ops->refused(access, &request, &answer, &error), STREAMER_EFAILED);
        http_access_unref(access);
}

TEST(a_learnt_region_precedes_all_others_for_its_bucket)
{
        const struct s3_endpoint_opts rest = {.region = "settings"};
        char region[S3_REGION];
        make(&rest, (struct s3_endpoint_opts){.region = "own"});
        learn(s3_endpoints_find(endpoints, "s3://x/"), "bucket", "learnt");
        ck_assert_str_eq(region_of("s3://x/"), "learnt");
        ck_assert_str_eq(region_of("s3://own/"), "own");
        s3_endpoints_get_region(endpoints, s3_endpoints_find(endpoints, "s3://x/"), "another", region);
        ck_assert_str_eq(region, "settings");
}

/* ---- unsigned ---- */

TEST(a_source_follows_the_unsigned_default_unless_it_has_keys_or_a_setting)
{
        const struct s3_endpoint_opts rest = {.is_unsigned = true};
        make(&rest, (struct s3_endpoint_opts){.endpoint = "http://own"});
        ck_assert_ptr_null(s3_endpoints_find(endpoints, "s3://own/")->credentials);
        endpoints = s3_endpoints_free(endpoints);
        make(&rest, (struct s3_endpoint_opts){.profile = "team"});
        ck_assert_ptr_nonnull(s3_endpoints_find(endpoints, "s3://own/")->credentials);
        ck_assert_ptr_null(s3_endpoints_find(endpoints, "s3://x/")->credentials);
        endpoints = s3_endpoints_free(endpoints);
        make(&rest, (struct s3_endpoint_opts){.is_signed = true});
        ck_assert_ptr_nonnull(s3_endpoints_find(endpoints, "s3://own/")->credentials);
        endpoints = s3_endpoints_free(endpoints);
        make(&(struct s3_endpoint_opts){.region = "r"}, (struct s3_endpoint_opts){.is_unsigned = true});
        ck_assert_ptr_null(s3_endpoints_find(endpoints, "s3://own/")->credentials);
        ck_assert_ptr_nonnull(s3_endpoints_find(endpoints, "s3://x/")->credentials);
}

/* ---- impossible requests ---- */

static const char *const bad_endpoints[] = {"http://", "https:///path", "ftp://store", "http://user@store",
                                            "http://store?x"};

TEST(an_invalid_endpoint_in_the_settings_is_refused, EACH(bad_endpoints))
{
        const struct s3_endpoint_opts rest = {.endpoint = (char *)(uintptr_t)bad_endpoints[_i]};
        FAILS_WITH(error, s3_endpoints_new(&endpoints, &rest, NULL, 0, NULL, &error), STREAMER_EINVAL,
                   "not http(s)://host[:port]");
}

/* The keys may be meant for another program: local models are loaded, and each load from a store reports the error. */
static const struct {
        const char *config, *endpoint, *variable, *why;
} foreign[] = {
        {"[default]\nno key\n", NULL, NULL, "neither a section nor 'key = value'"},
        {"[default]\nendpoint_url = ftp://x\n", NULL, NULL,
         "endpoint_url of the profile: 'ftp://x' is not http(s)://host[:port]"},
        {"", "http://", NULL, "AWS_ENDPOINT_URL: 'http:' is not http(s)://host[:port]"},
        {"", NULL, "RUNAI_STREAMER_S3_ENDPOINT", "RUNAI_STREAMER_S3_ENDPOINT: 'ftp://x' is not http(s)://host[:port]"},
};

TEST(an_error_outside_the_configuration_fails_loads, EACH(foreign))
{
        const struct s3_endpoint_opts rest = {.region = "r",
                                              .endpoint = foreign[_i].variable != NULL ? (char[]){"ftp://x"} : NULL,
                                              .variable = foreign[_i].variable};
        char *base;
        write_config(foreign[_i].config);
        if (foreign[_i].endpoint != NULL)
                setenv("AWS_ENDPOINT_URL", foreign[_i].endpoint, 1);
        make(&rest, (struct s3_endpoint_opts){.region = "s"});
        ck_assert_int_lt(s3_endpoint_base(s3_endpoints_find(endpoints, "s3://x/"), "x", "r", &base, &error), 0);
        ck_assert_msg(strstr(error.text, foreign[_i].why) != NULL, "%s", error.text);
}

TEST(an_endpoint_of_aws_takes_precedence_over_one_of_another_program)
{
        const struct s3_endpoint_opts rest = {.endpoint = (char[]){"ftp://x"},
                                              .variable = "RUNAI_STREAMER_S3_ENDPOINT"};
        char *base;
        setenv("AWS_ENDPOINT_URL", "https://store", 1);
        make(&rest, (struct s3_endpoint_opts){.region = "s"});
        ck_assert_int_eq(s3_endpoint_base(s3_endpoints_find(endpoints, "s3://x/"), "x", "r", &base, &error), 0);
        ck_assert_str_eq(base, "https://store/x");
}
