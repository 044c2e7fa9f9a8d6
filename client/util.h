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

/* A list of items that are linked by `prev` and `next`: adds one at its head. */
#define list_add(head, item)                                                                                           \
        do {                                                                                                           \
                (item)->prev = NULL;                                                                                   \
                (item)->next = (head);                                                                                 \
                if (head)                                                                                              \
                        (head)->prev = (item);                                                                         \
                (head) = (item);                                                                                       \
        } while (0)

/* Removes an item; accepts one that is not in the list, whose links are NULL. */
#define list_remove(head, item)                                                                                        \
        do {                                                                                                           \
                if ((item)->next)                                                                                      \
                        (item)->next->prev = (item)->prev;                                                             \
                if ((item)->prev)                                                                                      \
                        (item)->prev->next = (item)->next;                                                             \
                else if ((head) == (item))                                                                             \
                        (head) = (item)->next;                                                                         \
                (item)->prev = (item)->next = NULL;                                                                    \
        } while (0)
