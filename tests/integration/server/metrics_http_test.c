/* SPDX-License-Identifier: Apache-2.0
 *
 * Metrics, health and readiness over HTTP, and the same text from streamerctl.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/paused_load.h"
#include "tests/lib/http_exchange.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include "daemon/base/metric/metric.h"

#include <sys/socket.h>

static char metrics_address[PATH_SIZE];

static void begin(void)
{
        snprintf(metrics_address, sizeof(metrics_address), "unix:%s", suite_path("metrics"));
        fixture_begin((const char *const[]){"--device", "host=256MiB", "--metrics-listen", metrics_address, NULL});
}

static struct http_exchange get(const char *path)
{
        struct http_exchange v;
        http_exchange_request(&v, metrics_address, "GET", path);
        return v;
}

static double value_of(const char *series)
{
        return client_metric(client, series);
}

static void answers(const char *path, int status, const char *body)
{
        struct http_exchange v = get(path);
        ck_assert_msg(v.status == status, "%s: %s", path, v.all);
        ck_assert_str_eq(v.body, body);
}

/* ---- metrics ---- */

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, fixture_disconnect});

/* Each has its type and a sample, also one by source or code that has not occurred. */
static const struct {
        const char *name;
        bool labelled;
} exported[] = {
#define M(id, kind, name, label, help) {name, LABEL_##label != LABEL_NONE},
        METRICS(M)
#undef M
};

TEST(every_metric_is_exported, EACH(exported))
{
        static const char *const suffixes[] = {"", "_count"};
        struct http_exchange v = get("/metrics");
        char *type = format_text("\n# TYPE %s ", exported[_i].name);
        bool sampled = false;
        ck_assert_msg(strstr(v.body, type) != NULL, "no%s", type);
        for (size_t i = 0; i < 2; i++) {
                char *sample =
                        format_text("\n%s%s%c", exported[_i].name, suffixes[i], exported[_i].labelled ? '{' : ' ');
                sampled |= strstr(v.body, sample) != NULL;
        }
        ck_assert_msg(sampled, "%s has no sample", exported[_i].name);
}

TEST(a_device_metric_has_its_bytes)
{
        double budget = value_of("streamerd_device_budget_bytes{device=\"host\"}");
        double used = value_of("streamerd_device_used_bytes{device=\"host\"}");
        ck_assert_double_eq(budget, 268435456);
        ck_assert_double_gt(used, (double)fixture_witness->bytes);
        ck_assert_double_eq(value_of("streamerd_device_free_bytes{device=\"host\"}"), budget - used);
        ck_assert_double_eq(value_of("streamerd_device_quarantined_bytes{device=\"host\"}"), 0);
}

TEST(the_daemon_reports_its_version_and_start)
{
        json_t *version = client_call(client, "version", NULL);
        double began = value_of("streamerd_start_time_seconds"), now = (double)time(NULL);
        ck_assert_double_eq(value_of(format_text("streamerd_build_info{version=\"%s\",commit=\"%s\"}",
                                                 json_text(version, "version"), json_text(version, "commit"))),
                            1);
        ck_assert_double_le(began, now + 1);
        ck_assert_double_ge(began, now - 600); /* the tests of a file take less */
}

TEST(a_load_changes_the_load_metrics)
{
        double loads = value_of("streamerd_loads_total{result=\"ready\"}");
        double bytes = value_of("streamerd_read_bytes_total{source=\"file\"}");
        double seconds = value_of("streamerd_load_seconds_count");
        double models = value_of("streamerd_models{state=\"ready\"}");
        double hashing = value_of("streamerd_load_stage_seconds_total{stage=\"hash\"}");
        struct model *m = model_mixed(7, 1 << 18);
        client_load(client, fixture_write(m, "counted.safetensors"), "counted");
        ck_assert_double_eq(value_of("streamerd_loads_total{result=\"ready\"}"), loads + 1);
        ck_assert_double_eq(value_of("streamerd_read_bytes_total{source=\"file\"}"), bytes + (double)m->bytes);
        ck_assert_double_eq(value_of("streamerd_load_seconds_count"), seconds + 1);
        ck_assert_double_eq(value_of("streamerd_load_bytes_bucket{le=\"+Inf\"}"), seconds + 1);
        ck_assert_double_gt(value_of("streamerd_read_capacity_seconds_total"), 0);
        ck_assert_double_gt(value_of("streamerd_read_seconds_total"), 0);
        ck_assert_double_gt(value_of("streamerd_load_stage_seconds_total{stage=\"hash\"}"), hashing);
        ck_assert_double_eq(value_of("streamerd_models{state=\"ready\"}"), models + 1);
        client_unload(client, "counted");
        ck_assert_double_eq(value_of("streamerd_models{state=\"ready\"}"), models);
}

