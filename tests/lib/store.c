/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/store.h"

#include "tests/lib/ports.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- the store ---- */

static bool is_there(const char *program)
{
        return system(format_text("command -v %s >/dev/null 2>&1", program)) == 0;
}

const char *store_missing(const char *kind)
{
        bool swift = strcmp(kind, "swift") == 0;

        if (system("python3 -c 'import botocore' >/dev/null 2>&1") != 0)
                return "python3-botocore is not installed";
        if (swift && !(is_there("swift-proxy-server") && is_there("swift-object-server") &&
                       is_there("swift-account-server") && is_there("swift-container-server")))
                return "Swift's servers are not installed";
        if (!swift && !(is_there("radosgw") && is_there("ceph-mon") && is_there("ceph-osd")))
                return "Ceph's servers are not installed";
        return is_there("setpriv") && is_there("curl") ? NULL : "setpriv and curl are not installed";
}

static void start_script(struct store *store, const char *folder)
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

static void start_filler(struct store *store)
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
                execlp("python3", "python3", "tests/lib/store.py", store->url, store->access, store->secret, NULL);
                _exit(127);
        }
        close(to[0]);
        close(from[1]);
        store->to = fdopen(to[1], "w");
        store->from = fdopen(from[0], "r");
}

void store_start(struct store *store, const char *kind, const char *folder)
{
        bool swift = strcmp(kind, "swift") == 0;

        *store = (struct store){.kind = kind,
                                .port = free_ports(PORTS_MAX),
                                .access = swift ? "test:tester" : "TESTACCESS",
                                .secret = swift ? "storesecret" : "testsecret"};
        snprintf(store->url, sizeof(store->url), "http://127.0.0.1:%u", store->port);
        must(mkdir(folder, 0755));
        start_script(store, folder);
        start_filler(store);
}

void store_stop(struct store *store)
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

char *store_do(struct store *store, const char *format, ...)
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
