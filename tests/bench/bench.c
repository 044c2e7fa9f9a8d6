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

static bool setting_on(const char *name)
{
        const char *text = getenv(name);

        return !text || strcmp(text, "0") != 0;
}

/* ---- groups ---- */

/* `segments`: what is resident at once, or mapped for a ceiling, and made ready besides, for which as much has to
 * be left. */
static const struct {
        const char *name;
        void (*run)(const struct bench *b);
        uint64_t segments;
} groups[] = {{"rates", rows_rates, 9 * GIB},       {"tensors", rows_tensors, 2 * GIB},
              {"memory", rows_memory, 8 * GIB},     {"network", rows_network, 5 * GIB},
              {"fairness", rows_fairness, 9 * GIB}, {"stores", rows_stores, 2 * GIB},
              {"attach", rows_attach, 2 * GIB}};
#define BESIDE GIB /* rings, fio's buffers */

static jmp_buf group_failed;

static void give_up(const char *text)
{
        report_note("not measured: %s", text);
        longjmp(group_failed, 1);
}

/* For the group's own need alone: what is set aside is missing elsewhere. */
static void set_pages_aside(struct bench *b, uint64_t bytes)
{
        b->pool = b->wants_pool && hugepages_reserve(bytes);
        if (b->pool)
                ceiling_touch_pool(bytes);
        report_note("huge pages: %s", b->pool ? "a pool that was set aside (vm.nr_hugepages)"
                                              : "as they are asked for (vm.nr_overcommit_hugepages)");
}

/* What cannot be measured here is a row without a value, not the end of the bench. */
static void run_group(struct bench *b, size_t i)
{
        die_hook = give_up;
        if (setjmp(group_failed) == 0) {
                if (b->hugetlb)
                        set_pages_aside(b, groups[i].segments / b->shrink + BESIDE);
                groups[i].run(b);
        } else {
                bench_daemons_kill();
        }
        die_hook = NULL;
}

static void report_stall(bool guarded)
{
        double bystander_ms = bystander_stop();
        struct longest_stalls longest = bench_longest_stalls();

        sentries_stop();
        if (longest.ms <= 0)
                return;
        report_note("the loop's longest stall: %.1f ms, %.1f ms without what it had no processor for, %.1f ms without "
                    "what its processor stood still for",
                    longest.ms, longest.own, longest.rest);
        report_row(ROW_loop_stall, longest.ms, 0);
        if (guarded)
                report_row(ROW_loop_stall_less_machine, longest.rest, 0);
        report_row(ROW_bystander_stall, bystander_ms, 0);
}

int main(int argc, char **argv)
{
        const char *dir = getenv("BENCH_DIR"), *only = argc == 2 ? argv[1] : NULL;
        struct bench b = {.self = "/proc/self/exe"};

        if (argc == 4 && strcmp(argv[1], "--attach") == 0)
                return attach_child(argv[2], argv[3]);
        machine_settings_lock();
        signal(SIGPIPE, SIG_IGN);
        b.rounds = (unsigned)setting("BENCH_ROUNDS", 5, ROUNDS_MAX);
        b.shrink = setting("BENCH_SHRINK", 1, 1024);
        if (dir)
                setenv("TMPDIR", dir, 1);
        folder_make(b.folder, "streamerd-bench");
        undo_folder(b.folder);
        b.hugetlb = hugepages_allow(HUGE_BYTES);
        b.wants_pool = setting_on("BENCH_POOL");
        report_note("pages: %s", b.hugetlb ? "hugetlb and 4 KiB"
                                           : "no hugetlb (vm.nr_overcommit_hugepages cannot be set here), 4 KiB");
        bystander_start(); /* forks: before there are threads */
        bool guarded = sentries_start();
        for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
                if (!only || strcmp(only, groups[i].name) == 0)
                        run_group(&b, i);
        report_stall(guarded);
        report_print();
        report_write(build_path("bench.json"));
        undo_now();
        return 0;
}
