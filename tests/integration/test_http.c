/* SPDX-License-Identifier: Apache-2.0
 *
 * Models from web servers: nginx in the middle of its health, and behind a proxy that misbehaves. Each
 * test ends with every byte compared or with the error named, and the daemon still serving.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/nginx.h"
#include "tests/lib/proxy.h"
#include "tests/lib/stage.h"
#include "tests/lib/storage.h"
#include "tests/lib/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCKS 12 /* of 1 MiB, as the configuration has it */
#define CONCURRENCY 8

static struct nginx web;
static struct proxy proxy;
static streamer_client *client;
static struct model *model;

/* ---- the stage ---- */

static const char *write_config(void)
{
        const char *text = format_text("io: {block_size: 1MiB, concurrency: 8}\n"
                                       "http:\n"
                                       "  ca: %s\n  stall: %s\n  backoff: 5ms\n  retry_after: 300ms\n  tries: 4\n"
                                       "  connect_timeout: 2s\n  redirects: 3\n  threads: 2\n"
                                       "  hosts:\n"
                                       "    - {host: localhost, token: the-token-of-localhost}\n"
                                       "    - {host: '127.0.0.2', user: me, password: the-password}\n",
                                       web.ca, suite_short() ? "3s" : "1500ms");
        char *path = suite_path("http.yaml");
        file_write(path, text, strlen(text));
        return path;
}

static void begin(void)
{
        char *root = suite_path("www");
        must(mkdir(root, 0755));
        nginx_start(&web, suite_path("nginx"), root);
        const char *const flags[] = {"--device", "host=256MiB", "--config", write_config(), NULL};
        stage_begin(flags);
        model = model_mixed(77, BLOCKS << 20);
        model_write(model, suite_path("www/m.safetensors"));
}

static void end(void)
{
        stage_end();
        nginx_stop(&web);
}

static void before(void)
{
        proxy_start(&proxy, web.http);
        client = client_open(&stage);
}

static void after(void)
{
        stage_still_serves();
        streamer_close(client);
        proxy_stop(&proxy);
}

static const char *url(unsigned port, const char *path)
{
        return format_text("http://127.0.0.1:%u%s", port, path);
}

static const char *secure(const char *path)
{
        return format_text("https://localhost:%u%s", web.https, path);
}

static const char *through(const char *path)
{
        return proxy_url(&proxy, path);
}

static void serves(const char *source)
{
        client_load(client, source, "m");
        client_equals(client, "m", model);
        client_unload(client, "m");
}

static void refuses(const char *source, int code, const char *text)
{
        client_load_fails(client, source, "bad", code, text);
        client_unload(client, "bad");
}

static char *log_text(void)
{
        size_t size;
        return file_read(stage.log, &size);
}

static bool has_begun(void *arg)
{
        return proxy_seen(arg, PROXY_BLOCKS) > 0;
}

/* ---- good servers ---- */

START_TEST(a_file_over_http)
{
        serves(url(web.http, "/m.safetensors"));
}
END_TEST

START_TEST(a_file_over_https_by_a_private_ca)
{
        serves(secure("/m.safetensors"));
}
END_TEST

START_TEST(the_same_content_as_from_a_file)
{
        client_load(client, url(web.http, "/m.safetensors"), "m");
        client_load(client, stage_write(model, "same.safetensors"), "f");
        client_equals(client, "m", model);
        client_equals(client, "f", model);
        client_unload(client, "m");
        client_unload(client, "f");
}
END_TEST

START_TEST(a_name_with_spaces_and_signs)
{
        model_write(model, suite_path("www/a b+c%%=ü.safetensors"));
        serves(url(web.http, "/a b+c%25=ü.safetensors"));
}
END_TEST

