/* SPDX-License-Identifier: Apache-2.0
 *
 * A stack that anyone pushes to and the loop takes whole, and an event that tells it of the first.
 * There is no lock, and no uv_async_t, which makes the loop spin until the thread that woke it has run
 * again: to be woken often means to take that thread's processor, and the loop would wait for it to get
 * another.
 */
#include "daemon/base/wake.h"

#include "daemon/base/util.h"

#include <stdatomic.h>
#include <sys/eventfd.h>
#include <uv.h>

struct wake {
        uv_poll_t poll;
        int event;
        _Atomic(struct wake_item *) newest;
};

/* The oldest first. */
static struct wake_item *take_all(struct wake *wake)
{
        struct wake_item *item = atomic_exchange_explicit(&wake->newest, NULL, memory_order_acquire), *oldest = NULL;
        while (item != NULL) {
                struct wake_item *older = item->next;
                item->next = oldest;
                oldest = item;
                item = older;
        }
        return oldest;
}

void wake_drain(struct wake *wake)
{
        for (struct wake_item *item = take_all(wake); item != NULL;) {
                struct wake_item *next = item->next;
                item->next = NULL;
                item->fn(item);
                item = next;
        }
}

/* The event first: whoever posts from here on either is taken now or sets it anew. */
static void on_event(uv_poll_t *poll, int status, int events)
{
        struct wake *wake = poll->data;
        eventfd_t n;
        (void)status;
        (void)events;
        eventfd_read(wake->event, &n);
        wake_drain(wake);
}

struct wake *wake_new(struct uv_loop_s *loop)
{
        struct wake *wake = calloc(1, sizeof(*wake));
        if (wake == NULL)
                return NULL;
        wake->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (wake->event < 0 || uv_poll_init(loop, &wake->poll, wake->event) != 0)
                return wake_free(wake);
        wake->poll.data = wake;
        if (uv_poll_start(&wake->poll, UV_READABLE, on_event) != 0) {
                /* The handle is the loop's until that has turned: left to the end of the process. */
                wake_close(wake);
                return NULL;
        }
        return wake;
}

void wake_close(struct wake *wake)
{
        uv_close((uv_handle_t *)&wake->poll, NULL);
}

struct wake *wake_free(struct wake *wake)
{
        if (wake != NULL) {
                close_p(&wake->event);
                free(wake);
        }
        return NULL;
}

/* Once pushed the item is the loop's, which may have called it, and freed it, before this goes on. */
void wake_post(struct wake *wake, struct wake_item *item)
{
        struct wake_item *before = atomic_load_explicit(&wake->newest, memory_order_relaxed);
        do
                item->next = before;
        while (!atomic_compare_exchange_weak_explicit(&wake->newest, &before, item, memory_order_release,
                                                      memory_order_relaxed));
        if (before == NULL)
                eventfd_write(wake->event, 1);
}
