/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults of the network, each over http, over https and of a store: transient ones cost no byte, permanent ones are
 * named.
 *
 *   daemon > [nginx with TLS >] faulty proxy > nginx, whose folder "models" is the bucket of this name, too
 */
#include "tests/integration/remote_fixture.h"
#include "tests/lib/nginx.h"
#include "tests/lib/ports.h"
#include "tests/lib/proxy.h"

#define SLOW_DOWN                                                                                                      \
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code><Message>Please reduce your request "   \
        "rate.</Message><RequestId>R1</RequestId></Error>"

static struct nginx web, front;
static struct proxy proxy;
static unsigned front_port;
static struct model *model;

/* ---- kinds of source ---- */

enum { HTTP = 1, HTTPS = 2, STORE = 4, WEB = HTTP | HTTPS, ALL = WEB | STORE };
enum { LIST = 8 }; /* the store's prefix, whose first request that is no opening is for the list */

static const char *source_of(unsigned kind, unsigned kinds)
{
        if (kind == HTTP)
                return proxy_url(&proxy, "/models/m.safetensors");
        if (kind == HTTPS)
                return format_text("https://localhost:%u/models/m.safetensors", front_port);
        return (kinds & LIST) != 0 ? "s3://models/" : "s3://models/m.safetensors";
}

/* ---- fixture ---- */

static void begin(void)
{
        must(mkdir(suite_path("www"), 0755));
        must(mkdir(suite_path("www/models"), 0755));
        nginx_start(&web, suite_path("nginx"), suite_path("www"));
        model = model_mixed(7, 12 << 20);
        model_write(model, suite_path("www/models/m.safetensors"));
        must(system(format_text("cd '%s' && sha256sum m.safetensors >SHA256SUMS", suite_path("www/models"))));
        /* What is answered to "GET /models/?list-type=2...". */
        suite_file("www/models/index.html", format_text("<ListBucketResult><Contents><Key>m.safetensors</Key><Size>%zu"
                                                        "</Size></Contents></ListBucketResult>",
                                                        (size_t)file_size(suite_path("www/models/m.safetensors"))));
}

static void end(void)
{
        nginx_stop(&web);
}

static void before(void)
{
        const char *stall = suite_short() ? "3s" : "1500ms";
        proxy_start(&proxy, web.http);
        front_port = free_port();
        nginx_start_with(&front, suite_path("front"), nginx_tls_server(&web, front_port, proxy.port, ""), front_port);
        char *text = format_text("io: {block_size: 1MiB, concurrency: 8}\n"
                                 "http: {ca: %s, stall: %s, backoff: 5ms, tries: 4, patience: 0s, threads: 2}\n"
                                 "s3: {endpoint: '%s', access_key: key, secret_key: secret}\n",
                                 web.ca, stall, proxy_url(&proxy, ""));
        fixture_begin(
                (const char *const[]){"--device", "host=256MiB", "--config", suite_file("faults.yaml", text), NULL});
        client = client_open(&test_daemon);
}

static void after(void)
{
        fixture_disconnect();
        fixture_end();
        nginx_stop(&front);
        proxy_stop(&proxy);
}

FIXTURE(.all = {begin, end}, .each = {before, after}, .timeout = 90, .unavailable = nginx_unavailable);

/* ---- transient faults ---- */

