/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that pause: a ring of three slots, and a GPU that takes its time to take what is in them, so that
 * bytes come from the network for which there is no place. Whatever happens to a request meanwhile, every
 * byte is where it belongs in the end, and once.
 *
 * The GPU is a stand-in. While it is held no copy ends: then each slot is taken, and who reads pauses.
 */
#include "tests/lib/gpus.h"
#include "tests/lib/nginx.h"
#include "tests/lib/proxy.h"
#include "tests/lib/suite.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCKS 32 /* of 1 MiB */
#define SLOTS 3   /* fewer than the blocks of one request: each pauses */
#define CONCURRENCY 8
#define THREADS 2
#define STALL_S 2 /* of the daemon that is to take a pause for none */

static struct nginx web;
static struct proxy proxy;
static struct fake_state *gpus;
static streamer_client *client;
static struct model *model;

/* ---- the stage ---- */

static void start_daemon(unsigned slots, const char *copies_take_ms, unsigned stall_s)
{
        const char *more =
                format_text("io: {block_size: 1MiB, memory_limit: %uMiB, concurrency: %u}\n"
                            "http: {ca: %s, stall: %us, backoff: 5ms, tries: 6, threads: %u, request_max: 4MiB}\n",
                            slots, CONCURRENCY, web.ca, stall_s, THREADS);
        const struct gpus one = {
                .n = 2, .more = more, .devices = {"'cuda:0', budget: 128MiB", "'cuda:1', budget: 128MiB"}};
        setenv("FAKECUDA_EVENT_MS", copies_take_ms, 1);
        gpus = gpus_start(&one);
}

static void begin(void)
{
        char *root = suite_path("www");
        must(mkdir(root, 0755));
        nginx_start(&web, suite_path("nginx"), root);
        model = model_mixed(77, BLOCKS << 20);
        model_write(model, suite_path("www/m.safetensors"));
        start_daemon(SLOTS, "4", 60);
}

static void end(void)
{
        ck_assert_int_eq(daemon_stop(&stage), 0);
        nginx_stop(&web);
}

static void before(void)
{
        gpus->hold = 0;
        proxy_start(&proxy, web.http);
        client = client_open(&stage);
}

static void after(void)
{
        gpus->hold = 0;
        streamer_close(client);
        proxy_stop(&proxy);
}

/* ---- sources: ranges, ranges under TLS, a stream ---- */

static const char *const kinds[] = {"http", "https", "stream"};
enum { PLAIN, SECURE, STREAM };

static const char *source_of(int kind)
{
        if (kind == SECURE)
                return format_text("https://localhost:%u/m.safetensors", web.https);
        return format_text("http://127.0.0.1:%u/m.safetensors", kind == STREAM ? web.streamed : web.http);
}

/* The same behind the proxy, which knows no TLS: ranges, and a stream. */
static const unsigned *const proxied[] = {&web.http, &web.streamed};

static const char *source_through(int i)
{
        proxy.upstream = *proxied[i];
        return proxy_url(&proxy, "/m.safetensors");
}

/* ---- pauses ---- */

static double pauses(void)
{
        return client_metric(client, "streamerd_pauses_total");
}

static double stalls(void)
{
        return client_metric(client, "streamerd_retries_total{cause=\"stalled\"}");
}

static bool more_pauses(void *before)
{
        return pauses() > *(double *)before;
}

static streamer_op *begin_load(const char *source, const char *name, const char *device)
{
        streamer_op *op;
        const char *const devices[] = {device};
        streamer_load_opts opts = {
                .struct_size = sizeof(opts), .source = source, .name = name, .devices = devices, .n_devices = 1};
        client_ok(client, streamer_load(client, &opts, &op), source);
        return op;
}

static void ends_well(streamer_op *op, const char *name)
{
        client_ok(client, streamer_op_wait(op, 20000, NULL), name);
        streamer_op_free(op);
        client_equals(client, name, model);
        client_unload(client, name);
}

/* The load stands still, with a request that has bytes for which there is no slot. */
static streamer_op *begin_paused(const char *source, const char *name)
{
        double before = pauses();
        gpus->hold = 1;
        streamer_op *op = begin_load(source, name, "cuda:0");
        ck_assert(eventually(more_pauses, &before, 20000));
        return op;
}

