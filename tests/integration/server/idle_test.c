/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon that has nothing to do does not wake up: each of its threads waits without a limit of time. That is read
 * from the system call in which it waits, so that no time has to pass. Readers may wait for a minute once, until they
 * end or give memory back.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#include <dirent.h>
#include <sys/syscall.h>

#define OWN_MEMORY_MAX (16 * MIB)

/* Of a system call that waits: which argument is the limit of time, and its value for none. */
static bool waits_for_ever(const char *call)
{
        long number;
        unsigned long a[6];
        if (sscanf(call, "%ld %lx %lx %lx %lx %lx %lx", &number, &a[0], &a[1], &a[2], &a[3], &a[4], &a[5]) != 7)
                return false;
        switch (number) {
        case SYS_epoll_pwait:
#ifdef SYS_epoll_wait
        case SYS_epoll_wait:
#endif
                return (int)a[3] == -1;
        case SYS_futex:
                return a[3] == 0;
#ifdef SYS_poll
        case SYS_poll:
                return (int)a[2] == -1;
#endif
        default:
                return false;
        }
}

static bool read_line(char *line, size_t size, pid_t pid, const char *thread, const char *file)
{
        char path[PATH_SIZE];
        snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", (int)pid, thread, file);
        FILE *f = fopen(path, "r");
        bool read = f != NULL && fgets(line, (int)size, f) != NULL;
        if (f != NULL)
                fclose(f);
        return read;
}

/* False: a thread runs, or waits for a time. */
static bool all_wait_for_ever(pid_t pid, bool *unreadable)
{
        char path[PATH_SIZE], call[512], name[64];
        bool all = true;
        snprintf(path, sizeof(path), "/proc/%d/task", (int)pid);
        DIR *tasks = opendir(path);
        ck_assert_ptr_nonnull(tasks);
        for (const struct dirent *e; (e = readdir(tasks)) != NULL;) {
                if (e->d_name[0] == '.' || !read_line(name, sizeof(name), pid, e->d_name, "comm") ||
                    strcmp(name, "reader\n") == 0)
                        continue;
                bool read = read_line(call, sizeof(call), pid, e->d_name, "syscall");
                *unreadable = *unreadable || !read;
                all = all && read && waits_for_ever(call);
        }
        closedir(tasks);
        return all;
}

static void await_idle(void)
{
        bool unreadable = false;
        if (fixture_memory() == 0)
                SKIP("sanitizers have threads of their own");
        AWAIT(all_wait_for_ever(test_daemon.pid, &unreadable) || unreadable);
        if (unreadable)
                SKIP("/proc/PID/syscall cannot be read here");
}

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(with_a_resident_model_it_does_not_wake_up)
{
        ABOUT_HOST_MEMORY();
        await_idle();
}

TEST(with_a_client_that_holds_a_lease_it_does_not_wake_up)
{
        ABOUT_HOST_MEMORY();
        fixture_connect();
        streamer_lease *lease = client_attach(client, "witness");
        await_idle();
        streamer_detach(lease);
        fixture_disconnect();
}

TEST(after_a_client_has_gone_it_falls_asleep_again)
{
        ABOUT_HOST_MEMORY();
        fixture_connect();
        fixture_disconnect();
        await_idle();
        fixture_connect();
        await_idle();
        fixture_disconnect();
}

TEST(idle_it_takes_little_memory)
{
        ABOUT_HOST_MEMORY();
        ck_assert_uint_le(fixture_memory(), OWN_MEMORY_MAX);
}

/* ---- loads that wait ---- */

static void begin_small(void)
{
        fixture_begin((const char *const[]){"--device", "host=16MiB", NULL});
}

FIXTURE(.all = {begin_small, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(with_loads_that_wait_for_memory_it_does_not_wake_up)
{
        ABOUT_HOST_MEMORY();
        struct model *m = model_mixed(1, 10 * MIB), *n = model_mixed(2, 10 * MIB);
        client_load(client, fixture_write(m, "m.safetensors"), "m");
        client_ok(client, streamer_pin(client, "m", 1), "pin");
        streamer_op *op = client_load_begin_with(
                client, (streamer_load_opts){
                                .source = fixture_write(n, "n.safetensors"), .name = "n", .flags = STREAMER_LOAD_WAIT});
        AWAIT(strcmp(client_state(client, "n"), "queued") == 0);
        await_idle();
        client_ok(client, streamer_pin(client, "m", 0), "unpin"); /* then it is evicted */
        ck_assert_int_eq(client_load_end(op), 0);
        client_equals(client, "n", n);
        client_unload(client, "n");
}