static void write_shards(void)
{
        struct model *a = model_new(1), *b = model_new(1);
        model_add_many(a, "first", 3, 700000);
        model_add_many(b, "second", 2, 900000);
        must(mkdir(suite_path("www/sharded"), 0755));
        model_write(a, suite_path("www/sharded/one-1.safetensors"));
        model_write(b, suite_path("www/sharded/two 2.safetensors"));
        const char *index = "{\"weight_map\": {\"first.000000\": \"one-1.safetensors\", "
                            "\"first.000001\": \"one-1.safetensors\", \"first.000002\": \"one-1.safetensors\", "
                            "\"second.000000\": \"two 2.safetensors\", \"second.000001\": \"two 2.safetensors\"}}";
        file_write(suite_path("www/sharded/model.safetensors.index.json"), index, strlen(index));
}

START_TEST(an_index_names_shards_beside_it)
{
        struct model *whole = model_new(1);
        model_add_many(whole, "first", 3, 700000);
        model_add_many(whole, "second", 2, 900000);
        write_shards();
        client_load(client, url(web.http, "/sharded/model.safetensors.index.json"), NULL);
        client_equals(client, "sharded", whole);
        client_unload(client, "sharded");
}
END_TEST

START_TEST(an_index_whose_shard_is_missing_fails)
{
        const char *index = "{\"weight_map\": {\"a\": \"gone.safetensors\"}}";
        file_write(suite_path("www/broken.safetensors.index.json"), index, strlen(index));
        refuses(url(web.http, "/broken.safetensors.index.json"), STREAMER_EFAILED, "named by the index");
}
END_TEST

START_TEST(a_header_longer_than_the_first_bytes)
{
        struct model *many = model_new(5);
        model_add_many(many, "model.layers.with.a.rather.long.name.so.that.the.header.grows", 6000, 64);
        model_write(many, suite_path("www/many.safetensors"));
        client_load(client, url(web.http, "/many.safetensors"), "many");
        client_equals(client, "many", many);
        client_unload(client, "many");
}
END_TEST

START_TEST(a_server_without_ranges_is_read_in_one_stream_and_it_is_said)
{
        serves(url(web.streamed, "/m.safetensors"));
        ck_assert(strstr(log_text(), "knows no ranges: read in one stream") != NULL);
        struct ctl r;
        ctl(&r, stage.socket, "load", "--dry-run", url(web.streamed, "/m.safetensors"), NULL);
        ck_assert_msg(r.code == 0 && strstr(r.out, "knows no ranges") != NULL, "%s%s", r.out, r.err);
        ctl(&r, stage.socket, "load", "--dry-run", url(web.http, "/m.safetensors"), NULL);
        ck_assert_msg(r.code == 0 && strstr(r.out, "knows no ranges") == NULL, "%s%s", r.out, r.err);
}
END_TEST

START_TEST(status_tells_of_a_stream)
{
        for (size_t i = 0; i < 2; i++) {
                proxy_clear(&proxy);
                proxy.upstream = i == 0 ? web.streamed : web.http;
                proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DRIP, .what = PROXY_BLOCKS, .bytes = 1000});
                streamer_op *op = client_load_begin(client, through("/m.safetensors"), "slow");
                ck_assert(eventually(has_begun, &proxy, 20000));
                struct ctl r;
                ctl(&r, stage.socket, "status", "--json", NULL);
                ck_assert_msg((strstr(r.out, "\"streamed\":true") != NULL) == (i == 0), "%s", r.out);
                ctl(&r, stage.socket, "status", NULL);
                ck_assert_msg((strstr(r.out, "loading, in one stream") != NULL) == (i == 0), "%s", r.out);
                ck_assert_int_eq(client_call_code(client, "cancel", "{\"model\": \"slow\"}"), 0);
                streamer_op_wait(op, 20000, NULL);
                streamer_op_free(op);
                client_unload(client, "slow");
        }
}
END_TEST

START_TEST(the_query_of_a_url_is_not_told_again)
{
        client_load(client, url(web.http, "/m.safetensors?signature=the-secret-query"), "m");
        char *reply = NULL;
        client_ok(client, streamer_call(client, "list", NULL, &reply), "list");
        ck_assert_msg(strstr(reply, "/m.safetensors") != NULL, "%s", reply);
        ck_assert_msg(strstr(reply, "the-secret-query") == NULL, "%s", reply);
        client_unload(client, "m");
}
END_TEST

