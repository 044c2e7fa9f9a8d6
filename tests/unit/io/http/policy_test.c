/* SPDX-License-Identifier: Apache-2.0
 *
 * Decisions about URLs, responses and retries.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/io/http/transfer.h"

/* ---- URLs ---- */

static const struct {
        const char *text, *host;
        unsigned port;
        bool tls;
} urls[] = {
        {"http://host/x", "host", 80, false},
        {"HTTPS://HOST/x", "host", 443, true},
        {"https://host:8443", "host", 8443, true},
        {"http://[::1]:80/x", "::1", 80, false},
        {"http://[::1]/", "::1", 80, false},
        {"http://[FE80::1%25eth0]:81/", "fe80::1%25eth0", 81, false},
        {"http://[::ffff:127.0.0.1]/", "::ffff:127.0.0.1", 80, false},
        {"http://h?q", "h", 80, false},
        {"http://127.0.0.1/a@b", "127.0.0.1", 80, false},
};

TEST(a_url_has_a_host_and_a_port, EACH(urls))
{
        struct http_url url;
        ck_assert_int_eq(http_url_parse(&url, urls[_i].text), 0);
        ck_assert_str_eq(url.host, urls[_i].host);
        ck_assert_uint_eq(url.port, urls[_i].port);
        ck_assert(url.tls == urls[_i].tls);
}

static const char *const no_urls[] = {
        "",
        "host/x",
        "ftp://host/x",
        "http://",
        "http:///x",
        "http://:80/x",
        "http://h:0/x",
        "http://h:/",
        "http://h:65536/",
        "http://h:8x/",
        "http://u@h/x",
        "http://u:p@h/",
        "http://[::1/x",
        "http://[host]/x",
        "http://[[::1]/x",
        "http://[127.0.0.1]/x",
        "http://h/a b",
        "http://h/\n",
};

TEST(an_invalid_url_is_refused, EACH(no_urls))
{
        struct http_url url;
        ck_assert_int_eq(http_url_parse(&url, no_urls[_i]), -1);
}

static const struct {
        const char *base, *reference, *joined;
} joins[] = {
        {"http://h/a/b", "c", "http://h/a/c"},       {"http://h/a/b", "/c", "http://h/c"},
        {"http://h/a/b?q", "c?r", "http://h/a/c?r"}, {"http://h/a/b?q", "?r", "http://h/a/b?r"},
        {"http://h/a/b?q", "", "http://h/a/b"},      {"http://h", "c", "http://h/c"},
        {"http://h/a/b/", "../c", "http://h/a/c"},   {"http://h/a", "../../c", "http://h/c"},
        {"http://h/a", "./c/../d", "http://h/d"},    {"https://h/a", "//i/c", "https://i/c"},
        {"https://h/a", "http://i/c", "http://i/c"}, {"https://h/a?x=/../y", "b?x=/../y", "https://h/b?x=/../y"},
        {"https://h/a", "file:///etc/passwd", NULL}, {"https://h/a", "javascript:x", NULL},
};

TEST(a_reference_is_relative_to_its_base, EACH(joins))
{
        char *joined = http_url_join(joins[_i].base, joins[_i].reference);
        if (joins[_i].joined == NULL)
                ck_assert_ptr_null(joined);
        else
                ck_assert_str_eq(joined, joins[_i].joined);
}

static const struct {
        const char *url;
        bool allowed;
} plain[] = {
        {"https://anywhere/x", true},       {"http://localhost/x", true},
        {"http://127.0.0.1:80/x", true},    {"http://127.9.9.9/x", true},
        {"http://[::1]/x", true},           {"http://named/x", true},
        {"http://named:81/x", true},        {"http://ported:8080/x", true},
        {"http://ported/x", false},         {"http://bucket.localhost:9000/x", true},
        {"http://elsewhere/x", false},      {"http://127.0.0.1.evil/x", false},
        {"http://localhost.evil/x", false}, {"http://notnamed/x", false},
};

TEST(plain_http_is_for_loopback_and_named_hosts, EACH(plain))
{
        static const char *const hosts[] = {"named", "ported:8080"};
        struct http_opts opts = {.allow_plain = hosts, .n_allow_plain = 2};
        struct http_request request = {.shown = "x"};
        struct error error = {0};
        struct http_url url;
        int r = http_url_allowed(&opts, &request, plain[_i].url, &url, &error);
        ck_assert_int_eq(r, plain[_i].allowed ? 0 : STREAMER_EPERM);
}

static const struct {
        const char *text, *origin; /* NULL: none */
} origins[] = {
        {"Host", "https://host:443"},
        {"host:8443", "https://host:8443"},
        {"https://host", "https://host:443"},
        {"http://host", "http://host:80"},
        {"http://host:8080", "http://host:8080"},
        {"::1", "https://[::1]:443"},
        {"http://[::1]:81", "http://[::1]:81"},
        {"http://host/", NULL},
        {"ftp://host", NULL},
        {"u@host", NULL},
        {"", NULL},
};

