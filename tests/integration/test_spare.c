/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory that a daemon makes ready for the next model while nothing loads: what it is to loads, to those who
 * ask, and at the end.
 */
#include "tests/lib/ctl.h"
#include "tests/lib/faults.h"
#include "tests/lib/stage.h"
#include "tests/lib/storage.h"
#include "tests/lib/suite.h"

#include <dirent.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)
#define SPARE (16 * MIB)
#define BUDGET (40 * MIB)
/* Of segments: whole huge pages, header and alignment included. */
#define MODEL (SPARE - MIB)

/* A pool of which it takes a little less than half of the budget: 64 MiB always stay. */
#define POOL_SHARE (28 * MIB)
#define POOL_PAGES ((unsigned)((64 * MIB + POOL_SHARE) / (2 * MIB)))

static streamer_client *client;
static bool granted; /* are there huge pages at all? */

/* ---- stage ---- */

static void begin(void)
{
        char *config = suite_file("config.yaml", "devices: [{device: host, budget: 40MiB, pages: 4k, spare: 16MiB}]\n"
                                                 "io: {memory_limit: 16MiB}\n");
        if (!suite_short()) { /* sanitizers stand before the calls themselves */
                faults_begin(suite_folder());
                faults_show();
        }
        stage_begin((const char *const[]){"--config", config, NULL});
        faults_hide();
}

static void connect_client(void)
{
        client = client_open(&stage);
}

static uint64_t of_device(streamer_client *c, const char *key)
{
        json_t *status = client_call(c, "status", NULL);
        uint64_t n = json_number(json_array_get(json_object_get(status, "devices"), 0), key);
        json_decref(status);
        return n;
}

static bool is_ready(void *bytes)
{
        return of_device(client, "spare") == *(const uint64_t *)bytes;
}

static void await_spare(uint64_t bytes)
{
        ck_assert_msg(eventually(is_ready, &bytes, 20000), "%ju bytes are ready, not %ju",
                      (uintmax_t)of_device(client, "spare"), (uintmax_t)bytes);
}

static void check_stage(void)
{
        streamer_unload(client, "a", 0);
        streamer_unload(client, "b", 0);
        await_spare(SPARE);
        streamer_close(client);
        stage_still_serves();
}

static struct model *write_model(const char *name, uint64_t bytes, const char **path)
{
        struct model *m = model_mixed((uint64_t)name[0], bytes);
        *path = stage_write(m, format_text("%s.safetensors", name));
        return m;
}

static struct model *load(const char *name, uint64_t bytes)
{
        const char *path;
        struct model *m = write_model(name, bytes, &path);
        client_load(client, path, name);
        return m;
}

/* ---- loads ---- */

START_TEST(it_is_ready_and_counts_as_free)
{
        await_spare(SPARE);
        ck_assert_uint_eq(of_device(client, "budget"), BUDGET);
        ck_assert_uint_eq(of_device(client, "free"), BUDGET - of_device(client, "used"));
}
END_TEST

#define MEMFDS 64

struct memfds {
        ino_t inodes[MEMFDS];
        size_t n;
};

static void find_memfds(struct memfds *found, pid_t pid)
{
        char *folder = format_text("/proc/%d/fd", (int)pid), target[64];
        DIR *dir = opendir(folder);
        struct stat st;
        found->n = 0;
        for (struct dirent *e; (e = readdir(dir)) != NULL && found->n < MEMFDS;) {
                ssize_t len = readlinkat(dirfd(dir), e->d_name, target, sizeof(target));
                if (len > 7 && strncmp(target, "/memfd:", 7) == 0 && fstatat(dirfd(dir), e->d_name, &st, 0) == 0)
                        found->inodes[found->n++] = st.st_ino;
        }
        closedir(dir);
        free(folder);
}

