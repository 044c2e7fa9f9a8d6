/* SPDX-License-Identifier: Apache-2.0
 *
 * Each process has a pipe, whose other end the thread owns and closes when the process has exited. When the reader
 * closes its end the thread sees POLLERR and forgets the process.
 *
 *   pidwatch_open > added --(the thread)--> owned > polled PIDWATCH_HZ times a second > closed
 *
 * The lock only covers moving what was added.
 *
 * A process has exited where the kernel does not know its number (ESRCH), or /proc says so. Where /proc cannot be read
 * it has not: memory is freed on this answer.
 */
#include "daemon/base/process/pidwatch.h"

#include "daemon/base/list.h"
#include "daemon/base/process/pidstat.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#define LOOK_NS (UINT64_C(1000000000) / PIDWATCH_HZ)
/* So many are taken over at once: a process that attaches again and again leaves a pipe each time. */
#define ADDED_MAX 64

struct watched {
        struct list link;
        pid_t pid;
        uint64_t start;
        int end; /* of the pipe, to write to */
};

static struct {
        pthread_mutex_t mutex; /* for all of this */
        pthread_cond_t called;
        pthread_t thread;
        bool runs, ending;
        struct list added;
        size_t n_added;
} watch = {.mutex = PTHREAD_MUTEX_INITIALIZER, .added = {&watch.added, &watch.added}};

/* ---- the thread ---- */

static void forget(struct watched *watched)
{
        list_remove(&watched->link);
        close(watched->end);
        free(watched);
}

static bool is_closed(const struct watched *watched)
{
        struct pollfd end = {.fd = watched->end};
        return poll(&end, 1, 0) > 0;
}

static bool is_over(const struct watched *watched)
{
        struct pid_stat stat;
        if (kill(watched->pid, 0) < 0 && errno == ESRCH)
                return true;
        return pid_stat_read(&stat, watched->pid) && pid_stat_exited(&stat, watched->start);
}

/* With the lock. */
static void wait_until(uint64_t due, const struct list *mine)
{
        struct timespec time = timespec_of(due);
        while (!watch.ending && list_empty(mine) && list_empty(&watch.added))
                pthread_cond_wait(&watch.called, &watch.mutex);
        while (!watch.ending && watch.n_added < ADDED_MAX && now_ns() < due)
                pthread_cond_timedwait(&watch.called, &watch.mutex, &time);
}

static void *watch_thread(void *arg)
{
        struct list mine;
        uint64_t due = 0;
        (void)arg;
        thread_begin("processes");
        list_init(&mine);
        pthread_mutex_lock(&watch.mutex);
        for (;;) {
                wait_until(due, &mine);
                list_append_all(&mine, &watch.added);
                watch.n_added = 0;
                if (watch.ending)
                        break;
                pthread_mutex_unlock(&watch.mutex);
                uint64_t now = now_ns();
                list_each_safe (pos, &mine) {
                        struct watched *watched = container_of(pos, struct watched, link);
                        if (is_closed(watched) || (now >= due && is_over(watched)))
                                forget(watched);
                }
                if (now >= due)
                        due = now + LOOK_NS;
                pthread_mutex_lock(&watch.mutex);
        }
        pthread_mutex_unlock(&watch.mutex);
        list_each_safe (pos, &mine)
                forget(container_of(pos, struct watched, link));
        return NULL;
}

/* ---- its life ---- */

/* With the lock: 0, or errno. */
static int begin(void)
{
        if (watch.runs)
                return 0;
        int r = cond_init_monotonic(&watch.called);
        if (r != 0)
                return r;
        r = thread_start(&watch.thread, NULL, watch_thread, NULL);
        watch.runs = r == 0;
        if (r != 0)
                pthread_cond_destroy(&watch.called);
        return r;
}

static int add(struct watched *watched)
{
        pthread_mutex_lock(&watch.mutex);
        int r = begin();
        if (r == 0) {
                list_append(&watch.added, &watched->link);
                watch.n_added++;
                pthread_cond_signal(&watch.called);
        }
        pthread_mutex_unlock(&watch.mutex);
        return r;
}

int pidwatch_open(pid_t pid, uint64_t start)
{
        int ends[2];
        struct watched *watched = calloc(1, sizeof(*watched));
        if (watched == NULL)
                return -1;
        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
                free(watched);
                return -1;
        }
        watched->pid = pid;
        watched->start = start;
        watched->end = ends[1];
        int r = add(watched);
        if (r == 0)
                return ends[0];
        close(ends[0]);
        close(ends[1]);
        free(watched);
        errno = r;
        return -1;
}

void pidwatch_stop(void)
{
        pthread_mutex_lock(&watch.mutex);
        bool runs = watch.runs;
        watch.ending = runs;
        if (runs)
                pthread_cond_signal(&watch.called);
        pthread_mutex_unlock(&watch.mutex);
        if (!runs)
                return;
        pthread_join(watch.thread, NULL);
        pthread_cond_destroy(&watch.called);
        watch.runs = watch.ending = false;
}