TEST(an_origin_has_a_scheme_a_host_and_a_port, EACH(origins))
{
        char text[HTTP_ORIGIN_TEXT];
        struct http_url origin;
        ck_assert_int_eq(http_origin_parse(&origin, origins[_i].text), origins[_i].origin != NULL ? 0 : -1);
        if (origins[_i].origin == NULL)
                return;
        http_origin_text(text, &origin);
        ck_assert_str_eq(text, origins[_i].origin);
}

static const struct {
        const char *url, *without;
} signatures[] = {
        {"https://h/m", "https://h/m"},
        {"https://h/m?a=1&b=2", "https://h/m?a=1&b=2"},
        {"https://h/m?X-Amz-Date=1&a=1&x-amz-signature=2", "https://h/m?a=1"},
        {"https://h/m?X-Goog-Signature=2", "https://h/m"},
        {"https://h/m?sv=1&a=1&sig=x%3D&se=2", "https://h/m?a=1"},
        {"https://h/m?sv=1&a=1&se=2", "https://h/m?sv=1&a=1&se=2"},
        {"https://h/m?Expires=1&Signature=x&Key-Pair-Id=k", "https://h/m"},
        {"https://h/m?Expires=1&AWSAccessKeyId=a&Signature=x&v=1", "https://h/m?v=1"},
        {"https://h/m?Expires=1&Signature=x", "https://h/m?Expires=1&Signature=x"},
};

TEST(a_url_without_its_signature, EACH(signatures))
{
        ck_assert_str_eq(http_url_without_signature(signatures[_i].url), signatures[_i].without);
}

/* ---- answers ---- */

static const struct {
        const char *value;
        time_t time;
} dates[] = {
        {"Thu, 01 Jan 1970 00:00:01 GMT", 1},
        {"Mon, 01 Jan 2024 00:00:00 GMT", 1704067200},
        {"2024-01-01T00:00:00.000Z", 1704067200},
        {"2024-01-01T00:00:00Z", 1704067200},
        {"2024-01-01T00:00:00", -1},
        {"yesterday", -1},
};

TEST(a_date_of_a_header_or_a_list, EACH(dates))
{
        ck_assert_int_eq(http_date(dates[_i].value), dates[_i].time);
}

static const struct {
        const char *value;
        unsigned seconds;
} limits[] = {
        {"\"api\";r=0;t=55", 55},
        {"\"api\"; r=0; t=55", 55},
        {"\"api\";r=1;t=55", 0},
        {"\"api\";t=55", 0},
        {"\"api\";r=7;t=55, \"day\";r=0;t=8", 8},
        {"\"api\";r=0;t=3600", 300},
        {"", 0},
};

TEST(a_rate_limit_without_requests_left_is_waited_for, EACH(limits))
{
        ck_assert_uint_eq(http_rate_limit(limits[_i].value), limits[_i].seconds * SECOND);
}

static const struct {
        const char *value;
        int r;
        uint64_t first, last, total;
} ranges[] = {
        {"bytes 0-99/1000", 0, 0, 99, 1000},
        {"Bytes 5-5/6", 0, 5, 5, 6},
        {"bytes 0-99/*", 0, 0, 99, UINT64_MAX},
        {"bytes 99-0/1000", -1, 0, 0, 0},
        {"bytes 0-1000/1000", -1, 0, 0, 0},
        {"bytes */1000", -1, 0, 0, 0},
        {"bytes 0-99", -1, 0, 0, 0},
        {"bytes -99/1000", -1, 0, 0, 0},
        {"lines 0-99/1000", -1, 0, 0, 0},
        {"bytes 0-99/1000x", -1, 0, 0, 0},
        {"bytes 0-99999999999999999999/1", -1, 0, 0, 0},
};

TEST(a_content_range_is_exact_or_invalid, EACH(ranges))
{
        struct http_content_range range;
        ck_assert_int_eq(http_content_range(ranges[_i].value, &range), ranges[_i].r);
        if (ranges[_i].r < 0)
                return;
        ck_assert_uint_eq(range.first, ranges[_i].first);
        ck_assert_uint_eq(range.last, ranges[_i].last);
        ck_assert_uint_eq(range.total, ranges[_i].total);
}

TEST(a_servers_message_is_one_short_line)
{
        char out[32];
        http_excerpt(out, sizeof(out), "<html><title>Not\r\n  here</title><body>x");
        ck_assert_str_eq(out, "Not here");
        http_excerpt(out, sizeof(out), "  plain\ntext \n");
        ck_assert_str_eq(out, "plain text");
        http_excerpt(out, sizeof(out), "longer than what there is room for, by far");
        ck_assert_uint_lt(strlen(out), sizeof(out));
}