static void goes_on_to_its_end(streamer_op *op, const char *name)
{
        gpus->hold = 0;
        ends_well(op, name);
}

static bool time_has_passed(void *until)
{
        return clock_ns() > *(uint64_t *)until;
}

/* ---- every byte ---- */

START_TEST(what_pauses_loses_no_byte)
{
        double before = pauses();
        ends_well(begin_load(source_of(_i), "m", "cuda:0"), "m");
        ck_assert_msg(pauses() > before, "%s: nothing paused", kinds[_i]);
}
END_TEST

START_TEST(what_stood_still_goes_on)
{
        goes_on_to_its_end(begin_paused(source_of(_i), "m"), "m");
}
END_TEST

START_TEST(loads_that_pause_side_by_side)
{
        streamer_op *ops[3];
        for (int i = 0; i < 3; i++)
                ops[i] = begin_load(format_text("%s?%d", source_of(i), i), kinds[i], "cuda:0");
        for (int i = 0; i < 3; i++)
                ends_well(ops[i], kinds[i]);
}
END_TEST

/* A slot that comes free is for a request that waits for it, not for a new one, which would soon wait, too. */
START_TEST(no_request_begins_while_others_pause)
{
        double before = pauses();
        ends_well(begin_load(source_through(0), "m", "cuda:0"), "m");
        ck_assert(pauses() > before);
        ck_assert_uint_le(proxy.most_open, SLOTS + THREADS);
}
END_TEST

/* ---- what happens meanwhile ---- */

static const struct {
        const char *name;
        struct proxy_rule rule;
} meanwhile[] = {
        {"each third is reset", {.fault = PROXY_RESET, .every = 3, .bytes = 700001}},
        {"each fourth ends too soon", {.fault = PROXY_SHORT, .every = 4, .bytes = (1 << 20) + 17}},
        {"each third is told to slow down", {.fault = PROXY_STATUS, .every = 3, .status = 503}},
        {"each drips", {.fault = PROXY_DRIP, .bytes = 400003}},
};

START_TEST(others_fail_while_some_pause)
{
        double before = pauses();
        proxy_rule(&proxy, &meanwhile[_i].rule);
        ends_well(begin_load(source_through(0), "m", "cuda:0"), "m");
        ck_assert_msg(proxy_faults(&proxy) > 0, "%s: nothing happened", meanwhile[_i].name);
        ck_assert_msg(pauses() > before, "%s: nothing paused", meanwhile[_i].name);
}
END_TEST

START_TEST(a_server_that_closes_meanwhile_is_asked_again)
{
        streamer_op *op = begin_paused(source_through(_i), "m");
        proxy_cut(&proxy);
        goes_on_to_its_end(op, "m");
}
END_TEST

START_TEST(an_object_that_is_replaced_meanwhile_is_noticed)
{
        streamer_op *op = begin_paused(source_through(_i), "m");
        char text[1024];
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_REPLACED, .what = PROXY_ALL});
        proxy_cut(&proxy);
        gpus->hold = 0;
        int r = streamer_op_wait(op, 20000, NULL);
        snprintf(text, sizeof(text), "%s", streamer_last_error(client));
        ck_assert_msg(r == STREAMER_EFAILED && strstr(text, "replaced") != NULL, "%d: %s", r, text);
        streamer_op_free(op);
        client_unload(client, "m");
}
END_TEST

/* Its copies are still to come home, for which nobody who cancels waits. */
static bool is_unloaded(void *args)
{
        return client_call_code(client, "unload", args) == 0;
}

START_TEST(a_load_is_cancelled_while_it_pauses)
{
        streamer_op *op = begin_paused(source_of(_i), "m");
        ck_assert_int_eq(client_call_code(client, "cancel", "{\"model\": \"m\"}"), 0);
        gpus->hold = 0;
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_ECANCELED);
        streamer_op_free(op);
        ck_assert(eventually(is_unloaded, "{\"model\": \"m\"}", 20000));
        ends_well(begin_load(source_of(_i), "m", "cuda:0"), "m");
}
END_TEST

/* ---- daemons of their own ---- */

