/* SPDX-License-Identifier: Apache-2.0
 *
 * On each processor a thread of the highest priority wakes each two milliseconds, and keeps when it came late:
 * then that processor ran no program at all, as when the host of a virtual machine has stopped it. A turn of a
 * daemon's loop that lies in such a time did not stand still by its own doing. The bystander (bystander.c)
 * sees the same without rights, but not when, nor where.
 */
#include "tests/bench/bench.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define EACH_NS 2000000u
#define LATE_NS 2000000u
#define KEPT 65536u
#define SECOND UINT64_C(1000000000)

static struct post {
        pthread_t thread;
        unsigned cpu;
        _Atomic unsigned n; /* of `late` */
        struct {
                uint64_t from, to;
        } * late; /* in order of time; when it is full nothing is added */
} * posts;
static unsigned n_posts;
static atomic_bool over;

static void note(struct post *post, uint64_t from, uint64_t to)
{
        unsigned n = post->n;

        if (n == KEPT)
                return;
        post->late[n].from = from;
        post->late[n].to = to;
        post->n = n + 1;
}

static void *stand(void *arg)
{
        struct post *post = arg;
        uint64_t next = clock_ns();

        while (!over) {
                next += EACH_NS;
                struct timespec at = {(time_t)(next / SECOND), (long)(next % SECOND)};
                clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
                uint64_t now = clock_ns();
                if (now > next + LATE_NS)
                        note(post, next, now);
                next = now > next + EACH_NS ? now : next;
        }
        return NULL;
}

static bool post(unsigned cpu)
{
        struct post *p = &posts[n_posts];
        struct sched_param first = {.sched_priority = sched_get_priority_max(SCHED_FIFO)};
        pthread_attr_t attr;
        cpu_set_t set;

        *p = (struct post){.cpu = cpu, .late = calloc(KEPT, sizeof(*p->late))};
        CPU_ZERO(&set);
        CPU_SET(cpu, &set);
        pthread_attr_init(&attr);
        pthread_attr_setaffinity_np(&attr, sizeof(set), &set);
        pthread_attr_setinheritsched(&attr, PTHREAD_EXPLICIT_SCHED);
        pthread_attr_setschedpolicy(&attr, SCHED_FIFO);
        pthread_attr_setschedparam(&attr, &first);
        bool ok = p->late && pthread_create(&p->thread, &attr, stand, p) == 0;
        pthread_attr_destroy(&attr);
        if (ok)
                n_posts++;
        else
                free(p->late);
        return ok;
}

bool sentries_start(void)
{
        cpu_set_t set;

        if (sched_getaffinity(0, sizeof(set), &set) < 0)
                return false;
        posts = calloc((size_t)CPU_COUNT(&set), sizeof(*posts));
        for (unsigned cpu = 0; posts && cpu < CPU_SETSIZE; cpu++)
                if (CPU_ISSET(cpu, &set) && !post(cpu))
                        break;
        return n_posts > 0 && n_posts == (unsigned)CPU_COUNT(&set);
}

uint64_t sentries_stopped_ns(unsigned cpu, uint64_t from, uint64_t to)
{
        uint64_t ns = 0;

        for (unsigned i = 0; i < n_posts; i++)
                for (unsigned k = 0; posts[i].cpu == cpu && k < posts[i].n; k++) {
                        uint64_t begin = posts[i].late[k].from, end = posts[i].late[k].to;
                        begin = begin > from ? begin : from;
                        end = end < to ? end : to;
                        ns += end > begin ? end - begin : 0;
                }
        return ns;
}

void sentries_stop(void)
{
        over = true;
        for (unsigned i = 0; i < n_posts; i++) {
                pthread_join(posts[i].thread, NULL);
                free(posts[i].late);
        }
        free(posts);
        n_posts = 0;
}
