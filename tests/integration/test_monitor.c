/* SPDX-License-Identifier: Apache-2.0
 *
 * What watches a daemon from outside: metrics, health and readiness over HTTP, and the same text by
 * streamerctl.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/held.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"
#include "tests/lib/visit.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static char where[PATH_SIZE];

static void begin(void)
{
        snprintf(where, sizeof(where), "unix:%s", suite_path("metrics"));
        stage_begin((const char *const[]){"--device", "host=256MiB", "--metrics-listen", where, NULL});
}

static struct visit get(const char *path)
{
        struct visit v;
        visit_ask(&v, where, "GET", path);
        return v;
}

/* The value of a series: what stands after its name and a space. */
static double value_in(const char *text, const char *series)
{
        for (const char *at = text; (at = strstr(at, series)) != NULL; at++)
                if ((at == text || at[-1] == '\n') && at[strlen(series)] == ' ')
                        return strtod(at + strlen(series), NULL);
        ck_abort_msg("no series %s in\n%s", series, text);
        return 0;
}

static double value_of(const char *series)
{
        struct visit v = get("/metrics");
        ck_assert_int_eq(v.status, 200);
        double value = value_in(v.body, series);
        visit_free(&v);
        return value;
}

static void answers(const char *path, int status, const char *body)
{
        struct visit v = get(path);
        ck_assert_msg(v.status == status, "%s: %s", path, v.all);
        ck_assert_str_eq(v.body, body);
        visit_free(&v);
}

/* ---- metrics ---- */

START_TEST(promtool_finds_nothing_to_say)
{
        if (system("command -v promtool >/dev/null") != 0)
                SKIP("promtool is not installed");
        struct visit v = get("/metrics");
        char *file = suite_path("metrics.txt"), *command = format_text("promtool check metrics <%s 2>&1", file);
        file_write(file, v.body, strlen(v.body));
        char said[4096] = "";
        FILE *f = popen(command, "r");
        size_t n = fread(said, 1, sizeof(said) - 1, f);
        int status = pclose(f);
        ck_assert_msg(status == 0 && n == 0, "%s", said);
        free(command);
        visit_free(&v);
}
END_TEST

START_TEST(a_device_is_told_with_its_bytes)
{
        double budget = value_of("streamerd_device_budget_bytes{device=\"host\"}");
        double used = value_of("streamerd_device_used_bytes{device=\"host\"}");
        ck_assert_double_eq(budget, 268435456);
        ck_assert_double_gt(used, (double)stage_witness->bytes);
        ck_assert_double_eq(value_of("streamerd_device_free_bytes{device=\"host\"}"), budget - used);
        ck_assert_double_eq(value_of("streamerd_device_quarantined_bytes{device=\"host\"}"), 0);
}
END_TEST

START_TEST(a_load_moves_what_counts_loads)
{
        double loads = value_of("streamerd_loads_total{result=\"ready\"}");
        double bytes = value_of("streamerd_read_bytes_total{source=\"file\"}");
        double seconds = value_of("streamerd_load_seconds_count");
        double models = value_of("streamerd_models{state=\"ready\"}");
        struct model *m = model_mixed(7, 1 << 18);
        streamer_client *c = client_open(&stage);
        client_load(c, stage_write(m, "counted.safetensors"), "counted");
        ck_assert_double_eq(value_of("streamerd_loads_total{result=\"ready\"}"), loads + 1);
        ck_assert_double_eq(value_of("streamerd_read_bytes_total{source=\"file\"}"), bytes + (double)m->bytes);
        ck_assert_double_eq(value_of("streamerd_load_seconds_count"), seconds + 1);
        ck_assert_double_eq(value_of("streamerd_load_bytes_bucket{le=\"+Inf\"}"), seconds + 1);
        ck_assert_double_gt(value_of("streamerd_read_room_seconds_total"), 0);
        ck_assert_double_eq(value_of("streamerd_models{state=\"ready\"}"), models + 1);
        client_unload(c, "counted");
        ck_assert_double_eq(value_of("streamerd_models{state=\"ready\"}"), models);
        streamer_close(c);
}
END_TEST

