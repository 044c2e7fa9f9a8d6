/* SPDX-License-Identifier: Apache-2.0
 *
 * What every helper of the tests stands on: failing, temporary folders, small files, time.
 *
 * Helpers never return an error: a test that cannot set its stage has failed. die() ends the
 * program with a message, or hands the message to whoever set die_hook (the Check suites do).
 */
#ifndef TESTS_LIB_BASE_H
#define TESTS_LIB_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PATH_SIZE 4096
#define DIE_TEXT 6144 /* bytes of a message at most: Check's own buffer has BUFSIZ */

extern void (*die_hook)(const char *text); /* does not return */
_Noreturn void die(const char *format, ...) __attribute__((format(printf, 1, 2)));
_Noreturn void die_errno(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Evaluates to x; fails where x is negative. */
#define must(x)                                                                                                        \
        __extension__({                                                                                                \
                __typeof__(x) must_ = (x);                                                                             \
                if (must_ < 0)                                                                                         \
                        die_errno("%s:%d: %s", __FILE__, __LINE__, #x);                                                \
                must_;                                                                                                 \
        })

uint64_t env_number(const char *name, uint64_t otherwise);                        /* 0 and what is not set: otherwise */
void *must_alloc(size_t size);                                                    /* zeroed */
void *must_realloc(void *p, size_t size);                                         /* not zeroed */
char *format_text(const char *format, ...) __attribute__((format(printf, 1, 2))); /* the caller frees */

/* ---- chance ---- */

/* splitmix64: the same state gives the same numbers on any machine. */
#define SPLITMIX_GAMMA UINT64_C(0x9e3779b97f4a7c15)
static inline uint64_t splitmix(uint64_t z)
{
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return z ^ (z >> 31);
}

/* Below n; the state goes on. */
static inline uint64_t draw_below(uint64_t *state, uint64_t n)
{
        return splitmix(*state += SPLITMIX_GAMMA) % n;
}

/* ---- folders and files ---- */

/* A fresh folder below $TMPDIR, else /var/tmp (not /tmp, which may be a tmpfs without O_DIRECT). */
void folder_make(char path[PATH_SIZE], const char *prefix);
void folder_remove(const char *path); /* with all that is in it; a missing one is fine */

void file_write(const char *path, const void *data, size_t size);
/* A text below a folder, with the folders on its way. */
void file_put(const char *folder, const char *path, const char *text);
char *file_read(const char *path, size_t *size); /* NUL-terminated; the caller frees */
uint64_t file_size(const char *path);

/* ---- time ---- */

uint64_t clock_ns(void);

/* Asks again until the answer is yes; false after timeout_ms. For states that the daemon reaches by
 * itself and tells nobody (a lease whose process died). */
bool eventually(bool (*ask)(void *arg), void *arg, int timeout_ms);

#endif
