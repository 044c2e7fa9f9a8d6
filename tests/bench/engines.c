/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of engines: what the Python package does for them, in a process of its own (tests/bench/python/engines.py),
 * which measures itself.
 *
 *   restoring files     a set of compiled code out of the daemon, beside `cp -r` of the folder
 *   updating weights    put() and copying from the resident generation into memory that is there, beside two copies by
 *                       two threads, the first into fresh pages, and hashing; and the memory of many updates
 */
#include "tests/bench/bench.h"
#include "tests/lib/kernel_counters.h"

#include <sys/socket.h>

#define PYTHON "/usr/bin/python3" /* for which the build installs numpy */
#define UPDATE (2 * GIB)
#define UPDATES 200u
#define UPDATES_BYTES (64 * MIB)
#define SET 5000u
#define SET_BYTES GIB
#define CACHE 53u /* what an engine with a small model compiles */
#define CACHE_BYTES (3 * MIB)

struct python {
        pid_t pid;
        FILE *stream;
};

static void python_start(struct python *p, const struct bench *b, const struct bench_daemon *bd)
{
        int pair[2];
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        p->pid = must(fork());
        if (p->pid == 0) {
                dup2(pair[1], STDIN_FILENO);
                dup2(pair[1], STDOUT_FILENO);
                setenv("PYTHONPATH", "client/python", 1);
                setenv("PYTHONDONTWRITEBYTECODE", "1", 1);
                setenv("STREAMERD_CLIENT_LIB", build_path("libstreamer-client.so.0"), 1);
                execl(PYTHON, PYTHON, "tests/bench/python/engines.py", bd->d.socket, b->folder, NULL);
                _exit(127);
        }
        close(pair[1]);
        p->stream = fdopen(pair[0], "r+");
}

/* The number that answers these words. */
static double ask(struct python *p, const char *what, uint64_t count, uint64_t bytes)
{
        char line[64];
        fprintf(p->stream, "%s %ju %ju\n", what, (uintmax_t)count, (uintmax_t)bytes);
        fflush(p->stream);
        if (fgets(line, sizeof(line), p->stream) == NULL)
                die("tests/bench/python/engines.py has ended");
        return strtod(line, NULL);
}

static void python_stop(struct python *p)
{
        fclose(p->stream);
        child_wait(p->pid);
}

/* Medians; each round restores into a folder of its own, and copies to another. */
static void restore(const struct bench *b, struct python *p, uint64_t count, uint64_t bytes, double *restored,
                    double *copied)
{
        double restores[ROUNDS_MAX], copies[ROUNDS_MAX];
        ask(p, "publish", count, bytes);
        for (unsigned i = 0; i < b->rounds; i++) {
                copies[i] = ask(p, "copy", count, bytes);
                restores[i] = ask(p, "restore", count, bytes);
                report_note("engines, round %u: %ju files, %.1f MiB: restored in %.1f ms, cp -r %.1f ms", i + 1,
                            (uintmax_t)count, (double)bytes / (double)MIB, restores[i] * 1e3, copies[i] * 1e3);
        }
        *restored = median(restores, b->rounds);
        *copied = median(copies, b->rounds);
}

static void row_update(const struct bench *b, struct bench_daemon *bd, struct python *p)
{
        double ratios[ROUNDS_MAX];
        uint64_t size = UPDATE / b->shrink;
        unsigned char *from = copies_source(size);
        ask(p, "update", 1, size); /* makes its tensors, and the first generation */
        for (unsigned i = 0; i < b->rounds; i++) {
                ceiling_touch(size);
                struct cost copied = ceiling_copies(from, size, 1);
                ceiling_touch(size);
                uint64_t cpu = process_cpu_ns(bd->d.pid) + process_cpu_ns(p->pid);
                double seconds = ask(p, "update", 1, size);
                cpu = process_cpu_ns(bd->d.pid) + process_cpu_ns(p->pid) - cpu;
                ratios[i] = seconds / copied.seconds;
                report_note("engines, round %u: update of %.2f GiB %.3f s, %.3f CPU-s; two copies by two threads and "
                            "hashing %.3f s, %.3f CPU-s",
                            i + 1, (double)size / (double)GIB, seconds, (double)cpu / 1e9, copied.seconds,
                            copied.cpu_s);
        }
        report_row(ROW_update_vs_copies, median(ratios, b->rounds), 0);
        munmap(from, size);
}

/* Of the daemon or of the process that puts and takes, whichever grows more. */
static void row_updates_memory(const struct bench *b, struct bench_daemon *bd, struct python *p)
{
        uint64_t size = UPDATES_BYTES / b->shrink;
        ask(p, "update", UPDATES / 10, size);
        uint64_t daemon = process_memory(bd->d.pid), own = process_memory(p->pid);
        ask(p, "update", UPDATES, size);
        double growth[] = {(double)process_memory(bd->d.pid) - (double)daemon,
                           (double)process_memory(p->pid) - (double)own};
        report_note("engines: %u updates of %.0f MiB: the daemon's memory grew by %.2f MiB, the process's by %.2f MiB",
                    UPDATES, (double)size / (double)MIB, growth[0] / (double)MIB, growth[1] / (double)MIB);
        report_row(ROW_updates_memory, (growth[0] > growth[1] ? growth[0] : growth[1]) / (double)MIB, 0);
}

void rows_engines(const struct bench *b)
{
        struct bench_daemon bd;
        struct python python;
        double restored, copied;
        bench_daemon_start(&bd, b, "auto", "");
        python_start(&python, b, &bd);
        restore(b, &python, CACHE, CACHE_BYTES, &restored, &copied);
        report_row(ROW_restore_53_files, restored * 1e3, 0);
        restore(b, &python, SET, SET_BYTES / b->shrink, &restored, &copied);
        report_row(ROW_restore_5000_files_vs_copy, restored / copied, 0);
        row_update(b, &bd, &python);
        row_updates_memory(b, &bd, &python);
        python_stop(&python);
        bench_daemon_stop(&bd);
}