START_TEST(the_second_load_of_a_url_is_an_alias)
{
        client_load(client, url(web.http, "/m.safetensors"), "m");
        uint64_t sent = nginx_sent(&web);
        client_load(client, url(web.http, "/m.safetensors"), "n");
        ck_assert_uint_lt(nginx_sent(&web) - sent, 1 << 20);
        client_unload(client, "n");
        client_unload(client, "m");
}
END_TEST

START_TEST(sha256_of_a_list_beside_the_file)
{
        must(system(format_text("cd '%s' && sha256sum m.safetensors >SHA256SUMS", suite_path("www"))));
        struct ctl r;
        ctl(&r, stage.socket, "load", "--verify", "sha256", "--name", "m", url(web.http, "/m.safetensors"), NULL);
        ck_assert_msg(r.code == 0, "%s", r.err);
        client_equals(client, "m", model);
        client_unload(client, "m");
        /* A byte that changes on the way: only the digest tells. */
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_CORRUPT, .nth = 3, .bytes = 1000});
        ctl(&r, stage.socket, "load", "--verify", "sha256", "--name", "m", through("/m.safetensors"), NULL);
        ck_assert_int_eq(r.code, 1);
        ck_assert_msg(strstr(r.err, "SHA-256 differs") != NULL, "%s", r.err);
        client_unload(client, "m");
}
END_TEST

START_TEST(sha256_without_a_list_is_refused)
{
        struct ctl r;
        unlink(suite_path("www/SHA256SUMS"));
        ctl(&r, stage.socket, "load", "--verify", "sha256", "--name", "m", url(web.http, "/m.safetensors"), NULL);
        ck_assert_int_eq(r.code, 1);
        ck_assert_msg(strstr(r.err, "no published SHA-256") != NULL, "%s", r.err);
        client_unload(client, "m");
}
END_TEST

/* ---- refusals ---- */

START_TEST(what_is_not_there)
{
        refuses(url(web.http, "/nothing.safetensors"), STREAMER_ENOENT, "404 Not Found");
}
END_TEST

START_TEST(what_is_no_safetensors)
{
        file_write(suite_path("www/text.safetensors"), "some text that is no header", 27);
        refuses(url(web.http, "/text.safetensors"), STREAMER_EFAILED, "text.safetensors");
}
END_TEST

START_TEST(an_empty_file)
{
        file_write(suite_path("www/empty.safetensors"), "", 0);
        refuses(url(web.http, "/empty.safetensors"), STREAMER_EFAILED, "empty.safetensors");
}
END_TEST

START_TEST(plain_http_to_another_host)
{
        refuses("http://192.0.2.1/m.safetensors", STREAMER_EPERM, "plain http is refused");
}
END_TEST

START_TEST(a_certificate_that_nobody_vouches_for)
{
        refuses(format_text("https://127.0.0.3:%u/m.safetensors", web.https), STREAMER_EFAILED, "");
}
END_TEST

static const struct {
        const char *source, *text;
} bad_urls[] = {
        {"https://me:secret@localhost/m.safetensors", "without user and password"},
        {"https://localhost/folder/", "a folder cannot be listed"},
        {"https://localhost", "a folder cannot be listed"},
        {"https:///m.safetensors", "not a URL"},
        {"https://localhost:99999/m.safetensors", "not a URL"},
};

START_TEST(what_is_no_url)
{
        char text[1024];
        ck_assert_int_eq(client_load_result(client, bad_urls[_i].source, "bad", text), STREAMER_EINVAL);
        ck_assert_msg(strstr(text, bad_urls[_i].text) != NULL, "%s", text);
        ck_assert_msg(strstr(text, "secret") == NULL, "%s", text);
}
END_TEST

static const struct {
        int status, code;
} statuses[] = {{400, STREAMER_EFAILED}, {401, STREAMER_EPERM}, {403, STREAMER_EPERM}, {410, STREAMER_ENOENT}};

