/* SPDX-License-Identifier: Apache-2.0
 *
 * A message is formatted, compared with the messages of the last seconds, and written in one non-blocking write, so
 * that lines of several threads do not mix and a stalled reader does not block the daemon. Where a write may block, as
 * to a file, a thread makes it between log_start() and log_stop(); before and after, the caller does. There are two
 * batches: callers fill one, and the thread writes the other without the lock. When it is written they are swapped.
 *
 * How it fails: a line that is not accepted is counted, and the count precedes the next line that is. Without a journal
 * its lines go to standard error. If standard error is closed all lines are lost. A line that does not fit into a batch
 * is not accepted. What the thread's descriptor refuses is counted with the rest of its batch, which would only fail
 * likewise. A descriptor that hangs keeps its batch and the thread: one more batch fills, and then lines are lost.
 */
#include "daemon/base/log/log.h"

#include "daemon/base/error.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define TEXT_SIZE 2048
#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#define FLUSH_NS (UINT64_C(2) * 1000000000)
#define REPEAT_NS (UINT64_C(5) * 1000000000)
#define REPEAT_ROWS 16
#define REPEAT_TEXT 512

/* A message of the last seconds, and how often it was logged again. */
struct repeat {
        enum log_level level;
        uint64_t since_ns; /* 0: an empty row */
        uint64_t count;
        char text[REPEAT_TEXT];
};

static struct batch {
        size_t len;
        size_t notice_at;  /* of the line that reports lost ones, at most one a batch */
        uint64_t reported; /* by that line; 0: there is none */
        char data[LOG_BATCH_MAX];
} batches[2];

static struct {
        pthread_mutex_t mutex;  /* detects that the caller holds it already (flush_before_abort) */
        enum log_format format; /* never AUTO */
        int fd;                 /* STDERR_FILENO, or the same file opened again, non-blocking */
        bool is_socket;
        int journal; /* -1: not used */
        struct sockaddr_un journal_address;
        struct repeat repeats[REPEAT_ROWS];
        uint64_t lost, lost_reported;

        pthread_t thread;
        pthread_cond_t filled, idle;
        bool threaded, writing, ending; /* the thread exists; it writes a batch; it is to end */
        struct batch *filling;
} out = {.mutex = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP,
         .format = LOG_FORMAT_PLAIN,
         .fd = STDERR_FILENO,
         .journal = -1,
         .filled = PTHREAD_COND_INITIALIZER,
         .idle = PTHREAD_COND_INITIALIZER,
         .filling = batches};

static int threshold = LOG_LEVEL_INFO;

/* ---- the output ---- */

static enum log_format choose(const struct log_output *output)
{
        if (output->format != LOG_FORMAT_AUTO)
                return output->format;

