/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests that pause because no slot of the ring is free: a ring of three slots, and a fake GPU that holds copies.
 * Whatever happens to a request during that time, every byte arrives once, at its place.
 */
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/nginx.h"
#include "tests/lib/proxy.h"
#include "tests/lib/suite.h"

#define BLOCKS 32 /* of 1 MiB */
#define SLOTS 3   /* fewer than the blocks of one request: each pauses */
#define CONCURRENCY 8
#define THREADS 2
#define STALL_S (suite_short() ? 10u : 2u) /* of the daemon that is to take a pause for none */
#define END_MS 30000
#define LOADS_MAX 50 /* until one has paused */

static struct nginx web;
static struct proxy proxy;
static struct model *model;

/* ---- fixture ---- */

static void start_daemon(unsigned slots, const char *copies_take_ms, unsigned stall_s)
{
        const struct gpu_daemon one = {
                .n = 2,
                .io = format_text("block_size: 1MiB, memory_limit: %uMiB, concurrency: %u", slots, CONCURRENCY),
                .more = format_text(
                        "http: {ca: %s, stall: %us, backoff: 5ms, tries: 6, threads: %u, request_max: 4MiB}\n", web.ca,
                        stall_s, THREADS),
                .devices = {"'cuda:0', budget: 128MiB", "'cuda:1', budget: 128MiB"}};
        setenv("FAKECUDA_EVENT_MS", copies_take_ms, 1);
        gpu_start(&one);
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
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
        nginx_stop(&web);
}

static void before(void)
{
        gpus->hold = 0;
        proxy_start(&proxy, web.http);
        client = client_open(&test_daemon);
}

static void after(void)
{
        gpus->hold = 0;
        streamer_close(client);
        proxy_stop(&proxy);
}

/* ---- sources: ranges, and ranges under TLS ---- */

static const char *const kinds[] = {"http", "https"};
enum { PLAIN, SECURE };

static const char *source_of(int kind)
{
        if (kind == SECURE)
                return format_text("https://localhost:%u/m.safetensors", web.https);
        return format_text("http://127.0.0.1:%u/m.safetensors", web.http);
}

/* The same behind the proxy, which knows no TLS. */
static const char *source_through(void)
{
        return proxy_url(&proxy, "/m.safetensors");
}

/* ---- pauses ---- */

static double pauses(void)
{
        return client_metric(client, "streamerd_pauses_total");
}

static streamer_op *begin_load(const char *source, const char *name, const char *device)
{
        return client_load_begin_with(
                client, (streamer_load_opts){.source = source, .name = name, .devices = &device, .n_devices = 1});
}

static void load_succeeds(streamer_op *op, const char *name)
{
        client_ok(client, client_load_end(op), name);
        client_equals(client, name, model);
        client_unload(client, name);
}

/* The load is stalled, with a request whose bytes have no slot. */
static streamer_op *begin_paused(const char *source, const char *name)
{
        double before = pauses();
        gpus->hold = 1;
        streamer_op *op = begin_load(source, name, "cuda:0");
        AWAIT(pauses() > before);
        return op;
}

static void load_completes(streamer_op *op, const char *name)
{
        gpus->hold = 0;
        load_succeeds(op, name);
}

/* Waits for the copies only if bytes arrive faster than they are copied: if no request of a load pauses, another load
 * does. */
static void load_until_paused(const char *source)
{
        double before = pauses();
        for (int i = 0; i < LOADS_MAX && pauses() == before; i++)
                load_succeeds(begin_load(source, "m", "cuda:0"), "m");
        ck_assert_double_gt(pauses(), before);
}

/* ---- every byte ---- */

FIXTURE(.all = {begin, end}, .each = {before, after}, .unavailable = nginx_unavailable);

TEST(a_load_completes_after_its_backoff, EACH(kinds))
{
        load_until_paused(source_of(_i));
}

TEST(a_paused_request_continues, EACH(kinds))
{
        load_completes(begin_paused(source_of(_i), "m"), "m");
}

TEST(concurrent_loads_that_back_off)
{
        streamer_op *ops[2];
        double before = pauses();
        gpus->hold = 1;
        for (int i = 0; i < 2; i++)
                ops[i] = begin_load(format_text("%s?%d", source_of(i), i), kinds[i], "cuda:0");
        AWAIT(pauses() > before);
        gpus->hold = 0;
        for (int i = 0; i < 2; i++)
                load_succeeds(ops[i], kinds[i]);
}