static const struct {
        const char *name;
        struct proxy_rule rule;
        unsigned kinds;
        uint64_t least_ns; /* that the load takes */
} passing[] = {
        {"reset before a byte", {.fault = PROXY_RESET, .nth = 3, .bytes = 0}, ALL, 0},
        {"reset in the middle", {.fault = PROXY_RESET, .nth = 3, .bytes = 500000}, ALL, 0},
        {"reset in a record", {.fault = PROXY_RESET, .nth = 2, .bytes = 100}, ALL, 0},
        {"reset of two tries", {.fault = PROXY_RESET, .nth = 3, .count = 2, .bytes = 100}, ALL, 0},
        {"a short body", {.fault = PROXY_SHORT, .nth = 2, .bytes = 4096}, ALL, 0},
        {"a stall", {.fault = PROXY_STALL, .nth = 4, .bytes = 70000}, ALL, 0},
        {"500", {.fault = PROXY_STATUS, .nth = 2, .status = 500, .text = "oh"}, ALL, 0},
        {"503", {.fault = PROXY_STATUS, .nth = 2, .status = 503, .text = SLOW_DOWN}, ALL, 0},
        {"503 for a while", {.fault = PROXY_STATUS, .nth = 2, .count = 3, .status = 503}, ALL, 0},
        {"429 with a pause",
         {.fault = PROXY_STATUS, .nth = 2, .status = 429, .header = "Retry-After: 1"},
         HTTP,
         SECOND},
        {"500 with a pause",
         {.fault = PROXY_STATUS, .nth = 2, .status = 500, .header = "Retry-After: 1"},
         HTTPS,
         SECOND},
        {"503 with a pause",
         {.fault = PROXY_STATUS, .nth = 2, .status = 503, .text = SLOW_DOWN, .header = "Retry-After: 1"},
         STORE,
         SECOND},
        {"another range", {.fault = PROXY_WRONG_RANGE, .nth = 3}, ALL, 0},
        {"no Content-Range", {.fault = PROXY_DROP, .nth = 3, .text = "\r\nContent-Range"}, ALL, 0},
        {"the whole instead", {.fault = PROXY_NO_RANGE, .nth = 3}, ALL, 0},
        {"each fifth is reset", {.fault = PROXY_RESET, .every = 5, .bytes = 3000}, ALL, 0},
        {"the opening is reset", {.fault = PROXY_RESET, .what = PROXY_OPENINGS, .nth = 1, .bytes = 100}, ALL, 0},
        {"the openings have 503",
         {.fault = PROXY_STATUS, .what = PROXY_OPENINGS, .nth = 1, .count = 2, .status = 503},
         ALL | LIST,
         0},
        {"the list is reset", {.fault = PROXY_RESET, .nth = 1, .bytes = 20}, STORE | LIST, 0},
        {"the list has 503", {.fault = PROXY_STATUS, .nth = 1, .status = 503, .text = SLOW_DOWN}, STORE | LIST, 0},
        {"the check is reset", {.fault = PROXY_RESET, .what = PROXY_CHECKS, .nth = 1}, WEB, 0},
        {"a slow drip", {.fault = PROXY_DRIP, .nth = 5, .bytes = 30000}, ALL, 0},
        {"latency", {.fault = PROXY_LATENCY, .what = PROXY_ALL, .ms = 30}, ALL, 0},
        {"a window that opens slowly", {.fault = PROXY_WINDOW, .what = PROXY_ALL, .bytes = 14600, .ms = 5}, ALL, 0},
        {"no ETag", {.fault = PROXY_DROP, .what = PROXY_ALL, .text = "\r\nETag"}, ALL, 0},
};

TEST(a_transient_error_loses_no_byte, EACH(passing))
{
        for (unsigned kind = HTTP; kind <= STORE; kind *= 2) {
                if ((passing[_i].kinds & kind) == 0)
                        continue;
                proxy_clear(&proxy);
                proxy_rule(&proxy, &passing[_i].rule);
                uint64_t began = clock_ns();
                client_load(client, source_of(kind, passing[_i].kinds), "m");
                ck_assert_uint_ge(clock_ns() - began, passing[_i].least_ns);
                client_equals(client, "m", model);
                client_unload(client, "m");
                ck_assert_msg(proxy.faults > 0, "%s: no fault was injected", passing[_i].name);
        }
}

/* ---- permanent faults ---- */

/* From the n-th on: requests of the load before, which has failed, may still arrive, and are counted. */
#define ON 1000

