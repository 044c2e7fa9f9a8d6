/* SPDX-License-Identifier: Apache-2.0
 *
 * Descriptors that the loop waits for, in an epoll set of their own, which libuv polls as one. A libuv handle costs
 * each connection three more system calls (it probes the descriptor, and sets it non-blocking), and reports the same
 * descriptor up to forty-eight times an iteration. Belongs to the loop thread.
 */
#pragma once

#include <stdint.h>
#include <sys/epoll.h>

struct uv_loop_s;
struct poll_set;

/* Embedded in its object, zeroed but for `fd` and `ready`. */
struct polled {
        int fd;
        uint32_t events;              /* EPOLLIN, ...: that it waits for; 0: it is not in the set */
        struct epoll_event *reported; /* its event, until ready() is called */
        /* With what has happened; EPOLLERR and EPOLLHUP are reported always. It may take any out of the set, and free
         * them. */
        void (*ready)(struct polled *polled, uint32_t events);
};

/* NULL on failure. The handle is closed with the loop's others (uv_walk); free after the loop has run down. */
struct poll_set *poll_set_new(struct uv_loop_s *loop);
struct poll_set *poll_set_free(struct poll_set *set);

/* Waits for these events from now on; none: takes it out, as is needed before its descriptor is closed. 0, or -1 with
 * errno. */
int poll_set_watch(struct poll_set *set, struct polled *polled, uint32_t events);

/* How many events it has reported. */
uint64_t poll_set_count(const struct poll_set *set);
