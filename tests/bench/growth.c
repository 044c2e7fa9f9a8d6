/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of growth: what a request costs beside many models, leases and names, of what it costs beside one, in one run;
 * and what a small model and an idle daemon cost.
 */
#include "tests/bench/bench.h"

#include "tests/lib/kernel_counters.h"
#include "tests/lib/nginx.h"
#include "tests/lib/ports.h"
#include "tests/lib/service_manager.h"
#include "tests/lib/wire.h"

#include <dirent.h>

#define MODELS 6000u
#define NAMES 10000u /* of these models */
#define QUEUED 255u
#define BESIDE_QUEUED 1000u /* models */
#define WAITING 1000u       /* attaches that wait for these loads */
#define HOLDERS 1000u
#define LEASES 30000u /* each has two mappings, of the 65,530 that a process may have */
#define CALLS 300u
#define IDLE_S 20u

#define LIMITS                                                                                                         \
        "limits: {leases_per_uid: 1000000, loads_per_uid: 4096, models_per_uid: 65536, leases_per_client: 1000000, "   \
        "fds_in_flight: 100000, fds_per_client: 10000, loads: 1024, queued: 1024, connections: 4096, "                 \
        "connections_per_uid: 4096, requests_per_client: 4096}\nlog: {level: warn}\n"

/* ---- requests ---- */

static char *request(struct bench_daemon *bd, const char *verb, const char *args)
{
        char *reply = NULL;
        if (streamer_call(bd->client, verb, args, &reply))
                die("%s: %s", verb, streamer_last_error(bd->client));
        return reply;
}

/* The median time of a request, in microseconds. `args` may have a %u: the number of a model below `models`. */
static double request_us(struct bench_daemon *bd, const char *verb, const char *args, unsigned models)
{
        double us[CALLS];
        for (unsigned i = 0; i < CALLS; i++) {
                char text[256];
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
                snprintf(text, sizeof(text), args, i * 7919u % models);
#pragma GCC diagnostic pop
                uint64_t begin = clock_ns();
                streamer_free(request(bd, verb, text));
                us[i] = (double)(clock_ns() - begin) / 1000;
        }
        return median(us, CALLS);
}

/* Processor time of the event loop's thread. */
static double loop_us(const struct bench_daemon *bd)
{
        char path[PATH_SIZE];
        unsigned long long ns = 0;
        snprintf(path, sizeof(path), "/proc/%d/task/%d/schedstat", (int)bd->d.pid, (int)bd->d.pid);
        FILE *f = fopen(path, "r");
        if (f == NULL || fscanf(f, "%llu", &ns) != 1)
                die("%s cannot be read", path);
        fclose(f);
        return (double)ns / 1000;
}

/* ---- small models ---- */

static const char *small_model(const struct bench *b)
{
        struct model *m = model_new(9);
        model_add_many(m, "w", 1, 1024);
        const char *path = bench_file(b, m, "small");
        model_free(m);
        return path;
}

/* Each is a file of its own, since the same file would be one model of several names. */
static char *numbered(const struct bench *b, unsigned i)
{
        return format_text("%s/s%05u.safetensors", b->folder, i);
}

/* The processor time that the loads take. Their files are on the disk before: the daemon would write each back. */
static uint64_t load_small(struct bench_daemon *bd, const char *path, unsigned from, unsigned to)
{
        size_t size;
        char *bytes = file_read(path, &size);
        for (unsigned i = from; i < to; i++) {
                cleanup_free char *file = numbered(bd->bench, i);
                file_write(file, bytes, size);
        }
        free(bytes);
        sync();
        uint64_t before = process_cpu_ns(bd->d.pid);
        for (unsigned i = from; i < to; i++) {
                cleanup_free char *file = numbered(bd->bench, i);
                char name[32];
                snprintf(name, sizeof(name), "s%05u", i);
                bench_load_resident(bd, file, name);
        }
        return process_cpu_ns(bd->d.pid) - before;
}

struct costs {
        double pin, show, status, metrics, attach, load_loop;
};

