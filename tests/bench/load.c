/* SPDX-License-Identifier: Apache-2.0
 *
 * One daemon and one load, timed by a client from the request to ready.
 */
#include "tests/bench/bench.h"
#include "tests/lib/kernel_counters.h"

#include <jansson.h>
#include <grp.h>

#define HUGE_PAGE (UINT64_C(2) << 20)

static void must_do(struct bench_daemon *bd, int r, const char *what)
{
        if (r)
                die("%s: %s: %s", what, streamer_strerror(r), streamer_last_error(bd->client));
}

/* ---- the daemon ---- */

/* Copies, because an aborted group loses its stack. */
static struct daemon running[3];
#define N_RUNNING (sizeof(running) / sizeof(running[0]))

static struct daemon *running_slot(pid_t pid)
{
        for (size_t i = 0; i < N_RUNNING; i++)
                if (running[i].pid == pid)
                        return &running[i];
        die("more than %zu daemons", N_RUNNING);
}

static json_t *ask_status(struct bench_daemon *bd)
{
        char *text = NULL;
        must_do(bd, streamer_call(bd->client, "status", NULL, &text), "status");
        json_t *status = json_loads(text, 0, NULL);
        free(text);
        return status;
}

static void ask_ring(struct bench_daemon *bd)
{
        json_t *status = ask_status(bd), *ring = json_object_get(status, "ring");
        const char *kind = json_string_value(json_object_get(ring, "page_kind"));
        bd->ring = (uint64_t)json_integer_value(json_object_get(ring, "bytes"));
        report_note("daemon with %s segments: ring of %llu MiB in %s pages", bd->pages,
                    (unsigned long long)(bd->ring / MIB), kind ? kind : "?");
        json_decref(status);
}

/* ---- prefaulted memory ---- */

#define SETTLED_NS (UINT64_C(2500) * 1000000) /* more than the pause after a load, and no growth */

static uint64_t of_device(struct bench_daemon *bd, const char *key)
{
        json_t *status = ask_status(bd), *device = json_array_get(json_object_get(status, "devices"), 0);
        uint64_t n = (uint64_t)json_integer_value(json_object_get(device, key));
        json_decref(status);
        return n;
}

struct await {
        struct bench_daemon *bd;
        uint64_t ready, since;
};

static bool is_ready(struct await *a)
{
        uint64_t ready = of_device(a->bd, "prefaulted"), now = clock_ns(), wanted = a->bd->largest;
        if (ready != a->ready)
                a->since = now;
        a->ready = ready;
        return (wanted > 0 && ready >= wanted / HUGE_PAGE * HUGE_PAGE) || now - a->since > SETTLED_NS;
}

/* No time is measured in it. */
void bench_await_ready(struct bench_daemon *bd)
{
        if (!bd->bench->pool || strcmp(bd->pages, "4k") == 0)
                return;
        uint64_t before = of_device(bd, "prefaulted"), cpu = process_cpu_ns(bd->d.pid);
        struct await a = {bd, before, clock_ns()};
        if (!WITHIN(120000, is_ready(&a)))
                die("memory is still being made ready: %llu bytes", (unsigned long long)a.ready);
        if (a.ready <= before)
                return;
        bd->fill_cpu_s += (double)(process_cpu_ns(bd->d.pid) - cpu) / 1e9;
        bd->fill_gib += (double)(a.ready - before) / (double)GIB;
}

double bench_fill_cpu(const struct bench_daemon *bd)
{
        return bd->fill_gib > 0 ? bd->fill_cpu_s / bd->fill_gib : 0;
}

static void report_prefaulted(const struct bench_daemon *bd)
{
        if (bd->least_ready != UINT64_MAX)
                report_note("the daemon with %s segments: %.2f GiB at the least were ready when a load began, of at "
                            "most %.2f GiB",
                            bd->pages, (double)bd->least_ready / (double)GIB, (double)bd->largest / (double)GIB);
}

/* ---- start and end ---- */

#define NOBODY 65534

/* Of the daemon that is started: its folder, and its user, which else is that of the bench. */
static char *daemon_folder;
static bool is_ordinary;

static void become_ordinary(void)
{
        if (!is_ordinary)
                return;
        must(chown(daemon_folder, NOBODY, NOBODY));
        must(setgroups(0, NULL));
        must(setresgid(NOBODY, NOBODY, NOBODY));
        must(setresuid(NOBODY, NOBODY, NOBODY));
}

void bench_daemon_start_budget(struct bench_daemon *bd, const struct bench *b, const char *budget, const char *pages,
                               const char *more)
{
        static unsigned started;
        char *config = format_text("%s/c-%u.yaml", b->folder, ++started);
        char *text = format_text("devices:\n  - device: host\n    budget: %s\n    pages: %s\n%s", budget, pages, more);

        *bd = (struct bench_daemon){.bench = b, .pages = pages, .began_ns = clock_ns(), .least_ready = UINT64_MAX};
        file_write(config, text, strlen(text));
        daemon_folder = format_text("%s/d-%u", b->folder, started);
        daemon_init(&bd->d, daemon_folder);
        daemon_before = become_ordinary;
        daemon_start(&bd->d, (const char *const[]){"--config", config, "--root", b->folder, NULL});
        *running_slot(0) = bd->d;
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = bd->d.socket};
        must_do(bd, streamer_connect(&opts, &bd->client), "connect");
        ask_ring(bd);
        bench_await_ready(bd);
        /* The time of the machine's host to provide untouched memory is not the daemon's. */
        bd->fill_cpu_s = bd->fill_gib = 0;
        free(text);
        free(config);
}

