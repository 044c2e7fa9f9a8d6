/* SPDX-License-Identifier: Apache-2.0
 *
 * A message is formatted, compared with the messages of the last seconds, and written in one non-blocking write, so
 * that lines of several threads do not mix and a stalled reader does not block the daemon. Where a write may block, as
 * to a file, a thread makes it (writer.h) between log_start() and log_stop(); before and after, the caller does.
 *
 * How it fails: a line that is not accepted is counted, and the count precedes the next line that is. Without a journal
 * its lines go to standard error. If standard error is closed all lines are lost.
 */
#include "daemon/base/log/log.h"

#include "daemon/base/error.h"
#include "daemon/base/log/line.h"
#include "daemon/base/log/writer.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define TEXT_SIZE 2048
#define JOURNAL_SOCKET "/run/systemd/journal/socket"
#define FLUSH_NS (UINT64_C(2) * 1000000000)
#define REPEAT_NS (UINT64_C(5) * 1000000000)
#define REPEAT_ROWS 16
#define REPEAT_TEXT 512

/* A message of the last seconds, and how often it was said again. */
struct repeat {
        enum log_level level;
        uint64_t since_ns; /* 0: an empty row */
        uint64_t count;
        char text[REPEAT_TEXT];
};

static struct {
        pthread_mutex_t mutex;
        enum log_format format; /* never AUTO */
        int fd;                 /* STDERR_FILENO, or the same file opened again, non-blocking */
        bool is_socket;
        int journal; /* -1: not used */
        struct sockaddr_un journal_address;
        struct log_writer *writer; /* NULL: no thread writes */
        struct repeat repeats[REPEAT_ROWS];
        uint64_t lost, lost_reported; /* less what the writer counts */
} out = {.mutex = PTHREAD_MUTEX_INITIALIZER, .format = LOG_FORMAT_PLAIN, .fd = STDERR_FILENO, .journal = -1};

static int threshold = LOG_LEVEL_INFO;

/* ---- words ---- */

static int find_word(const char *const *words, size_t n, const char *word)
{
        for (size_t i = 0; i < n; i++)
                if (strcasecmp(word, words[i]) == 0)
                        return (int)i;
        return -1;
}

static const char *const levels[] = {"error", "warn", "info", "debug"};
static const char *const formats[] = {"auto", "plain", "prefix", "journal", "json"};

int log_level_parse(const char *word)
{
        if (strcasecmp(word, "warning") == 0)
                return LOG_LEVEL_WARN;
        return find_word(levels, ARRAY_SIZE(levels), word);
}

const char *log_level_name(enum log_level level)
{
        return levels[level];
}

int log_format_parse(const char *word)
{
        return find_word(formats, ARRAY_SIZE(formats), word);
}

const char *log_format_name(enum log_format format)
{
        return formats[format];
}

/* ---- the output ---- */

/* systemd names the journal's stream in the environment as "device:inode". The variable is
 * inherited, so it counts only while standard error still is that stream. */
static bool stderr_is_journal(void)
{
        const char *stream = getenv("JOURNAL_STREAM");
        struct stat st;
        uintmax_t dev, ino;
        return stream != NULL && sscanf(stream, "%ju:%ju", &dev, &ino) == 2 && fstat(STDERR_FILENO, &st) == 0 &&
               st.st_dev == dev && st.st_ino == ino;
}

/* Inherited as well, by everything that a service starts: it names the process that is meant. */
static bool started_by_manager(void)
{
        const char *pid = getenv("SYSTEMD_EXEC_PID");
        return pid != NULL && strtol(pid, NULL, 10) == (long)getpid() && !isatty(STDERR_FILENO);
}

