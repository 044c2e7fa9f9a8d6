/* SPDX-License-Identifier: Apache-2.0
 *
 * Small tools of every module: invariants, cleanup of local variables, sizes, times.
 */
#pragma once

#include "proto/require.h"
#include "proto/scope.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KiB (UINT64_C(1) << 10)
#define MiB (UINT64_C(1) << 20)
#define GiB (UINT64_C(1) << 30)
#define MS UINT64_C(1000000) /* in nanoseconds, as the next */
#define SECOND UINT64_C(1000000000)

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define ORDER(a, b) (((a) > (b)) - ((a) < (b))) /* as strcmp() */
#define container_of(p, type, member) ((type *)(void *)((char *)(p)-offsetof(type, member)))

/* Flags and counters that order nothing else. */
#define load_relaxed(p) __atomic_load_n(p, __ATOMIC_RELAXED)
#define store_relaxed(p, value) __atomic_store_n(p, value, __ATOMIC_RELAXED)
#define add_relaxed(p, n) __atomic_add_fetch(p, n, __ATOMIC_RELAXED)
#define sub_relaxed(p, n) __atomic_sub_fetch(p, n, __ATOMIC_RELAXED)

static inline uint64_t round_up(uint64_t n, uint64_t to)
{
        return (n + to - 1) / to * to;
}
static inline uint64_t round_down(uint64_t n, uint64_t to)
{
        return n / to * to;
}

static inline uint64_t read_clock_ns(clockid_t clock)
{
        struct timespec ts;
        clock_gettime(clock, &ts);
        return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}
static inline uint64_t now_ns(void)
{
        return read_clock_ns(CLOCK_MONOTONIC);
}

/* `from` plus `duration`; UINT64_MAX, which is never reached, on overflow. */
static inline uint64_t ns_after(uint64_t from, uint64_t duration)
{
        return duration > UINT64_MAX - from ? UINT64_MAX : from + duration;
}

/* A time of CLOCK_MONOTONIC, for pthread_cond_clockwait(). */
static inline struct timespec timespec_of(uint64_t ns)
{
        return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* The pause after the tries-th failure in a row: `first`, twice as long after each further one, at most `cap`. */
static inline uint64_t backoff(uint64_t first, unsigned tries, uint64_t cap)
{
        for (; tries > 1 && first < cap; tries--)
                first *= 2;
        return first < cap ? first : cap;
}

/* A list of n elements with space for one more: it doubles whenever n is a power of two. NULL: no memory, and the
 * list is unchanged. */
static inline void *array_grow(void *list, size_t n, size_t element)
{
        if ((n & (n - 1)) != 0)
                return list;
        return reallocarray(list, n == 0 ? 1 : 2 * n, element);
}

/* NULL for an empty text, too. */
static inline const char *filled(const char *text)
{
        return text != NULL && text[0] != '\0' ? text : NULL;
}

/* The length of a text without the characters `c` at its end. */
static inline size_t trimmed_len(const char *text, char c)
{
        size_t len = strlen(text);
        while (len > 0 && text[len - 1] == c)
                len--;
        return len;
}

/* NULL is equal to NULL alone. */
static inline bool same_text(const char *a, const char *b)
{
        return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* As asprintf(): a char *, malloc'd; NULL: no memory. A macro, so that a failed call is found by its place. */
#define format_new(...)                                                                                                \
        ({                                                                                                             \
                char *text_;                                                                                           \
                asprintf(&text_, __VA_ARGS__) >= 0 ? text_ : NULL;                                                     \
        })

#define SIZE_TEXT 16

/* "1.5 GiB", "12 B": with streamerctl's units. Returns out. */
static inline char *size_text(char out[SIZE_TEXT], uint64_t bytes)
{
        static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
        double v = (double)bytes;
        size_t unit = 0;
        /* From 1023.95 on it is rounded to 1024.0. */
        for (; v >= (unit == 0 ? 1024 : 1023.95) && unit < ARRAY_SIZE(units) - 1; unit++)
                v /= 1024;
        snprintf(out, SIZE_TEXT, "%.*f %s", unit > 0, v, units[unit]);
        return out;
}

/* Appends to the text as snprintf() does; the result is truncated to size. */
__attribute__((format(printf, 3, 4))) static inline void format_append(char *text, size_t size, const char *format, ...)
{
        size_t len = strlen(text);
        va_list args;
        va_start(args, format);
        vsnprintf(text + len, size - len, format, args);
        va_end(args);
}

static inline void close_p(const int *fd)
{
        if (*fd >= 0)
                close(*fd);
}
/* Closes it, if there is one, and leaves none. */
static inline void close_fd(int *fd)
{
        close_p(fd);
        *fd = -1;
}
static inline int take_fd(int *fd)
{
        int r = *fd;
        *fd = -1;
        return r;
}
#define cleanup_close __attribute__((cleanup(close_p)))
/* Calls x_deinit(&variable); the variable is valid for it from its definition on. */
#define cleanup_with(x_deinit) __attribute__((cleanup(x_deinit)))