START_TEST(a_refusal_fails_at_once_with_what_the_server_said)
{
        const char *said = "<html><title>No\x1b[31m way</title></html>";
        proxy_rule(&proxy,
                   &(struct proxy_rule){
                           .fault = PROXY_STATUS, .what = PROXY_OPENINGS, .status = statuses[_i].status, .text = said});
        refuses(through("/m.safetensors?key=the-secret-query"), statuses[_i].code, "No\\x1b[31m way");
        ck_assert_uint_eq(proxy_seen(&proxy, PROXY_OPENINGS), 1);
        ck_assert_msg(strstr(log_text(), "the-secret-query") == NULL, "%s", log_text());
}
END_TEST

/* ---- redirects ---- */

static void redirect(const char *to)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_REDIRECT, .what = PROXY_ALL, .text = to});
}

START_TEST(a_redirect_is_followed)
{
        redirect(url(web.http, "/m.safetensors"));
        serves(through("/elsewhere.safetensors"));
}
END_TEST

START_TEST(blocks_go_straight_to_where_a_redirect_led)
{
        redirect(url(web.http, "/m.safetensors"));
        serves(through("/elsewhere.safetensors"));
        ck_assert_uint_le(proxy_seen(&proxy, PROXY_BLOCKS), 0);
}
END_TEST

START_TEST(a_loop_of_redirects_ends)
{
        redirect(through("/m.safetensors"));
        refuses(through("/m.safetensors"), STREAMER_EFAILED, "of more than http.redirects steps");
        ck_assert_uint_eq(proxy_seen(&proxy, PROXY_ALL), 4);
}
END_TEST

START_TEST(no_redirect_leads_to_plain_http_elsewhere)
{
        redirect("http://192.0.2.1/m.safetensors");
        refuses(through("/m.safetensors"), STREAMER_EPERM, "plain http is refused");
}
END_TEST

START_TEST(credentials_go_to_their_host_and_no_other)
{
        const char *at = format_text("http://localhost:%u/m.safetensors", proxy.port);
        serves(at);
        ck_assert_str_eq(proxy.last_authorization, "Bearer the-token-of-localhost");
        serves(through("/m.safetensors"));
        ck_assert_str_eq(proxy.last_authorization, "");
}
END_TEST

START_TEST(a_redirect_takes_no_credentials_along)
{
        struct proxy first;
        proxy_start(&first, web.http);
        proxy_rule(&first,
                   &(struct proxy_rule){.fault = PROXY_REDIRECT, .what = PROXY_ALL, .text = through("/m.safetensors")});
        serves(format_text("http://localhost:%u/m.safetensors", first.port));
        ck_assert_str_eq(first.last_authorization, "Bearer the-token-of-localhost");
        ck_assert_str_eq(proxy.last_authorization, "");
        proxy_stop(&first);
}
END_TEST

START_TEST(no_secret_in_a_log)
{
        refuses(format_text("http://localhost:%u/nothing.safetensors", proxy.port), STREAMER_ENOENT, "404");
        ck_assert_ptr_null(strstr(log_text(), "the-token-of-localhost"));
        ck_assert_ptr_null(strstr(log_text(), "the-password"));
}
END_TEST

/* ---- faults that pass ---- */

