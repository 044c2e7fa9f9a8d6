/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that the daemon prefaults while nothing loads: its use by loads, its report in status, and its release.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#include <sched.h>
#include <sys/mount.h>

#define SPARE (16 * MIB)
#define BUDGET (40 * MIB + 8 * 1024) /* two manifests included */
/* Of segments: whole huge pages, header and alignment included. */
#define MODEL (SPARE - MIB)

/* A pool of which it takes a little less than half of the budget: 64 MiB always stay. */
#define POOL_SHARE (28 * MIB)
#define POOL_PAGES ((unsigned)((64 * MIB + POOL_SHARE) / (2 * MIB)))

static bool granted; /* whether the machine has huge pages */

/* ---- fixture ---- */

static void await_prefaulted(uint64_t bytes)
{
        AWAIT(client_device_number(client, "prefaulted") == bytes);
}

static void begin(void)
{
        char *config =
                suite_file("config.yaml", "devices: [{device: host, budget: 40968KiB, pages: 4k, prefaulted: 16MiB}]\n"
                                          "io: {memory_limit: 16MiB}\n");
        fixture_begin((const char *const[]){"--config", config, NULL});
        client = client_open(&test_daemon);
        await_prefaulted(SPARE);
        streamer_close(client);
        fixture_account();
}

static void end_test(void)
{
        streamer_unload(client, "a", 0);
        streamer_unload(client, "b", 0);
        await_prefaulted(SPARE);
        fixture_disconnect();
}

static struct model *load(const char *name, uint64_t bytes)
{
        struct model *m = model_mixed((uint64_t)name[0], bytes);
        client_load(client, fixture_write(m, format_text("%s.safetensors", name)), name);
        return m;
}

/* ---- loads ---- */

BEFORE_ALL()
{
        granted = hugepages_allow(512 * MIB);
}

FIXTURE(.all = {begin, fixture_end}, .each = {fixture_connect, end_test}, .timeout = 120,
        .first = machine_settings_lock);

TEST(a_load_takes_prefaulted_memory_and_it_is_refilled)
{
        struct model *m = load("a", MODEL);
        client_equals(client, "a", m);
        await_prefaulted(SPARE);
        ck_assert_uint_le(client_device_number(client, "used") + SPARE, BUDGET);
        client_equals(client, "a", m);
        client_ok(client, streamer_unload(client, "a", 0), "unload");
        m = load("b", MODEL);
        client_equals(client, "b", m);
}

TEST(prefaulted_memory_fails_no_load)
{
        await_prefaulted(SPARE);
        ck_assert_uint_eq(client_device_number(client, "free"), BUDGET - client_device_number(client, "used"));
        struct model *m = load("a", BUDGET - client_device_number(client, "used") - MIB);
        client_equals(client, "a", m);
        ck_assert_uint_eq(client_device_number(client, "used"), BUDGET);
        await_prefaulted(0);
}

TEST(status_reports_the_prefaulted_memory)
{
        await_prefaulted(SPARE);
        ctl_says(test_daemon.socket, 0, "PREFAULTED", "status", NULL);
        ck_assert_double_eq(client_metric(client, "streamerd_device_prefaulted_bytes{device=\"host\"}"), SPARE);
}

/* ---- a separate daemon ---- */

static const struct {
        const char *settings;
        bool may; /* takes idle huge pages of a pool */
} pools[] = {{"", true},
             {", prefaulted: auto", true},
             {", pages: hugetlb", true},
             {", prefaulted: 0", false},
             {", pages: 4k", false},
             {", pages: hugetlb, prefaulted: 0", false}};

/* Mounts folders of this test in place of the kernel's for its children: pages reserved on the machine would serve
 * every running daemon. */
static bool pool_show(unsigned unused)
{
        static const char place[] = "/sys/kernel/mm/hugepages/hugepages-2048kB";
        char *pool = suite_path("pool-%d", (int)getpid()), *text = format_text("%u\n", unused);
        must(mkdir(pool, 0755));
        file_put(pool, "free_hugepages", text);
        file_put(pool, "resv_hugepages", "0\n");
        return granted && unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
               mount(pool, place, NULL, MS_BIND, NULL) == 0;
}

static bool has_thread(const struct daemon *d)
{
        char *threads = format_text("grep -lqx host-prefault /proc/%d/task/*/comm 2>/dev/null", (int)d->pid);
        int status = system(threads); /* NOLINT: a command of our own */
        return status == 0;
}

FIXTURE();

/* By default the daemon takes only idle pages of a pool. */
TEST(the_default_size_of_prefaulted_memory, EACH(pools))
{
        struct daemon d;
        if (!pool_show(POOL_PAGES))
                SKIP("vm.nr_overcommit_hugepages cannot be set, or a mount failed");
        char *text = format_text("devices: [{device: host, budget: 64MiB%s}]\nio: {memory_limit: 16MiB}\n",
                                 pools[_i].settings);
        DAEMON_START(&d, suite_path("auto-%d", _i), "--config", suite_file("auto.yaml", text), "--root",
                     suite_folder());
        client = client_open(&d);
        await_prefaulted(pools[_i].may ? POOL_SHARE : 0);
        ck_assert_int_eq(has_thread(&d), pools[_i].may); /* which has its name by now */
        ck_assert_int_eq(daemon_stop(&d), 0);
}

TEST(shutdown_does_not_wait_for_prefaulting)
{
        struct daemon d;
        char *config =
                suite_file("large.yaml", "devices: [{device: host, budget: 4GiB, pages: 4k, prefaulted: 4GiB}]\n");
        DAEMON_START(&d, suite_path("end"), "--config", config, "--root", suite_folder());
        streamer_client *c = client_open(&d);
        AWAIT(client_device_number(c, "prefaulted") > 0);
        ck_assert_int_eq(daemon_stop(&d), 0);
}