/* A free slot goes to a waiting request, not to a new one, which would soon wait too. */
TEST(no_request_begins_during_a_backoff)
{
        load_until_paused(source_through());
        ck_assert_uint_le(proxy.most_open, SLOTS + THREADS);
}

/* ---- concurrent changes ---- */

static const struct {
        const char *name;
        struct proxy_rule rule;
} meanwhile[] = {
        {"each third is reset", {.fault = PROXY_RESET, .every = 3, .bytes = 700001}},
        {"each fourth ends too soon", {.fault = PROXY_SHORT, .every = 4, .bytes = (1 << 20) + 17}},
        {"each third is told to slow down", {.fault = PROXY_STATUS, .every = 3, .status = 503}},
        {"each drips", {.fault = PROXY_DRIP, .bytes = 400003}},
};

TEST(a_load_completes_if_requests_fail_during_a_backoff, EACH(meanwhile))
{
        proxy_rule(&proxy, &meanwhile[_i].rule);
        load_completes(begin_paused(source_through(), "m"), "m");
        ck_assert_msg(proxy.faults > 0, "%s: no fault was injected", meanwhile[_i].name);
}

TEST(a_request_is_retried_after_the_server_closed)
{
        streamer_op *op = begin_paused(source_through(), "m");
        proxy_cut(&proxy);
        load_completes(op, "m");
}

/* Its copies are still in flight, and a cancel does not wait for them. */
TEST(a_load_is_cancelled_during_a_backoff, EACH(kinds))
{
        streamer_op *op = begin_paused(source_of(_i), "m");
        ck_assert_int_eq(client_call_code(client, "cancel", "{\"model\": \"m\"}"), 0);
        gpus->hold = 0;
        ck_assert_int_eq(client_load_end(op), STREAMER_ECANCELED);
        AWAIT(streamer_unload(client, "m", 0) == 0);
        load_succeeds(begin_load(source_of(_i), "m", "cuda:0"), "m");
}

/* ---- separate daemons ---- */

static struct daemon shared;

static void begin_own_that_stalls(unsigned slots, const char *copies_take_ms, unsigned stall_s)
{
        shared = test_daemon;
        streamer_close(client);
        start_daemon(slots, copies_take_ms, stall_s);
        client = client_open(&test_daemon);
}

static void begin_own(unsigned slots, const char *copies_take_ms)
{
        begin_own_that_stalls(slots, copies_take_ms, 60);
}

static void end_own(void)
{
        daemon_terminate(&test_daemon);
        ck_assert_int_eq(daemon_wait(&test_daemon, END_MS), 0);
        streamer_close(client);
        test_daemon = shared;
        client = client_open(&test_daemon);
}

TEST(a_ring_of_one_slot_serves, EACH(kinds))
{
        begin_own(1, "4");
        load_until_paused(source_of(_i));
        end_own();
}

TEST(a_pause_is_no_stall, EACH(kinds))
{
        begin_own_that_stalls(SLOTS, "4", STALL_S);
        streamer_op *op = begin_paused(source_of(_i), "m");
        uint64_t until = clock_ns() + STALL_S * UINT64_C(1250000000);
        AWAIT(clock_ns() > until);
        load_completes(op, "m");
        ck_assert_double_eq(client_metric(client, "streamerd_retries_total{cause=\"stalled\"}"), 0);
        end_own();
}

/* It takes as many slots as one load may have; no thread waits for their copies. */
TEST(a_hanging_gpu_does_not_delay_others, EACH(kinds))
{
        begin_own(8 * SLOTS, "4");
        gpus->held[0] = 1;
        streamer_op *op = begin_load(source_of(_i), "m", "cuda:0");
        AWAIT(client_metric(client, "streamerd_ring_used_slots") >= 4 * SLOTS);
        load_succeeds(begin_load(format_text("%s?another", source_of(_i)), "other", "cuda:1"), "other");
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        gpus->held[0] = 0;
        load_succeeds(op, "m");
        end_own();
}

TEST(sigterm_during_a_backoff, EACH(kinds))
{
        begin_own(SLOTS, "50");
        double before = pauses();
        begin_load(source_of(_i), "m", "cuda:0");
        AWAIT(pauses() > before);
        end_own();
}

/* Not even the copies end: the daemon does not wait for ever. */
TEST(sigterm_while_a_gpu_hangs)
{
        begin_own(SLOTS, "4");
        begin_paused(source_of(PLAIN), "m");
        end_own();
}
