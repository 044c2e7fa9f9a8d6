/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads over the network, from nginx on loopback. The ceiling is the best of 1, 2, 4, 8 and 16 curl processes that
 * each fetch a range and discard it: server and client share the processors in both cases, and the daemon also hashes
 * and stores.
 */
#include "tests/bench/bench.h"
#include "tests/lib/nginx.h"
#include "tests/lib/proxy.h"
#include "tests/lib/kernel_counters.h"

#include <fcntl.h>
#include <sys/resource.h>

#define CURLS_MAX (1u << (CURL_STEPS - 1))
#define LATENCY_MS 200
#define LATE_MS 2000
#define CONCURRENCY 16
#define REQUEST_MAX (128u << 20) /* the default of http.request_max */

/* ---- curl ---- */

static pid_t curl_start(const char *url, const char *ca, uint64_t from, uint64_t to)
{
        const char *range = format_text("%llu-%llu", (unsigned long long)from, (unsigned long long)to);
        pid_t pid = must(fork());
        if (pid > 0)
                return pid;
        if (ca)
                execlp("curl", "curl", "-s", "-f", "-o", "/dev/null", "-r", range, "--cacert", ca, url, (char *)NULL);
        else
                execlp("curl", "curl", "-s", "-f", "-o", "/dev/null", "-r", range, url, (char *)NULL);
        _exit(127);
}

static double seconds_of(struct timeval t)
{
        return (double)t.tv_sec + (double)t.tv_usec / 1e6;
}

/* GiB/s of n curls together; what they cost. */
static double curls(const char *url, const char *ca, uint64_t size, unsigned n, double *cpu_s_per_gib)
{
        pid_t pids[CURLS_MAX];
        uint64_t share = size / n, begin = clock_ns();
        double cpu = 0, gib = (double)size / (double)GIB;
        for (unsigned i = 0; i < n; i++)
                pids[i] = curl_start(url, ca, i * share, i + 1 < n ? (i + 1) * share - 1 : size - 1);
        for (unsigned i = 0; i < n; i++) {
                struct rusage used;
                int status;
                must(wait4(pids[i], &status, 0, &used));
                if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
                        die("curl: status %d (%s)", WEXITSTATUS(status), url);
                cpu += seconds_of(used.ru_utime) + seconds_of(used.ru_stime);
        }
        *cpu_s_per_gib = cpu / gib;
        return gib / ((double)(clock_ns() - begin) / 1e9);
}

void curls_round(struct curls *c)
{
        for (unsigned i = 0; i < CURL_STEPS; i++)
                c->gib_per_s[i][c->rounds] = curls(c->url, c->ca, c->size, 1U << i, &c->cpu_s_per_gib[i][c->rounds]);
        c->rounds++;
}

/* The number with the highest median of all rounds but that one. */
static unsigned best_without(const struct curls *c, unsigned round)
{
        double others[ROUNDS_MAX], best = 0;
        unsigned step = 0;
        for (unsigned i = 0; i < CURL_STEPS; i++) {
                unsigned n = 0;
                for (unsigned r = 0; r < c->rounds; r++)
                        if (r != round || c->rounds == 1)
                                others[n++] = c->gib_per_s[i][r];
                if (median(others, n) > best) {
                        best = median(others, n);
                        step = i;
                }
        }
        return step;
}

struct curl_ceiling curls_best(const struct curls *c)
{
        double gib_per_s[ROUNDS_MAX], cpu[ROUNDS_MAX];
        unsigned of_all = best_without(c, c->rounds);
        for (unsigned r = 0; r < c->rounds; r++) {
                unsigned step = best_without(c, r);
                gib_per_s[r] = c->gib_per_s[step][r];
                cpu[r] = c->cpu_s_per_gib[step][r];
        }
        struct curl_ceiling best = {median(gib_per_s, c->rounds), median(cpu, c->rounds)};
        report_note("ceiling: %.2f GiB/s, %.3f CPU-s/GiB; %u curls have the highest median of all rounds, %.2f GiB/s",
                    best.gib_per_s, best.cpu_s_per_gib, 1U << of_all, median(c->gib_per_s[of_all], c->rounds));
        return best;
}

unsigned curls_rounds(const struct bench *b)
{
        return 2 * b->rounds < ROUNDS_MAX ? 2 * b->rounds : ROUNDS_MAX;
}

char *curls_reported(const struct curls *c)
{
        const double(*r)[ROUNDS_MAX] = c->gib_per_s;
        unsigned last = c->rounds - 1;

        return format_text("%.2f %.2f %.2f %.2f %.2f", r[0][last], r[1][last], r[2][last], r[3][last], r[4][last]);
}

/* ---- rates ---- */

struct network {
        const struct bench *bench;
        struct nginx web;
        struct bench_daemon daemon;
        struct model *model;
        const char *path;
        struct held_file held; /* the server's file is cached for all of them */
        uint64_t size;
};

/* In a separate load, because each sample costs 1.5 ms of processor time. */
static double memory_of(struct network *n, const char *url)
{
        struct load_figures f;
        bench_touch(&n->daemon, n->model->bytes);
        bench_load(&n->daemon, url, n->model, true, &f);
        return (double)f.memory / (double)MIB;
}

