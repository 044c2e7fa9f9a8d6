/* SPDX-License-Identifier: Apache-2.0
 *
 * A store (OpenStack Swift with s3api) behind a faulty proxy. Each attempt has its own signature, transient faults cost
 * no byte, and permanent ones are reported in the store's words.
 */
#include "tests/lib/proxy.h"
#include "tests/lib/fixture.h"
#include "tests/lib/s3_store.h"
#include "tests/lib/suite.h"

#include <openssl/sha.h>

#define SECOND UINT64_C(1000000000)
#define SLOW_DOWN                                                                                                      \
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?><Error><Code>SlowDown</Code><Message>Please reduce your request "   \
        "rate.</Message><RequestId>R1</RequestId></Error>"

static struct s3_store store;
static struct proxy proxy;
static struct model *model;

/* ---- fixture ---- */

static void put(const char *key)
{
        s3_store_do(&store, "put\tmodels\t%s\t%s", key, suite_path("upload"));
}

static void put_sums(void)
{
        unsigned char digest[32];
        size_t size;
        char *data = file_read(suite_path("upload"), &size), *line = format_text("%s", "");

        SHA256((unsigned char *)data, size, digest);
        for (int i = 0; i < 32; i++)
                line = format_text("%s%02x", line, digest[i]);
        line = format_text("%s  model.safetensors\n", line);
        suite_file("upload", line);
        put("m/SHA256SUMS");
        free(data);
}

static void begin(void)
{
        s3_store_start(&store, "swift", suite_path("swift"));
        s3_store_do(&store, "bucket\tmodels");
        model = model_mixed(7, 12 << 20);
        model_write(model, suite_path("upload"));
        put("m/model.safetensors");
        put_sums();
}

static void end(void)
{
        s3_store_stop(&store);
}

static void before(void)
{
        proxy_start(&proxy, store.port);
        char *text = format_text("http: {stall: 2s, backoff: 5ms, tries: 4, patience: 0s}\n"
                                 "s3: {endpoint: '%s', access_key: '%s', secret_key: '%s'}\n",
                                 proxy_url(&proxy, ""), store.access, store.secret);
        char *config = suite_file("config.yaml", text);
        fixture_begin(
                (const char *const[]){"--config", config, "--device", "host=256MiB", "--block-size", "1MiB", NULL});
        client = client_open(&test_daemon);
}

static void after(void)
{
        fixture_disconnect();
        fixture_end();
        proxy_stop(&proxy);
}

static void serves(void)
{
        client_load(client, "s3://models/m/", "m");
        client_equals(client, "m", model);
        client_unload(client, "m");
}

/* ---- transient faults ---- */

/* The first request that is no opening is for the list. */
static const struct {
        const char *name;
        struct proxy_rule rule;
        uint64_t least_ns; /* that the load takes */
} passing[] = {
        {"reset before a byte", {.fault = PROXY_RESET, .nth = 3, .bytes = 0}, 0},
        {"reset in the middle", {.fault = PROXY_RESET, .nth = 3, .bytes = 500000}, 0},
        {"a stall", {.fault = PROXY_STALL, .nth = 3, .bytes = 70000}, 0},
        {"a short body", {.fault = PROXY_SHORT, .nth = 2, .bytes = 4096}, 0},
        {"another range", {.fault = PROXY_WRONG_RANGE, .nth = 3}, 0},
        {"500", {.fault = PROXY_STATUS, .nth = 2, .status = 500}, 0},
        {"500 with a pause", {.fault = PROXY_STATUS, .nth = 2, .status = 500, .header = "Retry-After: 1"}, SECOND},
        {"503", {.fault = PROXY_STATUS, .nth = 2, .count = 3, .status = 503, .text = SLOW_DOWN}, 0},
        {"503 with a pause",
         {.fault = PROXY_STATUS, .nth = 2, .status = 503, .text = SLOW_DOWN, .header = "Retry-After: 1"},
         SECOND},
        {"the list is reset", {.fault = PROXY_RESET, .nth = 1, .bytes = 20}, 0},
        {"the list has 503", {.fault = PROXY_STATUS, .nth = 1, .status = 503, .text = SLOW_DOWN}, 0},
        {"the openings have 503",
         {.fault = PROXY_STATUS, .what = PROXY_OPENINGS, .nth = 1, .count = 2, .status = 503, .text = SLOW_DOWN},
         0},
        {"each fifth is reset", {.fault = PROXY_RESET, .every = 5, .bytes = 3000}, 0},
};

static const char *no_swift(void)
{
        return s3_store_missing("swift");
}

FIXTURE(.all = {begin, end}, .each = {before, after}, .unavailable = no_swift);

TEST(a_transient_error_loses_no_byte, EACH(passing))
{
        uint64_t began = clock_ns();
        proxy_rule(&proxy, &passing[_i].rule);
        serves();
        ck_assert_uint_ge(clock_ns() - began, passing[_i].least_ns);
        ck_assert_msg(proxy_faults(&proxy) > 0, "%s: no fault was injected", passing[_i].name);
}

/* ---- permanent faults ---- */

static const struct {
        struct proxy_rule rule;
        const char *text;
} lasting[] = {
        {{.fault = PROXY_STATUS, .nth = 2, .count = 100, .status = 503, .text = SLOW_DOWN},
         "given up after 4 tries: the store answers 503 SlowDown: Please reduce your request rate. "
         "(s3://models/m/model.safetensors, request R1, credentials from settings)"},
        {{.fault = PROXY_STATUS, .nth = 1, .count = 100, .status = 503, .text = SLOW_DOWN},
         "given up after 4 tries: the store answers 503 SlowDown"},
        {{.fault = PROXY_RESET, .nth = 2, .count = 100, .bytes = 10}, "given up after 4 tries"},
        {{.fault = PROXY_STALL, .nth = 2, .count = 100, .bytes = 10}, "given up after 4 tries: no byte for 2.0 s"},
        {{.fault = PROXY_SHORT, .nth = 2, .count = 100, .bytes = 100}, "given up after 4 tries"},
        {{.fault = PROXY_REPLACED, .nth = 3}, "was replaced while it was read"},
};

TEST(a_permanent_error_fails_the_load_with_its_name, EACH(lasting))
{
        proxy_rule(&proxy, &lasting[_i].rule);
        client_load_fails(client, "s3://models/m/", "m", STREAMER_EFAILED, lasting[_i].text);
        client_unload(client, "m");
}

/* Its length and the store's headers are right, so only the digest detects it. */
TEST(a_byte_that_is_another_is_caught_by_sha256)
{
        char text[1024];

        ck_assert_msg(client_load_sha256(client, "s3://models/m/", "m", text) == 0, "%s", text);
        client_unload(client, "m");
        proxy_clear(&proxy);
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_CORRUPT, .nth = 3, .bytes = 100000});
        ck_assert_int_eq(client_load_sha256(client, "s3://models/m/", "m", text), STREAMER_EFAILED);
        ck_assert_msg(strstr(text, "SHA-256 differs") != NULL, "%s", text);
        ck_assert_uint_eq(proxy_faults(&proxy), 1);
        client_unload(client, "m");
}