static struct daemon shared;

static void begin_own_that_stalls(unsigned slots, const char *copies_take_ms, unsigned stall_s)
{
        shared = stage;
        streamer_close(client);
        start_daemon(slots, copies_take_ms, stall_s);
        client = client_open(&stage);
}

static void begin_own(unsigned slots, const char *copies_take_ms)
{
        begin_own_that_stalls(slots, copies_take_ms, 60);
}

static void end_own(void)
{
        ck_assert_int_eq(daemon_wait(&stage, 10000), 0);
        streamer_close(client);
        stage = shared;
        client = client_open(&stage);
}

START_TEST(a_ring_of_one_slot_serves)
{
        begin_own(1, "4");
        ends_well(begin_load(source_of(_i), "m", "cuda:0"), "m");
        ck_assert(pauses() > 0);
        daemon_terminate(&stage);
        end_own();
}
END_TEST

START_TEST(a_pause_is_no_stall)
{
        begin_own_that_stalls(SLOTS, "4", STALL_S);
        streamer_op *op = begin_paused(source_of(_i), "m");
        uint64_t until = clock_ns() + STALL_S * UINT64_C(1250000000);
        ck_assert(eventually(time_has_passed, &until, 20000));
        goes_on_to_its_end(op, "m");
        ck_assert_double_eq(stalls(), 0);
        daemon_terminate(&stage);
        end_own();
}
END_TEST

static bool half_the_ring_is_used(void *arg)
{
        (void)arg;
        return client_metric(client, "streamerd_ring_used_slots") >= 4 * SLOTS;
}

/* It takes as many slots as one load may have; no thread waits for their copies. */
START_TEST(a_gpu_that_hangs_holds_no_other_up)
{
        begin_own(8 * SLOTS, "4");
        gpus->held[0] = 1;
        streamer_op *op = begin_load(source_of(_i), "m", "cuda:0");
        ck_assert(eventually(half_the_ring_is_used, NULL, 20000));
        ends_well(begin_load(format_text("%s?another", source_of(_i)), "other", "cuda:1"), "other");
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        gpus->held[0] = 0;
        ends_well(op, "m");
        daemon_terminate(&stage);
        end_own();
}
END_TEST

START_TEST(sigterm_while_requests_pause)
{
        begin_own(SLOTS, "50");
        double before = pauses();
        streamer_op *op = begin_load(source_of(_i), "m", "cuda:0");
        ck_assert(eventually(more_pauses, &before, 20000));
        daemon_terminate(&stage);
        streamer_op_free(op);
        end_own();
}
END_TEST

/* Not even the copies end: the daemon does not wait for ever. */
START_TEST(sigterm_while_a_gpu_hangs)
{
        begin_own(SLOTS, "4");
        streamer_op *op = begin_paused(source_of(PLAIN), "m");
        daemon_terminate(&stage);
        streamer_op_free(op);
        end_own();
}
END_TEST

int main(void)
{
        suite_begin("http_pauses");
        if (nginx_unavailable() != NULL) {
                skip("http_pauses", nginx_unavailable());
                return suite_run();
        }
        TCase *t = suite_group("pauses", begin, end, 60);
        tcase_add_checked_fixture(t, before, after);
        LOOP(t, what_pauses_loses_no_byte, kinds);
        LOOP(t, what_stood_still_goes_on, kinds);
        tcase_add_test(t, loads_that_pause_side_by_side);
        tcase_add_test(t, no_request_begins_while_others_pause);
        LOOP(t, others_fail_while_some_pause, meanwhile);
        LOOP(t, a_server_that_closes_meanwhile_is_asked_again, proxied);
        LOOP(t, an_object_that_is_replaced_meanwhile_is_noticed, proxied);
        LOOP(t, a_load_is_cancelled_while_it_pauses, kinds);
        LOOP(t, a_ring_of_one_slot_serves, kinds);
        LOOP(t, a_pause_is_no_stall, kinds);
        LOOP(t, a_gpu_that_hangs_holds_no_other_up, kinds);
        LOOP(t, sigterm_while_requests_pause, kinds);
        tcase_add_test(t, sigterm_while_a_gpu_hangs);
        return suite_run();
}
