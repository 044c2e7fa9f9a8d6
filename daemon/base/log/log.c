/* SPDX-License-Identifier: Apache-2.0
 *
 * A message is formatted, compared with the messages of the last seconds and queued; a thread writes it, since standard
 * error or the journal may block. Before log_start() and after log_stop() callers write themselves. There are two
 * batches: callers fill one, and the thread writes the other without the lock. When it is written they are swapped.
 *
 * How it fails: a line that does not fit into a batch is counted, and the count precedes the next line that does. What
 * the output refuses is counted with the rest of its batch, which would only fail likewise. An output that hangs keeps
 * its batch and the thread: one more batch fills, and then lines are lost. If the journal's socket does not exist,
 * lines go to standard error.
 */
#include "daemon/base/log/log.h"

#include "daemon/base/error.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define SD_JOURNAL_SUPPRESS_LOCATION
#include <systemd/sd-journal.h>

#define TEXT_SIZE 2048
#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#define FLUSH_NS (UINT64_C(2) * 1000000000)
#define REPEAT_NS (UINT64_C(5) * 1000000000)
#define REPEAT_ROWS 16
#define REPEAT_TEXT 512

#define FIELD_TEXT 1100 /* a model's name fits */
/* The text's share of a line: the rest is for fields, and quoting may double it. */
#define TEXT_SHARE 2200

struct record {
        enum log_level level;
        enum log_message message;
        const struct log_field *fields; /* NULL: none; ends with a row without a name */
        const char *text;               /* one printable line */
};

struct line {
        size_t len;
        char data[LOG_LINE_MAX];
};

/* A message of the last seconds, and how often it was logged again. */
struct repeat {
        enum log_level level;
        uint64_t since_ns; /* 0: an empty row */
        uint64_t count;
        char text[REPEAT_TEXT];
};

static struct batch {
        size_t len;
        uint64_t dropped; /* lines that did not fit */
        char data[LOG_BATCH_MAX];
} batches[2];

static struct {
        pthread_mutex_t mutex;  /* detects that the caller holds it already (flush_before_abort) */
        enum log_format format; /* never AUTO */
        struct repeat repeats[REPEAT_ROWS];
        uint64_t lost, lost_reported;

        pthread_t thread;
        pthread_cond_t filled, idle;
        bool threaded, writing, ending; /* the thread exists; it writes a batch; it is to end */
        struct batch *filling;
} out = {.mutex = PTHREAD_ERRORCHECK_MUTEX_INITIALIZER_NP,
         .format = LOG_FORMAT_PLAIN,
         .filled = PTHREAD_COND_INITIALIZER,
         .idle = PTHREAD_COND_INITIALIZER,
         .filling = batches};

static int threshold = LOG_LEVEL_INFO;

const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};
static const int priorities[] = {3, 4, 6, 7}; /* syslog's, by level */
const char *const log_formats[] = {"auto", "plain", "prefix", "journal", "json", NULL};

static const char *const ids[] = {[LOG_NO_ID] = "",
#define X(name, id, what) [LOG_##name] = id,
                                  LOG_MESSAGES(X)
#undef X
};

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

void log_set_output(const struct log_output *output)
{
        lock_scope(&out.mutex);
        require(!out.threaded);
        out.format = choose(output);
        if (out.format == LOG_FORMAT_JOURNAL && access(output->journal ?: JOURNAL_SOCKET, F_OK) < 0)
                out.format = LOG_FORMAT_PREFIX;
}

void log_set_level(enum log_level level)
{
        store_relaxed(&threshold, (int)level);
}

/* ---- lines ---- */

__attribute__((format(printf, 2, 3))) static void put(struct line *line, const char *format, ...)
{
        size_t capacity = sizeof(line->data) - line->len;
        va_list args;
        va_start(args, format);
        int n = vsnprintf(line->data + line->len, capacity, format, args);
        va_end(args);
        require(n >= 0 && (size_t)n < capacity); /* callers check it */
        line->len += (size_t)n;
}

static void put_time(struct line *line)
{
        struct timespec now;
        struct tm tm;
        char date[32];
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &tm);
        strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
        put(line, "%s.%03ldZ", date, now.tv_nsec / 1000000);
}

