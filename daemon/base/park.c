/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/park.h"

#include "daemon/base/util.h"

#include <errno.h>

void park_init(struct park *park)
{
        *park = (struct park){.asleep = 0};
        sem_init(&park->woken, 0, 0);
}

void park_deinit(struct park *park)
{
        sem_destroy(&park->woken);
}

void park_enter(struct park *park)
{
        park->asleep++;
}

/* Each call is of one thread and posts once: whoever takes another's post is called for it, too. */
void park_sleep(struct park *park)
{
        while (sem_wait(&park->woken) < 0 && errno == EINTR)
                ;
}

void park_wait(struct park *park, pthread_mutex_t *mutex)
{
        park_enter(park);
        park_unlock(park, mutex);
        park_sleep(park);
        pthread_mutex_lock(mutex);
}

void park_call(struct park *park)
{
        if (park->asleep == 0)
                return;
        park->asleep--;
        park->called++;
}

void park_call_all(struct park *park)
{
        park->called += park->asleep;
        park->asleep = 0;
}

void park_unlock(struct park *park, pthread_mutex_t *mutex)
{
        unsigned called = park->called;
        park->called = 0;
        pthread_mutex_unlock(mutex);
        while (called-- > 0)
                sem_post(&park->woken);
}
