/* SPDX-License-Identifier: Apache-2.0
 *
 * One daemon and one load, timed as a client sees it: from the request to ready.
 */
#include "tests/bench/bench.h"
#include "tests/lib/storage.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define HUGE_PAGE (UINT64_C(2) << 20)
#define MS UINT64_C(1000000)

static void must_do(struct bench_daemon *bd, int r, const char *what)
{
        if (r)
                die("%s: %s: %s", what, streamer_strerror(r), streamer_last_error(bd->client));
}

/* ---- the daemon ---- */

/* Copies: when a group is given up, what stood on its stack is gone. */
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

static struct longest_stalls longest;

static double note_longest(double *most, double ms)
{
        *most = ms > *most ? ms : *most;
        return ms;
}

static double ms_of(const json_t *o, const char *key)
{
        return (double)json_integer_value(json_object_get(o, key)) / 1e6;
}

/* What is left of a turn without what nothing in this machine could have done about. */
static double rest_of(const struct bench_daemon *bd, const json_t *turn)
{
        uint64_t at = (uint64_t)json_integer_value(json_object_get(turn, "at_ns")),
                 ns = (uint64_t)json_integer_value(json_object_get(turn, "ns"));
        unsigned cpu = (unsigned)json_integer_value(json_object_get(turn, "cpu"));
        double stopped = (double)sentries_stopped_ns(cpu, at, at + ns) / 1e6;
        double still = ms_of(turn, "ns") - ms_of(turn, "ran_ns"); /* what it ran, it did itself */

        report_note(
                "a turn of %.1f ms, %.1f s after the start: ran for %.1f ms, ready for %.1f ms; its processor stood "
                "still for %.1f ms",
                ms_of(turn, "ns"), (double)(at - bd->began_ns) / 1e9, ms_of(turn, "ran_ns"),
                ms_of(turn, "ns") - ms_of(turn, "own_ns"), stopped);
        return (double)ns / 1e6 - (stopped < still ? stopped : still);
}

/* The longest alone is a matter of luck: how many there were tells more. */
static unsigned long long turns_from(const json_t *loop, uint64_t ns)
{
        json_int_t n = 0;
        uint64_t from = 0;
        size_t i;
        json_t *row;

        json_array_foreach(json_object_get(loop, "histogram"), i, row)
        {
                if (from >= ns)
                        n += json_integer_value(json_object_get(row, "turns"));
                from = (uint64_t)json_integer_value(json_object_get(row, "below_ns"));
        }
        return (unsigned long long)n;
}

/* `status` tells of the longest turns of 10 ms and more, and of no others: each of them is shorter than 10 ms where
 * all of 10 ms are told of, else no longer than the shortest that is. */
static double note_rests(const struct bench_daemon *bd, const json_t *loop)
{
        const json_t *told = json_object_get(loop, "longest"), *turn;
        bool all = turns_from(loop, 10 * MS) == json_array_size(told);
        double rest = 0, other = ms_of(loop, "longest_ns");
        size_t i;

        json_array_foreach(told, i, turn)
        {
                note_longest(&rest, rest_of(bd, turn));
                other = all ? 10 : ms_of(turn, "ns");
        }
        return note_longest(&longest.rest, rest > other ? rest : other);
}

static void ask_stall(struct bench_daemon *bd)
{
        json_t *status = ask_status(bd), *loop = json_object_get(status, "loop");

        double ms = note_longest(&longest.ms, ms_of(loop, "longest_ns"));
        double own = note_longest(&longest.own, ms_of(loop, "longest_own_ns"));
        double rest = note_rests(bd, loop);
        report_note("the loop of the daemon with %s segments%s: longest stall %.1f ms, its own %.1f ms, less what its "
                    "processor stood still for %.1f ms; of 10 ms and more %llu, of 50 ms and more %llu, of %llu turns",
                    bd->pages, bd->fresh ? ", spare: 0" : "", ms, own, rest, turns_from(loop, 10 * MS),
                    turns_from(loop, 50 * MS), turns_from(loop, 0));
        json_decref(status);
}

struct longest_stalls bench_longest_stalls(void)
{
        return longest;
}

/* ---- memory that is made ready ---- */

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

static bool is_ready(void *arg)
{
        struct await *a = arg;
        uint64_t ready = of_device(a->bd, "spare"), now = clock_ns(), wanted = a->bd->largest;

        if (ready != a->ready)
                a->since = now;
        a->ready = ready;
        return (wanted > 0 && ready >= wanted / HUGE_PAGE * HUGE_PAGE) || now - a->since > SETTLED_NS;
}

