/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/azure_store.h"

#include <sys/prctl.h>

static char *read_line(struct azure_store *store)
{
        char *line = NULL;
        size_t size = 0;
        ssize_t n = getline(&line, &size, store->from);
        if (n <= 0 || strncmp(line, "error", 5) == 0)
                die("azure_store: %s", n > 0 ? line : "no answer");
        line[strcspn(line, "\n")] = '\0';
        return line;
}

void azure_store_start(struct azure_store *store, unsigned page)
{
        int to[2], from[2];
        char *text = format_text("%u", page);
        must(pipe(to));
        must(pipe(from));
        store->pid = must(fork());
        if (store->pid == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                dup2(to[0], STDIN_FILENO);
                dup2(from[1], STDOUT_FILENO);
                for (int fd = 3; fd < 64; fd++)
                        close(fd);
                execlp("python3", "python3", "tests/lib/azure_store.py", AZURE_ACCOUNT, AZURE_KEY, text, NULL);
                _exit(127);
        }
        close(to[0]);
        close(from[1]);
        store->to = fdopen(to[1], "w");
        store->from = fdopen(from[0], "r");
        snprintf(store->url, sizeof(store->url), "http://127.0.0.1:%s", read_line(store));
        snprintf(store->endpoint, sizeof(store->endpoint), "%s/" AZURE_ACCOUNT, store->url);
}

void azure_store_stop(struct azure_store *store)
{
        fclose(store->to);
        fclose(store->from);
        kill(store->pid, SIGKILL);
        waitpid(store->pid, NULL, 0);
}

char *azure_store_do(struct azure_store *store, const char *format, ...)
{
        va_list args;
        va_start(args, format);
        vfprintf(store->to, format, args);
        va_end(args);
        fputc('\n', store->to);
        fflush(store->to);
        return read_line(store);
}