static double attach_us(struct bench_daemon *bd)
{
        double us[CALLS];
        for (unsigned i = 0; i < CALLS; i++) {
                streamer_lease *lease;
                uint64_t begin = clock_ns();
                if (streamer_attach(bd->client, "s00000", NULL, &lease))
                        die("attach: %s", streamer_last_error(bd->client));
                us[i] = (double)(clock_ns() - begin) / 1000;
                streamer_detach(lease);
        }
        return median(us, CALLS);
}

/* Beside this many models; loads a few more. */
static struct costs costs_beside(struct bench_daemon *bd, const char *path, unsigned models)
{
        enum { MORE = 50 };
        struct costs c = {.pin = request_us(bd, "pin", "{\"model\": \"s%05u\"}", models),
                          .show = request_us(bd, "show", "{\"model\": \"s%05u\"}", models),
                          .status = request_us(bd, "status", "{}", models),
                          .metrics = request_us(bd, "metrics", "{}", models),
                          .attach = attach_us(bd)};
        for (unsigned i = 0; i < models; i++) {
                char args[64];
                snprintf(args, sizeof(args), "{\"model\": \"s%05u\"}", i);
                streamer_free(request(bd, "unpin", args));
        }
        double before = loop_us(bd);
        load_small(bd, path, MODELS + models, MODELS + models + MORE);
        c.load_loop = (loop_us(bd) - before) / MORE;
        return c;
}

static void row_small(const struct bench *b, const char *path)
{
        struct bench_daemon bd;
        bench_daemon_start(&bd, b, "auto", LIMITS);
        enum { LOADS = 200 };
        load_small(&bd, path, 0, 1); /* what a first load makes */
        unsigned fds = process_fds(bd.d.pid);
        uint64_t memory = process_own_memory(bd.d.pid, bd.ring);
        uint64_t cpu = load_small(&bd, path, 1, LOADS + 1);
        report_row(ROW_small_load_cpu, (double)cpu / 1000 / LOADS, 0);
        report_row(ROW_small_model_memory,
                   ((double)process_own_memory(bd.d.pid, bd.ring) - (double)memory) / 1024 / LOADS, 0);
        report_row(ROW_small_model_descriptors, (double)(process_fds(bd.d.pid) - fds) / LOADS, 0);
        bench_daemon_stop(&bd);
}

/* ---- leases ---- */

/* Attaching beside so many leases, of the same beside one; `beside` may be measured there. */
static double attach_beside(struct bench_daemon *bd, unsigned leases, void (*beside)(struct bench_daemon *, unsigned))
{
        double few = attach_us(bd);
        streamer_lease **held = must_alloc(leases * sizeof(*held));
        for (unsigned i = 0; i < leases; i++)
                if (streamer_attach(bd->client, "s00000", NULL, &held[i]))
                        die("attach: %s", streamer_last_error(bd->client));
        double ratio = attach_us(bd) / few;
        if (beside != NULL)
                beside(bd, leases);
        for (unsigned i = 0; i < leases; i++) {
                streamer_detach(held[i]);
                if (i % 1000 == 0) /* waits for the answers of those before */
                        streamer_free(request(bd, "ping", "{}"));
        }
        free(held);
        return ratio;
}

static void row_ps(struct bench_daemon *bd, unsigned leases)
{
        double us[5];
        for (unsigned i = 0; i < 5; i++) {
                uint64_t begin = clock_ns();
                streamer_free(request(bd, "ps", "{}"));
                us[i] = (double)(clock_ns() - begin) / 1000 / leases;
        }
        report_row(ROW_growth_ps_lease, median(us, 5), 0);
}

/* ---- what is written at each change ---- */

/* The median time of pinning or unpinning one of the models: each call is a change. */
static double change_us(struct bench_daemon *bd, unsigned models)
{
        double us[CALLS];
        for (unsigned i = 0; i < CALLS; i++) {
                char args[64];
                snprintf(args, sizeof(args), "{\"model\": \"s%05u\"}", i / 2 * 7919u % models);
                uint64_t begin = clock_ns();
                streamer_free(request(bd, i % 2 == 0 ? "pin" : "unpin", args));
                us[i] = (double)(clock_ns() - begin) / 1000;
        }
        return median(us, CALLS);
}