/* Of what this process has mapped there. */
static ino_t inode_at(const void *address)
{
        FILE *maps = fopen("/proc/self/maps", "re");
        char line[PATH_SIZE + 128];
        unsigned long begin, end, inode = 0;
        while (inode == 0 && fgets(line, sizeof(line), maps) != NULL)
                if (sscanf(line, "%lx-%lx %*s %*s %*s %lu", &begin, &end, &inode) != 3 || (uintptr_t)address < begin ||
                    (uintptr_t)address >= end)
                        inode = 0;
        fclose(maps);
        return inode;
}

static bool is_made_of(const char *name, const struct memfds *memfds)
{
        streamer_tensor t;
        streamer_lease *lease = client_attach(client, name);
        client_ok(client, streamer_tensor_find(lease, "head.weight", &t), "find");
        ino_t inode = inode_at(t.data);
        streamer_detach(lease);
        for (size_t i = 0; i < memfds->n; i++)
                if (memfds->inodes[i] == inode)
                        return true;
        return false;
}

/* By which memory it has: a second after the load as much is ready again. */
START_TEST(a_load_takes_it_and_it_is_made_anew)
{
        struct memfds ready;
        await_spare(SPARE);
        find_memfds(&ready, stage.pid);
        ck_assert(is_made_of("witness", &ready));
        struct model *m = load("a", MODEL);
        ck_assert(is_made_of("a", &ready));
        client_equals(client, "a", m);
        await_spare(SPARE);
        ck_assert_uint_le(of_device(client, "used") + SPARE, BUDGET);
        client_equals(client, "a", m);
        client_ok(client, streamer_unload(client, "a", 0), "unload");
        m = load("b", MODEL);
        client_equals(client, "b", m);
}
END_TEST

START_TEST(no_load_is_refused_for_it)
{
        const char *path;
        await_spare(SPARE);
        uint64_t all = BUDGET - of_device(client, "used");
        struct model *m = write_model("a", all - MIB, &path);
        struct ctl r;
        ctl(&r, stage.socket, "load", path, "--dry-run", "--json", NULL);
        ck_assert_msg(strstr(r.out, "\"room\":\"fits\"") != NULL, "%s%s", r.out, r.err);
        ctl_free(&r);
        client_load(client, path, "a");
        client_equals(client, "a", m);
        ck_assert_uint_eq(of_device(client, "used"), BUDGET);
        await_spare(0);
}
END_TEST

START_TEST(models_and_spare_stay_in_the_budget)
{
        struct model *a = load("a", 8 * MIB - MIB), *b = load("b", SPARE - MIB);
        uint64_t used = of_device(client, "used");
        await_spare(BUDGET - used);
        client_equals(client, "a", a);
        client_equals(client, "b", b);
        client_ok(client, streamer_unload(client, "b", 0), "unload");
        await_spare(SPARE);
        client_equals(client, "a", a);
}
END_TEST

START_TEST(it_is_told)
{
        struct ctl r;
        await_spare(SPARE);
        ctl(&r, stage.socket, "status", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_ptr_nonnull(strstr(r.out, "SPARE"));
        ctl_free(&r);
        json_t *metrics = client_call(client, "metrics", NULL);
        ck_assert_ptr_nonnull(
                strstr(json_text(metrics, "text"), "streamerd_device_spare_bytes{device=\"host\"} 16777216\n"));
        json_decref(metrics);
}
END_TEST

/* ---- failures ---- */

static const enum fault_call calls[] = {FAULT_memfd_create, FAULT_ftruncate, FAULT_fallocate};

static bool has_failed(void *call)
{
        return fault_failed(*(const enum fault_call *)call) > 0;
}

/* The call is its own: nobody loads. It is tried again. */
START_TEST(a_call_that_fails_leaves_less_for_a_while)
{
        enum fault_call call = calls[_i];
        if (suite_short())
                return;
        await_spare(SPARE);
        struct model *m = load("a", MODEL);
        fault_arm(call, call == FAULT_fallocate ? 3 : 0);
        ck_assert(eventually(has_failed, &call, 20000));
        fault_disarm();
        await_spare(SPARE);
        client_equals(client, "a", m);
}
END_TEST

/* ---- a daemon of its own ---- */

static const struct {
        const char *settings;
        bool may; /* takes huge pages that lie idle in a pool */
} pools[] = {{"", true},
             {", spare: auto", true},
             {", pages: hugetlb", true},
             {", spare: 0", false},
             {", pages: 4k", false},
             {", pages: hugetlb, spare: 0", false}};

/* Folders of this test's own in place of the kernel's, for all that it starts: what is set aside on the machine
 * itself would serve every daemon that runs just now. */
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
        char *threads = format_text("grep -lqx host-spare /proc/%d/task/*/comm 2>/dev/null", (int)d->pid);
        int status = system(threads); /* NOLINT: a command of our own */
        free(threads);
        return status == 0;
}

