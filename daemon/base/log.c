/* SPDX-License-Identifier: Apache-2.0
 *
 * A message is formatted aside and leaves in one write(), so that lines of several threads do not
 * mix. A message that cannot be written is lost: there is nobody left to tell.
 */
#include "daemon/base/log.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#define TEXT_SIZE 2048
#define LINE_SIZE (TEXT_SIZE + 64)

static _Atomic int threshold = LOG_LEVEL_INFO;
static _Atomic bool to_journal;

static const struct {
        const char *word;
        int priority; /* of syslog, which the journal reads */
} levels[] = {
        [LOG_LEVEL_ERROR] = {"error", 3},
        [LOG_LEVEL_WARN] = {"warn", 4},
        [LOG_LEVEL_INFO] = {"info", 6},
        [LOG_LEVEL_DEBUG] = {"debug", 7},
};

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

void log_init(enum log_level level)
{
        threshold = level;
        to_journal = stderr_is_journal();
}

int log_level_parse(const char *word)
{
        if (strcasecmp(word, "warning") == 0)
                return LOG_LEVEL_WARN;
        for (size_t i = 0; i < ARRAY_SIZE(levels); i++)
                if (strcasecmp(word, levels[i].word) == 0)
                        return (int)i;
        return -1;
}

/* "2024-01-31T12:00:00.250Z warn: " or "<4>". */
static int prefix(char *out, size_t size, enum log_level level)
{
        if (to_journal)
                return snprintf(out, size, "<%d>", levels[level].priority);
        struct timespec now;
        struct tm tm;
        char date[32];
        clock_gettime(CLOCK_REALTIME, &now);
        gmtime_r(&now.tv_sec, &tm);
        strftime(date, sizeof(date), "%Y-%m-%dT%H:%M:%S", &tm);
        return snprintf(out, size, "%s.%03ldZ %s: ", date, now.tv_nsec / 1000000, levels[level].word);
}

void log_write(enum log_level level, const char *format, ...)
{
        if ((int)level > threshold)
                return;
        int saved = errno;
        char text[TEXT_SIZE], line[LINE_SIZE];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        size_t len = (size_t)prefix(line, sizeof(line), level);
        error_escape(line + len, sizeof(line) - len - 1, text);
        len += strlen(line + len);
        line[len++] = '\n';
        ssize_t n = write(STDERR_FILENO, line, len);
        (void)n;
        errno = saved;
}