static void row_state_file(const struct bench *b, const char *path, unsigned models)
{
        struct bench_daemon bd;
        cleanup_free char *folder = format_text("%s/state", b->folder);
        cleanup_free char *more = format_text("state: %s\n" LIMITS, folder);
        must(mkdir(folder, 0700));
        must(chmod(folder, 0777)); /* for the user that the daemon runs as */
        bench_daemon_start(&bd, b, "4k", more);
        load_small(&bd, path, 0, 1);
        double one = change_us(&bd, 1);
        load_small(&bd, path, 1, models);
        report_row(ROW_growth_pin_state, change_us(&bd, models) / one, 0);
        bench_daemon_stop(&bd);
}

/* As many models as the fake manager stores. */
static void row_fd_store(const struct bench *b, const char *path, unsigned leases)
{
        enum { STORED = MANAGER_FDS / 2 - 6 };
        static struct manager m;
        static const char config[] = "devices: [{device: host, budget: 64MiB, pages: 4k}]\n" LIMITS;
        cleanup_free char *file = format_text("%s/stored.yaml", b->folder);
        file_write(file, config, strlen(config));
        manager_init(&m, format_text("%s/d-stored", b->folder), MANAGER_FDS,
                     (const char *const[]){"--config", file, "--root", b->folder, NULL});
        manager_start(&m);
        struct bench_daemon bd = {.bench = b, .d = m.d};
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = bd.d.socket};
        if (streamer_connect(&opts, &bd.client))
                die("the daemon with a store cannot be connected to");
        load_small(&bd, path, 0, 1);
        manager_wait(&m, "sd-m", 2);
        double one = change_us(&bd, 1);
        report_row(ROW_growth_attach_stored, attach_beside(&bd, leases, NULL), 0);
        load_small(&bd, path, 1, STORED);
        manager_wait(&m, "sd-m", 2 * STORED);
        report_row(ROW_growth_pin_stored, change_us(&bd, STORED) / one, 0);
        streamer_close(bd.client);
        manager_deinit(&m);
}

/* ---- names ---- */

/* A page is the event loop's time for it: the library reads one while the next is made. */
static void row_names(struct bench_daemon *bd, unsigned models, unsigned names)
{
        enum { PAGE = 128 };
        cleanup_free char *path = numbered(bd->bench, 0);
        for (unsigned i = models; i < names; i++) {
                char name[32];
                snprintf(name, sizeof(name), "a%08x", i * 2654435761u); /* in no order */
                bench_load_resident(bd, path, name);
        }
        double ms[5], loop[5];
        for (unsigned i = 0; i < 5; i++) {
                double before = loop_us(bd);
                uint64_t begin = clock_ns();
                streamer_free(request(bd, "list", "{}"));
                ms[i] = (double)(clock_ns() - begin) / 1e6;
                loop[i] = loop_us(bd) - before;
        }
        report_row(ROW_growth_list, median(ms, 5), 0);
        report_row(ROW_growth_list_page, median(loop, 5) / ((names + PAGE - 1) / PAGE), 0);
}

/* ---- loads that wait for memory ---- */

static unsigned count_queued(struct bench_daemon *bd)
{
        unsigned n = 0;
        char *status = request(bd, "status", "{}");
        for (const char *at = status; (at = strstr(at, "\"waiting_ns\":")) != NULL; at++)
                n++;
        streamer_free(status);
        return n;
}

static streamer_op *begin_load(struct bench_daemon *bd, const char *source, const char *name, unsigned flags)
{
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = source, .name = name, .flags = flags};
        streamer_op *op;
        if (streamer_load(bd->client, &opts, &op))
                die("load: %s", streamer_last_error(bd->client));
        return op;
}

/* Of other models than those that are pinned: a pin is a change. */
static void row_waiting(struct bench_daemon *bd, unsigned models)
{
        enum { ROUNDS = 3 };
        struct wire w;
        double loop[2];
        wire_connect(&w, &bd->d);
        for (unsigned many = 0; many < 2; many++) {
                for (unsigned i = 0; many && i < WAITING; i++) {
                        cleanup_free char *name = format_text("queued-%u", i % QUEUED);
                        const struct request attach = {.verb = VERB_attach, .id = i + 1, .u.attach = {.model = name}};
                        if (!wire_request(&w, &attach))
                                die("the connection was lost");
                }
                wire_verb(&w, "ping", WAITING + 1, NULL, NULL);
                wire_reply_ok(&w);
                double before = loop_us(bd);
                for (unsigned i = 0; i < ROUNDS; i++)
                        request_us(bd, "pin", "{\"model\": \"s%05u\"}", models);
                loop[many] = loop_us(bd) - before;
        }
        report_note("the event loop takes %.1f us for a pin beside %u attaches that wait, %.1f beside none",
                    loop[1] / ROUNDS / CALLS, WAITING, loop[0] / ROUNDS / CALLS);
        report_row(ROW_growth_pin_waiting, loop[1] / loop[0], 0);
        wire_close(&w);
}