static const struct {
        const char *name;
        struct proxy_rule rule;
} passing[] = {
        {"reset before a byte", {.fault = PROXY_RESET, .nth = 3, .bytes = 0}},
        {"reset in the middle", {.fault = PROXY_RESET, .nth = 3, .bytes = 500000}},
        {"reset of two tries", {.fault = PROXY_RESET, .nth = 3, .count = 2, .bytes = 100}},
        {"a short body", {.fault = PROXY_SHORT, .nth = 2, .bytes = 4096}},
        {"a stall", {.fault = PROXY_STALL, .nth = 4, .bytes = 70000}},
        {"500", {.fault = PROXY_STATUS, .nth = 2, .status = 500, .text = "oh"}},
        {"503", {.fault = PROXY_STATUS, .nth = 2, .status = 503, .text = "slow down"}},
        {"503 for a while", {.fault = PROXY_STATUS, .nth = 2, .count = 3, .status = 503}},
        {"429 with a pause", {.fault = PROXY_STATUS, .nth = 2, .status = 429, .header = "Retry-After: 1"}},
        {"another range", {.fault = PROXY_WRONG_RANGE, .nth = 3}},
        {"no Content-Range", {.fault = PROXY_DROP, .nth = 3, .text = "\r\nContent-Range"}},
        {"the whole instead", {.fault = PROXY_NO_RANGE, .nth = 3}},
        {"each fifth is reset", {.fault = PROXY_RESET, .every = 5, .bytes = 3000}},
        {"the opening is reset", {.fault = PROXY_RESET, .what = PROXY_OPENINGS, .nth = 1, .bytes = 100}},
        {"the opening has 503", {.fault = PROXY_STATUS, .what = PROXY_OPENINGS, .nth = 1, .status = 503}},
        {"the check is reset", {.fault = PROXY_RESET, .what = PROXY_CHECKS, .nth = 1}},
        {"a slow drip", {.fault = PROXY_DRIP, .nth = 5, .bytes = 30000}},
        {"latency", {.fault = PROXY_LATENCY, .what = PROXY_ALL, .ms = 30}},
        {"a window that opens slowly", {.fault = PROXY_WINDOW, .what = PROXY_ALL, .bytes = 14600, .ms = 5}},
        {"a stream", {.fault = PROXY_NO_RANGE, .what = PROXY_ALL}},
        {"no ETag", {.fault = PROXY_DROP, .what = PROXY_ALL, .text = "\r\nETag"}},
};

START_TEST(what_passes_costs_no_byte)
{
        proxy_rule(&proxy, &passing[_i].rule);
        serves(through("/m.safetensors"));
        ck_assert_msg(proxy_faults(&proxy) > 0, "%s: nothing happened", passing[_i].name);
}
END_TEST

START_TEST(a_stream_that_breaks_begins_again)
{
        proxy_rule(&proxy,
                   &(struct proxy_rule){.fault = PROXY_RESET, .what = PROXY_BLOCKS, .nth = 1, .bytes = 5 << 20});
        proxy.upstream = web.streamed;
        serves(through("/m.safetensors"));
        ck_assert_uint_eq(proxy_faults(&proxy), 1);
}
END_TEST

/* Without its length only what is missing tells that a body has ended too soon. */
START_TEST(a_stream_that_always_ends_too_soon_fails)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_SHORT,
                                                .what = PROXY_BLOCKS,
                                                .bytes = (5 << 20) + 100,
                                                .text = "\r\nContent-Length"});
        proxy.upstream = web.streamed;
        refuses(through("/m.safetensors"), STREAMER_EFAILED, "given up after 4 tries: short body");
}
END_TEST

/* ---- runs ---- */

static uint64_t last_byte(void)
{
        return file_size(suite_path("www/m.safetensors")) - 1;
}

START_TEST(one_request_brings_neighbouring_blocks)
{
        serves(through("/m.safetensors"));
        ck_assert_uint_lt(proxy_seen(&proxy, PROXY_BLOCKS), BLOCKS);
        ck_assert_uint_ge(proxy_seen(&proxy, PROXY_BLOCKS), CONCURRENCY - 1);
}
END_TEST

/* In the middle of the second block of the first request: what came before it is not asked for again. */
START_TEST(a_request_that_ends_too_soon_goes_on_at_the_byte_that_is_missing)
{
        const uint64_t came = (1 << 20) + 300000, first = last_byte() + 1 - model->bytes;
        unsigned went_on = 0;
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_SHORT, .nth = 1, .bytes = came, .byte = first});
        serves(through("/m.safetensors"));
        for (unsigned i = 0; i < proxy_seen(&proxy, PROXY_BLOCKS); i++)
                went_on += proxy.asked[i].first == first + came;
        ck_assert_uint_eq(proxy_faults(&proxy), 1);
        ck_assert_uint_eq(went_on, 1);
        ck_assert_uint_eq(proxy_asked_for(&proxy, first + came - 1), 1);
        ck_assert_uint_eq(proxy_asked_for(&proxy, first + came), 2);
}
END_TEST

