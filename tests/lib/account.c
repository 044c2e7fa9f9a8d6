/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/account.h"

#include "tests/lib/fixture.h"

#include <sys/xattr.h>

#define WAIT_MS 20000
#define LINES_MAX 256

struct lines {
        struct line {
                char name[PATH_SIZE];
                uint64_t n;
        } lines[LINES_MAX];
        size_t n;
};

static void add(struct lines *lines, const char *name, uint64_t n)
{
        size_t i = 0;
        while (i < lines->n && strcmp(lines->lines[i].name, name) != 0)
                i++;
        if (i == LINES_MAX)
                die("more than %d kinds of resources", LINES_MAX);
        if (i == lines->n)
                snprintf(lines->lines[lines->n++].name, sizeof(lines->lines[0].name), "%s", name);
        lines->lines[i].n += n;
}

/* ---- pools ---- */

/* Connections to web servers, which stay open for their next request. */
static bool is_tcp(pid_t pid, const char *fd)
{
        char *path = format_text("/proc/%d/fd/%s", (int)pid, fd), protocol[16] = ""; /* "TCP" or "TCPv6" */
        ssize_t len = getxattr(path, "system.sockprotoname", protocol, sizeof(protocol) - 1);
        free(path);
        return len > 0 && strncmp(protocol, "TCP", 3) == 0;
}

/* Threads for blocking calls, which start when all others are busy; and for web servers, which start at the first load
 * from one, each with the descriptors of its loop. */
static bool is_of_pool(const char *comm)
{
        return strcmp(comm, "reader") == 0 || strcmp(comm, "worker") == 0 || strcmp(comm, "network") == 0;
}

/* Where the machine has set huge pages aside, the daemon prepares memory while nothing is loaded. */
static const char prefaulted[] = "fd /memfd:streamerd-segment (deleted)";

/* ---- kinds ---- */

/* "socket:[123]" is "socket:[]". */
static void remove_digits(char *text)
{
        char *to = text;
        for (const char *at = text; *at; at++)
                if (*at < '0' || *at > '9')
                        *to++ = *at;
        *to = '\0';
}

static void add_fds(struct lines *lines, pid_t pid)
{
        char *path = format_text("/proc/%d/fd", (int)pid), target[PATH_SIZE - 8];
        DIR *dir = opendir(path);
        if (!dir)
                die_errno("%s", path);
        for (struct dirent *e; (e = readdir(dir));) {
                ssize_t len = readlinkat(dirfd(dir), e->d_name, target, sizeof(target) - 1);
                if (e->d_name[0] == '.' || len < 0)
                        continue;
                target[len] = '\0';
                if (strncmp(target, "socket:", 7) == 0 && is_tcp(pid, e->d_name))
                        continue;
                remove_digits(target);
                cleanup_free char *name = format_text("fd %s", target);
                add(lines, name, 1);
        }
        closedir(dir);
        free(path);
}

static void add_threads(struct lines *lines, pid_t pid)
{
        cleanup_free char *folder = format_text("/proc/%d/task", (int)pid);
        DIR *dir = opendir(folder);
        if (!dir)
                die_errno("%s", folder);
        for (struct dirent *e; (e = readdir(dir));) {
                char *path = format_text("%s/%s/comm", folder, e->d_name), comm[32];
                FILE *f = e->d_name[0] != '.' ? fopen(path, "re") : NULL;
                if (f && fgets(comm, sizeof(comm), f)) {
                        comm[strcspn(comm, "\n")] = '\0';
                        remove_digits(comm);
                        cleanup_free char *name = format_text("thread %s", comm);
                        if (!is_of_pool(comm))
                                add(lines, name, 1);
                        if (strcmp(comm, "network") == 0) {
                                add(lines, "fd anon_inode:[eventfd]", -UINT64_C(1));
                                add(lines, "fd socket:[]", -UINT64_C(2));
                        }
                }
                if (f)
                        fclose(f);
                free(path);
        }
        closedir(dir);
}

static void add_reply(struct lines *lines, streamer_client *c)
{
        json_t *reply = client_call(c, "status", NULL), *device;
        for (size_t i = 0; (device = json_array_get(json_object_get(reply, "devices"), i)); i++) {
                cleanup_free char *name = format_text("bytes of %s", json_text(device, "device"));
                add(lines, name, json_number(device, "used"));
                if (json_number(device, "prefaulted") > 0)
                        add(lines, prefaulted, -UINT64_C(1));
        }
        add(lines, "bytes of the host cache", json_number(json_object_get(reply, "host_cache"), "used"));
        json_decref(reply);
        add(lines, "leases", client_leases(c));
}

/* ---- accounts ---- */

static int by_name(const void *a, const void *b)
{
        return strcmp(((const struct line *)a)->name, ((const struct line *)b)->name);
}

static char *account_with(const struct daemon *d, streamer_client *c)
{
        cleanup_free struct lines *lines = must_alloc(sizeof(*lines));
        char *text = format_text("%s", "");
        add_reply(lines, c);
        add_fds(lines, d->pid);
        add_threads(lines, d->pid);
        qsort(lines->lines, lines->n, sizeof(lines->lines[0]), by_name);
        for (size_t i = 0; i < lines->n; i++) {
                if (lines->lines[i].n == 0)
                        continue;
                char *more =
                        format_text("%s%s: %llu\n", text, lines->lines[i].name, (unsigned long long)lines->lines[i].n);
                free(text);
                text = more;
        }
        return text;
}

/* Until it runs, a thread has the name of the thread that started it. TSan has a thread that keeps it. */
static bool threads_have_names(const char *account)
{
        const char *line = strstr(account, "thread streamerd: ");
        unsigned long most = 1;

#ifdef __SANITIZE_THREAD__
        most = 2;
#endif
        return line == NULL || strtoul(line + strlen("thread streamerd: "), NULL, 10) <= most;
}

/* A model is ready a moment before its load has closed what it used. */
static bool is_settled(const struct daemon *d, streamer_client *c, char **account)
{
        cleanup_free char *before = *account;
        *account = account_with(d, c);
        bool same = before != NULL && strcmp(before, *account) == 0;
        return same && strstr(*account, ".safetensors: ") == NULL && threads_have_names(*account);
}

char *account_of(const struct daemon *d)
{
        streamer_client *c = client_open(d);
        char *account = NULL;
        (void)WITHIN(WAIT_MS, is_settled(d, c, &account));
        streamer_close(c);
        return account;
}

/* The lines of `text` that `other` does not have. */
static char *lines_only_in(const char *text, const char *other)
{
        char *found = format_text("%s", "");
        for (const char *line = text; *line;) {
                size_t len = strcspn(line, "\n") + 1;
                cleanup_free char *one = format_text("%.*s", (int)len, line);
                if (!strstr(other, one)) {
                        char *more = format_text("%s  %s", found, one);
                        free(found);
                        found = more;
                }
                line += len;
        }
        return found;
}

void account_await(const struct daemon *d, const char *account)
{
        streamer_client *c = client_open(d);
        char *now;
        if (!WITHIN(3 * WAIT_MS, strcmp(now = account_with(d, c), account) == 0))
                daemon_die(d, "used, of what has changed:\n%suses now:\n%s", lines_only_in(account, now),
                           lines_only_in(now, account));
        streamer_close(c);
}