/* Nothing is evicted for them: what is resident is pinned. */
static void row_queued(const struct bench *b, const char *path)
{
        unsigned models = (unsigned)(BESIDE_QUEUED / b->shrink) + 1;
        struct bench_daemon bd;
        struct model *large = model_new(31);
        size_t header_size;
        bench_daemon_start_budget(&bd, b, "63540KiB", "4k", LIMITS); /* one large model fits, alone */
        load_small(&bd, path, 0, models);
        for (unsigned i = 0; i < models; i++) {
                char args[64];
                snprintf(args, sizeof(args), "{\"model\": \"s%05u\"}", i);
                streamer_free(request(&bd, "pin", args));
        }
        model_add_many(large, "w", 1, 62 * MIB - 65536); /* with what precedes it in its page */
        char *header = model_header(large, &header_size);
        for (unsigned i = 0; i < QUEUED; i++) {
                cleanup_free char *file = format_text("%s/queued-%u.safetensors", b->folder, i);
                char name[32];
                snprintf(name, sizeof(name), "queued-%u", i);
                model_write_raw(file, header, header_size, 0);
                must(truncate(file, (off_t)(model_data_offset(large) + large->bytes))); /* a hole */
                streamer_op_free(begin_load(&bd, file, name, STREAMER_LOAD_WAIT));
        }
        if (!WITHIN(60000, count_queued(&bd) == QUEUED))
                die("the loads do not wait for memory");
        report_row(ROW_growth_queued_pin, request_us(&bd, "pin", "{\"model\": \"s%05u\"}", models), 0);
        sleep(5); /* after which the loop has nothing to look at: the budget alone blocks them */
        double before = loop_us(&bd);
        sleep(IDLE_S);
        report_row(ROW_growth_queued_idle_loop, (loop_us(&bd) - before) / 1000 / IDLE_S, 0);
        row_waiting(&bd, models);
        free(header);
        model_free(large);
        bench_daemon_stop(&bd);
}

/* ---- leases of a model that is being loaded ---- */

/* One of each connection, which reads its events ten times a second. The rate is limited so that the load takes some
 * seconds. */
static void row_holders(const struct bench *b)
{
        enum { TENSORS = 100000, RATE = 2 << 20 }; /* bytes a second of a connection, of which a load has 16 */
        unsigned holders = (unsigned)(HOLDERS / b->shrink) + 1;
        struct nginx web = {.http = free_port()};
        struct model *m = model_new(37);
        struct bench_daemon bd;
        double share[2];
        if (nginx_unavailable() != NULL)
                die("%s", nginx_unavailable());
        nginx_start_with(&web, format_text("%s/nginx-growth", b->folder),
                         format_text("server { listen 127.0.0.1:%u; location / { alias %s/; limit_rate %d; } }\n",
                                     web.http, b->folder, (int)RATE),
                         web.http);
        model_add_many(m, "w", TENSORS, 1024);
        bench_file(b, m, "held");
        bench_daemon_start(&bd, b, "4k", LIMITS);
        cleanup_free char *url = format_text("http://127.0.0.1:%u/held.safetensors", web.http);
        for (unsigned many = 0; many < 2; many++) {
                unsigned n = many ? holders : 0;
                streamer_client **clients = must_alloc((n + 1) * sizeof(streamer_client *));
                streamer_lease **leases = must_alloc((n + 1) * sizeof(streamer_lease *));
                streamer_connect_opts to = {.struct_size = sizeof(to), .socket = bd.d.socket};
                streamer_progress progress = STREAMER_PROGRESS_INIT;
                for (unsigned i = 0; i < n; i++)
                        if (streamer_connect(&to, &clients[i]))
                                die("connect: %u", i);
                streamer_op *op = begin_load(&bd, url, "held", 0);
                for (unsigned i = 0; i < n; i++)
                        if (streamer_attach(clients[i], "held", NULL, &leases[i]))
                                die("attach: %s", streamer_last_error(clients[i]));
                double before = loop_us(&bd);
                uint64_t begin = clock_ns();
                while (streamer_op_wait(op, 100, &progress) == STREAMER_ETIMEOUT)
                        for (unsigned i = 0; i < n; i++)
                                streamer_process(clients[i]);
                share[many] = (loop_us(&bd) - before) * 1e5 / (double)(clock_ns() - begin);
                streamer_op_free(op);
                for (unsigned i = 0; i < n; i++) {
                        streamer_detach(leases[i]);
                        streamer_close(clients[i]);
                }
                free(clients);
                free(leases);
                bench_unload(&bd, "held");
        }
        report_note("the event loop has %.2f %% of a processor with %u holders, %.2f %% without", share[1], holders,
                    share[0]);
        report_row(ROW_growth_holders, share[1] - share[0], 0);
        model_free(m);
        bench_daemon_stop(&bd);
        nginx_stop(&web);
}