/* The end drips for half a minute; second requests for what it holds up bring it at once. */
START_TEST(a_straggler_at_the_end_gets_a_hedge)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DRIP, .nth = 1, .bytes = 300, .byte = last_byte()});
        uint64_t began = clock_ns();
        serves(through("/m.safetensors"));
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(10000000000));
        ck_assert_uint_eq(proxy_asked_for(&proxy, last_byte()), 2);
}
END_TEST

/* Both are slow, the first is whole first: what the hedge brought is thrown away. */
START_TEST(a_hedge_that_loses_leaves_nothing)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DRIP, .nth = 1, .bytes = 8000, .byte = last_byte()});
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_STALL, .nth = 2, .bytes = 1, .byte = last_byte()});
        serves(through("/m.safetensors"));
}
END_TEST

/* Of eight ranges four are asked for at first. */
START_TEST(a_server_that_asks_to_slow_down_gets_half_and_no_secret_is_told)
{
        struct daemon d;
        daemon_init(&d, suite_path("told"));
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", stage_root(), "--log-level", "debug",
                                               "--config", suite_path("http.yaml"), NULL});
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_STATUS, .nth = 1, .count = 3, .status = 503});
        streamer_client *c = client_open(&d);
        client_load(c, format_text("http://localhost:%u/m.safetensors", proxy.port), "m");
        client_equals(c, "m", model);
        streamer_close(c);
        ck_assert_int_eq(daemon_stop(&d), 0);
        size_t size;
        const char *log = file_read(d.log, &size);
        ck_assert_msg(strstr(log, "asks to slow down: 2 ranges in flight") != NULL, "%s", log);
        ck_assert_ptr_null(strstr(log, "the-token-of-localhost"));
}
END_TEST

/* ---- faults that do not ---- */

static const struct {
        struct proxy_rule rule;
        const char *text, *cause; /* of its retries; NULL: it is not tried again */
} lasting[] = {
        {{.fault = PROXY_RESET, .bytes = 10}, "given up after 4 tries", "broken"},
        {{.fault = PROXY_STATUS, .status = 500, .text = "I am broken"},
         "given up after 4 tries: the server answers 500",
         "status"},
        {{.fault = PROXY_STATUS, .status = 503}, "given up after 4 tries: the server answers 503", "slow-down"},
        {{.fault = PROXY_STALL, .bytes = 10}, "given up after 4 tries: no byte for", "stalled"},
        {{.fault = PROXY_WRONG_RANGE}, "wrong Content-Range", NULL},
        {{.fault = PROXY_SHORT, .bytes = 100}, "given up after 4 tries", NULL},
        {{.fault = PROXY_STATUS, .nth = 2, .status = 403, .text = "expired"},
         "the server answers 403 Said So: expired",
         NULL},
        {{.fault = PROXY_REPLACED, .nth = 3}, "was replaced while it was read: another ETag", NULL},
        {{.fault = PROXY_REPLACED, .what = PROXY_CHECKS}, "was replaced while it was read: another ETag", NULL},
        {{.fault = PROXY_STATUS, .nth = 3, .status = 412}, "was replaced while it was read", NULL},
};

static double retries(const char *cause)
{
        return client_metric(client, format_text("streamerd_retries_total{cause=\"%s\"}", cause));
}

START_TEST(what_lasts_fails_with_its_name)
{
        const char *cause = lasting[_i].cause;
        double before = cause != NULL ? retries(cause) : 0;
        proxy_rule(&proxy, &lasting[_i].rule);
        char text[1024];
        ck_assert_int_lt(client_load_result(client, through("/m.safetensors"), "bad", text), 0);
        ck_assert_msg(strstr(text, lasting[_i].text) != NULL, "%s", text);
        ck_assert_msg(strstr(text, "/m.safetensors") != NULL, "%s", text);
        if (cause != NULL)
                ck_assert_double_ge(retries(cause), before + 3);
        client_unload(client, "bad");
}
END_TEST

