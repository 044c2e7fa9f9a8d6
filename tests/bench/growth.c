/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of growth: what a request costs beside many models, leases and names, of what it costs beside one, in one run;
 * and what a small model and an idle daemon cost.
 */
#include "tests/bench/bench.h"

#include "tests/lib/kernel_counters.h"

#include <dirent.h>

#define MODELS 6000u
#define LEASES 30000u /* each has two mappings, of the 65,530 that a process may have */
#define CALLS 300u
#define IDLE_S 20u

#define LIMITS                                                                                                         \
        "limits: {leases_per_uid: 1000000, loads_per_uid: 4096, models_per_uid: 65536, leases_per_client: 1000000, "   \
        "fds_in_flight: 100000, fds_per_client: 10000}\nlog: {level: warn}\n"

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

static void row_leases(struct bench_daemon *bd, unsigned leases)
{
        double few = attach_us(bd);
        streamer_lease **held = must_alloc(leases * sizeof(*held));
        for (unsigned i = 0; i < leases; i++)
                if (streamer_attach(bd->client, "s00000", NULL, &held[i]))
                        die("attach: %s", streamer_last_error(bd->client));
        report_row(ROW_growth_attach_leases, attach_us(bd) / few, 0);
        for (unsigned i = 0; i < leases; i++) {
                streamer_detach(held[i]);
                if (i % 1000 == 0) /* waits for the answers of those before */
                        streamer_free(request(bd, "ping", "{}"));
        }
        free(held);
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
        row_leases(&bd, leases);
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
        uint64_t begin = clock_ns();
        streamer_free(request(&bd, "list", "{}"));
        report_row(ROW_growth_list, (double)(clock_ns() - begin) / 1e6, 0);
        bench_daemon_stop(&bd);
}