static const struct {
        struct proxy_rule rule;
        unsigned kinds;
        const char *text, *cause; /* of its retries; NULL: it is not retried */
} lasting[] = {
        {{.fault = PROXY_RESET, .bytes = 10}, ALL, "given up after 4 tries", "broken"},
        {{.fault = PROXY_SHORT, .bytes = 100}, ALL, "given up after 4 tries", "broken"},
        {{.fault = PROXY_STALL, .bytes = 10}, HTTP, "given up after 4 tries: no byte for", "stalled"},
        {{.fault = PROXY_WRONG_RANGE}, ALL, "wrong Content-Range", NULL},
        {{.fault = PROXY_REPLACED, .nth = 3, .count = ON}, ALL, "was replaced while it was read: another ETag", NULL},
        {{.fault = PROXY_DROP, .nth = 3, .count = ON, .text = "\r\nETag"},
         ALL,
         "was replaced while it was read: no ETag",
         NULL},
        {{.fault = PROXY_REPLACED, .what = PROXY_CHECKS}, WEB, "was replaced while it was read: another ETag", NULL},
        {{.fault = PROXY_STATUS, .nth = 3, .count = ON, .status = 412}, ALL, "was replaced while it was read", NULL},
        {{.fault = PROXY_STATUS, .status = 500, .text = "I am broken"},
         WEB,
         "given up after 4 tries: the server answers 500 Said So: I am broken",
         "status"},
        {{.fault = PROXY_STATUS, .status = 503}, WEB, "given up after 4 tries: the server answers 503", "slow-down"},
        {{.fault = PROXY_STATUS, .nth = 2, .count = ON, .status = 403, .text = "expired"},
         WEB,
         "the server answers 403 Said So: expired",
         NULL},
        {{.fault = PROXY_STATUS, .status = 503, .text = SLOW_DOWN},
         STORE,
         "given up after 4 tries: the store answers 503 SlowDown: Please reduce your request rate. "
         "(s3://models/m.safetensors, request R1, credentials from settings)",
         "slow-down"},
        {{.fault = PROXY_STATUS, .status = 503, .text = SLOW_DOWN},
         STORE | LIST,
         "given up after 4 tries: the store answers 503 SlowDown",
         "slow-down"},
};

static double retries(const char *cause)
{
        return client_metric(client, format_text("streamerd_retries_total{cause=\"%s\"}", cause));
}

TEST(a_permanent_error_fails_the_load_with_its_name, EACH(lasting))
{
        const char *cause = lasting[_i].cause;
        for (unsigned kind = HTTP; kind <= STORE; kind *= 2) {
                if ((lasting[_i].kinds & kind) == 0)
                        continue;
                const char *source = source_of(kind, lasting[_i].kinds);
                double before = cause != NULL ? retries(cause) : 0;
                proxy_clear(&proxy);
                proxy_rule(&proxy, &lasting[_i].rule);
                streamer_op *op = client_load_begin(client, source, "bad");
                ck_assert_int_lt(streamer_op_wait(op, 60000, NULL), 0);
                char *text = format_text("%s", streamer_last_error(client));
                ck_assert_msg(strstr(text, lasting[_i].text) != NULL, "%s", text);
                ck_assert_msg(strstr(text, source) != NULL, "%s", text);
                if (cause != NULL)
                        ck_assert_double_ge(retries(cause), before + 3);
                client_unload(client, "bad");
        }
}

/* ---- changed bytes ---- */

/* Length and headers are right, so only the digest detects it. */
TEST(a_byte_that_is_another_is_detected_by_sha256)
{
        for (unsigned kind = HTTP; kind <= STORE; kind *= 2) {
                proxy_clear(&proxy);
                assert_verified(source_of(kind, ALL), model);
                proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_CORRUPT, .bytes = 1000});
                assert_not_verified(source_of(kind, ALL), "SHA-256 differs");
        }
}
