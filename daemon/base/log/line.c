/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/log/line.h"

#include "daemon/base/error.h"
#include "daemon/base/util.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

#define FIELD_TEXT 1100 /* a model's name fits */
/* The text's share of a line: the rest is for fields, and quoting may double it. */
#define TEXT_SHARE 2200

struct line {
        char *data;
        size_t len;
};

static const struct {
        const char *word;
        int priority; /* of syslog */
} levels[] = {
        [LOG_LEVEL_ERROR] = {"error", 3},
        [LOG_LEVEL_WARN] = {"warn", 4},
        [LOG_LEVEL_INFO] = {"info", 6},
        [LOG_LEVEL_DEBUG] = {"debug", 7},
};

static const char *const ids[] = {[LOG_NO_ID] = "",
#define X(name, id, what) [LOG_##name] = id,
                                  LOG_MESSAGES(X)
#undef X
};

/* ---- pieces ---- */

__attribute__((format(printf, 2, 3))) static void put(struct line *line, const char *format, ...)
{
        size_t room = LOG_LINE_MAX - line->len;
        va_list args;
        va_start(args, format);
        int n = vsnprintf(line->data + line->len, room, format, args);
        va_end(args);
        require(n >= 0 && (size_t)n < room); /* callers check the space */
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

/* ---- fields ---- */

/* `text` is the field's, printable; NULL where it is a number. */
typedef void put_field_fn(struct line *line, const struct log_field *field, const char *text);

static void put_json_field(struct line *line, const struct log_field *field, const char *text)
{
        put(line, ",\"%s\":", field->name);
        if (text == NULL)
                put(line, "%" PRIu64, field->number);
        else
                put_json_string(line, text, 2 * strlen(text) + sizeof("..."));
}

static void put_journal_field(struct line *line, const struct log_field *field, const char *text)
{
        for (const char *c = field->name; *c != '\0'; c++)
                put(line, "%c", toupper((unsigned char)*c));
        if (text == NULL)
                put(line, "=%" PRIu64 "\n", field->number);
        else
                put(line, "=%s\n", text);
}

static void put_fields(struct line *line, const struct log_field *fields, put_field_fn *put_field)
{
        for (const struct log_field *f = fields; f != NULL && f->name != NULL; f++) {
                char text[FIELD_TEXT] = "";
                if (f->text != NULL)
                        error_escape(text, sizeof(text), f->text);
                /* Each byte of the text may be quoted; a number has 20 digits at the most. */
                size_t room = strlen(f->name) + 2 * strlen(text) + 32;
                if (line->len + room <= LOG_LINE_MAX)
                        put_field(line, f, f->text != NULL ? text : NULL);
        }
}

/* ---- lines ---- */

static void put_json(struct line *line, const struct log_record *r)
{
        put(line, "{\"time\":\"");
        put_time(line);
        put(line, "\",\"level\":\"%s\",\"message\":", levels[r->level].word);
        put_json_string(line, r->text, TEXT_SHARE);
        if (r->message != LOG_NO_ID)
                put(line, ",\"message_id\":\"%s\"", ids[r->message]);
        put_fields(line, r->fields, put_json_field);
        put(line, "}\n");
}

size_t log_line(char out[LOG_LINE_MAX], enum log_format format, const struct log_record *record)
{
        struct line line = {.data = out};
        switch (format) {
        case LOG_FORMAT_JSON:
                put_json(&line, record);
                break;
        case LOG_FORMAT_JOURNAL:
                put(&line, "MESSAGE=%s\nPRIORITY=%d\nSYSLOG_IDENTIFIER=streamerd\n", record->text,
                    levels[record->level].priority);
                if (record->message != LOG_NO_ID)
                        put(&line, "MESSAGE_ID=%s\n", ids[record->message]);
                put_fields(&line, record->fields, put_journal_field);
                break;
        case LOG_FORMAT_PREFIX:
                put(&line, "<%d>%s\n", levels[record->level].priority, record->text);
                break;
        case LOG_FORMAT_AUTO:
        case LOG_FORMAT_PLAIN:
                put_time(&line);
                put(&line, " %s: %s\n", levels[record->level].word, record->text);
        }
        return line.len;
}
