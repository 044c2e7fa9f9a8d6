/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/s3_store.h"

#include "tests/lib/ports.h"

#include <sys/prctl.h>

/* ---- the store ---- */

const char *s3_store_missing(const char *kind)
{
        bool swift = strcmp(kind, "swift") == 0;
        if (system("python3 -c 'import botocore' >/dev/null 2>&1") != 0)
                return "python3-botocore is not installed";
        if (swift && !(command_exists("swift-proxy-server") && command_exists("swift-object-server") &&
                       command_exists("swift-account-server") && command_exists("swift-container-server")))
                return "Swift's servers are not installed";
        if (!swift && !(command_exists("radosgw") && command_exists("ceph-mon") && command_exists("ceph-osd")))
                return "Ceph's servers are not installed";
        return command_exists("setpriv") && command_exists("curl") ? NULL : "setpriv and curl are not installed";
}

static void start_script(struct s3_store *store, const char *folder)
{
        char *port = format_text("%u", store->port), *script = format_text("tests/lib/%s.sh", store->kind);
        int out[2];
        char line[64] = "";
        must(pipe(out));
        store->pid = must(fork());
        if (store->pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                dup2(out[1], STDOUT_FILENO);
                close(out[0]);
                close(out[1]);
                execl(script, script, folder, port, NULL);
                _exit(127);
        }
        close(out[1]);
        FILE *from = fdopen(out[0], "r");
        if (!fgets(line, sizeof(line), from) || strcmp(line, "ready\n") != 0)
                die("%s did not start: see %s/log", store->kind, folder);
        fclose(from);
}

static void start_filler(struct s3_store *store)
{
        int to[2], from[2];
        must(pipe(to));
        must(pipe(from));
        store->filler_pid = must(fork());
        if (store->filler_pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                dup2(to[0], STDIN_FILENO);
                dup2(from[1], STDOUT_FILENO);
                for (int fd = 3; fd < 64; fd++)
                        close(fd);
                execlp("python3", "python3", "tests/lib/s3_store.py", store->url, store->access, store->secret, NULL);
                _exit(127);
        }
        close(to[0]);
        close(from[1]);
        store->to = fdopen(to[1], "w");
        store->from = fdopen(from[0], "r");
}

void s3_store_start(struct s3_store *store, const char *kind, const char *folder)
{
        bool swift = strcmp(kind, "swift") == 0;
        *store = (struct s3_store){.kind = kind,
                                   .port = free_ports(PORTS_MAX),
                                   .access = swift ? "test:tester" : "TESTACCESS",
                                   .secret = swift ? "storesecret" : "testsecret"};
        snprintf(store->url, sizeof(store->url), "http://127.0.0.1:%u", store->port);
        must(mkdir(folder, 0755));
        start_script(store, folder);
        start_filler(store);
}

void s3_store_stop(struct s3_store *store)
{
        if (store->pid == 0)
                return;
        fclose(store->to);
        fclose(store->from);
        waitpid(store->filler_pid, NULL, 0);
        kill(store->pid, SIGKILL); /* its servers die with it */
        waitpid(store->pid, NULL, 0);
        store->pid = 0;
}

char *s3_store_do(struct s3_store *store, const char *format, ...)
{
        va_list args;
        char *line = NULL;
        size_t size = 0;
        va_start(args, format);
        vfprintf(store->to, format, args);
        va_end(args);
        fputc('\n', store->to);
        fflush(store->to);
        ssize_t n = getline(&line, &size, store->from);
        if (n <= 0 || strncmp(line, "error", 5) == 0)
                die("%s: %s: %s", store->kind, format, n > 0 ? line : "no answer");
        line[strcspn(line, "\n")] = '\0';
        return line;
}
