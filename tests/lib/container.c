/* SPDX-License-Identifier: Apache-2.0
 *
 * Boots the container: unshare creates a mount namespace in which the system's root can be bound to a directory, this
 * machine's too, and nspawn makes an overlay of it. PID 1 of the container is nspawn's child; commands enter its
 * namespaces with nsenter, so no message bus is needed.
 */
#include "tests/lib/container.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/prctl.h>

#define BOOT_MS 60000
#define RTMIN_POWEROFF (SIGRTMIN + 4) /* systemd(1), signals */

static _Noreturn void exec_nspawn(const struct container *boot, const char *root)
{
        char *script =
                format_text("mkdir -p '%s/root' && mount --bind '%s' '%s/root' && exec systemd-nspawn -q -D '%s/root' "
                            "--volatile=overlay --register=no --keep-unit --link-journal=no "
                            "--machine=streamerd-test-%d --console=pipe --boot systemd.unit=basic.target",
                            boot->folder, root, boot->folder, boot->folder, (int)getpid());
        char *log = format_text("%s/nspawn.log", boot->folder);
        int null = must(open("/dev/null", O_RDONLY)), out = must(open(log, O_WRONLY | O_CREAT | O_TRUNC, 0600));
        must(dup2(null, STDIN_FILENO));
        must(dup2(out, STDOUT_FILENO));
        must(dup2(out, STDERR_FILENO));
        prctl(PR_SET_PDEATHSIG, SIGTERM); /* the first signal makes nspawn power off */
        unsetenv("NOTIFY_SOCKET");
        setenv("SYSTEMD_NSPAWN_UNIFIED_HIERARCHY", "1", 1);
        execlp("unshare", "unshare", "-m", "bash", "-c", script, NULL);
        _exit(127);
}

/* nspawn's child of that name; 0 if it does not run yet. */
static pid_t find_init(pid_t nspawn)
{
        char *path = format_text("/proc/%d/task/%d/children", (int)nspawn, (int)nspawn), comm[64] = "";
        FILE *f = fopen(path, "re");
        int pid = 0, found = 0;
        free(path);
        while (f != NULL && found == 0 && fscanf(f, "%d", &pid) == 1) {
                path = format_text("/proc/%d/comm", pid);
                FILE *c = fopen(path, "re");
                free(path);
                if (c != NULL && fgets(comm, sizeof(comm), c) != NULL && strcmp(comm, "systemd\n") == 0)
                        found = pid;
                if (c != NULL)
                        fclose(c);
        }
        if (f != NULL)
                fclose(f);
        return found;
}

static bool is_up(struct container *boot)
{
        if (boot->init == 0)
                boot->init = find_init(boot->nspawn);
        if (waitpid(boot->nspawn, NULL, WNOHANG) == boot->nspawn) {
                boot->nspawn = 0;
                return true;
        }
        if (boot->init == 0)
                return false;
        cleanup_free char *out = NULL;
        return container_shell(boot, &out, "systemctl is-system-running") == 0 || strstr(out, "degraded") != NULL;
}

/* Held until this program exits. Containers started from one cgroup share it, and each PID 1 takes over all cgroups and
 * processes below it. */
static void be_the_only_one(void)
{
        int fd = open("/sys/fs/cgroup", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        while (fd >= 0 && flock(fd, LOCK_EX) < 0)
                if (errno != EINTR)
                        die_errno("flock of /sys/fs/cgroup");
}

bool container_start(struct container *boot, const char *root, const char *folder)
{
        *boot = (struct container){0};
        snprintf(boot->folder, sizeof(boot->folder), "%s", folder);
        if (getuid() != 0 || !command_exists("systemd-nspawn") || !command_exists("nsenter"))
                return false;
        be_the_only_one();
        boot->nspawn = must(fork());
        if (boot->nspawn == 0)
                exec_nspawn(boot, root);
        if (!WITHIN(BOOT_MS, is_up(boot)))
                container_stop(boot);
        return boot->nspawn > 0;
}

void container_stop(struct container *boot)
{
        if (boot->nspawn == 0)
                return;
        if (boot->init > 0)
                kill(boot->init, RTMIN_POWEROFF);
        if (!WITHIN(10000, waitpid(boot->nspawn, NULL, WNOHANG) != 0)) {
                kill(boot->nspawn, SIGKILL);
                waitpid(boot->nspawn, NULL, 0);
        }
        *boot = (struct container){0};
}

/* ---- commands ---- */

static _Noreturn void exec_shell(const struct container *boot, const char *script, int out)
{
        char *target = format_text("%d", (int)boot->init);
        int null = must(open("/dev/null", O_RDONLY));
        must(dup2(null, STDIN_FILENO));
        must(dup2(out, STDOUT_FILENO));
        must(dup2(out, STDERR_FILENO));
        unsetenv("STREAMERD_SOCKET");
        execlp("nsenter", "nsenter", "-t", target, "-a", "sh", "-c", script, NULL);
        _exit(127);
}

int container_shell(const struct container *boot, char **out, const char *format, ...)
{
        cleanup_free char *script = NULL;
        int fds[2];
        va_list args;
        va_start(args, format);
        must(vasprintf(&script, format, args));
        va_end(args);
        must(pipe2(fds, O_CLOEXEC));
        pid_t pid = must(fork());
        if (pid == 0)
                exec_shell(boot, script, fds[1]);
        close(fds[1]);
        *out = fd_read(fds[0], NULL);
        close(fds[0]);
        return child_wait(pid);
}
