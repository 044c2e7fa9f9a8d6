/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors: one line each on standard error, or one object with --json.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Without "SUBJECT: ", with which some of the daemon's texts begin. */
static const char *without_subject(const char *text, const char *subject)
{
        size_t len = strlen(subject);
        return len > 0 && strncmp(text, subject, len) == 0 && strncmp(text + len, ": ", 2) == 0 ? text + len + 2 : text;
}

static void print_line(const char *subject, const char *text, const char *hint)
{
        fputs("streamerctl: ", stderr);
        put_escaped(stderr, subject);
        fputs(subject[0] ? ": " : "", stderr);
        put_escaped(stderr, text);
        fprintf(stderr, "%s\n", hint);
}

static void print_object(int err, const char *subject, const char *text)
{
        char *safe = escape(text), *safe_subject = escape(subject);
        json_auto_t *o =
                json_pack("{s:i, s:{s:s, s:s, s:s?}}", "schema", JSON_SCHEMA, "error", "code", streamer_error_name(err),
                          "text", safe, "model", safe_subject[0] ? safe_subject : NULL);
        if (!o || json_dumpf(o, stderr, JSON_COMPACT) != 0)
                out_of_memory();
        fputc('\n', stderr);
        free(safe);
        free(safe_subject);
}

static int print(const struct ctl *ctl, int err, const char *subject, const char *text, const char *hint)
{
        if (!subject)
                subject = "";
        text = without_subject(text, subject);
        if (ctl->format == FORMAT_JSON)
                print_object(err, subject, text);
        else
                print_line(subject, text, hint);
        return streamer_exit_code(err);
}

int ctl_error(const struct ctl *ctl, int err, const char *subject, const char *format, ...)
{
        char text[1024];
        va_list ap;
        va_start(ap, format);
        vsnprintf(text, sizeof(text), format, ap);
        va_end(ap);
        return print(ctl, err, subject, text, "");
}

int ctl_fail(const struct ctl *ctl, int err, const char *subject)
{
        const char *text = streamer_last_error(ctl->client);
        return print(ctl, err, subject, text[0] ? text : streamer_strerror(err), "");
}

int usage_error(const struct ctl *ctl, const char *format, ...)
{
        char text[1024], hint[64];
        va_list ap;
        va_start(ap, format);
        vsnprintf(text, sizeof(text), format, ap);
        va_end(ap);
        snprintf(hint, sizeof(hint), " (see 'streamerctl help%s%s')", ctl->verb ? " " : "",
                 ctl->verb ? ctl->verb->name : "");
        return print(ctl, STREAMER_EINVAL, NULL, text, hint);
}

static bool is_utf8(const char *text)
{
        json_auto_t *string = json_string(text ? text : "");
        return string;
}

int usage_not_utf8(const struct ctl *ctl)
{
        const char *const named[] = {ctl->name, ctl->layout, ctl->pattern, ctl->verify};
        const char *bad = NULL;
        for (size_t i = 0; i < sizeof(named) / sizeof(named[0]); i++)
                bad = is_utf8(named[i]) ? bad : named[i];
        for (size_t i = 0; i < ctl->n_devices; i++)
                bad = is_utf8(ctl->devices[i]) ? bad : ctl->devices[i];
        for (size_t i = ctl->n_args; i-- > 0;)
                bad = is_utf8(ctl->args[i]) ? bad : ctl->args[i];
        return usage_error(ctl, "%s: not valid UTF-8: %s", ctl->verb->name, bad ? bad : "an argument");
}

int output_error(const struct ctl *ctl)
{
        if (errno == EPIPE)
                return EXIT_SIGPIPE;
        return ctl_error(ctl, STREAMER_EFAILED, NULL, "cannot write to standard output: %s", strerror(errno));
}
