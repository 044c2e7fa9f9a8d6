/* SPDX-License-Identifier: Apache-2.0
 *
 * Small things of the library: time and lists.
 */
#pragma once

#include "proto/scope.h"

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

/* -1: NEVER; else milliseconds, rounded up, for poll() and for timeouts of the API. */
static inline int ms_until(int64_t deadline)
{
        if (deadline == NEVER)
                return -1;
        int64_t left = deadline - now_ns();
        int64_t ms = left <= 0 ? 0 : (left + 999999) / 1000000;
        return ms > INT32_MAX ? INT32_MAX : (int)ms;
}

/* Removes an item of a list that is linked by `next`; forgives one that is not in it. */
#define list_remove(head, item)                                                                                        \
        do {                                                                                                           \
                __typeof__(&(head)) at_ = &(head);                                                                     \
                while (*at_ && *at_ != (item))                                                                         \
                        at_ = &(*at_)->next;                                                                           \
                if (*at_)                                                                                              \
                        *at_ = (item)->next;                                                                           \
        } while (0)
