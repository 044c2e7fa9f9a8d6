/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/thread/poll_set.h"

#include "daemon/base/util.h"

#include <uv.h>

/* Events that are taken at once, and how often in one iteration of the loop. */
#define BATCH 256
#define BATCHES 16

struct poll_set {
        uv_poll_t poll;
        int epoll;
        uint64_t count;
        struct epoll_event batch[BATCH];
};

/* Each descriptor has one event at most. */
static int take_batch(struct poll_set *set)
{
        int n = epoll_wait(set->epoll, set->batch, BATCH, 0);
        for (int i = 0; i < n; i++) {
                struct polled *polled = set->batch[i].data.ptr;
                require(polled->reported == NULL);
                polled->reported = &set->batch[i];
        }
        return n;
}

static void on_ready(uv_poll_t *poll, int status, int events)
{
        struct poll_set *set = poll->data;
        int n = BATCH;
        for (int batches = 0; n == BATCH && batches < BATCHES; batches++) {
                n = take_batch(set);
                for (int i = 0; i < n; i++) {
                        struct polled *polled = set->batch[i].data.ptr;
                        if (polled == NULL) /* it was taken out */
                                continue;
                        polled->reported = NULL;
                        if (polled->events == 0) /* the kernel did not take it out */
                                continue;
                        set->count++;
                        polled->ready(polled, set->batch[i].events);
                }
        }
}

int poll_set_watch(struct poll_set *set, struct polled *polled, uint32_t events)
{
        struct epoll_event event = {.events = events, .data.ptr = polled};
        int op = events == 0 ? EPOLL_CTL_DEL : polled->events == 0 ? EPOLL_CTL_ADD : EPOLL_CTL_MOD;
        if (events == polled->events)
                return 0;
        if (events == 0 && polled->reported != NULL) {
                polled->reported->data.ptr = NULL;
                polled->reported = NULL;
        }
        if (epoll_ctl(set->epoll, op, polled->fd, &event) < 0 && events != 0)
                return -1;
        polled->events = events;
        return 0;
}

uint64_t poll_set_count(const struct poll_set *set)
{
        return set->count;
}

struct poll_set *poll_set_new(struct uv_loop_s *loop)
{
        struct poll_set *set = calloc(1, sizeof(*set));
        if (set == NULL)
                return NULL;
        set->epoll = epoll_create1(EPOLL_CLOEXEC);
        if (set->epoll < 0 || uv_poll_init(loop, &set->poll, set->epoll) != 0)
                return poll_set_free(set);
        set->poll.data = set;
        if (uv_poll_start(&set->poll, UV_READABLE, on_ready) != 0) {
                /* The handle is the loop's until its next turn: it is freed with the process. */
                uv_close((uv_handle_t *)&set->poll, NULL);
                return NULL;
        }
        return set;
}

struct poll_set *poll_set_free(struct poll_set *set)
{
        if (set != NULL)
                close_p(&set->epoll);
        free(set);
        return NULL;
}
