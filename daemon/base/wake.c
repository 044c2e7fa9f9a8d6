/* SPDX-License-Identifier: Apache-2.0
 *
 * Errands that anyone leaves and the loop runs, and an event that tells it of the first.
 * There is no lock, and no uv_async_t, which makes the loop spin until the thread that woke it has run
 * again: to be woken often means to take that thread's processor, and the loop would wait for it to get
 * another.
 */
#include "daemon/base/wake.h"

#include "daemon/base/util.h"

#include <sys/eventfd.h>
#include <uv.h>

struct wake {
        uv_poll_t poll;
        int event;
        struct errands posted;
};

void wake_drain(struct wake *wake)
{
        errands_run(&wake->posted);
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

/* Once posted the errand is the loop's, which may have run it, and freed it, before this goes on. */
void wake_post(struct wake *wake, struct errand *errand)
{
        if (errand_post(&wake->posted, errand))
                eventfd_write(wake->event, 1);
}