/* Without a word about it the daemon takes of a pool what lies idle there, and no more. */
START_TEST(what_it_takes_unless_it_is_told)
{
        struct daemon d;
        if (!pool_show(POOL_PAGES))
                SKIP("vm.nr_overcommit_hugepages cannot be set, or nothing be mounted");
        char *config = suite_path("auto-%d.yaml", _i),
             *text = format_text("devices: [{device: host, budget: 64MiB%s}]\n"
                                 "io: {memory_limit: 16MiB}\n",
                                 pools[_i].settings);
        file_write(config, text, strlen(text));
        daemon_init(&d, suite_path("auto-%d", _i));
        daemon_start(&d, (const char *const[]){"--config", config, "--root", suite_folder(), NULL});
        client = client_open(&d);
        await_spare(pools[_i].may ? POOL_SHARE : 0);
        ck_assert_int_eq(has_thread(&d), pools[_i].may); /* which has its name by now */
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&d), 0);
}
END_TEST

START_TEST(a_load_takes_what_was_made_of_its_own_accord)
{
        struct daemon d;
        if (!pool_show(POOL_PAGES))
                SKIP("vm.nr_overcommit_hugepages cannot be set, or nothing be mounted");
        daemon_init(&d, suite_path("own"));
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", suite_folder(), NULL});
        client = client_open(&d);
        await_spare(POOL_SHARE);
        struct model *m = model_mixed(7, 12 * MIB);
        const char *path = suite_path("own.safetensors");
        model_write(m, path);
        client_load(client, path, "a");
        client_equals(client, "a", m);
        uint64_t used = of_device(client, "used");
        ck_assert_uint_ge(used, 12 * MIB);
        await_spare(used); /* for another of that size */
        client_equals(client, "a", m);
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&d), 0);
}
END_TEST

static bool has_begun(void *c)
{
        return of_device(c, "spare") > 0;
}

START_TEST(the_end_does_not_wait_for_it)
{
        struct daemon d;
        char *config = suite_file("large.yaml", "devices: [{device: host, budget: 4GiB, pages: 4k, spare: 4GiB}]\n");
        daemon_init(&d, suite_path("end"));
        daemon_start(&d, (const char *const[]){"--config", config, "--root", suite_folder(), NULL});
        streamer_client *c = client_open(&d);
        ck_assert(eventually(has_begun, c, 20000));
        streamer_close(c);
        ck_assert_int_eq(daemon_stop(&d), 0);
}
END_TEST

int main(void)
{
        machine_settings_lock();
        suite_begin("spare");
        granted = hugepages_allow(512 * MIB);
        TCase *loads = suite_group("loads", begin, stage_end, 120);
        tcase_add_checked_fixture(loads, connect_client, check_stage);
        tcase_add_test(loads, it_is_ready_and_counts_as_free);
        tcase_add_test(loads, a_load_takes_it_and_it_is_made_anew);
        tcase_add_test(loads, no_load_is_refused_for_it);
        tcase_add_test(loads, models_and_spare_stay_in_the_budget);
        tcase_add_test(loads, it_is_told);
        LOOP(loads, a_call_that_fails_leaves_less_for_a_while, calls);
        TCase *own = suite_group("a daemon of its own", NULL, NULL, 60);
        LOOP(own, what_it_takes_unless_it_is_told, pools);
        tcase_add_test(own, a_load_takes_what_was_made_of_its_own_accord);
        tcase_add_test(own, the_end_does_not_wait_for_it);
        return suite_run();
}