        /* systemd names the journal's stream in the environment as "device:inode". The variable is inherited, so it
         * counts only while standard error still is that stream. */
        const char *stream = getenv("JOURNAL_STREAM");
        struct stat st;
        uintmax_t dev, ino;
        if (stream != NULL && sscanf(stream, "%ju:%ju", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
            st.st_dev == dev && st.st_ino == ino)
                return output->to_stderr ? LOG_FORMAT_PREFIX : LOG_FORMAT_JOURNAL;

        /* Inherited as well, by everything that a service starts: it names the process that is meant. */
        const char *pid = getenv("SYSTEMD_EXEC_PID");
        bool is_service = pid != NULL && strtol(pid, NULL, 10) == (long)getpid();
        return is_service && !isatty(STDERR_FILENO) ? LOG_FORMAT_PREFIX : LOG_FORMAT_PLAIN;
}

/* O_NONBLOCK belongs to the open file, which others share: the shell's terminal would change under
 * it. Pipes and terminals are opened again instead; for sockets it is a flag of each message. */
static void open_stderr(void)
{
        struct stat st;
        if (out.fd != STDERR_FILENO)
                close(out.fd);
        out.fd = STDERR_FILENO;
        out.is_socket = false;
        if (fstat(STDERR_FILENO, &st) < 0)
                return;
        out.is_socket = S_ISSOCK(st.st_mode);
        if (!S_ISFIFO(st.st_mode) && !isatty(STDERR_FILENO))
                return;
        int fd = open("/proc/self/fd/2", O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
        if (fd >= 0)
                out.fd = fd;
}

void log_set_output(const struct log_output *output)
{
        const char *path = output->journal != NULL ? output->journal : JOURNAL_SOCKET;
        pthread_mutex_lock(&out.mutex);
        require(!out.threaded);
        out.format = choose(output);
        open_stderr();
        close_p(&out.journal);
        out.journal = -1;
        out.journal_address = (struct sockaddr_un){.sun_family = AF_UNIX};
        if (out.format == LOG_FORMAT_JOURNAL && strlen(path) < sizeof(out.journal_address.sun_path)) {
                strcpy(out.journal_address.sun_path, path);
                out.journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
        }
        pthread_mutex_unlock(&out.mutex);
}

void log_set_level(enum log_level level)
{
        store_relaxed(&threshold, (int)level);
}

void log_init(enum log_level level)
{
        log_set_level(level);
        log_set_output(&(struct log_output){.format = LOG_FORMAT_AUTO});
}

/* ---- writing; under the lock ---- */

/* False: the batch is full, or has a notice already. */
static bool batch_put(const char *data, size_t len, uint64_t reported)
{
        struct batch *batch = out.filling;
        if (len > LOG_BATCH_MAX - batch->len || (reported > 0 && batch->reported > 0))
                return false;
        if (reported > 0) {
                batch->notice_at = batch->len;
                batch->reported = reported;
        }
        memcpy(batch->data + batch->len, data, len);
        batch->len += len;
        return true;
}

static bool write_stderr(const char *data, size_t len, uint64_t reported)
{
        if (out.threaded)
                return batch_put(data, len, reported);
        if (out.is_socket)
                return send(out.fd, data, len, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)len;
        /* A pipe of another user cannot be opened again, only polled. */
        struct pollfd poll_fd = {.fd = out.fd, .events = POLLOUT};
        if (out.fd == STDERR_FILENO && poll(&poll_fd, 1, 0) != 1)
                return false;
        return write(out.fd, data, len) == (ssize_t)len;
}

/* `reported`: the number of lost lines that it reports. */
static bool write_record(const struct log_record *record, uint64_t reported)
{
        char line[LOG_LINE_MAX];
        if (out.format == LOG_FORMAT_JOURNAL && out.journal >= 0) {
                const struct sockaddr *address = (const struct sockaddr *)&out.journal_address;
                size_t len = log_line(line, LOG_FORMAT_JOURNAL, record);
                ssize_t n = sendto(out.journal, line, len, MSG_NOSIGNAL, address, sizeof(out.journal_address));
                /* Any other error: the journal is absent, and standard error takes the line. */
                if (n >= 0 || errno == EAGAIN || errno == ENOBUFS)
                        return n == (ssize_t)len;
        }
        enum log_format format = out.format == LOG_FORMAT_JOURNAL ? LOG_FORMAT_PREFIX : out.format;
        return write_stderr(line, log_line(line, format, record), reported);
}

static void emit(const struct log_record *record)
{
        uint64_t unreported = out.lost - out.lost_reported;
        if (unreported > 0) {
                char text[80];
                snprintf(text, sizeof(text), "log: %" PRIu64 " lines dropped: log output was blocked", unreported);
                if (write_record(&(struct log_record){.level = LOG_LEVEL_WARN, .text = text}, unreported))
                        out.lost_reported += unreported;
        }
        if (!write_record(record, 0))
                out.lost++;
}

/* The thread is woken when the lock is free. */
static void unlock(void)
{
        bool wake = out.filling->len > 0 && !out.writing;
        pthread_mutex_unlock(&out.mutex);
        if (wake)
                pthread_cond_signal(&out.filled);
}

/* ---- repeats; under the lock ---- */

static void end_repeat(struct repeat *row)
{
        char text[REPEAT_TEXT + 64];
        if (row->count > 0) {
                snprintf(text, sizeof(text), "%s (said %" PRIu64 " more time%s)", row->text, row->count,
                         row->count == 1 ? "" : "s");
                emit(&(struct log_record){.level = row->level, .text = text});
        }
        row->since_ns = row->count = 0;
}

static void end_repeats(uint64_t now)
{
        for (size_t i = 0; i < REPEAT_ROWS; i++)
                if (out.repeats[i].since_ns != 0 && now - out.repeats[i].since_ns >= REPEAT_NS)
                        end_repeat(&out.repeats[i]);
}

/* True if it was said already: then it is counted. Long messages are never held to be the same. */
static bool repeats(enum log_level level, const char *text, uint64_t now)
{
        struct repeat *oldest = &out.repeats[0];
        if (strlen(text) >= REPEAT_TEXT)
                return false;
        for (size_t i = 0; i < REPEAT_ROWS; i++) {
                struct repeat *row = &out.repeats[i];
                if (row->since_ns != 0 && row->level == level && strcmp(row->text, text) == 0) {
                        row->count++;
                        return true;
                }
                if (row->since_ns < oldest->since_ns)
                        oldest = row;
        }
        end_repeat(oldest);
        oldest->level = level;
        oldest->since_ns = now;
        strcpy(oldest->text, text);
        return false;
}

void log_tick(void)
{
        pthread_mutex_lock(&out.mutex);
        end_repeats(now_ns());
        unlock();
}

uint64_t log_lost(void)
{
        pthread_mutex_lock(&out.mutex);
        uint64_t lost = out.lost;
        pthread_mutex_unlock(&out.mutex);
        return lost;
}

/* ---- the thread ---- */

/* Another process that shares the open file may have made it non-blocking. */
static bool should_retry(int fd)
{
        struct pollfd poll_fd = {.fd = fd, .events = POLLOUT};
        if (errno == EAGAIN)
                poll(&poll_fd, 1, -1);
        return errno == EAGAIN || errno == EINTR;
}

/* Bytes written. Whole lines at a time, as many as a pipe takes without mixing them with what others write to it. */
static size_t batch_write(int fd, const struct batch *batch)
{
        size_t done = 0;
        while (done < batch->len) {
                const char *data = batch->data + done;
                size_t len = batch->len - done;
                if (len > PIPE_BUF) {
                        const char *end = memrchr(data, '\n', PIPE_BUF);
                        len = end != NULL ? (size_t)(end - data) + 1 : PIPE_BUF;
                }
                ssize_t n = write(fd, data, len);
                if (n > 0)
                        done += (size_t)n;
                else if (n == 0 || !should_retry(fd))
                        break;
        }
        return done;
}

/* Begins and ends with the lock. */
static void write_filled(void)
{
        struct batch *batch = out.filling;
        out.filling = batch == &batches[0] ? &batches[1] : &batches[0];
        out.writing = true;
        pthread_mutex_unlock(&out.mutex);
        size_t done = batch_write(out.fd, batch);
        pthread_mutex_lock(&out.mutex);
        out.writing = false;
        for (size_t i = done; i < batch->len; i++)
                out.lost += batch->data[i] == '\n';
        /* A notice is not counted as a lost line: its count is reported again. */
        if (batch->reported > 0 && batch->notice_at >= done) {
                out.lost--;
                out.lost_reported -= batch->reported;
        }
        batch->len = 0;
        batch->reported = 0;
}

static void *log_thread(void *arg)
{
        (void)arg;
        thread_begin("log");
        pthread_mutex_lock(&out.mutex);
        while (!out.ending) {
                while (out.filling->len > 0)
                        write_filled();
                pthread_cond_broadcast(&out.idle);
                while (out.filling->len == 0 && !out.ending)
                        pthread_cond_wait(&out.filled, &out.mutex);
        }
        pthread_mutex_unlock(&out.mutex);
        return NULL;
}

/* With the lock. True: the thread has written all. */
static bool wait_for_thread(uint64_t deadline_ns)
{
        struct timespec until = timespec_of(deadline_ns);
        pthread_cond_signal(&out.filled);
        while ((out.filling->len > 0 || out.writing) &&
               pthread_cond_clockwait(&out.idle, &out.mutex, CLOCK_MONOTONIC, &until) == 0)
                ;
        return out.filling->len == 0 && !out.writing;
}

void log_flush(void)
{
        pthread_mutex_lock(&out.mutex);
        end_repeats(UINT64_MAX);
        wait_for_thread(now_ns() + FLUSH_NS);
        pthread_mutex_unlock(&out.mutex);
}

/* A thread that hangs in its descriptor is left to the end of the process. */
void log_stop(void)
{
        log_flush();
        pthread_mutex_lock(&out.mutex);
        if (out.threaded && wait_for_thread(now_ns())) {
                out.threaded = false;
                out.ending = true;
                pthread_cond_signal(&out.filled);
                pthread_mutex_unlock(&out.mutex);
                pthread_join(out.thread, NULL);
                return;
        }
        pthread_mutex_unlock(&out.mutex);
}

/* invariant_broken_hook */
static void flush_before_abort(void)
{
        if (pthread_mutex_lock(&out.mutex) != 0) /* the caller holds it */
                return;
        wait_for_thread(now_ns() + FLUSH_NS);
        pthread_mutex_unlock(&out.mutex);
}

void log_start(void)
{
        bool failed = false;
        invariant_broken_hook = flush_before_abort;
        pthread_mutex_lock(&out.mutex);
        /* A socket, or a file that was opened again, never blocks. */
        if (!out.is_socket && out.fd == STDERR_FILENO && !out.threaded) {
                /* A page that is touched for the first time is waited for, on a busy host for long. */
                memset(batches, 0, sizeof(batches));
                out.ending = false;
                out.threaded = thread_start(&out.thread, NULL, log_thread, NULL) == 0;
                failed = !out.threaded;
        }
        pthread_mutex_unlock(&out.mutex);
        if (failed)
                log_warn("log: no thread to write it with: the daemon may wait for its log's disk");
}

/* ---- logging ---- */

void log_event(enum log_level level, enum log_message message, const struct log_field *fields, const char *format, ...)
{
        if ((int)level > load_relaxed(&threshold))
                return;
        int saved = errno;
        char text[TEXT_SIZE], printable[TEXT_SIZE];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        error_escape(printable, sizeof(printable), text);
        pthread_mutex_lock(&out.mutex);
        uint64_t now = now_ns();
        end_repeats(now);
        if (!repeats(level, printable, now))
                emit(&(struct log_record){.level = level, .message = message, .fields = fields, .text = printable});
        unlock();
        errno = saved;
}
