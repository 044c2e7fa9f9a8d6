/* SPDX-License-Identifier: Apache-2.0
 *
 * `make bench` (or `bench GROUP`): all rows, a table, build/bench.json. Exits 0 also where a target is missed: it
 * measures, it does not judge. What a program that is killed would leave behind (14 GiB of files,
 * the huge-page setting) is undone by another process (undo.h).
 */
#include "tests/bench/bench.h"
#include "tests/lib/storage.h"
#include "tests/lib/undo.h"

#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t setting(const char *name, uint64_t otherwise, uint64_t most)
{
        const char *text = getenv(name);
        uint64_t n = text ? strtoull(text, NULL, 10) : 0;

        if (n == 0)
                n = otherwise;
        return n < most ? n : most;
}

/* ---- groups ---- */

static const struct {
        const char *name;
        void (*run)(const struct bench *b);
} groups[] = {{"rates", rows_rates},     {"tensors", rows_tensors},   {"memory", rows_memory},
              {"network", rows_network}, {"fairness", rows_fairness}, {"stores", rows_stores},
              {"attach", rows_attach}};

static jmp_buf group_failed;

static void give_up(const char *text)
{
        report_note("not measured: %s", text);
        longjmp(group_failed, 1);
}

/* What cannot be measured here is a row without a value, not the end of the bench. */
static void run_group(const struct bench *b, size_t i)
{
        die_hook = give_up;
        if (setjmp(group_failed) == 0) {
                if (b->hugetlb)
                        hugepages_allow(HUGE_BYTES);
                groups[i].run(b);
        } else {
                bench_daemons_kill();
        }
        die_hook = NULL;
}

static void report_stall(void)
{
        double ms, own_ms;

        bench_longest_stall(&ms, &own_ms);
        if (ms > 0) {
                report_note("the loop's longest stall: %.1f ms, %.1f ms without what it had no processor for", ms,
                            own_ms);
                report_row(ROW_loop_stall, ms, 0);
        }
}

int main(int argc, char **argv)
{
        const char *dir = getenv("BENCH_DIR"), *only = argc == 2 ? argv[1] : NULL;
        struct bench b = {.self = "/proc/self/exe"};

        if (argc == 4 && strcmp(argv[1], "--attach") == 0)
                return attach_child(argv[2], argv[3]);
        signal(SIGPIPE, SIG_IGN);
        b.rounds = (unsigned)setting("BENCH_ROUNDS", 5, ROUNDS_MAX);
        b.shrink = setting("BENCH_SHRINK", 1, 1024);
        if (dir)
                setenv("TMPDIR", dir, 1);
        folder_make(b.folder, "streamerd-bench");
        undo_folder(b.folder);
        b.hugetlb = hugepages_allow(HUGE_BYTES);
        report_note("pages: %s", b.hugetlb ? "hugetlb and 4 KiB"
                                           : "no hugetlb (vm.nr_overcommit_hugepages cannot be set here), 4 KiB");
        for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
                if (!only || strcmp(only, groups[i].name) == 0)
                        run_group(&b, i);
        report_stall();
        report_print();
        report_write(build_path("bench.json"));
        undo_now();
        return 0;
}
