/* SPDX-License-Identifier: Apache-2.0
 *
 * Web servers behind a faulty proxy: how requests are divided, retried and hedged, and a load can be cancelled at any
 * time. After each test the daemon still serves. network_faults_test has the faults themselves.
 */
#include "tests/integration/http_fixture.h"

FIXTURE(.all = {begin, end}, .each = {before, after}, .unavailable = nginx_unavailable);

/* ---- runs ---- */

static uint64_t last_byte(void)
{
        return file_size(suite_path("www/m.safetensors")) - 1;
}

TEST(one_request_reads_adjacent_blocks)
{
        serves(through("/m.safetensors"));
        unsigned requests = proxy.seen[PROXY_BLOCKS] - proxy_asked_again(&proxy, 0);
        ck_assert_uint_lt(requests, BLOCKS);
        ck_assert_uint_ge(requests, CONCURRENCY - 1);
}

/* By a daemon of these settings. */
static void another_loads(const char *settings)
{
        streamer_client *c = start_own("another", suite_file("another.yaml", settings));
        client_load(c, through("/m.safetensors"), "m");
        client_equals(c, "m", model);
        stop_own(c);
}

/* In the middle of the second block of the first request: earlier bytes are not requested again. One request at a
 * time, so that the second block is not given to another thread. */
TEST(a_truncated_reply_resumes_at_the_first_missing_byte)
{
        const uint64_t came = (1 << 20) + 300000, first = last_byte() + 1 - model->bytes;
        unsigned went_on = 0;
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_SHORT, .nth = 1, .bytes = came, .byte = first});
        another_loads("io: {block_size: 1MiB, concurrency: 1}\nhttp: {backoff: 5ms}\n");
        for (unsigned i = 0; i < proxy.seen[PROXY_BLOCKS]; i++)
                went_on += !proxy.asked[i].again && proxy.asked[i].first == first + came;
        ck_assert_uint_eq(proxy.faults, 1);
        ck_assert_uint_eq(went_on, 1);
        ck_assert_uint_eq(proxy_asked_for(&proxy, first + came - 1), 1);
        ck_assert_uint_eq(proxy_asked_for(&proxy, first + came), 2);
}

/* Thirty times, of which each range has four at least; two would be enough for any other failure. */
TEST(a_slow_down_reply_delays_further_requests)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_STATUS, .nth = 1, .count = 30, .status = 503});
        proxy_rule(&proxy, &(struct proxy_rule){
                                   .fault = PROXY_STATUS, .what = PROXY_OPENINGS, .nth = 1, .count = 4, .status = 429});
        another_loads("io: {block_size: 1MiB, concurrency: 8}\nhttp: {tries: 2, backoff: 5ms}\n");
        ck_assert_uint_eq(proxy.faults, 34);
}

/* The end is sent slowly over half a minute; hedge requests for its blocks complete at once. */
TEST(a_straggler_at_the_end_gets_a_hedge)
{
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DRIP, .nth = 1, .bytes = 300, .byte = last_byte()});
        uint64_t began = clock_ns();
        serves(through("/m.safetensors"));
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(10000000000));
        ck_assert_uint_eq(proxy_asked_for(&proxy, last_byte()), 1);
        /* The rest of its run may be late before its last block is. */
        ck_assert_uint_ge(proxy_asked_again(&proxy, last_byte()), 1);
        ck_assert_uint_le(proxy_asked_again(&proxy, last_byte()), 2);
}

/* The first request is slow, but no hedge completes: their bytes are discarded. */
TEST(a_losing_hedge_leaks_nothing)
{
        serves(through("/m.safetensors"));
        unsigned fds = process_fds(test_daemon.pid);
        unsigned again = proxy_asked_again(&proxy, last_byte());
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DRIP, .nth = 1, .bytes = 3000, .byte = last_byte()});
        proxy_rule(&proxy,
                   &(struct proxy_rule){.fault = PROXY_STALL, .nth = 1, .count = 2, .bytes = 1, .byte = last_byte()});
        serves(through("/m.safetensors"));
        ck_assert_uint_ge(proxy.faults, 2);
        ck_assert_uint_gt(proxy_asked_again(&proxy, last_byte()), again);
        ck_assert(process_wait_fds(test_daemon.pid, fds));
        AWAIT(client_metric(client, "streamerd_ring_used_slots") == 0);
}

/* A request for each block, as many as may be in flight: they are not answered for a minute, and each is repeated
 * once. */