TEST(failures_are_counted_by_code)
{
        double failed = value_of("streamerd_load_errors_total{code=\"not-found\"}");
        double refused = value_of("streamerd_request_errors_total{code=\"not-found\"}");
        client_load_fails(client, fixture_path("absent.safetensors"), "absent", STREAMER_ENOENT, NULL);
        ck_assert_double_eq(value_of("streamerd_load_errors_total{code=\"not-found\"}"), failed + 1);
        client_load_fails(client, "/etc/passwd", "outside", STREAMER_EFAILED, "outside the roots");
        ck_assert_double_eq(value_of("streamerd_load_errors_total{code=\"not-found\"}"), failed + 2);
        ck_assert_int_eq(client_call_code(client, "show", "{\"model\":\"nobody\"}"), STREAMER_ENOENT);
        ck_assert_double_eq(value_of("streamerd_request_errors_total{code=\"not-found\"}"), refused + 1);
}

TEST(leases_are_counted_and_keep_unloaded_models)
{
        double attaches = value_of("streamerd_attaches_total");
        client_load(client, fixture_write(model_mixed(8, 1 << 18), "leased.safetensors"), "leased");
        streamer_lease *lease = client_attach(client, "leased");
        ck_assert_double_eq(value_of("streamerd_attaches_total"), attaches + 1);
        ck_assert_double_eq(value_of("streamerd_leases"), 1);
        ck_assert_double_eq(value_of("streamerd_clients"), 1);
        ck_assert_double_eq(value_of("streamerd_device_draining_bytes{device=\"host\"}"), 0);
        ck_assert_int_eq(streamer_unload(client, "leased", STREAMER_UNLOAD_DRAIN), 0);
        ck_assert_double_gt(value_of("streamerd_device_draining_bytes{device=\"host\"}"), 0);
        ck_assert_double_eq(value_of("streamerd_models{state=\"draining\"}"), 1);
        streamer_detach(lease);
        client_wait_leases(client, 0);
        ck_assert_double_eq(value_of("streamerd_leases"), 0);
}

TEST(the_ring_and_its_threads_are_reported)
{
        ck_assert_double_gt(value_of("streamerd_ring_slots"), 0);
        AWAIT(value_of("streamerd_ring_used_slots") == 0); /* at first they are made ready */
        ck_assert_double_gt(value_of("streamerd_ring_bytes"), 0);
        ck_assert_double_gt(value_of("streamerd_reader_threads{state=\"working\"}"), 0);
        ck_assert_double_eq(value_of("streamerd_reader_threads{state=\"stuck\"}"), 0);
}

/* Figures move between two askings: names and types do not. */
static char *without_values(const char *text)
{
        char *out = must_alloc(strlen(text) + 1), *to = out;
        for (const char *line = text; *line != '\0';) {
                size_t len = strcspn(line, "\n"), keep = line[0] == '#' ? len : strcspn(line, " \n");
                memcpy(to, line, keep);
                to += keep;
                *to++ = '\n';
                line += len + (line[len] == '\n');
        }
        return out;
}

TEST(streamerctl_prints_the_same)
{
        struct http_exchange v = get("/metrics");
        ck_assert_str_eq(without_values(ctl_says(test_daemon.socket, 0, "", "metrics", NULL)), without_values(v.body));
}

/* ---- health and readiness ---- */

