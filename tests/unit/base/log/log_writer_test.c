/* SPDX-License-Identifier: Apache-2.0
 *
 * The log's thread writes queued lines in order, and no other thread blocks.
 */
#include "tests/unit/log_fixture.h"

#include "daemon/base/util.h"

#include <sys/resource.h>

#define THREADS 4
#define LINES 500
#define PIPE_BYTES (64u << 10) /* bytes that an unread one accepts */

/* ---- to a file ---- */

static void *log_numbers(void *arg)
{
        for (int i = 0; i < LINES; i++)
                log_info("thread %d line %d", *(int *)arg, i);
        return NULL;
}

static void log_from_threads(void)
{
        pthread_t threads[THREADS];
        int numbers[THREADS];
        set_output(LOG_FORMAT_PREFIX);
        log_start();
        for (int i = 0; i < THREADS; i++) {
                numbers[i] = i;
                ck_assert_int_eq(pthread_create(&threads[i], NULL, log_numbers, &numbers[i]), 0);
        }
        for (int i = 0; i < THREADS; i++)
                pthread_join(threads[i], NULL);
        log_stop();
        log_info("after the thread");
}

BEFORE_ALL()
{
        unsetenv("JOURNAL_STREAM");
        unsetenv("SYSTEMD_EXEC_PID");
}

TEST(lines_of_all_threads_are_complete_and_in_order)
{
        char *text = suite_stderr(log_from_threads), *save = NULL;
        int next[THREADS] = {0};
        bool after = false;
        for (char *line = strtok_r(text, "\n", &save); line != NULL; line = strtok_r(NULL, "\n", &save)) {
                int thread, number, end = 0;
                ck_assert_msg(!after, "%s: after the last", line);
                after = strcmp(line, "<6>after the thread") == 0;
                if (after)
                        continue;
                ck_assert_msg(sscanf(line, "<6>thread %d line %d%n", &thread, &number, &end) == 2 && line[end] == '\0',
                              "%s", line);
                ck_assert_int_eq(number, next[thread]++);
        }
        for (int i = 0; i < THREADS; i++)
                ck_assert_int_eq(next[i], LINES);
        ck_assert(after);
        ck_assert_uint_eq(log_lost(), 0);
}

/* A child, which must not leave a core file, with standard error in a file. */
static char *output_of_child(void (*say)(void), int *status)
{
        char *path = suite_path("child-%d", (int)getpid());
        pid_t pid = must(fork());
        if (pid == 0) {
                must(setrlimit(RLIMIT_CORE, &(struct rlimit){0}));
                int fd = must(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600));
                must(dup2(fd, STDERR_FILENO));
                signal(SIGABRT, SIG_DFL);
                set_output(LOG_FORMAT_PREFIX);
                log_start();
                for (int i = 0; i < LINES; i++)
                        log_info("line %d", i);
                say();
                _exit(0);
        }
        ck_assert_int_eq(waitpid(pid, status, 0), pid);
        return file_read(path, NULL);
}

static void break_invariant(void)
{
        require(LINES == 0);
}

TEST(a_broken_invariant_is_logged_after_the_lines_before_it)
{
        int status;
        char *text = output_of_child(break_invariant, &status), *last = strstr(text, "<6>line 499\n");
        ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        ck_assert_ptr_nonnull(last);
        ck_assert_ptr_nonnull(strstr(last, "broken invariant: LINES == 0\n"));
}

/* ---- nonblocking output ---- */

/* Replaces standard error under the running thread; returns the old descriptor. */
static int turn_stderr_into(int fd)
{
        int was = must(dup(STDERR_FILENO));
        must(dup2(fd, STDERR_FILENO));
        close(fd);
        return was;
}

static void start_on_file(void)
{
        int fd = must(open(suite_path("file-%d", (int)getpid()), O_RDWR | O_CREAT | O_TRUNC | O_APPEND, 0600));
        turn_stderr_into(fd);
        set_output(LOG_FORMAT_PREFIX);
        log_start();
}

static char *read_to_end(int fd, size_t most)
{
        char *text = must_alloc(most + 1);
        size_t len = 0;
        for (ssize_t n; (n = must(read(fd, text + len, most - len))) > 0;)
                len += (size_t)n;
        text[len] = '\0';
        return text;
}

