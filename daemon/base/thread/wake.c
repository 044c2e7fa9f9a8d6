/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of callbacks under a mutex, and an eventfd that is signalled with the first. No uv_async_t: it makes the loop
 * spin until the thread that woke it runs again, and a wake often takes that thread's processor.
 *
 * The loop runs what was posted when the event is reported, and before it waits. So what it posts itself, and what is
 * posted while callbacks run, costs no signal and no iteration.
 */
#include "daemon/base/thread/wake.h"

#include "daemon/base/util.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <uv.h>

/* Of callbacks that post the next, in one turn of the loop. */
#define TURN_NS MS

struct wake {
        uv_poll_t poll;
        uv_prepare_t about_to_wait;
        uv_idle_t again; /* the loop does not wait, as what was run may be what it is run for (UV_RUN_ONCE) */
        pthread_t loop;
        int event;
        uint64_t count;
        pthread_mutex_t mutex;          /* for what follows */
        struct callback *oldest, **end; /* posted, and not run yet */
        bool signalled;                 /* the event has been, or is about to be */
        bool running;                   /* the loop runs callbacks, and looks for more afterwards */
};

/* With the mutex. */
static struct callback *take_all(struct wake *wake)
{
        struct callback *oldest = wake->oldest;
        wake->oldest = NULL;
        wake->end = &wake->oldest;
        return oldest;
}

static void run_all(struct callback *oldest)
{
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

void wake_drain(struct wake *wake)
{
        pthread_mutex_lock(&wake->mutex);
        struct callback *oldest = take_all(wake);
        pthread_mutex_unlock(&wake->mutex);
        run_all(oldest);
}

/* Callbacks, then those that were posted meanwhile, for a turn. False: there were none. */
static bool run_turn(struct wake *wake, bool reported)
{
        uint64_t until = 0;
        struct callback *oldest;
        eventfd_t n;
        pthread_mutex_lock(&wake->mutex);
        require(!wake->running); /* no callback runs the loop */
        if (wake->signalled || reported)
                eventfd_read(wake->event, &n);
        wake->signalled = false;
        while ((oldest = take_all(wake)) != NULL) {
                wake->running = true;
                pthread_mutex_unlock(&wake->mutex);
                uint64_t now = now_ns();
                until = until != 0 ? until : now + TURN_NS;
                wake->count++;
                run_all(oldest);
                pthread_mutex_lock(&wake->mutex);
                wake->running = false;
                if (now >= until && wake->oldest != NULL) {
                        wake->signalled = true;
                        eventfd_write(wake->event, 1);
                        break;
                }
        }
        pthread_mutex_unlock(&wake->mutex);
        return until != 0;
}

static void on_event(uv_poll_t *poll, int status, int events)
{
        run_turn(poll->data, true);
}

static void on_again(uv_idle_t *again)
{
        uv_idle_stop(again);
}

/* Its handle is the first that was started, so libuv calls it as the last one before it waits: what the others post is
 * run, too. */
static void on_about_to_wait(uv_prepare_t *about_to_wait)
{
        struct wake *wake = about_to_wait->data;
        if (run_turn(wake, false))
                uv_idle_start(&wake->again, on_again);
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
        wake->poll.data = wake->about_to_wait.data = wake;
        wake->loop = pthread_self();
        uv_prepare_init(loop, &wake->about_to_wait);
        uv_idle_init(loop, &wake->again);
        uv_prepare_start(&wake->about_to_wait, on_about_to_wait);
        if (uv_poll_start(&wake->poll, UV_READABLE, on_event) != 0) {
                /* The handle is the loop's until its next turn: it is freed with the process. */
                uv_close((uv_handle_t *)&wake->poll, NULL);
                uv_close((uv_handle_t *)&wake->about_to_wait, NULL);
                uv_close((uv_handle_t *)&wake->again, NULL);
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

/* Once posted the callback is the loop's, which may have run and freed it before this returns. The loop's own posts
 * need no signal: it looks before it waits. */
void wake_post(struct wake *wake, struct callback *callback)
{
        if (__atomic_exchange_n(&callback->posted, true, __ATOMIC_ACQ_REL))
                return;
        callback->next = NULL;
        pthread_mutex_lock(&wake->mutex);
        *wake->end = callback;
        wake->end = &callback->next;
        bool signals = !wake->signalled && !wake->running && !pthread_equal(pthread_self(), wake->loop);
        wake->signalled = wake->signalled || signals;
        pthread_mutex_unlock(&wake->mutex);
        if (signals)
                eventfd_write(wake->event, 1);
}
