/* SPDX-License-Identifier: Apache-2.0
 *
 * run: attaches to a model and runs a command while the lease is held, so that the model can be neither evicted nor
 * unloaded before the command has exited. The command finds the model in its environment. The result is its exit
 * code; 128 + N if signal N ended it; 126 or 127 if it could not be run.
 *
 * The command is in streamerctl's process group, so the terminal sends its signals to both. streamerctl ignores the
 * terminal's signals and passes on SIGTERM, SIGHUP, SIGUSR1 and SIGUSR2.
 */
#include "client/streamerctl/ctl.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXIT_CANNOT_RUN 126
#define EXIT_NOT_FOUND 127

static volatile pid_t child;

static void pass_on(int signal_number)
{
        if (child > 0)
                kill(child, signal_number);
}

/* Without SA_RESTART: waitpid() returns, and is called again. */
static void set_handler(int signal_number, void (*handler)(int))
{
        sigaction(signal_number, &(struct sigaction){.sa_handler = handler}, NULL);
}

static void set_environment(const struct ctl *ctl, streamer_lease *lease)
{
        char generation[24];
        snprintf(generation, sizeof(generation), "%" PRIu64, streamer_generation(lease));
        setenv("STREAMER_MODEL", ctl->args[0], 1);
        setenv("STREAMER_GENERATION", generation, 1);
        setenv("STREAMER_DIGEST", streamer_digest(lease), 1);
        if (ctl->socket)
                setenv("STREAMERD_SOCKET", ctl->socket, 1);
}

static _Noreturn void exec_command(const struct ctl *ctl, const sigset_t *mask)
{
        set_handler(SIGPIPE, SIG_DFL);
        set_handler(SIGINT, SIG_DFL);
        set_handler(SIGQUIT, SIG_DFL);
        sigprocmask(SIG_SETMASK, mask, NULL);
        execvp(ctl->args[1], (char *const *)(uintptr_t)(ctl->args + 1));
        int code = errno == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_RUN;
        ctl_error(ctl, STREAMER_EOS, ctl->args[1], "cannot be run: %s", strerror(errno));
        _exit(code);
}

static int run_command(const struct ctl *ctl)
{
        static const int passed[] = {SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
        int status;
        sigset_t blocked, mask;
        sigfillset(&blocked);
        sigprocmask(SIG_BLOCK, &blocked, &mask); /* none is lost before `child` is known */
        child = fork();
        if (child == 0)
                exec_command(ctl, &mask);
        for (size_t i = 0; i < sizeof(passed) / sizeof(passed[0]); i++)
                set_handler(passed[i], pass_on);
        set_handler(SIGINT, SIG_IGN);
        set_handler(SIGQUIT, SIG_IGN);
        sigprocmask(SIG_SETMASK, &mask, NULL);
        if (child < 0)
                return ctl_error(ctl, STREAMER_EOS, NULL, "cannot make a process: %s", strerror(errno));
        while (waitpid(child, &status, 0) < 0)
                if (errno != EINTR)
                        return ctl_error(ctl, STREAMER_EOS, NULL, "cannot wait: %s", strerror(errno));
        return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int verb_run(struct ctl *ctl)
{
        streamer_lease *lease;
        int rc = model_attach(ctl, -1, &lease);
        if (rc != 0)
                return rc;
        set_environment(ctl, lease);
        rc = run_command(ctl);
        streamer_detach(lease);
        return rc;
}
