/* SPDX-License-Identifier: Apache-2.0
 *
 * Two batches: one is filled by whoever has a line, the other is the thread's, without the lock. When that
 * is written they change places.
 *
 *   put > filling --(the thread is free)--> writing > the descriptor
 *
 * The first line of a batch calls the thread, by a semaphore (see work.c) and once nobody holds a lock.
 *
 * How it fails: what finds no room is refused. What the descriptor refuses is counted with the rest of its
 * batch, which would only meet the same full disk. A descriptor that hangs keeps its batch and the thread:
 * one batch more fills, and then lines are refused.
 */
#include "daemon/base/log_writer.h"

#include "daemon/base/prompt.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <string.h>

#define NOWHERE SIZE_MAX

struct batch {
        size_t len;
        size_t notice_at; /* where a line tells of lost ones, at most one a batch */
        uint64_t told;    /* by that line */
        char data[LOG_BATCH_MAX];
};

struct log_writer {
        int fd;
        pthread_t thread;
        sem_t calls;

        pthread_mutex_t mutex; /* for what follows; held for as long as it takes to copy a line */
        pthread_cond_t idle;
        bool called, writes, ending;
        struct log_writer_lost lost;
        struct batch *filling, *writing;
        struct batch batches[2];
};

static void batch_clear(struct batch *batch)
{
        batch->len = 0;
        batch->notice_at = NOWHERE;
        batch->told = 0;
}

/* ---- the thread ---- */

/* Whole lines, as many as a pipe takes without mixing them with what others write to it. */
static size_t next_piece(const char *data, size_t len)
{
        if (len <= PIPE_BUF)
                return len;
        const char *end = memrchr(data, '\n', PIPE_BUF);
        return end != NULL ? (size_t)(end - data) + 1 : PIPE_BUF;
}

/* Somebody who has the same open file may have made it one that does not wait. */
static bool write_again(int fd)
{
        struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
        if (errno == EAGAIN)
                poll(&poll_fd, 1, -1);
        return errno == EAGAIN || errno == EINTR;
}

/* Bytes written. */
static size_t batch_write(int fd, const struct batch *batch)
{
        size_t done = 0;
        while (done < batch->len) {
                ssize_t n = write(fd, batch->data + done, next_piece(batch->data + done, batch->len - done));
                if (n > 0)
                        done += (size_t)n;
                else if (n == 0 || !write_again(fd))
                        break;
        }
        return done;
}

/* A notice is nobody's line: what it told is to be told again. */
static void count_lost(struct log_writer *writer, const struct batch *batch, size_t from)
{
        for (const char *p = batch->data + from, *end = batch->data + batch->len;
             p < end && (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
                writer->lost.lines++;
        if (batch->notice_at != NOWHERE && batch->notice_at >= from) {
                writer->lost.lines--;
                writer->lost.untold += batch->told;
        }
}

/* Begins and ends with the lock. */
static void write_filled(struct log_writer *writer)
{
        struct batch *batch = writer->filling;
        writer->filling = writer->writing;
        writer->writing = batch;
        writer->writes = true;
        pthread_mutex_unlock(&writer->mutex);
        size_t done = batch_write(writer->fd, batch);
        pthread_mutex_lock(&writer->mutex);
        count_lost(writer, batch, done);
        batch_clear(batch);
        writer->writes = false;
}

static void *writer_thread(void *arg)
{
        struct log_writer *writer = arg;
        thread_begin("log");
        pthread_mutex_lock(&writer->mutex);
        while (!writer->ending) {
                pthread_mutex_unlock(&writer->mutex);
                while (sem_wait(&writer->calls) < 0 && errno == EINTR)
                        ;
                pthread_mutex_lock(&writer->mutex);
                writer->called = false;
                while (writer->filling->len > 0)
                        write_filled(writer);
                pthread_cond_broadcast(&writer->idle);
        }
        pthread_mutex_unlock(&writer->mutex);
        return NULL;
}

/* ---- life ---- */

/* A page that is touched for the first time is waited for, on a busy host for long. */
static void touch(volatile char *memory, size_t size)
{
        for (size_t i = 0; i < size; i += 4096)
                memory[i] = 0;
}

static bool idle_init(pthread_cond_t *idle)
{
        pthread_condattr_t attr;
        pthread_condattr_init(&attr);
        pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
        bool done = pthread_cond_init(idle, &attr) == 0;
        pthread_condattr_destroy(&attr);
        return done;
}

struct log_writer *log_writer_new(int fd)
{
        struct log_writer *writer = calloc(1, sizeof(*writer));
        if (writer == NULL)
                return NULL;
        touch((volatile char *)writer, sizeof(*writer));
        writer->fd = fd;
        writer->filling = &writer->batches[0];
        writer->writing = &writer->batches[1];
        batch_clear(writer->filling);
        batch_clear(writer->writing);
        pthread_mutex_init(&writer->mutex, NULL);
        sem_init(&writer->calls, 0, 0);
        if (idle_init(&writer->idle) && thread_start(&writer->thread, NULL, writer_thread, writer) == 0)
                return writer;
        free(writer);
        return NULL;
}

bool log_writer_put(struct log_writer *writer, const char *line, size_t len, uint64_t told)
{
        pthread_mutex_lock(&writer->mutex);
        struct batch *batch = writer->filling;
        bool taken = len <= LOG_BATCH_MAX - batch->len && (told == 0 || batch->notice_at == NOWHERE);
        if (taken) {
                if (told > 0) {
                        batch->notice_at = batch->len;
                        batch->told = told;
                }
                memcpy(batch->data + batch->len, line, len);
                batch->len += len;
        }
        pthread_mutex_unlock(&writer->mutex);
        return taken;
}

void log_writer_call(struct log_writer *writer)
{
        pthread_mutex_lock(&writer->mutex);
        bool call = writer->filling->len > 0 && !writer->called && !writer->writes;
        writer->called |= call;
        pthread_mutex_unlock(&writer->mutex);
        if (call)
                sem_post(&writer->calls);
}

struct log_writer_lost log_writer_lost(struct log_writer *writer)
{
        pthread_mutex_lock(&writer->mutex);
        struct log_writer_lost lost = writer->lost;
        pthread_mutex_unlock(&writer->mutex);
        return lost;
}

bool log_writer_flush(struct log_writer *writer, uint64_t deadline_ns)
{
        struct timespec until = timespec_of(deadline_ns);
        log_writer_call(writer);
        pthread_mutex_lock(&writer->mutex);
        while ((writer->filling->len > 0 || writer->writes) &&
               pthread_cond_timedwait(&writer->idle, &writer->mutex, &until) == 0)
                ;
        bool all = writer->filling->len == 0 && !writer->writes;
        pthread_mutex_unlock(&writer->mutex);
        return all;
}

struct log_writer *log_writer_free(struct log_writer *writer)
{
        pthread_mutex_lock(&writer->mutex);
        writer->ending = true;
        pthread_mutex_unlock(&writer->mutex);
        sem_post(&writer->calls);
        pthread_join(writer->thread, NULL);
        sem_destroy(&writer->calls);
        pthread_cond_destroy(&writer->idle);
        pthread_mutex_destroy(&writer->mutex);
        free(writer);
        return NULL;
}
