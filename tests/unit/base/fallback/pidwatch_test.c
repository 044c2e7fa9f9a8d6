/* SPDX-License-Identifier: Apache-2.0
 *
 * Polled processes: what counts as an exit, and that a watch leaks nothing.
 */
#include "daemon/base/fallback/pidfd.h"
#include "daemon/base/util.h"
#include "tests/lib/base.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/resource.h>

#define FDS 1024
#define END_MS 20000

static struct pid_stat stat_of(pid_t pid)
{
        struct pid_stat stat;
        ck_assert(pid_stat_read(&stat, pid));
        return stat;
}

static int watch_it(pid_t pid)
{
        return must(pidwatch_open(pid, stat_of(pid).start));
}

static bool ends_within(int fd, int timeout_ms)
{
        uint64_t until = now_ns() + (uint64_t)timeout_ms * 1000000;
        struct pollfd p = {.fd = fd, .events = POLLIN};
        int n = 0;
        do
                pidwatch_turn();
        while ((n = must(poll(&p, 1, timeout_ms > 0 ? 1 : 0))) == 0 && now_ns() < until);
        return n == 1;
}

static bool are_open(void *n)
{
        pidwatch_turn();
        return count_open_fds() == *(unsigned *)n;
}

/* ---- ends ---- */

static void begin(void)
{
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){FDS, FDS}));
}

FIXTURE(.all = {begin, NULL});

TEST(a_process_has_ended_when_it_is_reaped)
{
        pid_t pid = child_start(NULL), other = child_start(NULL);
        int fd = watch_it(pid), other_fd = watch_it(other);
        child_kill(pid);
        ck_assert(ends_within(fd, END_MS));
        ck_assert(!ends_within(other_fd, 0));
        kill(other, SIGKILL);
}

TEST(a_zombie_process_has_exited)
{
        pid_t pid = child_start(NULL);
        int fd = watch_it(pid);
        must(kill(pid, SIGKILL));
        ck_assert(ends_within(fd, END_MS));
}

TEST(a_reused_pid_ends_the_watch)
{
        int fd = must(pidwatch_open(getpid(), stat_of(getpid()).start - 1));
        ck_assert(ends_within(fd, END_MS));
}

static void *wait_for_the_end(void *arg)
{
        pause();
        return arg;
}

static bool is_zombie(void *pid)
{
        return stat_of(*(pid_t *)pid).state == 'Z';
}

TEST(a_process_lives_while_any_of_its_threads_does)
{
        pid_t pid = must(fork());
        if (pid == 0) {
                pthread_t thread;
                pthread_create(&thread, NULL, wait_for_the_end, NULL);
                pthread_exit(NULL);
        }
        int fd = watch_it(pid);
        ck_assert(eventually(is_zombie, &pid, END_MS));
        pidwatch_turn();
        pidwatch_turn();
        ck_assert(!ends_within(fd, 0));
        must(kill(pid, SIGKILL));
        ck_assert(ends_within(fd, END_MS));
}

/* No descriptor is available for /proc, as if /proc hid the process. */
TEST(an_unreadable_process_has_not_exited)
{
        pid_t pid = child_start(NULL), gone = child_start(NULL);
        int fd = watch_it(pid), gone_fd = watch_it(gone);
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, FDS}));
        child_kill(gone);
        ck_assert(ends_within(gone_fd, END_MS)); /* the pid is unused */
        must(kill(pid, SIGKILL));
        must(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT));
        ck_assert(!ends_within(fd, 100));
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){FDS, FDS}));
        ck_assert(ends_within(fd, END_MS));
        must(waitpid(pid, NULL, 0));
}

/* ---- leaks ---- */

FIXTURE(.all = {begin, NULL});

TEST(closing_it_ends_the_watch)
{
        unsigned before = count_open_fds();
        for (int i = 0; i < 3; i++)
                close(watch_it(getpid()));
        ck_assert(eventually(are_open, &before, END_MS));
}

/* More processes than descriptors, if each kept one between two polls. */
TEST(reconnecting_clients_leak_no_descriptors)
{
        unsigned before = count_open_fds();
        uint64_t start = stat_of(getpid()).start;
        for (int i = 0; i < 20 * FDS; i++) {
                int fd;
                while ((fd = pidwatch_open(getpid(), start)) < 0 && errno == EMFILE)
                        sched_yield();
                ck_assert_int_ge(fd, 0);
                close(fd);
        }
        ck_assert(eventually(are_open, &before, END_MS));
}

TEST(all_watches_end_at_the_stop_and_others_may_begin)
{
        unsigned before = count_open_fds();
        for (int i = 0; i < 2; i++) {
                int fd = watch_it(getpid());
                pidwatch_turn();
                ck_assert(!ends_within(fd, 0));
                pidwatch_stop();
                ck_assert(ends_within(fd, 0));
                close(fd);
        }
        pidwatch_stop();
        ck_assert_uint_eq(count_open_fds(), before);
}

TEST(a_lack_of_descriptors_is_reported)
{
        unsigned before = count_open_fds();
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, FDS}));
        ck_assert_int_lt(pidwatch_open(getpid(), 1), 0);
        ck_assert_int_eq(errno, EMFILE);
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){FDS, FDS}));
        ck_assert_uint_eq(count_open_fds(), before);
}
