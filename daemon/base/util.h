/* SPDX-License-Identifier: Apache-2.0
 *
 * Small things that every module uses: invariants, cleanup locals, sizes, lists.
 */
#ifndef DAEMON_BASE_UTIL_H
#define DAEMON_BASE_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define KiB (UINT64_C(1) << 10)
#define MiB (UINT64_C(1) << 20)
#define GiB (UINT64_C(1) << 30)

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#define container_of(p, type, member) ((type *)(void *)((char *)(p)-offsetof(type, member)))

/* An invariant, checked in release builds too. What the log has not written yet goes before its end (log.c). */
#define require(cond)                                                                                                  \
        do {                                                                                                           \
                if (__builtin_expect(!(cond), 0))                                                                      \
                        broken_invariant(__FILE__, __LINE__, #cond);                                                   \
        } while (0)

_Noreturn void broken_invariant(const char *file, int line, const char *what);

static inline uint64_t round_up(uint64_t n, uint64_t to)
{
        return (n + to - 1) / to * to;
}
static inline uint64_t round_down(uint64_t n, uint64_t to)
{
        return n / to * to;
}

static inline uint64_t now_ns(void)
{
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

/* So long after; what lies beyond the clock's end comes never. */
static inline uint64_t ns_after(uint64_t from, uint64_t duration)
{
        return duration > UINT64_MAX - from ? UINT64_MAX : from + duration;
}

/* A monotonic time for pthread_cond_timedwait(). */
static inline struct timespec timespec_of(uint64_t ns)
{
        return (struct timespec){.tv_sec = (time_t)(ns / 1000000000u), .tv_nsec = (long)(ns % 1000000000u)};
}

/* A list of n elements, with room for one more: it grows to twice as many whenever they fill a power of two.
 * NULL: no memory, and the list is as it was. */
static inline void *with_room(void *list, size_t n, size_t element)
{
        if ((n & (n - 1)) != 0)
                return list;
        return reallocarray(list, n == 0 ? 1 : 2 * n, element);
}

static inline void free_p(void *p)
{
        free(*(void **)p);
}
static inline void close_p(const int *fd)
{
        if (*fd >= 0)
                close(*fd);
}
static inline int take_fd(int *fd)
{
        int r = *fd;
        *fd = -1;
        return r;
}
#define cleanup_free __attribute__((cleanup(free_p)))
#define cleanup_close __attribute__((cleanup(close_p)))

#endif
