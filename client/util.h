/* SPDX-License-Identifier: Apache-2.0
 *
 * Small things of the library: time, cleanup locals, option structs of other versions.
 */
#ifndef CLIENT_UTIL_H
#define CLIENT_UTIL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NEVER INT64_MAX /* a deadline that does not come */

static inline int64_t now_ns(void)
{
        struct timespec ts;
        clock_gettime(CLOCK_MONOTONIC, &ts);
        return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static inline int64_t deadline_in_ms(int timeout_ms)
{
        return timeout_ms < 0 ? NEVER : now_ns() + (int64_t)timeout_ms * 1000000;
}

static inline void free_p(void *p)
{
        free(*(void **)p);
}
#define cleanup_free __attribute__((cleanup(free_p)))

/* Copies an options struct of the caller's version into ours of `size` bytes: what an older caller
 * does not know is 0; what a newer one sets and we do not know is refused (false). `from` may be
 * NULL. */
static inline bool options_copy(void *to, size_t size, const void *from)
{
        memset(to, 0, size);
        if (!from)
                return true;
        size_t given;
        memcpy(&given, from, sizeof(given));
        if (given < sizeof(given))
                return false;
        for (size_t i = size; i < given; i++)
                if (((const char *)from)[i] != 0)
                        return false;
        memcpy(to, from, given < size ? given : size);
        return true;
}

#endif