static enum log_format choose(const struct log_output *output)
{
        if (output->format != LOG_FORMAT_AUTO)
                return output->format;
        if (stderr_is_journal())
                return output->to_stderr ? LOG_FORMAT_PREFIX : LOG_FORMAT_JOURNAL;
        return started_by_manager() ? LOG_FORMAT_PREFIX : LOG_FORMAT_PLAIN;
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

static void open_journal(const char *path)
{
        if (out.journal >= 0)
                close(out.journal);
        out.journal = -1;
        out.journal_address = (struct sockaddr_un){.sun_family = AF_UNIX};
        if (out.format != LOG_FORMAT_JOURNAL || strlen(path) >= sizeof(out.journal_address.sun_path))
                return;
        strcpy(out.journal_address.sun_path, path);
        out.journal = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
}

void log_set_output(const struct log_output *output)
{
        pthread_mutex_lock(&out.mutex);
        require(out.writer == NULL);
        out.format = choose(output);
        open_stderr();
        open_journal(output->journal != NULL ? output->journal : JOURNAL_SOCKET);
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

static bool write_stderr(const char *data, size_t len, uint64_t reported)
{
        if (out.writer != NULL)
                return log_writer_put(out.writer, data, len, reported);
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

static struct log_writer_lost written_lost(void)
{
        return out.writer != NULL ? log_writer_lost(out.writer) : (struct log_writer_lost){0};
}

static void report_lost(void)
{
        struct log_writer_lost late = written_lost();
        uint64_t unreported = out.lost + late.lines + late.unreported - out.lost_reported;
        char text[80];
        if (unreported == 0)
                return;
        snprintf(text, sizeof(text), "log: %" PRIu64 " lines dropped: log output was blocked", unreported);
        if (write_record(&(struct log_record){.level = LOG_LEVEL_WARN, .text = text}, unreported))
                out.lost_reported += unreported;
}

static void emit(const struct log_record *record)
{
        report_lost();
        if (!write_record(record, 0))
                out.lost++;
}

static void unlock(void)
{
        struct log_writer *writer = out.writer;
        pthread_mutex_unlock(&out.mutex);
        if (writer != NULL)
                log_writer_call(writer);
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
        uint64_t lost = out.lost + written_lost().lines;
        pthread_mutex_unlock(&out.mutex);
        return lost;
}

/* ---- its thread ---- */

/* A socket, or a file that was opened again, never blocks. */
static bool may_wait(void)
{
        return !out.is_socket && out.fd == STDERR_FILENO;
}

void log_start(void)
{
        pthread_mutex_lock(&out.mutex);
        bool wanted = may_wait() && out.writer == NULL;
        if (wanted)
                out.writer = log_writer_new(out.fd);
        bool failed = wanted && out.writer == NULL;
        pthread_mutex_unlock(&out.mutex);
        if (failed)
                log_warn("log: no thread to write it with: the daemon may wait for its log's disk");
}

void log_flush(void)
{
        pthread_mutex_lock(&out.mutex);
        end_repeats(UINT64_MAX);
        struct log_writer *writer = out.writer;
        pthread_mutex_unlock(&out.mutex);
        if (writer != NULL)
                log_writer_flush(writer, now_ns() + FLUSH_NS);
}

/* With the lock: a line that is logged meanwhile is written after those before it. */
void log_stop(void)
{
        log_flush();
        pthread_mutex_lock(&out.mutex);
        if (out.writer != NULL && log_writer_flush(out.writer, now_ns())) {
                struct log_writer_lost late = written_lost();
                out.lost += late.lines;
                out.lost_reported -= late.unreported;
                out.writer = log_writer_free(out.writer);
        }
        pthread_mutex_unlock(&out.mutex);
}

/* The caller may hold the lock. */
void broken_invariant(const char *file, int line, const char *what)
{
        struct log_writer *writer = NULL;
        if (pthread_mutex_trylock(&out.mutex) == 0) {
                writer = out.writer;
                pthread_mutex_unlock(&out.mutex);
        }
        if (writer != NULL)
                log_writer_flush(writer, now_ns() + FLUSH_NS);
        fprintf(stderr, "streamerd: %s:%d: broken invariant: %s\n", file, line, what);
        abort();
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