/* A quoted string of at most `most` bytes within its quotes; the text is printable UTF-8 already. */
static void put_json_string(struct line *line, const char *text, size_t most)
{
        put(line, "\"");
        size_t begin = line->len;
        while (*text != '\0') {
                size_t n = 1;
                while (((unsigned char)text[n] & 0xc0) == 0x80)
                        n++;
                bool quote = *text == '"' || *text == '\\';
                if (line->len - begin + n + quote + sizeof("...") > most) {
                        put(line, "...");
                        break;
                }
                put(line, "%s%.*s", quote ? "\\" : "", (int)n, text);
                text += n;
        }
        put(line, "\"");
}

/* Fields that do not fit are left out. */
static void put_fields(struct line *line, const struct log_field *fields)
{
        for (const struct log_field *f = fields; f != NULL && f->name != NULL; f++) {
                char value[FIELD_TEXT];
                if (f->text != NULL)
                        error_escape(value, sizeof(value), f->text);
                else
                        snprintf(value, sizeof(value), "%" PRIu64, f->number);
                /* Each byte of a text may be quoted. */
                if (line->len + strlen(f->name) + 2 * strlen(value) + 12 > LOG_LINE_MAX)
                        continue;
                if (out.format == LOG_FORMAT_JOURNAL) {
                        for (const char *c = f->name; *c != '\0'; c++)
                                put(line, "%c", toupper((unsigned char)*c));
                        put(line, "=%s\n", value);
                        continue;
                }
                put(line, ",\"%s\":", f->name);
                if (f->text != NULL)
                        put_json_string(line, value, SIZE_MAX);
                else
                        put(line, "%s", value);
        }
}

/* Long texts are truncated. JOURNAL is a line NAME=VALUE for each field, and a NUL. */
static void put_record(struct line *line, const struct record *record)
{
        const char *level = log_levels[record->level];
        int priority = priorities[record->level];
        line->len = 0;
        switch (out.format) {
        case LOG_FORMAT_JSON:
                put(line, "{\"time\":\"");
                put_time(line);
                put(line, "\",\"level\":\"%s\",\"message\":", level);
                put_json_string(line, record->text, TEXT_SHARE);
                if (record->message != LOG_NO_ID)
                        put(line, ",\"message_id\":\"%s\"", ids[record->message]);
                put_fields(line, record->fields);
                put(line, "}\n");
                break;
        case LOG_FORMAT_JOURNAL:
                put(line, "MESSAGE=%s\nPRIORITY=%d\nSYSLOG_IDENTIFIER=streamerd\n", record->text, priority);
                if (record->message != LOG_NO_ID)
                        put(line, "MESSAGE_ID=%s\n", ids[record->message]);
                put_fields(line, record->fields);
                line->data[line->len++] = '\0';
                break;
        case LOG_FORMAT_PREFIX:
                put(line, "<%d>%s\n", priority, record->text);
                break;
        case LOG_FORMAT_AUTO:
        case LOG_FORMAT_PLAIN:
                put_time(line);
                put(line, " %s: %s\n", level, record->text);
        }
}

/* ---- writing ---- */

/* Bytes written. Whole lines at a time, as many as a pipe takes without mixing them with what others write to it. */
static size_t write_stderr(const char *data, size_t size)
{
        struct pollfd poll_fd = {.fd = STDERR_FILENO, .events = POLLOUT};
        size_t done = 0;
        while (done < size) {
                size_t len = size - done;
                if (len > PIPE_BUF) {
                        const char *end = memrchr(data + done, '\n', PIPE_BUF);
                        len = end != NULL ? (size_t)(end - data) - done + 1 : PIPE_BUF;
                }
                ssize_t n = TEMP_FAILURE_RETRY(write(STDERR_FILENO, data + done, len));
                if (n > 0)
                        done += (size_t)n;
                else if (n < 0 && errno == EAGAIN) /* made so by another process that shares the open file */
                        poll(&poll_fd, 1, -1);
                else
                        break;
        }
        return done;
}

/* Bytes sent. A message is lines of fields, and ends with NUL. */
static size_t send_journal(char *data, size_t size)
{
        size_t done = 0;
        while (done < size) {
                struct iovec fields[LOG_FIELDS_MAX];
                char *line = data + done;
                int n = 0;
                for (char *end; *line != '\0' && n < LOG_FIELDS_MAX; line = end + 1) {
                        end = strchr(line, '\n');
                        fields[n++] = (struct iovec){line, (size_t)(end - line)};
                }
                if (sd_journal_sendv(fields, n) < 0)
                        break;
                done += strlen(data + done) + 1;
        }
        return done;
}

static size_t write_lines(char *data, size_t size)
{
        return out.format == LOG_FORMAT_JOURNAL ? send_journal(data, size) : write_stderr(data, size);
}