static void row_rate(struct network *n, enum row row, const char *url, const char *ca)
{
        struct curls c = {.url = url, .ca = ca, .size = n->size};
        struct load_figures f;
        double rates[ROUNDS_MAX], cpu[ROUNDS_MAX];
        unsigned rounds = curls_rounds(n->bench);
        report_note("network ceiling: 1, 2, 4, 8 and 16 of: curl -s -f -o /dev/null -r FROM-TO%s%s %s",
                    ca ? " --cacert " : "", ca ? ca : "", url);
        for (unsigned i = 0; i < rounds; i++) {
                curls_round(&c);
                report_note("round %u: curls %s GiB/s", i + 1, curls_reported(&c));
                bench_touch(&n->daemon, n->model->bytes);
                bench_load(&n->daemon, url, n->model, false, &f);
                rates[i] = f.gib_per_s;
                cpu[i] = f.cpu_s_per_gib;
                report_note("round %u: load %.2f GiB/s (%.3f CPU-s/GiB)", i + 1, f.gib_per_s, f.cpu_s_per_gib);
        }
        struct curl_ceiling best = curls_best(&c);
        report_row(row, median(rates, rounds) / best.gib_per_s, best.gib_per_s);
        if (row == ROW_http_vs_curl)
                report_row(ROW_http_cpu_beyond_curl, median(cpu, rounds) - best.cpu_s_per_gib, 0);
}

static void row_memory(struct network *n, const char *http, const char *https)
{
        double plain = memory_of(n, http), tls = memory_of(n, https);
        report_note("beside the ring: %.1f MiB by http, %.1f MiB by https", plain, tls);
        report_row(ROW_http_memory, plain > tls ? plain : tls, 0);
}

/* ---- behind a proxy ---- */

static double seconds_through(struct network *n, struct proxy *p, const struct proxy_rule *rule)
{
        struct load_figures f;
        proxy_clear(p);
        if (rule)
                proxy_rule(p, rule);
        bench_touch(&n->daemon, n->model->bytes);
        bench_load(&n->daemon, proxy_url(p, strrchr(n->path, '/')), n->model, false, &f);
        return f.seconds;
}

/* Blocks of which one request asks: no more than its even part of the model. */
static unsigned blocks_a_request(const struct network *n)
{
        uint64_t even = n->size / BLOCK / CONCURRENCY, most = REQUEST_MAX / BLOCK;
        return even == 0 ? 1 : (unsigned)(even < most ? even : most);
}

/* One after another in each round, and compared within it, because the machine's speed changes by the minute. */
static void rows_behind_proxy(struct network *n)
{
        const struct proxy_rule latency = {.fault = PROXY_LATENCY, .what = PROXY_ALL, .ms = LATENCY_MS},
                                resets = {.fault = PROXY_RESET, .every = 50 / blocks_a_request(n), .bytes = 1 << 20},
                                one_late = {.fault = PROXY_LATENCY, .every = 100 / blocks_a_request(n), .ms = LATE_MS};
        struct proxy p;
        double gib = (double)n->model->bytes / (double)GIB;
        double in_flight = (double)CONCURRENCY * (double)BLOCK / (double)GIB / (LATENCY_MS / 1e3);
        double ceilings[ROUNDS_MAX], shares[ROUNDS_MAX], times[ROUNDS_MAX], beyond[ROUNDS_MAX];
        proxy_start(&p, n->web.http);
        for (unsigned i = 0; i < n->bench->rounds; i++) {
                double plain = seconds_through(n, &p, NULL), late = seconds_through(n, &p, &latency),
                       failing = seconds_through(n, &p, &resets), delayed = seconds_through(n, &p, &one_late);
                ceilings[i] = in_flight < gib / plain ? in_flight : gib / plain;
                shares[i] = gib / late / ceilings[i];
                times[i] = failing / plain;
                beyond[i] = delayed - plain;
                report_note("round %u, behind a proxy: %.2f s, with %d ms latency %.2f s, with one range in 50 reset "
                            "%.2f s, with one in 100 delayed by 2 s %.2f s",
                            i + 1, plain, LATENCY_MS, late, failing, delayed);
        }
        report_row(ROW_latency_200ms, median(shares, n->bench->rounds), median(ceilings, n->bench->rounds));
        report_row(ROW_one_range_in_50_fails, median(times, n->bench->rounds), 0);
        report_row(ROW_one_range_in_100_late, median(beyond, n->bench->rounds), 0);
        proxy_stop(&p);
}

void rows_network(const struct bench *b)
{
        struct network n = {.bench = b, .model = model_new(9)};
        if (nginx_unavailable() != NULL)
                die("%s", nginx_unavailable());
        model_add_many(n.model, "model.layers.weight", 300, 2 * GIB / b->shrink / 300);
        n.path = bench_file(b, n.model, "network");
        n.size = file_size(n.path);
        file_map_cached(&n.held, n.path);
        nginx_start(&n.web, format_text("%s/nginx", b->folder), b->folder);
        const char *pages = b->hugetlb ? "hugetlb" : "auto", *trust = format_text("http: {ca: %s}\n", n.web.ca);
        bench_daemon_start(&n.daemon, b, pages, trust);
        const char *http = format_text("http://127.0.0.1:%u/network.safetensors", n.web.http),
                   *https = format_text("https://localhost:%u/network.safetensors", n.web.https);
        row_rate(&n, ROW_http_vs_curl, http, NULL);
        row_rate(&n, ROW_https_vs_curl, https, n.web.ca);
        row_memory(&n, http, https);
        rows_behind_proxy(&n);
        bench_daemon_stop(&n.daemon);
        nginx_stop(&n.web);
        file_release(&n.held);
        unlink(n.path);
        model_free(n.model);
}

int delay_proxy(unsigned upstream, unsigned ms)
{
        struct proxy proxy;
        char byte;
        proxy_start(&proxy, upstream);
        proxy_rule(&proxy, &(struct proxy_rule){.fault = PROXY_LATENCY, .what = PROXY_ALL, .ms = ms});
        printf("%u\n", proxy.port);
        fflush(stdout);
        while (read(STDIN_FILENO, &byte, 1) > 0)
                ;
        proxy_stop(&proxy);
        return 0;
}