TEST(transient_statuses_are_retried)
{
        static const int again[] = {408, 421, 425, 429, 500, 502, 503, 504},
                         never[] = {200, 400, 401, 403, 404, 412, 501, 505};
        for (size_t i = 0; i < ARRAY_SIZE(again); i++)
                ck_assert(http_status_retry(again[i]));
        for (size_t i = 0; i < ARRAY_SIZE(never); i++)
                ck_assert(!http_status_retry(never[i]));
}

TEST(no_answer_and_every_5xx_are_outages_and_refusals_are_none)
{
        static const int outages[] = {0, 500, 501, 502, 503, 504, 505, 507, 511, 599},
                         refusals[] = {401, 403, 404, 410},
                         others[] = {200, 206, 302, 400, 408, 412, 416, 429, 499, 600};
        for (size_t i = 0; i < ARRAY_SIZE(outages); i++)
                ck_assert(http_status_is_outage(outages[i]) && !http_status_is_refusal(outages[i]));
        for (size_t i = 0; i < ARRAY_SIZE(refusals); i++)
                ck_assert(http_status_is_refusal(refusals[i]) && !http_status_is_outage(refusals[i]));
        for (size_t i = 0; i < ARRAY_SIZE(others); i++)
                ck_assert(!http_status_is_refusal(others[i]) && !http_status_is_outage(others[i]));
}

/* ---- pauses ---- */

static const struct http_opts pausing = {.backoff_ns = SECOND, .retry_after_ns = 10 * SECOND};

TEST(pauses_double_up_to_the_cap_with_full_jitter)
{
        ck_assert_uint_eq(http_pause(&pausing, 1, NULL, false, SECOND), SECOND);
        ck_assert_uint_eq(http_pause(&pausing, 1, NULL, false, 0), 0);
        ck_assert_uint_eq(http_pause(&pausing, 3, NULL, false, 4 * SECOND), 4 * SECOND);
        for (uint64_t draw = 0; draw < 1000; draw++) {
                ck_assert_uint_le(http_pause(&pausing, 1, NULL, false, draw * 7919 * 7919), SECOND);
                ck_assert_uint_le(http_pause(&pausing, 60, NULL, false, draw * 7919 * 7919 * 7919), 10 * SECOND);
        }
}

TEST(a_server_may_ask_for_a_pause_within_the_cap)
{
        ck_assert_uint_eq(http_pause(&pausing, 1, "3", false, 0), 3 * SECOND);
        ck_assert_uint_eq(http_pause(&pausing, 1, "86400", false, 0), 10 * SECOND);
        ck_assert_uint_eq(http_pause(&pausing, 1, "soon", false, 0), 0);
        ck_assert_uint_eq(http_pause(&pausing, 1, "Mon, 01 Jan 2001 00:00:00 GMT", false, 0), 0);
        ck_assert_uint_eq(http_pause(&pausing, 1, "Fri, 01 Jan 2100 00:00:00 GMT", false, 0), 10 * SECOND);

        /* So late that its nanoseconds overflow. */
        char far[64];
        time_t then = time(NULL) + (time_t)(UINT64_MAX / SECOND) + 1;
        ck_assert_uint_gt(strftime(far, sizeof(far), "%a, %d %b %Y %H:%M:%S GMT", gmtime(&then)), 0);
        ck_assert_uint_eq(http_pause(&pausing, 1, far, false, 0), 10 * SECOND);
}

TEST(a_broken_request_is_retried_almost_at_once)
{
        const struct http_opts hasty = {.backoff_ns = SECOND / 100, .retry_after_ns = 10 * SECOND};
        for (unsigned tries = 1; tries <= 4; tries++) {
                uint64_t most = (SECOND / 20) << (tries - 1);
                ck_assert_uint_eq(http_pause(&pausing, tries, NULL, true, 0), 0);
                ck_assert_uint_eq(http_pause(&pausing, tries, NULL, true, most), most);
                ck_assert_uint_eq(http_pause(&pausing, tries, NULL, true, most + 1), 0);
                ck_assert_uint_eq(http_pause(&hasty, tries, NULL, true, (most / 5) + 1), 0);
        }
        ck_assert_uint_le(http_pause(&pausing, 60, NULL, true, UINT64_MAX), 10 * SECOND);
}

/* ---- headers ---- */

TEST(headers_cannot_be_injected)
{
        struct http_headers headers = {.n = 0};
        struct error error = {0};
        ck_assert_int_eq(http_headers_add(&headers, "X", "a\r\nEvil: b", &error), STREAMER_EINVAL);
        ck_assert_int_eq(http_headers_add(&headers, "X: Y", "a", &error), STREAMER_EINVAL);
        ck_assert_int_eq(http_headers_add(&headers, "", "a", &error), STREAMER_EINVAL);
        ck_assert_int_eq(http_headers_add(&headers, "X-One", "a", &error), 0);
        ck_assert_str_eq(http_headers_find(&headers, "x-one"), "a");
        ck_assert_ptr_null(http_headers_find(&headers, "x-on"));
}