static const struct {
        const char *path;
        int status;
        const char *body;
} pages[] = {
        {"/livez", 200, "ok\n"},
        {"/healthz", 200, "ok\n"},
        {"/startupz", 200, "started\n"},
        {"/readyz", 200, "ready\n"},
        {"/readyz?model=witness", 200, "ready\n"},
        {"/readyz?model=nobody", 404, "no such model\n"},
        {"/readyz?model=", 404, "no such model\n"},
        {"/readyz?model=a%20b%2Fc", 404, "no such model\n"},
        {"/", 404, "/metrics, /livez, /readyz, /readyz?model=NAME, /startupz\n"},
};

TEST(a_page_is_answered, EACH(pages))
{
        answers(pages[_i].path, pages[_i].status, pages[_i].body);
}

TEST(a_name_is_decoded)
{
        client_load(client, fixture_write(model_mixed(9, 1 << 18), "spaced.safetensors"), "org/a b");
        answers("/readyz?model=org%2Fa%20b", 200, "ready\n");
        client_unload(client, "org/a b");
}

TEST(a_failed_model_is_not_ready)
{
        file_write(fixture_path("bad.safetensors"), "12345678", 8);
        ck_assert_int_ne(client_load_result(client, fixture_path("bad.safetensors"), "bad", (char[1024]){0}), 0);
        answers("/readyz?model=bad", 503, "not ready\n");
        client_unload(client, "bad");
}

/* ---- misbehaving clients ---- */

TEST(other_methods_are_refused)
{
        struct http_exchange v;
        http_exchange_request(&v, metrics_address, "DELETE", "/metrics");
        ck_assert_int_eq(v.status, 405);
        ck_assert_ptr_nonnull(strstr(v.all, "Allow: GET, HEAD"));
        http_exchange_request(&v, metrics_address, "HEAD", "/metrics");
        ck_assert_int_eq(v.status, 200);
        ck_assert_str_eq(v.body, "");
}

TEST(a_connection_is_one_request)
{
        struct http_exchange v;
        int fd = http_exchange_connect(metrics_address);
        const char *two = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
        must(send(fd, two, strlen(two), MSG_NOSIGNAL));
        http_exchange_read_consume_fd(&v, fd);
        ck_assert_str_eq(v.body, "ok\n");
}

TEST(a_request_without_end_is_refused)
{
        struct http_exchange v;
        int fd = http_exchange_connect(metrics_address);
        char line[1024];
        memset(line, 'a', sizeof(line));
        memcpy(line, "X: ", 3);
        memcpy(line + sizeof(line) - 2, "\r\n", 2);
        must(send(fd, "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL));
        while (send(fd, line, sizeof(line), MSG_NOSIGNAL) > 0)
                ;
        ck_assert(errno == EPIPE || errno == ECONNRESET);
        http_exchange_read_consume_fd(&v, fd);
        ck_assert_msg(v.status == 0 || v.status >= 400, "%s", v.all);
        answers("/healthz", 200, "ok\n");
}

/* A client that sends single bytes is never idle. Sixteen of them have all connections. */
TEST(slow_clients_are_disconnected, .slow = true)
{
        int slow[16];
        for (size_t i = 0; i < 16; i++)
                slow[i] = http_exchange_connect(metrics_address);
        uint64_t began = clock_ns();
        for (bool all = false; !all;) {
                char byte;
                all = true;
                for (size_t i = 0; i < 16; i++) {
                        send(slow[i], "G", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
                        all &= recv(slow[i], &byte, 1, MSG_DONTWAIT) >= 0 || errno == ECONNRESET;
                }
                ck_assert_uint_lt(clock_ns() - began, UINT64_C(20000000000));
                poll(NULL, 0, 200); /* the pace of the slow clients, not a wait */
        }
        answers("/healthz", 200, "ok\n");
        for (size_t i = 0; i < 16; i++)
                close(slow[i]);
}

/* ---- listen address ---- */

TEST(an_address_in_use_fails_the_start)
{
        struct daemon d;
        daemon_init(&d, suite_path("taken"));
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){"--device", "host=64MiB", "--root", suite_folder(),
                                                              "--metrics-listen", metrics_address, NULL}),
                         1);
        char *said = file_read(d.log, NULL);
        ck_assert_msg(strstr(said, "metrics: another process serves it") != NULL, "%s", said);
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){"--device", "host=64MiB", "--root", suite_folder(),
                                                              "--metrics-listen", "0.0.0.0:0", NULL}),
                         2);
}

