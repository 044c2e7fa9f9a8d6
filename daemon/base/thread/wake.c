/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of callbacks under a mutex, and an eventfd that is signalled with the first. No uv_async_t: it makes the loop
 * spin until the thread that woke it runs again, and a wake often takes that thread's processor.
 */
#include "daemon/base/thread/wake.h"

#include "daemon/base/util.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <uv.h>

struct wake {
        uv_poll_t poll;
        int event;
        uint64_t count;
        pthread_mutex_t mutex;
        struct callback *oldest, **end; /* posted, and not run yet */
};

void wake_drain(struct wake *wake)
{
        pthread_mutex_lock(&wake->mutex);
        struct callback *oldest = wake->oldest;
        wake->oldest = NULL;
        wake->end = &wake->oldest;
        pthread_mutex_unlock(&wake->mutex);
        for (struct callback *callback = oldest, *next; callback != NULL; callback = next) {
                next = callback->next;
                /* Not a store: it reads what a thread that posts it again has written, so run() sees what that thread
                 * did before, or that thread sees false and posts it. After a store, arm64 may read for run() too
                 * early. */
                bool posted = __atomic_exchange_n(&callback->posted, false, __ATOMIC_ACQ_REL);
                require(posted);
                callback->run(callback);
        }
}

/* The event first: a callback posted from here on is run now or signals it again. */
static void on_event(uv_poll_t *poll, int status, int events)
{
        struct wake *wake = poll->data;
        eventfd_t n;
        eventfd_read(wake->event, &n);
        wake->count++;
        wake_drain(wake);
}

uint64_t wake_count(const struct wake *wake)
{
        return wake->count;
}

struct wake *wake_new(struct uv_loop_s *loop)
{
        struct wake *wake = calloc(1, sizeof(*wake));
        if (wake == NULL)
                return NULL;
        pthread_mutex_init(&wake->mutex, NULL);
        wake->end = &wake->oldest;
        wake->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
        if (wake->event < 0 || uv_poll_init(loop, &wake->poll, wake->event) != 0)
                return wake_free(wake);
        wake->poll.data = wake;
        if (uv_poll_start(&wake->poll, UV_READABLE, on_event) != 0) {
                /* The handle is the loop's until its next turn: it is freed with the process. */
                uv_close((uv_handle_t *)&wake->poll, NULL);
                return NULL;
        }
        return wake;
}

struct wake *wake_free(struct wake *wake)
{
        if (wake != NULL) {
                close_p(&wake->event);
                pthread_mutex_destroy(&wake->mutex);
                free(wake);
        }
        return NULL;
}

/* Once posted the callback is the loop's, which may have run and freed it before this returns. */
void wake_post(struct wake *wake, struct callback *callback)
{
        if (__atomic_exchange_n(&callback->posted, true, __ATOMIC_ACQ_REL))
                return;
        callback->next = NULL;
        pthread_mutex_lock(&wake->mutex);
        bool first = wake->oldest == NULL;
        *wake->end = callback;
        wake->end = &callback->next;
        pthread_mutex_unlock(&wake->mutex);
        if (first)
                eventfd_write(wake->event, 1);
}
