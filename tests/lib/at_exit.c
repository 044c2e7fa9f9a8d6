/* SPDX-License-Identifier: Apache-2.0
 *
 * The process that cleans up after the test program exits: see at_exit.h.
 */
#include "tests/lib/at_exit.h"
#include "tests/lib/base.h"

#include <fcntl.h>

#define TASKS_MAX 64

struct task {
        char path[PATH_SIZE];
        char value[64]; /* "": the path is a directory to remove */
};

static int pipe_end = -1;
static pid_t owner, cleaner;

static void clean_up(const struct task *t)
{
        if (!t->value[0])
                return folder_remove(t->path);
        int fd = open(t->path, O_WRONLY | O_CLOEXEC);
        if (fd >= 0 && write(fd, t->value, strlen(t->value)) < 0)
                fprintf(stderr, "%s: %s was not restored: %s\n", t->path, t->value, strerror(errno));
        if (fd >= 0)
                close(fd);
}

/* Its own session: Ctrl-C on the terminal ends the program and not this process. */
static _Noreturn void cleaner_main(int from)
{
        struct task *tasks = must_alloc(TASKS_MAX * sizeof(*tasks));
        size_t n = 0, have = 0;
        setsid();
        for (;;) {
                ssize_t got = read(from, (char *)&tasks[n] + have, sizeof(*tasks) - have);
                if (got <= 0)
                        break;
                have += (size_t)got;
                if (have < sizeof(*tasks))
                        continue;
                have = 0;
                if (++n == TASKS_MAX)
                        break;
        }
        while (n-- > 0)
                clean_up(&tasks[n]);
        _exit(0);
}

static void start(void)
{
        int ends[2];
        owner = getpid();
        must(pipe2(ends, O_CLOEXEC));
        cleaner = must(fork());
        if (cleaner == 0) {
                close(ends[1]);
                cleaner_main(ends[0]);
        }
        close(ends[0]);
        pipe_end = ends[1];
        atexit(at_exit_now);
}

static void send_task(const struct task *t)
{
        if (pipe_end < 0)
                start();
        if (must(write(pipe_end, t, sizeof(*t))) != sizeof(*t))
                die("short write");
}

void at_exit_remove(const char *path)
{
        struct task t = {0};
        snprintf(t.path, sizeof(t.path), "%s", path);
        send_task(&t);
}

void at_exit_restore(const char *path, const char *value)
{
        struct task t = {0};
        snprintf(t.path, sizeof(t.path), "%s", path);
        snprintf(t.value, sizeof(t.value), "%s", value);
        send_task(&t);
}

void at_exit_now(void)
{
        if (pipe_end < 0 || getpid() != owner)
                return;
        close(pipe_end);
        pipe_end = -1;
        while (waitpid(cleaner, NULL, 0) < 0 && errno == EINTR)
                ;
}
