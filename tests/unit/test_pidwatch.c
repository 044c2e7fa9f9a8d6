/* SPDX-License-Identifier: Apache-2.0
 *
 * Processes that are looked at: what is an end, what is none, and that nothing is left of a watch.
 */
#include "daemon/base/pidstat.h"
#include "daemon/base/pidwatch.h"
#include "tests/lib/suite.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define FDS 1024
#define END_MS 20000

static pid_t child(void)
{
        pid_t pid = must(fork());
        if (pid == 0) {
                pause();
                _exit(0);
        }
        return pid;
}

static struct pid_stat stat_of(pid_t pid)
{
        struct pid_stat stat;
        ck_assert(pid_stat_read(&stat, "", pid));
        return stat;
}

static int watch_it(pid_t pid)
{
        return must(pidwatch_open(pid, stat_of(pid).start));
}

static bool ends_within(int fd, int timeout_ms)
{
        struct pollfd p = {.fd = fd, .events = POLLIN};
        return must(poll(&p, 1, timeout_ms)) == 1;
}

/* All that were there before have been looked at when one that came later is seen to have ended. */
static void wait_for_a_look(void)
{
        pid_t pid = child();
        int fd = watch_it(pid);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        ck_assert(ends_within(fd, END_MS));
        close(fd);
}

static unsigned open_descriptors(void)
{
        unsigned n = 0;
        for (int fd = 0; fd < FDS; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}

static bool are_open(void *n)
{
        return open_descriptors() == *(unsigned *)n;
}

/* ---- ends ---- */

START_TEST(a_process_ends_when_it_was_waited_for)
{
        pid_t pid = child(), other = child();
        int fd = watch_it(pid), other_fd = watch_it(other);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        ck_assert(ends_within(fd, END_MS));
        ck_assert(!ends_within(other_fd, 0));
        kill(other, SIGKILL);
}
END_TEST

START_TEST(a_process_ends_though_nobody_waits_for_it)
{
        pid_t pid = child();
        int fd = watch_it(pid);
        must(kill(pid, SIGKILL));
        ck_assert(ends_within(fd, END_MS));
}
END_TEST

START_TEST(another_process_of_its_number_is_its_end)
{
        int fd = must(pidwatch_open(getpid(), stat_of(getpid()).start - 1));
        ck_assert(ends_within(fd, END_MS));
}
END_TEST

static void *wait_for_the_end(void *arg)
{
        pause();
        return arg;
}

static bool is_zombie(void *pid)
{
        return stat_of(*(pid_t *)pid).state == 'Z';
}

START_TEST(a_process_lives_while_any_of_its_threads_does)
{
        pid_t pid = must(fork());
        if (pid == 0) {
                pthread_t thread;
                pthread_create(&thread, NULL, wait_for_the_end, NULL);
                pthread_exit(NULL);
        }
        int fd = watch_it(pid);
        ck_assert(eventually(is_zombie, &pid, END_MS));
        wait_for_a_look();
        wait_for_a_look();
        ck_assert(!ends_within(fd, 0));
        must(kill(pid, SIGKILL));
        ck_assert(ends_within(fd, END_MS));
}
END_TEST

/* No descriptor is left to read /proc by, as where it hides processes. */
START_TEST(what_cannot_be_read_is_no_end)
{
        pid_t pid = child(), gone = child();
        int fd = watch_it(pid), gone_fd = watch_it(gone);
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, FDS}));
        must(kill(gone, SIGKILL));
        must(waitpid(gone, NULL, 0));
        ck_assert(ends_within(gone_fd, END_MS)); /* its number is nobody's */
        must(kill(pid, SIGKILL));
        must(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT));
        ck_assert(!ends_within(fd, 3 * 1000 / PIDWATCH_HZ));
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){FDS, FDS}));
        ck_assert(ends_within(fd, END_MS));
        must(waitpid(pid, NULL, 0));
}
END_TEST

/* ---- what is left ---- */

START_TEST(whoever_closes_it_ends_the_watch)
{
        unsigned before = open_descriptors();
        for (int i = 0; i < 3; i++)
                close(watch_it(getpid()));
        ck_assert(eventually(are_open, &before, END_MS));
}
END_TEST

/* More than there are descriptors for, if each were kept until the next look. */
START_TEST(one_who_comes_and_goes_takes_no_descriptors)
{
        unsigned before = open_descriptors();
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
END_TEST

START_TEST(all_end_with_the_thread_and_it_may_begin_again)
{
        unsigned before = open_descriptors();
        for (int i = 0; i < 2; i++) {
                int fd = watch_it(getpid());
                wait_for_a_look();
                ck_assert(!ends_within(fd, 0));
                pidwatch_stop();
                ck_assert(ends_within(fd, 0));
                close(fd);
        }
        pidwatch_stop();
        ck_assert_uint_eq(open_descriptors(), before);
}
END_TEST

START_TEST(a_lack_of_descriptors_is_told)
{
        unsigned before = open_descriptors();
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, FDS}));
        ck_assert_int_lt(pidwatch_open(getpid(), 1), 0);
        ck_assert_int_eq(errno, EMFILE);
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){FDS, FDS}));
        ck_assert_uint_eq(open_descriptors(), before);
}
END_TEST

static void begin(void)
{
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){FDS, FDS}));
}

int main(void)
{
        suite_begin("pidwatch");
        TCase *t = suite_group("ends", begin, NULL, 60);
        tcase_add_test(t, a_process_ends_when_it_was_waited_for);
        tcase_add_test(t, a_process_ends_though_nobody_waits_for_it);
        tcase_add_test(t, another_process_of_its_number_is_its_end);
        tcase_add_test(t, a_process_lives_while_any_of_its_threads_does);
        tcase_add_test(t, what_cannot_be_read_is_no_end);
        t = suite_group("what is left", begin, NULL, 60);
        tcase_add_test(t, whoever_closes_it_ends_the_watch);
        tcase_add_test(t, one_who_comes_and_goes_takes_no_descriptors);
        tcase_add_test(t, all_end_with_the_thread_and_it_may_begin_again);
        tcase_add_test(t, a_lack_of_descriptors_is_told);
        return suite_run();
}