START_TEST(failures_are_counted_by_code)
{
        double failed = value_of("streamerd_load_errors_total{code=\"not-found\"}");
        double refused = value_of("streamerd_request_errors_total{code=\"not-found\"}");
        streamer_client *c = client_open(&stage);
        client_load_fails(c, stage_path("absent.safetensors"), "absent", STREAMER_ENOENT, NULL);
        ck_assert_double_eq(value_of("streamerd_load_errors_total{code=\"not-found\"}"), failed + 1);
        ck_assert_int_eq(client_call_code(c, "show", "{\"model\":\"nobody\"}"), STREAMER_ENOENT);
        ck_assert_double_eq(value_of("streamerd_request_errors_total{code=\"not-found\"}"), refused + 1);
        client_unload(c, "absent");
        streamer_close(c);
}
END_TEST

START_TEST(leases_are_counted_and_hold_what_was_dropped)
{
        double attaches = value_of("streamerd_attaches_total");
        streamer_client *c = client_open(&stage);
        client_load(c, stage_write(model_mixed(8, 1 << 18), "leased.safetensors"), "leased");
        streamer_lease *lease = client_attach(c, "leased");
        ck_assert_double_eq(value_of("streamerd_attaches_total"), attaches + 1);
        ck_assert_double_eq(value_of("streamerd_leases"), 1);
        ck_assert_double_eq(value_of("streamerd_clients"), 1);
        ck_assert_double_eq(value_of("streamerd_device_draining_bytes{device=\"host\"}"), 0);
        ck_assert_int_eq(streamer_unload(c, "leased", STREAMER_UNLOAD_DRAIN), 0);
        ck_assert_double_gt(value_of("streamerd_device_draining_bytes{device=\"host\"}"), 0);
        ck_assert_double_eq(value_of("streamerd_models{state=\"draining\"}"), 1);
        streamer_detach(lease);
        client_wait_leases(c, 0);
        ck_assert_double_eq(value_of("streamerd_leases"), 0);
        streamer_close(c);
}
END_TEST

static bool no_slot_is_used(void *arg)
{
        (void)arg;
        return value_of("streamerd_ring_used_slots") == 0;
}

START_TEST(the_ring_and_its_threads_are_told)
{
        ck_assert_double_gt(value_of("streamerd_ring_slots"), 0);
        ck_assert(eventually(no_slot_is_used, NULL, 20000)); /* at first they are made ready */
        ck_assert_double_gt(value_of("streamerd_ring_bytes"), 0);
        ck_assert_double_gt(value_of("streamerd_reader_threads{state=\"working\"}"), 0);
        ck_assert_double_eq(value_of("streamerd_reader_threads{state=\"stuck\"}"), 0);
}
END_TEST

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