static int stuck_pipe(int *saved)
{
        int pipe_fds[2];
        must(pipe2(pipe_fds, O_CLOEXEC));
        *saved = turn_stderr_into(pipe_fds[1]);
        return pipe_fds[0];
}

static uint64_t log_until_lost(void)
{
        uint64_t n = 0;
        while (log_lost() == 0)
                log_info("line %08" PRIu64, n++);
        return n;
}

/* Compares the logged lines with the output, to the last line. */
static void check_account(char *text, uint64_t said, uint64_t lost)
{
        uint64_t seen = 0, told = 0, next = 0;
        char *save = NULL, *line = strtok_r(text, "\n", &save);
        for (; line != NULL && strcmp(line, "<6>after") != 0; line = strtok_r(NULL, "\n", &save)) {
                uint64_t n;
                if (sscanf(line, "<4>log: %" SCNu64 " lines dropped: log output was blocked", &n) == 1) {
                        told += n;
                        continue;
                }
                ck_assert_msg(sscanf(line, "<6>line %" SCNu64, &n) == 1 && n >= next, "%s", line);
                next = n + 1;
                seen++;
        }
        ck_assert_ptr_nonnull(line);
        ck_assert_uint_eq(told, lost);
        ck_assert_uint_eq(seen + lost, said);
}

TEST(a_blocked_pipe_queues_a_bounded_number_of_lines_and_counts_the_rest)
{
        int saved;
        start_on_file();
        int out = stuck_pipe(&saved);
        uint64_t said = log_until_lost(), lost;
        for (uint64_t i = 0; i < 20000; i++)
                log_info("line %08" PRIu64, said++);
        lost = log_lost();
        must(fcntl(out, F_SETPIPE_SZ, 1 << 20)); /* now all lines fit */
        log_flush();
        log_info("after");
        log_stop();
        ck_assert_uint_eq(log_lost(), lost);
        close(turn_stderr_into(saved)); /* the last writer's end */
        char *text = read_to_end(out, 1 << 20);
        ck_assert_uint_gt(strlen(text), LOG_BATCH_MAX); /* the one that filled while the other was stuck */
        ck_assert_uint_le(strlen(text), 2 * LOG_BATCH_MAX + PIPE_BYTES + LOG_LINE_MAX);
        check_account(text, said, lost);
}

TEST(exit_does_not_wait_for_ever_for_a_blocked_pipe)
{
        int saved;
        start_on_file();
        stuck_pipe(&saved);
        log_until_lost();
        uint64_t before = now_ns();
        log_stop();
        ck_assert_uint_lt(now_ns() - before, UINT64_C(8) * 1000000000);
        log_info("nobody hangs that says something yet");
        log_stop();
}

TEST(lines_refused_by_a_full_disk_are_counted_and_reported_later)
{
        start_on_file();
        int full = must(open("/dev/full", O_WRONLY | O_CLOEXEC));
        int file = turn_stderr_into(full);
        log_info("one");
        log_flush();
        log_info("two");
        log_info("three");
        log_flush();
        ck_assert_uint_eq(log_lost(), 3); /* the line that reported the first drop does not count */
        close(turn_stderr_into(file));
        log_info("four");
        log_stop();
        ck_assert_uint_eq(log_lost(), 3);
        char *text = file_read(suite_path("file-%d", (int)getpid()), NULL);
        ck_assert_str_eq(text, "<4>log: 3 lines dropped: log output was blocked\n<6>four\n");
}

TEST(another_process_may_make_the_open_file_nonblocking)
{
        int pipe_fds[2], got = 0;
        must(pipe2(pipe_fds, O_CLOEXEC | O_NONBLOCK));
        start_on_file();
        int saved = turn_stderr_into(pipe_fds[1]);
        for (int i = 0; i < 100; i++)
                log_info("line %02d %0988d", i, i);
        must(fcntl(pipe_fds[0], F_SETFL, 0));
        for (char data[4000]; got < 100 * 1000;) {
                int n = (int)must(read(pipe_fds[0], data, sizeof(data)));
                ck_assert_int_eq(n % 1000, 0); /* lines are whole */
                got += n;
        }
        log_flush();
        ck_assert_uint_eq(log_lost(), 0);
        log_stop();
        close(turn_stderr_into(saved));
}