TEST(requests_that_are_not_answered_are_repeated)
{
        const char *config = suite_file("single.yaml", "io: {block_size: 1MiB, concurrency: 4}\n"
                                                       "http: {stall: 60s, threads: 2, request_max: 1MiB}\n");
        streamer_client *c = start_own("single", config);
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_HOLD, .nth = 3, .count = 4});
        client_load(c, through("/m.safetensors"), "m");
        ck_assert_uint_eq(proxy.faults, 4);
        ck_assert_uint_le(proxy.seen[PROXY_BLOCKS], 2 * (BLOCKS + 1));
        proxy_release(&proxy);
        client_equals(c, "m", model);
        stop_own(c);
}

static const int slowing[] = {429, 503};

/* As its last line says; 0: it has said nothing. */
static unsigned ranges_in_flight(const struct daemon *d)
{
        static const char line[] = "asks to slow down: ";
        cleanup_free char *log = file_read(d->log, NULL);
        unsigned n = 0;
        for (const char *at = log; (at = strstr(at, line)) != NULL;)
                n = (unsigned)strtoul(at += strlen(line), NULL, 10);
        return n;
}

static bool so_many_are_asked(const struct daemon *d)
{
        unsigned n = ranges_in_flight(d);
        return n > 0 && proxy.faults >= 4 + n && proxy_most_asking(&proxy, PROXY_BLOCKS) == n;
}

/* The first four requests are refused together, and all later ones are held: two of them are in flight, or one, if the
 * first refusals come half a second before the last. */
TEST(a_slow_down_reply_reduces_concurrency, EACH(slowing))
{
        streamer_client *c = start_own("four", write_config(4, "60s"));
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_HOLD, .nth = 1, .count = 4, .status = slowing[_i]});
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_HOLD, .nth = 5, .count = 100});
        streamer_op *op = client_load_begin(c, through("/m.safetensors"), "m");
        AWAIT(proxy.faults == 4);
        proxy_release(&proxy);
        AWAIT(so_many_are_asked(&own));
        ck_assert_uint_le(ranges_in_flight(&own), 2);
        proxy_clear(&proxy);
        proxy_release(&proxy);
        client_ok(c, client_load_end(op), "load");
        client_equals(c, "m", model);
        stop_own(c);
}

TEST(a_descriptor_limit_reduces_concurrently_open_shards)
{
        const char *folder = suite_path("www/shards");
        model_write_sharded(model, folder, BLOCKS, true);
        proxy_rule(&proxy,
                   &(struct proxy_rule){
                           .fault = PROXY_STATUS, .what = PROXY_OPENINGS, .nth = 2, .count = BLOCKS, .status = 503});
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_LATENCY, .what = PROXY_OPENINGS, .ms = 100});
        serves(through("/shards/model.safetensors.index.json"));
        ck_assert_uint_le(proxy_most_asking(&proxy, PROXY_OPENINGS), BLOCKS / 2);
}

/* ---- changes and other users ---- */

/* A minute, for which this daemon would wait: longer than any timeout of the test. */
TEST(a_dead_server_does_not_delay_other_loads)
{
        const char *config = suite_file("dead.yaml", "io: {block_size: 1MiB}\nhttp: {stall: 60s, threads: 2}\n");
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_HOLD, .what = PROXY_ALL});
        streamer_client *c = start_own("dead", config), *other = client_open(&own);
        streamer_op *op = client_load_begin(c, through("/m.safetensors"), "dead");
        client_load_equals(other, url(web.http, "/m.safetensors"), "fine", model);
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        ck_assert_int_eq(client_call_code(other, "cancel", "{\"model\": \"dead\"}"), 0);
        ck_assert_int_eq(client_load_end(op), STREAMER_ECANCELED);
        /* Its unanswered request is aborted too, so the daemon does not wait for it. */
        client_unload(c, "dead");
        streamer_close(other);
        stop_own(c);
}

TEST(loads_leak_no_descriptor)
{
        serves(url(web.http, "/m.safetensors"));
        unsigned fds = process_fds(test_daemon.pid) + 20; /* kept-alive connections are bounded */
        for (int i = 0; i < 8; i++) {
                serves(secure("/m.safetensors"));
                serves(url(web.http, "/m.safetensors"));
        }
        ck_assert(process_wait_fds(test_daemon.pid, fds));
}

TEST(sigterm_in_mid_transfer_ends_the_daemon)
{
        streamer_client *c = start_own("own", write_config(CONCURRENCY, "60s"));
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_DRIP, .bytes = 1000});
        client_load_begin(c, through("/m.safetensors"), "slow");
        AWAIT(proxy.seen[PROXY_BLOCKS] > 0);
        uint64_t began = clock_ns();
        daemon_terminate(&own);
        ck_assert_int_eq(daemon_wait(&own, 10000), 0);
        ck_assert_uint_lt(clock_ns() - began, UINT64_C(10000000000));
}