/* Nothing is timed meanwhile. */
void bench_await_ready(struct bench_daemon *bd)
{
        if (bd->fresh || !bd->bench->pool || strcmp(bd->pages, "4k") == 0)
                return;
        uint64_t before = of_device(bd, "spare"), cpu = process_cpu_ns(bd->d.pid);
        struct await a = {bd, before, clock_ns()};
        if (!eventually(is_ready, &a, 120000))
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

static void tell_ready(const struct bench_daemon *bd)
{
        if (bd->least_ready != UINT64_MAX)
                report_note("the daemon with %s segments%s: %.2f GiB at the least were ready when a load began, of at "
                            "most %.2f GiB",
                            bd->pages, bd->fresh ? ", spare: 0" : "", (double)bd->least_ready / (double)GIB,
                            (double)bd->largest / (double)GIB);
}

/* ---- start and end ---- */

static void start(struct bench_daemon *bd, const struct bench *b, const char *pages, bool fresh, const char *more)
{
        const char *kind = fresh ? "-fresh" : "";
        char *folder = format_text("%s/d-%s%s", b->folder, pages, kind),
             *config = format_text("%s/c-%s%s.yaml", b->folder, pages, kind);
        char *text = format_text("devices:\n  - device: host\n    budget: 16GiB\n    pages: %s\n%s%s", pages,
                                 fresh ? "    spare: 0\n" : "", more);

        *bd = (struct bench_daemon){
                .bench = b, .pages = pages, .began_ns = clock_ns(), .fresh = fresh, .least_ready = UINT64_MAX};
        file_write(config, text, strlen(text));
        daemon_init(&bd->d, folder);
        daemon_start(&bd->d, (const char *const[]){"--config", config, "--root", b->folder, NULL});
        *running_slot(0) = bd->d;
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = bd->d.socket};
        must_do(bd, streamer_connect(&opts, &bd->client), "connect");
        ask_ring(bd);
        bench_await_ready(bd);
        /* What the machine's host takes to find memory that nobody has touched is no daemon's. */
        bd->fill_cpu_s = bd->fill_gib = 0;
        free(text);
        free(config);
        free(folder);
}

void bench_daemon_start(struct bench_daemon *bd, const struct bench *b, const char *pages, const char *more)
{
        start(bd, b, pages, false, more);
}

void bench_daemon_start_fresh(struct bench_daemon *bd, const struct bench *b, const char *pages, const char *more)
{
        start(bd, b, pages, true, more);
}

void bench_daemon_stop(struct bench_daemon *bd)
{
        ask_stall(bd);
        tell_ready(bd);
        streamer_close(bd->client);
        running_slot(bd->d.pid)->pid = 0;
        if (daemon_stop(&bd->d) != 0)
                die("the daemon did not end well");
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

static bool is_gone(void *arg)
{
        struct bench_daemon *bd = arg;
        return of_device(bd, "used") == 0;
}

void bench_load_keep(struct bench_daemon *bd, const char *path, const char *name)
{
        load(bd, path, name, NULL);
}

/* Freeing goes on after the reply: the next run must not share the machine with it. */
void bench_unload(struct bench_daemon *bd, const char *name)
{
        must_do(bd, streamer_unload(bd->client, name, 0), "unload");
        if (!eventually(is_gone, bd, 20000))
                die("the memory of an unloaded model was not freed");
}

void bench_touch(const struct bench_daemon *bd, uint64_t bytes)
{
        if (!bd->bench->pool || strcmp(bd->pages, "hugetlb") != 0)
                ceiling_touch(bytes);
}

void bench_load(struct bench_daemon *bd, const char *path, const struct model *m, bool sample, struct load_figures *f)
{
        double gib = (double)m->bytes / (double)GIB;

        bench_await_ready(bd);
        uint64_t ready = of_device(bd, "spare");
        bd->least_ready = ready < bd->least_ready ? ready : bd->least_ready;
        uint64_t cpu = process_cpu_ns(bd->d.pid), storage = process_read_bytes(bd->d.pid), begin = clock_ns();

        *f = (struct load_figures){0};
        load(bd, path, "m", sample ? &f->memory : NULL);
        f->seconds = (double)(clock_ns() - begin) / 1e9;
        f->gib_per_s = gib / f->seconds;
        f->cpu_s_per_gib = (double)(process_cpu_ns(bd->d.pid) - cpu) / 1e9 / gib;
        f->storage_ratio = (double)(process_read_bytes(bd->d.pid) - storage) / (double)m->bytes;
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