START_TEST(streamerctl_prints_the_same)
{
        struct ctl r;
        struct visit v = get("/metrics");
        ctl(&r, stage.socket, "metrics", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_str_eq(without_values(r.out), without_values(v.body));
        ctl_free(&r);
        visit_free(&v);
}
END_TEST

/* ---- health and readiness ---- */

START_TEST(a_daemon_that_serves_is_healthy_and_ready)
{
        answers("/healthz", 200, "ok\n");
        answers("/readyz", 200, "ready\n");
        answers("/readyz?model=witness", 200, "ready\n");
}
END_TEST

START_TEST(a_model_that_is_not_there_is_not_ready)
{
        answers("/readyz?model=nobody", 404, "no such model\n");
        answers("/readyz?model=", 404, "no such model\n");
        answers("/readyz?model=a%20b%2Fc", 404, "no such model\n");
}
END_TEST

START_TEST(a_name_is_decoded)
{
        streamer_client *c = client_open(&stage);
        client_load(c, stage_write(model_mixed(9, 1 << 18), "spaced.safetensors"), "org/a b");
        answers("/readyz?model=org%2Fa%20b", 200, "ready\n");
        client_unload(c, "org/a b");
        streamer_close(c);
}
END_TEST

START_TEST(a_model_that_failed_is_not_ready)
{
        streamer_client *c = client_open(&stage);
        file_write(stage_path("bad.safetensors"), "12345678", 8);
        ck_assert_int_ne(client_load_result(c, stage_path("bad.safetensors"), "bad", (char[1024]){0}), 0);
        answers("/readyz?model=bad", 503, "not ready\n");
        client_unload(c, "bad");
        streamer_close(c);
}
END_TEST

/* ---- bad visitors ---- */

START_TEST(other_paths_and_methods_are_refused)
{
        struct visit v;
        answers("/", 404, "/metrics, /healthz, /readyz, /readyz?model=NAME\n");
        visit_ask(&v, where, "DELETE", "/metrics");
        ck_assert_int_eq(v.status, 405);
        ck_assert_ptr_nonnull(strstr(v.all, "Allow: GET, HEAD"));
        visit_free(&v);
        visit_ask(&v, where, "HEAD", "/metrics");
        ck_assert_int_eq(v.status, 200);
        ck_assert_str_eq(v.body, "");
        visit_free(&v);
}
END_TEST

START_TEST(a_connection_is_one_request)
{
        struct visit v;
        int fd = visit_connect(where);
        const char *two = "GET /healthz HTTP/1.1\r\nHost: a\r\n\r\nGET /healthz HTTP/1.1\r\nHost: a\r\n\r\n";
        must(send(fd, two, strlen(two), MSG_NOSIGNAL));
        visit_read_consume_fd(&v, fd);
        ck_assert_str_eq(v.body, "ok\n");
        visit_free(&v);
}
END_TEST

START_TEST(a_request_without_end_is_refused)
{
        struct visit v;
        int fd = visit_connect(where);
        char line[1024];
        memset(line, 'a', sizeof(line));
        memcpy(line, "X: ", 3);
        memcpy(line + sizeof(line) - 2, "\r\n", 2);
        must(send(fd, "GET / HTTP/1.1\r\n", 16, MSG_NOSIGNAL));
        while (send(fd, line, sizeof(line), MSG_NOSIGNAL) > 0)
                ;
        ck_assert(errno == EPIPE || errno == ECONNRESET);
        visit_read_consume_fd(&v, fd);
        ck_assert_msg(v.status == 0 || v.status >= 400, "%s", v.all);
        visit_free(&v);
        answers("/healthz", 200, "ok\n");
}
END_TEST

/* Whoever sends a byte now and then is never idle, and takes one of sixteen places. */
START_TEST(slow_clients_are_cut_off)
{
        int slow[16];
        for (size_t i = 0; i < 16; i++)
                slow[i] = visit_connect(where);
        uint64_t began = clock_ns();
        for (bool all = false; !all;) {
                char byte;
                all = true;
                for (size_t i = 0; i < 16; i++) {
                        send(slow[i], "G", 1, MSG_NOSIGNAL | MSG_DONTWAIT);
                        all &= recv(slow[i], &byte, 1, MSG_DONTWAIT) >= 0 || errno == ECONNRESET;
                }
                ck_assert_uint_lt(clock_ns() - began, UINT64_C(20000000000));
                poll(NULL, 0, 200); /* the pace of the slow, not a wait for anybody */
        }
        answers("/healthz", 200, "ok\n");
        for (size_t i = 0; i < 16; i++)
                close(slow[i]);
}
END_TEST

/* ---- while a load is held ---- */

START_TEST(metrics_are_served_while_a_load_is_held)
{
        struct ctl r;
        streamer_op *op = held_load("m");
        ctl(&r, held.d.socket, "metrics", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_double_eq(value_in(r.out, "streamerd_loads_running"), 1);
        ck_assert_double_eq(value_in(r.out, "streamerd_models{state=\"loading\"}"), 1);
        ck_assert_double_ge(value_in(r.out, "streamerd_blocks_in_flight"), 1);
        ctl_free(&r);
        streamer_op_free(op);
}
END_TEST

/* ---- where it listens ---- */

START_TEST(a_port_of_this_machine_is_served_and_told)
{
        struct daemon d;
        char *said, *at;
        daemon_init(&d, suite_path("tcp"));
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", suite_folder(), "--metrics-listen",
                                               "127.0.0.1:0", NULL});
        ck_assert(log_will_say(d.log, "metrics: served at http://"));
        said = file_read(d.log, NULL);
        at = strstr(said, "metrics: served at http://");
        ck_assert_msg(at != NULL, "%s", said);
        at += strlen("metrics: served at ");
        at[strcspn(at, "\n")] = '\0';
        struct visit v;
        visit_ask(&v, at, "GET", "/readyz");
        ck_assert_int_eq(v.status, 200);
        visit_free(&v);
        free(said);
        ck_assert_int_eq(daemon_stop(&d), 0);
}
END_TEST