void bench_daemon_start(struct bench_daemon *bd, const struct bench *b, const char *pages, const char *more)
{
        bench_daemon_start_budget(bd, b, "16GiB", pages, more);
}

void bench_daemon_start_ordinary(struct bench_daemon *bd, const struct bench *b, const char *more)
{
        mode_t mask = umask(0); /* it should use the prefaulted memory */
        must(chmod(b->folder, 0755));
        is_ordinary = geteuid() == 0;
        bench_daemon_start(bd, b, "auto", more);
        is_ordinary = false;
        umask(mask);
}

void bench_daemon_stop(struct bench_daemon *bd)
{
        report_prefaulted(bd);
        streamer_close(bd->client);
        running_slot(bd->d.pid)->pid = 0;
        if (daemon_stop(&bd->d) != 0)
                die("the daemon exited with an error");
        folder_remove(bd->d.folder);
}

void bench_daemons_kill(void)
{
        for (size_t i = 0; i < N_RUNNING; i++)
                daemon_kill(&running[i]);
}

/* ---- loads ---- */

static uint64_t memory_now(const struct bench_daemon *bd)
{
        /* In this order: the ring may grow in between. */
        uint64_t ring = process_mapping_memory(bd->d.pid, bd->ring), all = process_memory(bd->d.pid);

        return all - ring;
}

/* Waits for the end of a load; with `peak`, looks at the daemon's memory every few milliseconds. */
static void wait_ready(struct bench_daemon *bd, streamer_op *op, uint64_t *peak)
{
        int r;
        do {
                r = streamer_op_wait(op, peak ? 5 : -1, NULL);
                uint64_t now = peak ? memory_now(bd) : 0;
                if (peak && now > *peak)
                        *peak = now;
        } while (r == STREAMER_ETIMEOUT);
        must_do(bd, r, "load");
}

static void load(struct bench_daemon *bd, const char *path, const char *name, uint64_t *peak)
{
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = path, .name = name};
        streamer_op *op;
        must_do(bd, streamer_load(bd->client, &opts, &op), "load");
        wait_ready(bd, op, peak);
        streamer_op_free(op);
}

void bench_load_resident(struct bench_daemon *bd, const char *path, const char *name)
{
        load(bd, path, name, NULL);
}

/* Freeing continues after the reply: the next run must not share the machine with it. */
void bench_unload(struct bench_daemon *bd, const char *name)
{
        must_do(bd, streamer_unload(bd->client, name, 0), "unload");
        if (!WITHIN(20000, of_device(bd, "used") == 0))
                die("the memory of an unloaded model was not freed");
}

void bench_touch(const struct bench_daemon *bd, uint64_t bytes)
{
        if (!bd->bench->pool || strcmp(bd->pages, "hugetlb") != 0)
                ceiling_touch(bytes);
}

static void ask_stages(struct bench_daemon *bd, struct load_figures *f)
{
        char *text = NULL;
        size_t used = 0;
        const char *key;
        json_t *ns;
        must_do(bd, streamer_call(bd->client, "show", "{\"model\":\"m\"}", &text), "show");
        json_t *reply = json_loads(text, 0, NULL);
        json_t *model = json_array_get(json_object_get(reply, "models"), 0);
        json_object_foreach(json_object_get(model, "stages"), key, ns)
        {
                if (used < sizeof(f->stages))
                        used += (size_t)snprintf(f->stages + used, sizeof(f->stages) - used, "%s%s %.1f ms",
                                                 used > 0 ? ", " : "", key, (double)json_integer_value(ns) / 1e6);
        }
        f->samples = (double)json_integer_value(json_object_get(json_object_get(model, "stages"), "spot_check_ns")) /
                     (double)json_integer_value(json_object_get(model, "load_ns"));
        json_decref(reply);
        free(text);
}

void bench_load(struct bench_daemon *bd, const char *path, const struct model *m, bool sample, struct load_figures *f)
{
        double gib = (double)m->bytes / (double)GIB;
        bench_await_ready(bd);
        uint64_t ready = of_device(bd, "prefaulted");
        bd->least_ready = ready < bd->least_ready ? ready : bd->least_ready;
        uint64_t cpu = process_cpu_ns(bd->d.pid), storage = process_read_bytes(bd->d.pid), begin = clock_ns();

        *f = (struct load_figures){0};
        load(bd, path, "m", sample ? &f->memory : NULL);
        f->seconds = (double)(clock_ns() - begin) / 1e9;
        f->gib_per_s = gib / f->seconds;
        f->cpu_s_per_gib = (double)(process_cpu_ns(bd->d.pid) - cpu) / 1e9 / gib;
        f->storage_ratio = (double)(process_read_bytes(bd->d.pid) - storage) / (double)m->bytes;
        ask_stages(bd, f);
        bench_unload(bd, "m");
        bd->largest = m->bytes > bd->largest ? m->bytes : bd->largest;
        bench_await_ready(bd);
}

const char *bench_file(const struct bench *b, const struct model *m, const char *name)
{
        const char *path = format_text("%s/%s.safetensors", b->folder, name);
        model_write(m, path);
        file_uncache(path);
        report_note("%s: %zu tensors, %.3f GiB, data at offset %llu, which is %llu modulo 512", path, m->n,
                    (double)m->bytes / (double)GIB, (unsigned long long)model_data_offset(m),
                    (unsigned long long)(model_data_offset(m) % 512));
        return path;
}
