/* SPDX-License-Identifier: Apache-2.0
 *
 * Starts, stops and kills a daemon: see daemon.h.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define FLAGS_MAX 64
#define LOG_END 4000 /* bytes */
#define START_MS 20000
#define LOG_MS 20000
#define STOP_MS 15000

const char *build_path(const char *program)
{
        const char *build = getenv("STREAMERD_BUILD");
        return format_text("%s/%s", build && *build ? build : "build", program);
}

/* ---- fake GPUs ---- */

bool daemon_on_gpu(void)
{
        const char *device = getenv("STREAMERD_TEST_DEVICE");
        return device && strcmp(device, "cuda") == 0;
}

/* The fake GPUs, for the daemon and its clients, with more memory than any budget. */
static void use_fakes(void)
{
        cleanup_free char *folder = realpath(build_path("tests/fake"), NULL);
        if (!folder)
                die("the fake CUDA libraries are not built (make tests)");
        setenv("STREAMER_CUDA_LIBRARY", format_text("%s/libcuda.so.1", folder), 1);
        setenv("LD_LIBRARY_PATH", folder, 1);
        setenv("FAKECUDA_MEM_MIB", "65536", 0);
}

/* "host=8GiB" > "cuda:0=8GiB"; other flags as they are. */
static const char *gpu_instead(const char *flag)
{
        if (!daemon_on_gpu() || strncmp(flag, "host=", 5) != 0)
                return flag;
        return format_text("cuda:0%s", flag + 4);
}

/* ---- what a failing test prints ---- */

#define LOGS_MAX 8

static char logs[LOGS_MAX][PATH_SIZE]; /* of the last daemons */
static size_t n_logs;

/* From a sanitizer's report on, if there is one. */
static const char *end_of(const char *path)
{
        size_t len;
        char *log = file_read(path, &len), *report = strstr(log, "WARNING: ThreadSanitizer");
        report = report ?: strstr(log, "ERROR: AddressSanitizer");
        return report ?: len > LOG_END ? log + len - LOG_END : log;
}

static void print_logs(void)
{
        for (size_t i = 0; i < n_logs && i < LOGS_MAX; i++) {
                if (access(logs[i], R_OK) < 0)
                        continue;
                printf("---- the end of %s:\n%s\n", logs[i], end_of(logs[i]));
        }
        fflush(stdout);
}

static void note_log(const char *path)
{
        for (size_t i = 0; i < n_logs && i < LOGS_MAX; i++)
                if (strcmp(logs[i], path) == 0)
                        return;
        snprintf(logs[n_logs++ % LOGS_MAX], PATH_SIZE, "%s", path);
        suite_on_failure = print_logs;
}

void daemon_init(struct daemon *d, const char *folder)
{
        if (daemon_on_gpu())
                use_fakes();
        *d = (struct daemon){.pidfd = -1, .notify = -1};
        snprintf(d->folder, sizeof(d->folder), "%s", folder);
        mkdir(folder, 0755);
        if ((size_t)snprintf(d->socket, sizeof(d->socket), "%s/s", folder) >=
            sizeof(((struct sockaddr_un *)0)->sun_path))
                die("%s: too long for a socket", folder);
        snprintf(d->log, sizeof(d->log), "%s/log", folder);
        note_log(d->log);
        unlink(d->log); /* of an earlier daemon in this directory */
}

void daemon_die(const struct daemon *d, const char *format, ...)
{
        char text[1024];
        FORMAT_ARGS(text, format);
        die("the daemon %s; its log:\n%s", text, end_of(d->log));
}

/* ---- start ---- */

void (*daemon_before)(void);

int daemon_notify_socket(char name[108])
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        static unsigned number;

        /* Abstract: there is nothing to remove. */
        int n = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "streamerd-test/%d/%u", (int)getpid(),
                         number++);
        snprintf(name, 108, "@%s", address.sun_path + 1);
        int fd = must(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
        must(bind(fd, (struct sockaddr *)&address,
                  (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n)));
        return fd;
}

