/* SPDX-License-Identifier: Apache-2.0
 *
 * Failure, directories, files and time: see base.h.
 */
#include "tests/lib/base.h"

#include "daemon/base/util.h"

#include <fcntl.h>
#include <ftw.h>
#include <openssl/sha.h>

void (*die_hook)(const char *text);

static _Noreturn void die_with(const char *text)
{
        if (die_hook)
                die_hook(text);
        fprintf(stderr, "%s\n", text);
        exit(1);
}

void die(const char *format, ...)
{
        char text[DIE_TEXT];
        FORMAT_ARGS(text, format);
        die_with(text);
}

void die_errno(const char *format, ...)
{
        int err = errno;
        char text[DIE_TEXT];
        FORMAT_ARGS(text, format);
        die("%s: %s", text, strerror(err));
}

uint64_t env_number(const char *name, uint64_t otherwise)
{
        const char *text = getenv(name);
        uint64_t n = text != NULL ? strtoull(text, NULL, 10) : 0;
        return n != 0 ? n : otherwise;
}

void *must_alloc(size_t size)
{
        void *p = calloc(1, size ? size : 1);
        if (!p)
                die("out of memory: %zu bytes", size);
        return p;
}

void *must_share(size_t size)
{
        void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (p == MAP_FAILED)
                die_errno("%zu bytes of shared memory", size);
        return p;
}

void *must_realloc(void *p, size_t size)
{
        void *r = realloc(p, size ? size : 1);
        if (!r)
                die("out of memory: %zu bytes", size);
        return r;
}

char *format_text(const char *format, ...)
{
        char *text = NULL;
        va_list args;
        va_start(args, format);
        int n = vasprintf(&text, format, args);
        va_end(args);
        if (n < 0)
                die("out of memory");
        return text;
}

char *replace_text(const char *text, const char *word, const char *by)
{
        const char *at;
        char *out = format_text("%s", text);
        while ((at = strstr(out, word)) != NULL) {
                char *next = format_text("%.*s%s%s", (int)(at - out), out, by, at + strlen(word));
                free(out);
                out = next;
        }
        return out;
}

/* ---- folders and files ---- */

void folder_make(char path[PATH_SIZE], const char *prefix)
{
        const char *base = getenv("TMPDIR");
        snprintf(path, PATH_SIZE, "%s/%s-XXXXXX", base && *base ? base : "/var/tmp", prefix);
        if (!mkdtemp(path))
                die_errno("mkdtemp %s", path);
}

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
        return remove(path) && errno != ENOENT ? -1 : 0;
}

void folder_remove(const char *path)
{
        /* FTW_MOUNT: do not enter a file system that a test left mounted. */
        nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

void file_write(const char *path, const void *data, size_t size)
{
        int fd = must(open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
        const char *p = data;
        while (size > 0) {
                ssize_t n = must(write(fd, p, size));
                p += n;
                size -= (size_t)n;
        }
        must(close(fd));
}

void file_put(const char *folder, const char *path, const char *text)
{
        cleanup_free char *name = format_text("%s/%s", folder, path);
        for (char *at = strchr(name + strlen(folder) + 1, '/'); at != NULL; at = strchr(at + 1, '/')) {
                *at = '\0';
                mkdir(name, 0755);
                *at = '/';
        }
        file_write(name, text, strlen(text));
}

char *fd_read(int fd, size_t *size)
{
        size_t used = 0, cap = 4096;
        char *text = must_realloc(NULL, cap + 1);

        /* To the end of the file: st_size is 0 in /proc. */
        for (ssize_t n; (n = must(read(fd, text + used, cap - used))) > 0;) {
                used += (size_t)n;
                if (used == cap) {
                        cap *= 2;
                        text = must_realloc(text, cap + 1);
                }
        }
        text[used] = '\0';
        if (size)
                *size = used;
        return text;
}

char *file_read(const char *path, size_t *size)
{
        cleanup_close int fd = must(open(path, O_RDONLY | O_CLOEXEC));
        return fd_read(fd, size);
}

void file_sha256(const char *path, char hex[65])
{
        unsigned char digest[SHA256_DIGEST_LENGTH];
        size_t size;
        cleanup_free char *data = file_read(path, &size);
        SHA256((const unsigned char *)data, size, digest);
        for (size_t i = 0; i < sizeof(digest); i++)
                snprintf(hex + 2 * i, 3, "%02x", digest[i]);
}

uint64_t file_size(const char *path)
{
        struct stat st;
        must(stat(path, &st));
        return (uint64_t)st.st_size;
}

/* ---- commands ---- */

static int exit_status(int status)
{
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int shell(char **output, const char *format, ...)
{
        cleanup_free char *command = NULL;
        va_list args;
        va_start(args, format);
        must(vasprintf(&command, format, args));
        va_end(args);
        cleanup_free char *both = format_text("{ %s\n} 2>&1", command);
        FILE *f = popen(both, "re"); /* NOLINT: a command of the tests' own */
        if (f == NULL)
                die_errno("%s", command);
        *output = fd_read(fileno(f), NULL);
        return exit_status(pclose(f));
}

bool command_exists(const char *program)
{
        cleanup_free char *path = NULL;
        return shell(&path, "command -v %s", program) == 0;
}

/* ---- time ---- */

uint64_t clock_ns(void)
{
        return now_ns();
}

pid_t child_start(void (*fn)(void))
{
        int ends[2];
        char byte;
        must(pipe2(ends, O_CLOEXEC));
        pid_t pid = must(fork());
        if (pid == 0) {
                if (fn != NULL)
                        fn();
                must(write(ends[1], "", 1));
                pause();
        }
        close(ends[1]);
        if (read(ends[0], &byte, 1) != 1)
                die("a child process failed");
        close(ends[0]);
        return pid;
}

int child_wait(pid_t pid)
{
        int status;
        must(waitpid(pid, &status, 0));
        return exit_status(status);
}

void child_kill(pid_t pid)
{
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
}

unsigned count_open_fds(void)
{
        unsigned n = 0;
        for (int fd = 0; fd < 1024; fd++)
                n += fcntl(fd, F_GETFD) >= 0;
        return n;
}
