/* SPDX-License-Identifier: Apache-2.0
 *
 * Two batches: callers fill one, the thread writes the other without the lock. When it is written they are swapped.
 *
 *   put > filling --(the thread is idle)--> writing > the descriptor
 *
 * The first line of a batch wakes the thread, after the caller has released its locks.
 *
 * How it fails: a line that does not fit is refused. What the descriptor refuses is counted with the rest of its batch,
 * which would only fail likewise. A descriptor that hangs keeps its batch and the thread: one more batch fills, and
 * then lines are refused.
 */
#include "daemon/base/log/writer.h"

#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>

#define NOWHERE SIZE_MAX

struct batch {
        size_t len;
        size_t notice_at;  /* of the line that reports lost ones, at most one a batch */
        uint64_t reported; /* by that line */
        char data[LOG_BATCH_MAX];
};

struct log_writer {
        int fd;
        pthread_t thread;

        pthread_mutex_t mutex; /* for what follows; held for as long as it takes to copy a line */
        pthread_cond_t call, idle;
        bool called, writes, ending;
        struct log_writer_lost lost;
        struct batch *filling, *writing;
        struct batch batches[2];
};

static void batch_clear(struct batch *batch)
{
        batch->len = 0;
        batch->notice_at = NOWHERE;
        batch->reported = 0;
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

/* Another process that shares the open file may have made it non-blocking. */
static bool should_retry(int fd)
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
                else if (n == 0 || !should_retry(fd))
                        break;
        }
        return done;
}

/* A notice is not counted as a lost line: its count is reported again. */
static void count_lost(struct log_writer *writer, const struct batch *batch, size_t from)
{
        for (const char *p = batch->data + from, *end = batch->data + batch->len;
             p < end && (p = memchr(p, '\n', (size_t)(end - p))) != NULL; p++)
                writer->lost.lines++;
        if (batch->notice_at != NOWHERE && batch->notice_at >= from) {
                writer->lost.lines--;
                writer->lost.unreported += batch->reported;
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
                while (!writer->called && !writer->ending)
                        pthread_cond_wait(&writer->call, &writer->mutex);
                writer->called = false;
                while (writer->filling->len > 0)
                        write_filled(writer);
                pthread_cond_broadcast(&writer->idle);
        }
        pthread_mutex_unlock(&writer->mutex);
        return NULL;
}

/* ---- life ---- */

struct log_writer *log_writer_new(int fd)
{
        struct log_writer *writer = calloc(1, sizeof(*writer));
        if (writer == NULL)
                return NULL;
        /* A page that is touched for the first time is waited for, on a busy host for long. */
        for (size_t i = 0; i < (sizeof(*writer)); i += 4096)
                ((volatile char *)writer)[i] = 0;
        writer->fd = fd;
        writer->filling = &writer->batches[0];
        writer->writing = &writer->batches[1];
        batch_clear(writer->filling);
        batch_clear(writer->writing);
        pthread_mutex_init(&writer->mutex, NULL);
        pthread_cond_init(&writer->call, NULL);
        if (cond_init_monotonic(&writer->idle) == 0 && thread_start(&writer->thread, NULL, writer_thread, writer) == 0)
                return writer;
        free(writer);
        return NULL;
}

bool log_writer_put(struct log_writer *writer, const char *line, size_t len, uint64_t reported)
{
        pthread_mutex_lock(&writer->mutex);
        struct batch *batch = writer->filling;
        bool taken = len <= LOG_BATCH_MAX - batch->len && (reported == 0 || batch->notice_at == NOWHERE);
        if (taken) {
                if (reported > 0) {
                        batch->notice_at = batch->len;
                        batch->reported = reported;
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
                pthread_cond_signal(&writer->call);
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
        pthread_cond_signal(&writer->call);
        pthread_mutex_unlock(&writer->mutex);
        pthread_join(writer->thread, NULL);
        pthread_cond_destroy(&writer->call);
        pthread_cond_destroy(&writer->idle);
        pthread_mutex_destroy(&writer->mutex);
        free(writer);
        return NULL;
}