void daemon_exec(const struct daemon *d, const char *notify, const char *const *flags)
{
        const char *argv[FLAGS_MAX] = {build_path("streamerd"), "--socket", d->socket};
        size_t n = 3;
        bool configured = false;
        for (; *flags && n < FLAGS_MAX - 1; flags++) {
                configured |= strcmp(*flags, "--config") == 0;
                argv[n++] = *flags;
        }
        /* The first load writes the whole ring. The variable would override a file. */
        if (!configured)
                setenv("RUNAI_STREAMER_MEMORY_LIMIT", "67108864", 0);
        int log = must(open(d->log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
        must(dup2(log, STDOUT_FILENO));
        must(dup2(log, STDERR_FILENO));
        signal(SIGPIPE, SIG_DFL);
        setsid(); /* its own session, as for a service: the scheduler divides time among sessions first */
        setenv("NOTIFY_SOCKET", notify, 1);
        unsetenv("STREAMERD_SOCKET");
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (daemon_before)
                daemon_before();
        execv(argv[0], (char *const *)(uintptr_t)argv);
        dprintf(STDERR_FILENO, "%s: %s\n", argv[0], strerror(errno));
        _exit(127);
}

void daemon_spawn(struct daemon *d, const char *const *flags)
{
        char notify[108];
        const char *all[FLAGS_MAX] = {NULL};
        for (size_t n = 0; flags[n] != NULL && n < FLAGS_MAX - 1; n++)
                all[n] = gpu_instead(flags[n]);
        d->notify = daemon_notify_socket(notify);
        d->pid = must(fork());
        if (d->pid == 0)
                daemon_exec(d, notify, all);
        d->pidfd = must((int)syscall(SYS_pidfd_open, d->pid, 0));
}

static void reap(struct daemon *d)
{
        close(d->pidfd);
        close(d->notify);
        d->pid = 0;
        d->pidfd = d->notify = -1;
}

static bool read_ready(int notify)
{
        char text[4096];
        ssize_t n = must(recv(notify, text, sizeof(text) - 1, 0));
        text[n] = '\0';
        return strncmp(text, "READY=1", 7) == 0 || strstr(text, "\nREADY=1");
}

bool daemon_wait_ready(struct daemon *d)
{
        struct pollfd fds[] = {{.fd = d->notify, .events = POLLIN}, {.fd = d->pidfd, .events = POLLIN}};
        uint64_t deadline = clock_ns() + (uint64_t)START_MS * 1000000;
        while (clock_ns() < deadline) {
                must(poll(fds, 2, START_MS));
                if (fds[0].revents && read_ready(d->notify))
                        return true;
                if (!fds[0].revents && fds[1].revents)
                        return false;
        }
        daemon_die(d, "did not become ready");
}

void daemon_start(struct daemon *d, const char *const *flags)
{
        daemon_spawn(d, flags);
        if (!daemon_wait_ready(d))
                daemon_die(d, "ended while starting");
}

void daemon_start_simple(struct daemon *d, const char *folder, const char *root, const char *budget)
{
        cleanup_free char *device = format_text("host=%s", budget);
        daemon_init(d, folder);
        daemon_start(d, (const char *const[]){"--device", device, "--root", root, NULL});
}

int daemon_run(struct daemon *d, const char *const *flags)
{
        daemon_spawn(d, flags);
        return daemon_wait(d, START_MS);
}

int daemon_try(struct daemon *d, const char *const *flags)
{
        daemon_spawn(d, flags);
        return daemon_wait_ready(d) ? daemon_stop(d) : daemon_wait(d, START_MS);
}

/* ---- end ---- */

void daemon_terminate(struct daemon *d)
{
        must(kill(d->pid, SIGTERM));
}

bool daemon_ends_within(const struct daemon *d, int timeout_ms)
{
        struct pollfd fd = {.fd = d->pidfd, .events = POLLIN};
        return must(poll(&fd, 1, timeout_ms)) > 0;
}

int daemon_wait(struct daemon *d, int timeout_ms)
{
        if (!daemon_ends_within(d, timeout_ms))
                daemon_die(d, "did not end in time");
        int status = child_wait(d->pid);
        reap(d);
        return status;
}

int daemon_stop(struct daemon *d)
{
        daemon_terminate(d);
        return daemon_wait(d, STOP_MS);
}

void daemon_kill(struct daemon *d)
{
        if (d->pid == 0)
                return;
        kill(d->pid, SIGKILL);
        waitpid(d->pid, NULL, 0);
        reap(d);
}

static bool log_has(const char *path, const char *text)
{
        cleanup_free char *log = file_read(path, NULL);
        return strstr(log, text) != NULL;
}

bool daemon_gave_up(const struct daemon *d)
{
        return log_has(d->log, "ending without them");
}

bool log_wait_for(const char *log, const char *text)
{
        return WITHIN(LOG_MS, log_has(log, text));
}
