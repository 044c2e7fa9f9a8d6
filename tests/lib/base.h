/* SPDX-License-Identifier: Apache-2.0
 *
 * Base of all tests: the common C headers, failure, temporary directories, small files, time.
 *
 * Helpers do not return errors: a failed helper fails the test. die() ends the program with a message, or passes the
 * message to die_hook, which the Check suites set.
 */
#pragma once

#include "proto/scope.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PATH_SIZE 4096
#define SECOND UINT64_C(1000000000)
#define DIE_TEXT 6144 /* maximum bytes of a message: Check's own buffer has BUFSIZ */

extern void (*die_hook)(const char *text); /* does not return */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Evaluates to x; fails if x is negative. */
#define must(x)                                                                                                        \
        __extension__({                                                                                                \
                __typeof__(x) must_ = (x);                                                                             \
                if (must_ < 0)                                                                                         \
                        die_errno("%s:%d: %s", __FILE__, __LINE__, #x);                                                \
                must_;                                                                                                 \
        })

uint64_t env_number(const char *name, uint64_t otherwise);                        /* otherwise if unset or 0 */
void *must_alloc(size_t size);                                                    /* zeroed */
void *must_share(size_t size);                                                    /* zeroed; shared with children */
void *must_realloc(void *p, size_t size);                                         /* not zeroed */
char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2))); /* the caller frees */
char *replace_text(const char *text, const char *word, const char *by); /* each, until none is left; the caller frees */

/* ---- random numbers ---- */

/* splitmix64: the same state gives the same numbers on any machine. */
#define SPLITMIX_GAMMA UINT64_C(0x9e3779b97f4a7c15)
__attribute__((always_inline)) static inline uint64_t splitmix(uint64_t z)
{
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

/* A random number below n; advances the state. */
static inline uint64_t draw_below(uint64_t *state, uint64_t n)
{
        return splitmix(*state += SPLITMIX_GAMMA) % n;
}

/* ---- folders and files ---- */

/* Creates a new folder below $TMPDIR, else /var/tmp (not /tmp, which may be a tmpfs without O_DIRECT). */
void folder_make(char path[PATH_SIZE], const char *prefix);
void folder_remove(const char *path); /* with its contents; a missing folder is no error */

void file_write(const char *path, const void *data, size_t size);
/* Writes a text file below a folder, and creates its parent folders. */
void file_put(const char *folder, const char *path, const char *text);
char *file_read(const char *path, size_t *size); /* NUL-terminated; the caller frees */
char *fd_read(int fd, size_t *size);             /* the same, to the end of the stream */
void file_sha256(const char *path, char hex[65]);
uint64_t file_size(const char *path);

/* ---- commands ---- */

/* Runs a command of the shell. Returns its exit status, or 128 + signal, and both outputs together, which the caller
 * frees. */
int shell(char **output, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool command_exists(const char *program);

/* ---- time ---- */

uint64_t clock_ns(void);

/* In a variadic function: formats the arguments after `format` into an array of char. */
#define FORMAT_ARGS(array, format)                                                                                     \
        do {                                                                                                           \
                va_list args_;                                                                                         \
                va_start(args_, format);                                                                               \
                vsnprintf(array, sizeof(array), format, args_);                                                        \
                va_end(args_);                                                                                         \
        } while (0)

/* The number of open descriptors of this process below 1024; opens none itself. */
unsigned count_open_fds(void);
/* Runs the function, or NULL, in a child process, which then lives until child_kill(); returns when it has returned. */
pid_t child_start(void (*fn)(void));
void child_kill(pid_t pid); /* SIGKILL, and waits for its end */
int child_wait(pid_t pid);  /* until it ends; its exit status, or 128 + signal */

/* Polls until the condition is true; its value is false after timeout_ms. For states that cause no event or reply, such
 * as a lease whose process died. */
#define WITHIN(timeout_ms, condition)                                                                                  \
        __extension__({                                                                                                \
                const uint64_t within_end = clock_ns() + (uint64_t)(timeout_ms)*1000000;                               \
                bool within_is;                                                                                        \
                while (!(within_is = (condition)) && clock_ns() <= within_end)                                         \
                        poll(NULL, 0, 2);                                                                              \
                within_is;                                                                                             \
        })

/* How long a test waits for what must happen, on a busy machine under sanitizers, too. */
#define PATIENCE_MS 60000
/* The same for that long, after which it fails with the condition's text. */
#define AWAIT(condition)                                                                                               \
        do {                                                                                                           \
                if (!WITHIN(PATIENCE_MS, (condition)))                                                                 \
                        die("%s:%d: not within %d s: %s", __FILE__, __LINE__, PATIENCE_MS / 1000, #condition);         \
        } while (0)
