/* SPDX-License-Identifier: Apache-2.0
 *
 * Responses over TLS: the end of a response is recognised at once for every length of response and records,
 * and with faults. nginx speaks TLS in front of a faulty proxy. The stall timeout exceeds the time of a load, so that a
 * retry cannot hide an end that was missed.
 */
#include "tests/integration/http_fixture.h"
#include "tests/lib/ports.h"

#define TRIES 9

static struct nginx front;
static unsigned whole, cut; /* ports: records of default size, records of 4 KiB */

/* ---- fixture ---- */

static void begin_https(void)
{
        begin_web();
        char *config = suite_file("https.yaml",
                                  format_text("io: {block_size: 1MiB, concurrency: 4}\n"
                                              "http: {ca: %s, stall: 60s, backoff: 5ms, tries: %d, threads: 2}\n",
                                              web.ca, TRIES));
        fixture_begin((const char *const[]){"--device", "host=256MiB", "--config", config, NULL});
}

static void start_front(void)
{
        const char *servers = format_text("%s%s", nginx_tls_server(&web, whole, proxy.port, ""),
                                          nginx_tls_server(&web, cut, proxy.port, "ssl_buffer_size 4k;"));
        front = (struct nginx){.pid = 0};
        nginx_start_with(&front, suite_path("front"), servers, whole);
}

static void before_https(void)
{
        before();
        whole = free_port();
        cut = free_port();
        start_front();
}

static void after_https(void)
{
        after();
        nginx_stop(&front);
}

static const char *at(unsigned port, const char *path)
{
        return format_text("https://localhost:%u%s", port, path);
}

/* ---- lengths ---- */

/* About the size of a record, of a buffer, and of several of these. */
static const uint64_t lengths[] = {0,     1,     4095,   16383,  16384,  16385,  65000,
                                   65535, 65536, 131072, 131073, 262143, 262144, 1000000};

FIXTURE(.all = {begin_https, end}, .each = {before_https, after_https}, .timeout = 90,
        .unavailable = nginx_unavailable);

TEST(a_reply_of_any_length_ends, EACH(lengths))
{
        model = model_new(lengths[_i]);
        model_add(model, "t", "U8", &lengths[_i], 1);
        model_write(model, suite_path("www/one.safetensors"));
        serves(at(whole, "/one.safetensors"));
        serves(at(cut, "/one.safetensors"));
}

/* Records between chunks contain only a length. */
TEST(a_chunked_reply)
{
        proxy_rule(&proxy, &(struct proxy_rule){
                                   .fault = PROXY_SHORT, .bytes = UINT64_C(1) << 40, .text = "\r\nContent-Length"});
        serves(at(whole, "/m.safetensors"));
        serves(at(cut, "/m.safetensors"));
        ck_assert_uint_gt(proxy.faults, 0);
}

/* ---- ends ---- */

static bool bytes_arrive(streamer_op *op)
{
        streamer_progress progress = {.struct_size = sizeof(progress)};
        return streamer_op_wait(op, 0, &progress) == STREAMER_ETIMEOUT && progress.bytes > 0;
}

/* Connections are kept between loads; the server closes them before the next load on the same ports. */
TEST(a_server_may_close_idle_connections)
{
        serves(at(whole, "/m.safetensors"));
        nginx_stop(&front);
        start_front();
        serves(at(whole, "/m.safetensors"));
}

/* For longer than its four requests have tries. */
TEST(a_restarted_server)
{
        /* A block of each request lands, and no more. */
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_STALL, .bytes = (1 << 20) + 5000});
        streamer_op *op = client_load_begin(client, at(whole, "/m.safetensors"), "m");
        AWAIT(bytes_arrive(op));
        nginx_stop(&front);
        ck_assert(WITHIN(60000, client_metric(client, "streamerd_retries_total{cause=\"broken\"}") > 5 * TRIES));
        proxy_clear(&proxy);
        start_front();
        client_ok(client, client_load_end(op), "load");
        client_equals(client, "m", model);
        client_unload(client, "m");
}

TEST(a_missing_server_is_reported_within_seconds)
{
        nginx_stop(&front);
        assert_fails(at(whole, "/m.safetensors"), STREAMER_EFAILED, "given up after 9 tries");
}

/* ---- redirects ---- */

/* Also to loopback, where plain http is permitted in requests. */
TEST(no_redirect_from_https_to_http_is_followed)
{
        redirect(format_text("http://127.0.0.1:%u/insecure.safetensors", web.http));
        assert_fails(at(whole, "/m.safetensors"), STREAMER_EFAILED,
                     "a redirect from https to plain http is refused: http://127.0.0.1:");
        ck_assert_ptr_null(strstr(file_read(format_text("%s/access.log", web.folder), NULL), "insecure"));
}

TEST(a_redirect_from_https_to_https_is_followed)
{
        redirect(format_text("https://127.0.0.1:%u/m.safetensors", web.https));
        serves(at(whole, "/elsewhere.safetensors"));
}