/* ---- queueing; under the lock ---- */

static void emit(const struct record *record)
{
        struct line line;
        struct batch *batch = out.filling;
        put_record(&line, record);
        if (line.len > LOG_BATCH_MAX - batch->len) {
                out.lost++;
                batch->dropped++;
        } else {
                memcpy(batch->data + batch->len, line.data, line.len);
                batch->len += line.len;
        }
}

/* True if the output took it. */
static bool write_notice(uint64_t lost)
{
        char text[80];
        struct line line;
        snprintf(text, sizeof(text), "log: %" PRIu64 " lines dropped: log output was blocked", lost);
        put_record(&line, &(struct record){.level = LOG_LEVEL_WARN, .text = text});
        return write_lines(line.data, line.len) == line.len;
}

/* The thread releases the lock while it writes. */
static void write_filled(void)
{
        struct batch *batch = out.filling;
        bool threaded = out.threaded;
        uint64_t unreported = out.lost - out.lost_reported - batch->dropped; /* of earlier batches */
        out.filling = batch == &batches[0] ? &batches[1] : &batches[0];
        out.writing = true;
        if (threaded)
                pthread_mutex_unlock(&out.mutex);
        bool reported = unreported == 0 || write_notice(unreported);
        size_t done = write_lines(batch->data, batch->len);
        if (threaded)
                pthread_mutex_lock(&out.mutex);
        out.writing = false;
        out.lost_reported += reported ? unreported : 0;
        for (size_t i = done; i < batch->len; i++)
                out.lost += batch->data[i] == (out.format == LOG_FORMAT_JOURNAL ? '\0' : '\n');
        batch->len = 0;
        batch->dropped = 0;
        pthread_cond_broadcast(&out.idle);
}

static void write_without_thread(void)
{
        while (!out.threaded && out.filling->len > 0)
                write_filled();
}

/* The thread is woken when the lock is free. */
static void unlock(void)
{
        write_without_thread();
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
                snprintf(text, sizeof(text), "%s (repeated %" PRIu64 " time%s)", row->text, row->count,
                         row->count == 1 ? "" : "s");
                emit(&(struct record){.level = row->level, .text = text});
        }
        row->since_ns = row->count = 0;
}

/* True if some are left. */
static bool end_repeats(uint64_t now)
{
        bool left = false;
        for (size_t i = 0; i < REPEAT_ROWS; i++) {
                if (out.repeats[i].since_ns != 0 && now - out.repeats[i].since_ns >= REPEAT_NS)
                        end_repeat(&out.repeats[i]);
                left = left || out.repeats[i].since_ns != 0;
        }
        return left;
}

/* True if it was logged already: then it is counted. Long messages count as different. */
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

bool log_tick(void)
{
        pthread_mutex_lock(&out.mutex);
        bool left = end_repeats(now_ns());
        unlock();
        return left;
}

uint64_t log_lost(void)
{
        lock_scope(&out.mutex);
        return out.lost;
}

/* ---- the thread ---- */

static void *log_thread(void *arg)
{
        thread_begin("log");
        lock_scope(&out.mutex);
        while (!out.ending) {
                while (out.filling->len > 0)
                        write_filled();
                while (out.filling->len == 0 && !out.ending)
                        pthread_cond_wait(&out.filled, &out.mutex);
        }
        return NULL;
}

/* With the lock. True: all is written. */
static bool wait_for_thread(uint64_t deadline_ns)
{
        struct timespec until = timespec_of(deadline_ns);
        write_without_thread();
        pthread_cond_signal(&out.filled);
        while ((out.filling->len > 0 || out.writing) &&
               pthread_cond_clockwait(&out.idle, &out.mutex, CLOCK_MONOTONIC, &until) == 0)
                ;
        return out.filling->len == 0 && !out.writing;
}

void log_flush(void)
{
        lock_scope(&out.mutex);
        end_repeats(UINT64_MAX);
        wait_for_thread(now_ns() + FLUSH_NS);
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
        invariant_broken_hook = flush_before_abort;
        /* A page that is touched for the first time is waited for, on a busy host for long. */
        memset(batches, 0, sizeof(batches));
        out.ending = false;
        out.threaded = thread_start(&out.thread, NULL, log_thread, NULL) == 0;
        if (!out.threaded)
                log_warn("log: no thread could be started: the daemon may wait for its log");
}

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
                emit(&(struct record){.level = level, .message = message, .fields = fields, .text = printable});
        unlock();
        errno = saved;
}
