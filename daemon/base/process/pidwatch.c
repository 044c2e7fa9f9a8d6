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
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

/* ---- /proc/PID/stat ---- */

#define NS_PER_S UINT64_C(1000000000)

/* Fields of /proc/PID/stat after the name, which is in parentheses and may hold anything. */
enum field { FIELD_STATE = 1, FIELD_THREADS = 18, FIELD_START = 20 };

static const char *field(const char *line, enum field number)
{
        const char *at = strrchr(line, ')');
        for (int i = 0; at != NULL && i < (int)number; i++)
                at = strchr(at + 1, ' ');
        return at != NULL ? at + 1 : NULL;
}

bool pid_stat_read(struct pid_stat *stat, pid_t pid)
{
        char line[1024];
        if (!sysfile_line(line, sizeof(line), "/proc/%d/stat", (int)pid))
                return false;
        const char *start = field(line, FIELD_START);
        if (start == NULL)
                return false;
        *stat = (struct pid_stat){*field(line, FIELD_STATE), strtoull(field(line, FIELD_THREADS), NULL, 10),
                                  strtoull(start, NULL, 10)};
        return stat->start > 0;
}

pid_t pid_of_thread(pid_t thread)
{
        char path[512], line[256];
        int pid = 0;
        snprintf(path, sizeof(path), "%s/proc/%d/status", sysfile_root, (int)thread);
        FILE *f = fopen(path, "re");
        while (f != NULL && fgets(line, sizeof(line), f) != NULL && sscanf(line, "Tgid: %d", &pid) != 1)
                ;
        if (f != NULL)
                fclose(f);
        return pid > 0 ? pid : 0;
}

bool pid_stat_exited(const struct pid_stat *stat, uint64_t start)
{
        switch (stat->state) {
        case 'X':
        case 'x':
                return true;
        case 'Z': /* its first thread is done; others may have all of its memory */
                return stat->start != start || stat->threads <= 1;
        default:
                return stat->start != start;
        }
}

bool pid_stat_began_by(const struct pid_stat *stat, uint64_t time)
{
        return stat->start <= time / (NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK));
}

/* ---- watched processes ---- */

#define POLL_NS (UINT64_C(1000000000) / PIDWATCH_HZ)
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
} watch = {
        .mutex = PTHREAD_MUTEX_INITIALIZER, .called = PTHREAD_COND_INITIALIZER, .added = {&watch.added, &watch.added}};

/* ---- the thread ---- */

static void forget(struct watched *watched)
{
        list_remove(&watched->link);
        close(watched->end);
        free(watched);
}

/* Its end is closed, or it is to be polled and has exited. */
static bool is_over(const struct watched *watched, bool polled)
{
        struct pollfd end = {.fd = watched->end};
        struct pid_stat stat;
        if (poll(&end, 1, 0) > 0)
                return true;
        if (!polled)
                return false;
        if (kill(watched->pid, 0) < 0 && errno == ESRCH)
                return true;
        return pid_stat_read(&stat, watched->pid) && pid_stat_exited(&stat, watched->start);
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
                while (!watch.ending && list_empty(&mine) && list_empty(&watch.added))
                        pthread_cond_wait(&watch.called, &watch.mutex);
                const struct timespec until = timespec_of(due);
                while (!watch.ending && watch.n_added < ADDED_MAX && now_ns() < due)
                        pthread_cond_clockwait(&watch.called, &watch.mutex, CLOCK_MONOTONIC, &until);
                list_append_all(&mine, &watch.added);
                watch.n_added = 0;
                if (watch.ending)
                        break;
                pthread_mutex_unlock(&watch.mutex);
                uint64_t now = now_ns();
                bool polled = now >= due;
                list_each_item_safe (struct watched, watched, &mine, link)
                        if (is_over(watched, polled))
                                forget(watched);
                if (polled)
                        due = now + POLL_NS;
                pthread_mutex_lock(&watch.mutex);
        }
        pthread_mutex_unlock(&watch.mutex);
        list_each_item_safe (struct watched, watched, &mine, link)
                forget(watched);
        return NULL;
}

/* ---- its life ---- */

int pidwatch_open(pid_t pid, uint64_t start)
{
        int ends[2], r = 0;
        struct watched *watched = calloc(1, sizeof(*watched));
        if (watched == NULL)
                return -1;
        if (pipe2(ends, O_CLOEXEC | O_NONBLOCK) < 0) {
                free(watched);
                return -1;
        }
        *watched = (struct watched){.pid = pid, .start = start, .end = ends[1]};
        pthread_mutex_lock(&watch.mutex);
        if (!watch.runs) {
                r = thread_start(&watch.thread, NULL, watch_thread, NULL);
                watch.runs = r == 0;
        }
        if (r == 0) {
                list_append(&watch.added, &watched->link);
                watch.n_added++;
                pthread_cond_signal(&watch.called);
        }
        pthread_mutex_unlock(&watch.mutex);
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
        watch.runs = watch.ending = false;
}