START_TEST(an_object_that_is_replaced_is_noticed)
{
        struct model *other = model_mixed(78, BLOCKS << 20);
        char *path = suite_path("www/changing.safetensors"), text[1024];
        model_write(model, path);
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_STALL, .nth = 4, .bytes = 10});
        streamer_op *op = client_load_begin(client, through("/changing.safetensors"), "bad");
        while (proxy_faults(&proxy) == 0)
                usleep(1000);
        model_write(other, path);
        must(truncate(path, (off_t)file_size(path) - 8));
        int r = streamer_op_wait(op, 20000, NULL);
        snprintf(text, sizeof(text), "%s", streamer_last_error(client));
        ck_assert_msg(r == STREAMER_EFAILED && strstr(text, "replaced") != NULL, "%d: %s", r, text);
        streamer_op_free(op);
        client_unload(client, "bad");
}
END_TEST

/* ---- others ---- */

START_TEST(a_dead_server_holds_nobody_else_up)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_LATENCY, .what = PROXY_ALL, .ms = 60000});
        streamer_op *op = client_load_begin(client, through("/m.safetensors"), "dead");
        streamer_client *other = client_open(&stage);
        uint64_t began = clock_ns();
        client_load(other, url(web.http, "/m.safetensors"), "fine");
        client_equals(other, "fine", model);
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(1500000000) * (suite_short() ? 10 : 1));
        client_unload(other, "fine");
        ck_assert_int_eq(client_call_code(other, "cancel", "{\"model\": \"dead\"}"), 0);
        streamer_op_wait(op, 20000, NULL);
        streamer_op_free(op);
        /* Its request, which nobody answers, is given up too: nothing of it is left to wait for. */
        began = clock_ns();
        client_unload(client, "dead");
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(1000000000) * (suite_short() ? 2 : 1));
        streamer_close(other);
}
END_TEST

START_TEST(a_load_is_cancelled_in_mid_transfer)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DRIP, .bytes = 1000});
        streamer_op *op = client_load_begin(client, through("/m.safetensors"), "slow");
        ck_assert(eventually(has_begun, &proxy, 20000));
        uint64_t began = clock_ns();
        ck_assert_int_eq(client_call_code(client, "cancel", "{\"model\": \"slow\"}"), 0);
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_ECANCELED);
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(2000000000));
        streamer_op_free(op);
        client_unload(client, "slow");
}
END_TEST

START_TEST(progress_tells_bytes_before_the_end)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_STALL, .nth = 1, .bytes = 10, .byte = last_byte()});
        streamer_op *op = client_load_begin(client, through("/m.safetensors"), "m");
        streamer_progress p = {.struct_size = sizeof(p)};
        while (streamer_op_wait(op, 10, &p) == STREAMER_ETIMEOUT && p.bytes == 0)
                ;
        ck_assert_uint_gt(p.bytes, 0);
        ck_assert_uint_lt(p.bytes, p.total);
        ck_assert_int_eq(streamer_op_wait(op, 20000, &p), 0);
        ck_assert_uint_eq(p.bytes, model->bytes);
        streamer_op_free(op);
        client_unload(client, "m");
}
END_TEST

static bool few_fds(void *arg)
{
        return process_fds(stage.pid) <= *(unsigned *)arg;
}

START_TEST(loads_leave_no_descriptor_behind)
{
        serves(url(web.http, "/m.safetensors"));
        unsigned fds = process_fds(stage.pid) + 20; /* connections that are kept alive are bounded */
        for (int i = 0; i < 8; i++) {
                serves(secure("/m.safetensors"));
                serves(url(web.http, "/m.safetensors"));
        }
        ck_assert_msg(eventually(few_fds, &fds, 5000), "%u descriptors, %u before", process_fds(stage.pid), fds);
}
END_TEST

