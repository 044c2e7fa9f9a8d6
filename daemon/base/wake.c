/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/wake.h"

#include "daemon/base/util.h"

#include <pthread.h>
#include <uv.h>

struct wake {
        uv_async_t async;
        pthread_mutex_t mutex;
        struct wake_item *head, **tail;
};

void wake_drain(struct wake *wake)
{
        pthread_mutex_lock(&wake->mutex);
        struct wake_item *item = wake->head;
        wake->head = NULL;
        wake->tail = &wake->head;
        pthread_mutex_unlock(&wake->mutex);
        while (item != NULL) {
                struct wake_item *next = item->next;
                item->next = NULL;
                item->fn(item);
                item = next;
        }
}

static void on_async(uv_async_t *async)
{
        wake_drain(async->data);
}

struct wake *wake_new(struct uv_loop_s *loop)
{
        struct wake *wake = calloc(1, sizeof(*wake));
        if (wake == NULL)
                return NULL;
        pthread_mutex_init(&wake->mutex, NULL);
        wake->tail = &wake->head;
        if (uv_async_init(loop, &wake->async, on_async) != 0)
                return wake_free(wake);
        wake->async.data = wake;
        return wake;
}

void wake_close(struct wake *wake)
{
        uv_close((uv_handle_t *)&wake->async, NULL);
}

struct wake *wake_free(struct wake *wake)
{
        if (wake != NULL) {
                pthread_mutex_destroy(&wake->mutex);
                free(wake);
        }
        return NULL;
}

void wake_post(struct wake *wake, struct wake_item *item)
{
        item->next = NULL;
        pthread_mutex_lock(&wake->mutex);
        bool first = wake->head == NULL;
        *wake->tail = item;
        wake->tail = &item->next;
        /* Under the lock, so that a closed handle is never signalled by a thread that lost the race. */
        if (first)
                uv_async_send(&wake->async);
        pthread_mutex_unlock(&wake->mutex);
}
