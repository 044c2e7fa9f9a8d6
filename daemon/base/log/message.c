/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/log/log.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"

#include <ctype.h>
#include <inttypes.h>

#define FIELD_TEXT 1100 /* a model's name fits */
/* The text's share of a line: the rest is for fields, and quoting may double it. */
#define TEXT_SHARE 2200

struct line {
        char *data;
        size_t len;
};

const char *const log_levels[] = {"error", "warn", "info", "debug", NULL};
static const int priorities[] = {3, 4, 6, 7}; /* syslog's, by level */
const char *const log_formats[] = {"auto", "plain", "prefix", "journal", "json", NULL};

static const char *const ids[] = {[LOG_NO_ID] = "",
#define X(name, id, what) [LOG_##name] = id,
                                  LOG_MESSAGES(X)
#undef X
};

/* ---- pieces ---- */

__attribute__((format(printf, 2, 3))) static void put(struct line *line, const char *format, ...)
{
        size_t capacity = LOG_LINE_MAX - line->len;
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
        size_t end = line->len + 1 + most;
        put(line, "\"");
        while (*text != '\0') {
                size_t n = 1;
                while (((unsigned char)text[n] & 0xc0) == 0x80)
                        n++;
                bool quote = *text == '"' || *text == '\\';
                if (line->len + n + quote + sizeof("...") > end) {
                        put(line, "...");
                        break;
                }
                put(line, "%s%.*s", quote ? "\\" : "", (int)n, text);
                text += n;
        }
        put(line, "\"");
}

/* Fields that do not fit are left out. */
static void put_fields(struct line *line, const struct log_field *fields, enum log_format format)
{
        for (const struct log_field *f = fields; f != NULL && f->name != NULL; f++) {
                char text[FIELD_TEXT] = "";
                if (f->text != NULL)
                        error_escape(text, sizeof(text), f->text);
                /* Each byte of the text may be quoted; a number has 20 digits at the most. */
                if (line->len + strlen(f->name) + 2 * strlen(text) + 32 > LOG_LINE_MAX)
                        continue;
                if (format == LOG_FORMAT_JSON) {
                        put(line, ",\"%s\":", f->name);
                        if (f->text != NULL)
                                put_json_string(line, text, 2 * strlen(text) + sizeof("..."));
                        else
                                put(line, "%" PRIu64, f->number);
                } else {
                        for (const char *c = f->name; *c != '\0'; c++)
                                put(line, "%c", toupper((unsigned char)*c));
                        if (f->text != NULL)
                                put(line, "=%s\n", text);
                        else
                                put(line, "=%" PRIu64 "\n", f->number);
                }
        }
}

size_t log_line(char out[LOG_LINE_MAX], enum log_format format, const struct log_record *record)
{
        struct line line = {.data = out};
        const char *level = log_levels[record->level];
        int priority = priorities[record->level];
        switch (format) {
        case LOG_FORMAT_JSON:
                put(&line, "{\"time\":\"");
                put_time(&line);
                put(&line, "\",\"level\":\"%s\",\"message\":", level);
                put_json_string(&line, record->text, TEXT_SHARE);
                if (record->message != LOG_NO_ID)
                        put(&line, ",\"message_id\":\"%s\"", ids[record->message]);
                put_fields(&line, record->fields, format);
                put(&line, "}\n");
                break;
        case LOG_FORMAT_JOURNAL:
                put(&line, "MESSAGE=%s\nPRIORITY=%d\nSYSLOG_IDENTIFIER=streamerd\n", record->text, priority);
                if (record->message != LOG_NO_ID)
                        put(&line, "MESSAGE_ID=%s\n", ids[record->message]);
                put_fields(&line, record->fields, format);
                out[line.len++] = '\0';
                break;
        case LOG_FORMAT_PREFIX:
                put(&line, "<%d>%s\n", priority, record->text);
                break;
        case LOG_FORMAT_AUTO:
        case LOG_FORMAT_PLAIN:
                put_time(&line);
                put(&line, " %s: %s\n", level, record->text);
        }
        return line.len;
}
