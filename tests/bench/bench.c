/* SPDX-License-Identifier: Apache-2.0
 *
 * `make bench` (or `bench GROUP`): runs all rows, prints a table, writes build/bench.json. Exits 0 even if a target
 * is missed. Another process removes files and restores the huge-page setting if the program is killed (at_exit.h).
 */
#include "tests/bench/bench.h"
#include "tests/lib/at_exit.h"
#include "tests/lib/kernel_counters.h"

#include <setjmp.h>

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

/* `segments`: bytes that are resident or mapped at once; as many more must be free for prefaulting. */
static const struct {
        const char *name;
        void (*run)(const struct bench *b);
        uint64_t segments;
} groups[] = {{"rates", rows_rates, 9 * GIB},         {"tensors", rows_tensors, 2 * GIB},
              {"memory", rows_memory, 8 * GIB},       {"network", rows_network, 5 * GIB},
              {"fairness", rows_fairness, 9 * GIB},   {"stores", rows_stores, 2 * GIB},
              {"clouds", rows_clouds, 3 * GIB},       {"attach", rows_attach, 3 * GIB},
              {"growth", rows_growth, GIB},

              {"publish", rows_publish, 2 * GIB},     {"engines", rows_engines, 0},
              {"encrypted", rows_encrypted, 5 * GIB}, {"disk", rows_disk, 9 * GIB}};
#define BESIDE GIB /* rings, fio's buffers */

static jmp_buf group_failed;

static void abort_group(const char *text)
{
        report_note("not measured: %s", text);
        longjmp(group_failed, 1);
}

/* Only for the group's need: reserved pages are missing elsewhere. */
static void set_pages_aside(struct bench *b, uint64_t bytes)
{
        b->pool = b->wants_pool && hugepages_reserve(bytes);
        if (b->pool)
                ceiling_touch_pool(bytes);
        report_note("huge pages: %s", b->pool ? "a pool that was set aside (vm.nr_hugepages)"
                                              : "as they are asked for (vm.nr_overcommit_hugepages)");
}

/* A value that cannot be measured here is an empty row; the bench continues. */
static void run_group(struct bench *b, size_t i)
{
        die_hook = abort_group;
        if (setjmp(group_failed) == 0) {
                if (b->hugetlb)
                        set_pages_aside(b, groups[i].segments / b->shrink + BESIDE);
                groups[i].run(b);
        } else {
                bench_daemons_kill();
        }
        die_hook = NULL;
}

static void run_named(struct bench *b, const char *name, void (*run)(const struct bench *b), bool chosen)
{
        if (!chosen)
                return;
        die_hook = abort_group;
        report_note("%s: without a setting of huge pages", name);
        if (setjmp(group_failed) == 0)
                run(b);
        else
                bench_daemons_kill();
        die_hook = NULL;
}

int main(int argc, char **argv)
{
        const char *dir = getenv("BENCH_DIR"), *only = argc == 2 ? argv[1] : NULL;
        struct bench b = {.self = "/proc/self/exe"};
        signal(SIGPIPE, SIG_IGN); /* libuv writes without MSG_NOSIGNAL */
        if (argc == 5 && strcmp(argv[1], "--attach") == 0)
                return attach_child(argv[2], argv[3], argv[4]);
        if (argc == 4 && strcmp(argv[1], "--delay-proxy") == 0)
                return delay_proxy((unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]));
        setenv("STREAMERD_TEST_SETTINGS", "1", 1);
        machine_settings_lock();
        b.rounds = (unsigned)setting("BENCH_ROUNDS", 5, ROUNDS_MAX);
        b.shrink = setting("BENCH_SHRINK", 1, 1024);
        if (dir)
                setenv("TMPDIR", dir, 1);
        folder_make(b.folder, "streamerd-bench");
        at_exit_remove(b.folder);
        /* Without any setting first. */
        run_named(&b, "plain", rows_plain, only == NULL || strcmp(only, "plain") == 0);
        run_named(&b, "sweep", sweep, only != NULL && strcmp(only, "sweep") == 0);
        b.hugetlb = hugepages_allow(HUGE_BYTES);
        b.wants_pool = setting_on("BENCH_POOL");
        report_note("pages: %s", b.hugetlb ? "hugetlb and 4 KiB"
                                           : "no hugetlb (vm.nr_overcommit_hugepages cannot be set here), 4 KiB");
        for (size_t i = 0; i < sizeof(groups) / sizeof(groups[0]); i++)
                if (!only || strcmp(only, groups[i].name) == 0)
                        run_group(&b, i);
        report_print();
        report_write(build_path("bench.json"));
        at_exit_now();
        return 0;
}