START_TEST(a_socket_left_behind_is_replaced_and_goes_with_the_daemon)
{
        struct daemon d;
        struct stat st;
        struct visit v;
        char *path = suite_path("left"), *address = format_text("unix:%s", path);
        const char *const flags[] = {"--device",         "host=64MiB", "--root", suite_folder(),
                                     "--metrics-listen", address,      NULL};
        daemon_init(&d, suite_path("left-daemon"));
        daemon_start(&d, flags);
        daemon_kill(&d);
        ck_assert_int_eq(stat(path, &st), 0);
        daemon_start(&d, flags);
        must(stat(path, &st));
        ck_assert_uint_eq(st.st_mode & 0777, 0660);
        visit_ask(&v, address, "GET", "/healthz");
        ck_assert_int_eq(v.status, 200);
        visit_free(&v);
        ck_assert_int_eq(daemon_stop(&d), 0);
        ck_assert_int_eq(stat(path, &st), -1);
        free(address);
}
END_TEST

/* It ends without taking itself apart. */
START_TEST(a_socket_goes_with_a_daemon_whose_reads_hang)
{
        const char *why = hang_unavailable();
        struct daemon d;
        struct hang hang;
        struct stat st;
        if (why)
                SKIP(why);
        model_write(model_mixed(62, 4 << 20), suite_path("backing"));
        hang_start(&hang, suite_path("hang"), "m.safetensors", suite_path("backing"));
        char *path = suite_path("hung"), *address = format_text("unix:%s", path);
        daemon_init(&d, suite_path("hung-daemon"));
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", hang.folder, "--metrics-listen",
                                               address, NULL});
        hang_hold(&hang, 1 << 20);
        streamer_client *c = client_open(&d);
        client_load_begin(c, hang.path, "m");
        hang_wait_held(&hang);
        must(stat(path, &st));
        ck_assert_int_eq(daemon_stop(&d), 0);
        ck_assert(log_will_say(d.log, "ending without them"));
        ck_assert_int_eq(stat(path, &st), -1);
        hang_stop(&hang);
}
END_TEST

START_TEST(an_address_that_is_taken_ends_the_start)
{
        struct daemon d;
        daemon_init(&d, suite_path("taken"));
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){"--device", "host=64MiB", "--root", suite_folder(),
                                                              "--metrics-listen", where, NULL}),
                         1);
        char *said = file_read(d.log, NULL);
        ck_assert_msg(strstr(said, "metrics: somebody serves it") != NULL, "%s", said);
        free(said);
        ck_assert_int_eq(daemon_run(&d, (const char *const[]){"--device", "host=64MiB", "--root", suite_folder(),
                                                              "--metrics-listen", "0.0.0.0:0", NULL}),
                         2);
}
END_TEST

int main(void)
{
        suite_begin("monitor");
        TCase *metrics = suite_group("metrics", begin, stage_end, 30);
        tcase_add_test(metrics, promtool_finds_nothing_to_say);
        tcase_add_test(metrics, a_device_is_told_with_its_bytes);
        tcase_add_test(metrics, a_load_moves_what_counts_loads);
        tcase_add_test(metrics, failures_are_counted_by_code);
        tcase_add_test(metrics, leases_are_counted_and_hold_what_was_dropped);
        tcase_add_test(metrics, the_ring_and_its_threads_are_told);
        tcase_add_test(metrics, streamerctl_prints_the_same);
        tcase_add_test(metrics, a_daemon_that_serves_is_healthy_and_ready);
        tcase_add_test(metrics, a_model_that_is_not_there_is_not_ready);
        tcase_add_test(metrics, a_name_is_decoded);
        tcase_add_test(metrics, a_model_that_failed_is_not_ready);
        tcase_add_test(metrics, other_paths_and_methods_are_refused);
        tcase_add_test(metrics, a_connection_is_one_request);
        tcase_add_test(metrics, a_request_without_end_is_refused);
        tcase_add_test(metrics, an_address_that_is_taken_ends_the_start);
        if (!suite_short())
                tcase_add_test(metrics, slow_clients_are_cut_off);
        TCase *loading = suite_group("while loading", NULL, NULL, 30);
        tcase_add_checked_fixture(loading, held_begin, held_end);
        tcase_add_test(loading, metrics_are_served_while_a_load_is_held);
        TCase *alone = suite_group("a daemon of its own", NULL, NULL, 30);
        tcase_add_test(alone, a_port_of_this_machine_is_served_and_told);
        tcase_add_test(alone, a_socket_left_behind_is_replaced_and_goes_with_the_daemon);
        tcase_add_test(alone, a_socket_goes_with_a_daemon_whose_reads_hang);
        return suite_run();
}
