/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs streamerctl: see streamerctl.h. Both outputs are read at once, so that a full pipe cannot block the program.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/base.h"
#include "tests/lib/daemon.h"

#include <fcntl.h>
#include <sys/prctl.h>

#define ARGS_MAX 32

static _Noreturn void exec_ctl(const char *socket, const char *const *args, int out, int err)
{
        const char *argv[ARGS_MAX] = {build_path("streamerctl")};
        size_t n = 1;
        if (socket) {
                argv[n++] = "--socket";
                argv[n++] = socket;
        }
        while (*args && n < ARGS_MAX - 1)
                argv[n++] = *args++;
        int null = must(open("/dev/null", O_RDONLY | O_CLOEXEC));
        must(dup2(null, STDIN_FILENO));
        must(dup2(out, STDOUT_FILENO));
        must(dup2(err, STDERR_FILENO));
        signal(SIGPIPE, SIG_DFL);
        unsetenv("STREAMERD_SOCKET");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execv(argv[0], (char *const *)(uintptr_t)argv);
        _exit(127);
}

void ctl_start(struct ctl_running *running, const char *socket, const char *const *args)
{
        int out[2], err[2];
        must(pipe2(out, O_CLOEXEC));
        must(pipe2(err, O_CLOEXEC));
        running->pid = must(fork());
        if (running->pid == 0)
                exec_ctl(socket, args, out[1], err[1]);
        close(out[1]);
        close(err[1]);
        running->out = out[0];
        running->err = err[0];
}

struct text {
        char *data;
        size_t size, cap;
};

/* False at the end. */
static bool text_read(struct text *t, int fd)
{
        if (t->size + 1 >= t->cap) {
                t->cap = t->cap ? t->cap * 2 : 65536;
                t->data = must_realloc(t->data, t->cap);
        }
        ssize_t n = must(read(fd, t->data + t->size, t->cap - t->size - 1));
        t->size += (size_t)n;
        t->data[t->size] = '\0';
        return n > 0;
}

void ctl_finish(struct ctl_running *running, struct ctl *result)
{
        struct pollfd fds[2] = {{.fd = running->out, .events = POLLIN}, {.fd = running->err, .events = POLLIN}};
        struct text texts[2] = {{0}};
        while (fds[0].fd >= 0 || fds[1].fd >= 0) {
                must(poll(fds, 2, -1));
                for (int i = 0; i < 2; i++)
                        if (fds[i].fd >= 0 && fds[i].revents && !text_read(&texts[i], fds[i].fd))
                                fds[i].fd = -1;
        }
        close(running->out);
        close(running->err);
        *result = (struct ctl){.code = child_wait(running->pid),
                               .out = texts[0].data,
                               .err = texts[1].data,
                               .out_size = texts[0].size};
}

void ctl_v(struct ctl *result, const char *socket, const char *const *args)
{
        struct ctl_running running;
        ctl_start(&running, socket, args);
        ctl_finish(&running, result);
}

static void ctl_list(struct ctl *result, const char *socket, va_list list)
{
        const char *args[ARGS_MAX] = {0};
        for (size_t n = 0; n < ARGS_MAX - 1 && (args[n] = va_arg(list, const char *)); n++)
                ;
        ctl_v(result, socket, args);
}

void ctl(struct ctl *result, const char *socket, ...)
{
        va_list list;
        va_start(list, socket);
        ctl_list(result, socket, list);
        va_end(list);
}

char *ctl_says(const char *socket, int code, const char *text, ...)
{
        struct ctl r;
        va_list list;
        va_start(list, text);
        ctl_list(&r, socket, list);
        va_end(list);
        char *said = code == 0 ? r.out : r.err;
        if (r.code != code || strstr(said, text) == NULL)
                die("streamerctl: exit %d instead of %d, or no '%s' in: %s%s", r.code, code, text, r.out, r.err);
        return said;
}

void ctl_free(struct ctl *result)
{
        free(result->out);
        free(result->err);
        *result = (struct ctl){0};
}