START_TEST(sigterm_in_mid_transfer_ends_the_daemon)
{
        struct daemon d;
        daemon_init(&d, suite_path("own"));
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", stage_root(), "--config",
                                               suite_path("http.yaml"), NULL});
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DRIP, .bytes = 1000});
        streamer_client *c = client_open(&d);
        streamer_op *op = client_load_begin(c, through("/m.safetensors"), "slow");
        ck_assert(eventually(has_begun, &proxy, 20000));
        uint64_t began = clock_ns();
        daemon_terminate(&d);
        ck_assert_int_eq(daemon_wait(&d, 10000), 0);
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(10000000000));
        streamer_op_free(op);
        streamer_close(c);
}
END_TEST

int main(void)
{
        suite_begin("http");
        if (nginx_unavailable() != NULL) {
                skip("http", nginx_unavailable());
                return suite_run();
        }
        TCase *t = suite_group("http", begin, end, 60);
        tcase_add_checked_fixture(t, before, after);
        tcase_add_test(t, a_file_over_http);
        tcase_add_test(t, a_file_over_https_by_a_private_ca);
        tcase_add_test(t, the_same_content_as_from_a_file);
        tcase_add_test(t, a_name_with_spaces_and_signs);
        tcase_add_test(t, an_index_names_shards_beside_it);
        tcase_add_test(t, an_index_whose_shard_is_missing_fails);
        tcase_add_test(t, a_header_longer_than_the_first_bytes);
        tcase_add_test(t, a_server_without_ranges_is_read_in_one_stream_and_it_is_said);
        tcase_add_test(t, status_tells_of_a_stream);
        tcase_add_test(t, the_query_of_a_url_is_not_told_again);
        tcase_add_test(t, the_second_load_of_a_url_is_an_alias);
        tcase_add_test(t, sha256_of_a_list_beside_the_file);
        tcase_add_test(t, sha256_without_a_list_is_refused);
        tcase_add_test(t, what_is_not_there);
        tcase_add_test(t, what_is_no_safetensors);
        tcase_add_test(t, an_empty_file);
        tcase_add_test(t, plain_http_to_another_host);
        tcase_add_test(t, a_certificate_that_nobody_vouches_for);
        LOOP(t, what_is_no_url, bad_urls);
        LOOP(t, a_refusal_fails_at_once_with_what_the_server_said, statuses);
        tcase_add_test(t, a_redirect_is_followed);
        tcase_add_test(t, blocks_go_straight_to_where_a_redirect_led);
        tcase_add_test(t, a_loop_of_redirects_ends);
        tcase_add_test(t, no_redirect_leads_to_plain_http_elsewhere);
        tcase_add_test(t, credentials_go_to_their_host_and_no_other);
        tcase_add_test(t, a_redirect_takes_no_credentials_along);
        tcase_add_test(t, no_secret_in_a_log);
        LOOP(t, what_passes_costs_no_byte, passing);
        tcase_add_test(t, a_server_that_asks_to_slow_down_gets_half_and_no_secret_is_told);
        tcase_add_test(t, a_stream_that_breaks_begins_again);
        tcase_add_test(t, a_stream_that_always_ends_too_soon_fails);
        tcase_add_test(t, one_request_brings_neighbouring_blocks);
        tcase_add_test(t, a_request_that_ends_too_soon_goes_on_at_the_byte_that_is_missing);
        tcase_add_test(t, a_straggler_at_the_end_gets_a_hedge);
        tcase_add_test(t, a_hedge_that_loses_leaves_nothing);
        LOOP(t, what_lasts_fails_with_its_name, lasting);
        tcase_add_test(t, an_object_that_is_replaced_is_noticed);
        tcase_add_test(t, a_dead_server_holds_nobody_else_up);
        tcase_add_test(t, a_load_is_cancelled_in_mid_transfer);
        tcase_add_test(t, progress_tells_bytes_before_the_end);
        tcase_add_test(t, loads_leave_no_descriptor_behind);
        tcase_add_test(t, sigterm_in_mid_transfer_ends_the_daemon);
        return suite_run();
}