/* ---- while a load is held ---- */

FIXTURE(.each = {paused_load_begin, paused_load_end}, .unavailable = fuse_file_unavailable);

TEST(metrics_are_served_during_a_held_load)
{
        paused_load_start("m");
        ck_assert_double_eq(client_metric(client, "streamerd_loads_running"), 1);
        ck_assert_double_eq(client_metric(client, "streamerd_models{state=\"loading\"}"), 1);
        ck_assert_double_ge(client_metric(client, "streamerd_blocks_in_flight"), 1);
}

FIXTURE();

TEST(a_port_of_this_machine_is_served_and_logged)
{
        struct daemon d;
        char *said, *at;
        DAEMON_START(&d, suite_path("tcp"), "--device", "host=64MiB", "--root", suite_folder(), "--metrics-listen",
                     "127.0.0.1:0");
        ck_assert(log_wait_for(d.log, "metrics: served at http://"));
        said = file_read(d.log, NULL);
        at = strstr(said, "metrics: served at http://");
        ck_assert_msg(at != NULL, "%s", said);
        at += strlen("metrics: served at ");
        at[strcspn(at, "\n")] = '\0';
        struct http_exchange v;
        http_exchange_request(&v, at, "GET", "/readyz");
        ck_assert_int_eq(v.status, 200);
        ck_assert_int_eq(daemon_stop(&d), 0);
}

/* ---- probes during a preload ---- */

static struct fuse_file held;

static void begin_preload(void)
{
        struct model *m = model_mixed(6, 1 << 22);
        char *backing = suite_path("preloaded");
        model_write(m, backing);
        fuse_file_start(&held, suite_path("held"), "m.safetensors", backing);
        fuse_file_hold(&held, 2 * MIB);
        snprintf(metrics_address, sizeof(metrics_address), "unix:%s", suite_path("probes"));
        char *text = format_text("metrics: {listen: '%s'}\npreload: [{source: %s}]\n", metrics_address, held.path);
        DAEMON_START(&test_daemon, suite_path("preloading"), "--config", suite_file("preload.yaml", text), "--device",
                     "host=64MiB", "--root", suite_path("held"), "--root", suite_folder());
        client = client_open(&test_daemon);
}

static void end_preload(void)
{
        fixture_stop();
        fuse_file_stop(&held);
}

FIXTURE(.each = {begin_preload, end_preload}, .unavailable = fuse_file_unavailable);

/* What a kubelet asks: a pod that preloads has started and lives, and gets no traffic. */
TEST(a_long_preload_is_alive_and_not_ready)
{
        fuse_file_wait_held(&held);
        answers("/startupz", 200, "started\n");
        answers("/livez", 200, "ok\n");
        answers("/readyz", 503, "preloading\n");
        answers("/readyz?model=m", 503, "loading\n");
        fuse_file_release(&held);
        AWAIT(get("/readyz").status == 200);
        answers("/readyz?model=m", 200, "ready\n");
}

TEST(a_load_that_waits_for_memory_is_queued)
{
        struct wire w;
        struct model *large = model_new(7);
        char *path = suite_path("large.safetensors");
        model_add(large, "t", "U8", (uint64_t[]){60 * MIB}, 1); /* not beside the other */
        model_write(large, path);
        fuse_file_wait_held(&held);
        AWAIT(get("/readyz?model=m").body[0] == 'l');
        wire_connect(&w, &test_daemon);
        wire_request(&w, &(struct request){.verb = VERB_load,
                                           .id = 1,
                                           .u.load = {.source = path, .name = "large", .wait = true, .watch = true}});
        wire_reply_ok(&w);
        AWAIT(get("/readyz?model=large").body[0] == 'q');
        answers("/readyz?model=large", 503, "queued\n");
        wire_request(&w, &(struct request){.verb = VERB_cancel, .id = 2, .u.cancel = {.model = "large"}});
        wire_close(&w);
        fuse_file_release(&held);
        AWAIT(get("/readyz").status == 200);
}