/* ---- an idle daemon ---- */

static uint64_t wake_ups(pid_t pid)
{
        char path[PATH_SIZE], line[256];
        uint64_t all = 0;
        snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
        DIR *tasks = opendir(path);
        for (const struct dirent *e; tasks != NULL && (e = readdir(tasks)) != NULL;) {
                unsigned long long n;
                snprintf(path, sizeof(path), "/proc/%d/task/%s/status", (int)pid, e->d_name);
                FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
                while (f != NULL && fgets(line, sizeof(line), f) != NULL)
                        if (sscanf(line, "voluntary_ctxt_switches: %llu", &n) == 1)
                                all += n;
                if (f != NULL)
                        fclose(f);
        }
        if (tasks != NULL)
                closedir(tasks);
        return all;
}

static void row_idle(const struct bench *b)
{
        struct bench_daemon bd;
        bench_daemon_start(&bd, b, "4k", "");
        sleep(10); /* until the last lines of its start need not be counted any more */
        uint64_t before = wake_ups(bd.d.pid);
        sleep(IDLE_S);
        report_row(ROW_idle_wake_ups, (double)(wake_ups(bd.d.pid) - before) / IDLE_S, 0);
        report_row(ROW_idle_memory, (double)process_memory(bd.d.pid) / (double)MIB, 0);
        bench_daemon_stop(&bd);
}

void rows_growth(const struct bench *b)
{
        unsigned models = (unsigned)(MODELS / b->shrink) + 1, leases = (unsigned)(LEASES / b->shrink) + 1;
        struct bench_daemon bd;
        const char *path = small_model(b);
        row_idle(b);
        row_small(b, path);
        bench_daemon_start(&bd, b, "auto", LIMITS);
        load_small(&bd, path, 0, 1);
        struct costs one = costs_beside(&bd, path, 1);
        report_row(ROW_growth_attach_leases, attach_beside(&bd, leases, row_ps), 0);
        load_small(&bd, path, 1, models);
        struct costs many = costs_beside(&bd, path, models);
        report_row(ROW_growth_pin, many.pin / one.pin, 0);
        report_row(ROW_growth_show, many.show / one.show, 0);
        report_row(ROW_growth_status, many.status / one.status, 0);
        report_row(ROW_growth_metrics, many.metrics / one.metrics, 0);
        report_row(ROW_growth_attach_models, many.attach / one.attach, 0);
        report_row(ROW_growth_load, many.load_loop / one.load_loop, 0);
        double loop = loop_us(&bd);
        sleep(IDLE_S);
        report_row(ROW_growth_idle_loop, (loop_us(&bd) - loop) / 1000 / IDLE_S, 0);
        row_names(&bd, models, (unsigned)(NAMES / b->shrink) + 1);
        bench_daemon_stop(&bd);
        row_state_file(b, path, models);
        row_fd_store(b, path, leases);
        row_queued(b, path);
        row_holders(b);
}
