/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: global flags before or after the verb and its arguments; a verb's own flags only after it;
 * "--" ends them. An unknown verb or flag is an error that names the nearest one.
 */
#include "client/streamerctl/ctl.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PRIORITY_MAX 10000

const struct verb *verb_by_name(const char *name)
{
        for (const struct verb *v = verbs; v->name; v++)
                if (strcmp(v->name, name) == 0 || (v->alias && strcmp(v->alias, name) == 0))
                        return v;
        return NULL;
}

/* ---- hints ---- */

/* What other programs call a verb. */
static const char *meant_verb(const char *word)
{
        static const char *const words[][2] = {
                {"stop", "shutdown' or 'unload"},
                {"quit", "shutdown"},
                {"kill", "cancel"},
                {"abort", "cancel"},
                {"delete", "unload"},
                {"remove", "unload"},
                {"free", "unload"},
                {"evict", "unload"},
                {"open", "load"},
                {"pull", "load"},
                {"get", "fetch"},
                {"info", "show"},
                {"inspect", "show"},
                {"log", "events"},
                {"watch", "top"},
                {"stats", "status"},
                {"check", "verify"},
                {"attach", "run"},
                {"start", "load"},
                {"exec", "run"},
        };
        for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
                if (strcmp(words[i][0], word) == 0)
                        return words[i][1];
        return NULL;
}

#define WORDS_MAX 100 /* verbs, and flags of a verb with the global ones, are fewer */

/* What may have been meant. */
struct words {
        const char *v[WORDS_MAX];
        size_t n;
};

static void add_word(struct words *words, const char *word, bool hidden)
{
        if (!hidden && words->n < WORDS_MAX)
                words->v[words->n++] = word;
}

static int unknown(const struct ctl *ctl, const char *what, const char *word, const char *near)
{
        return near ? usage_error(ctl, "unknown %s '%.100s': did you mean '%s'?", what, word, near)
                    : usage_error(ctl, "unknown %s '%.100s'", what, word);
}

static int unknown_verb(const struct ctl *ctl, const char *word)
{
        struct words words = {.n = 0};
        for (const struct verb *v = verbs; v->name; v++)
                add_word(&words, v->name, v->hidden);
        return unknown(ctl, "verb", word, meant_verb(word) ?: streamer_nearest(word, words.v, words.n));
}

/* The flag that begins with the letter; NULL: none. To a flag of one letter each other letter is as near. */
static const char *by_letter(const struct words *flags, char letter)
{
        for (size_t i = 0; i < flags->n; i++)
                if (flags->v[i][2] == letter)
                        return flags->v[i];
        return NULL;
}

/* A verb's own flags precede the global ones. */
static int unknown_flag(const struct ctl *ctl, const char *word)
{
        struct words words = {.n = 0};
        for (const struct flag *f = ctl->verb ? ctl->verb->flags : NULL; f && f->name; f++)
                add_word(&words, f->name, f->hidden);
        for (const struct flag *f = global_flags; f->name; f++)
                add_word(&words, f->name, f->hidden);
        return unknown(ctl, "flag", word,
                       strlen(word) == 2 ? by_letter(&words, word[1]) : streamer_nearest(word, words.v, words.n));
}

/* ---- values ---- */

static int set_format(struct ctl *ctl, const char *value)
{
        static const char *const names[] = {"table", "wide", "json"};
        for (size_t i = 0; i < 3; i++) {
                if (strcmp(value, names[i]) == 0) {
                        ctl->format = (enum format)i;
                        return 0;
                }
        }
        return usage_error(ctl, "unknown format '%.100s': it is table, wide or json", value);
}

/* The durations that a flag takes. */
struct range {
        uint64_t min_ms, max_ms;
        const char *text;
};
static const struct range timeouts = {0, 500 * UINT64_C(3600000), "0 to 500h"}; /* an int of milliseconds */
static const struct range intervals = {100, 3600000, "100ms to 1h"};
static const struct range durations = {1, 8784 * UINT64_C(3600000), "1ms to 8784h"};

/* "250ms", "30s", "1.5m", "2h", or "30", which are seconds. What a millisecond does not divide is rounded up. */
static int parse_within(const struct ctl *ctl, const char *value, const struct range *range, uint64_t *ms)
{
        static const struct {
                const char *unit;
                double ms;
        } units[] = {{"", 1e3}, {"ms", 1}, {"s", 1e3}, {"m", 6e4}, {"h", 3.6e6}};
        char *end;
        double n = strtod(value, &end);
        bool decimal = end > value && strspn(value, "0123456789.") == (size_t)(end - value);
        for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
                double given = n * units[i].ms;
                if (!decimal || strcmp(end, units[i].unit) != 0 || given < (double)range->min_ms ||
                    given > (double)range->max_ms)
                        continue;
                *ms = (uint64_t)given + (given > (double)(uint64_t)given);
                return 0;
        }
        return usage_error(ctl, "'%.100s' is not a duration: %s, in seconds or with ms, s, m or h", value, range->text);
}

int parse_duration(const struct ctl *ctl, const char *value, uint64_t *ms)
{
        return parse_within(ctl, value, &durations, ms);
}

static int set_timeout(struct ctl *ctl, const char *value)
{
        uint64_t ms;
        int rc = parse_within(ctl, value, &timeouts, &ms);
        if (rc == 0)
                ctl->timeout_ms = (int)ms;
        return rc;
}

int parse_priority(const struct ctl *ctl, const char *value, uint64_t *priority)
{
        size_t len = strlen(value);
        *priority = len <= 5 && strspn(value, "0123456789") == len ? strtoull(value, NULL, 10) : 0;
        return *priority >= 1 && *priority <= PRIORITY_MAX
                       ? 0
                       : usage_error(ctl, "'%.100s' is not a priority: 1 to 10000", value);
}

static int set_flag(struct ctl *ctl, const struct flag *f, const char *value)
{
        void *to = (char *)ctl + f->offset;
        switch (f->type) {
        case FLAG_BOOL:
                *(bool *)to = true;
                return 0;
        case FLAG_STR:
                *(const char **)to = value;
                return 0;
        case FLAG_JSON:
                ctl->format = FORMAT_JSON;
                return 0;
        case FLAG_FORMAT:
                return set_format(ctl, value);
        case FLAG_TIMEOUT:
                return set_timeout(ctl, value);
        case FLAG_INTERVAL:
                return parse_within(ctl, value, &intervals, to);
        case FLAG_DURATION:
                return parse_duration(ctl, value, to);
        case FLAG_PRIORITY:
                return parse_priority(ctl, value, to);
        case FLAG_DEVICE:
                return devices_add(ctl, value);
        }
        return 0;
}

/* ---- parsing ---- */

/* "--name", "--name=value", "-o", "-ovalue": the value that is part of the word, or NULL. */
static bool matches(const char *word, const char *name, const char **value)
{
        size_t len = strlen(name);
        if (strncmp(word, name, len) != 0)
                return false;
        *value = NULL;
        if (word[len] == '\0')
                return true;
        bool is_long = name[1] == '-';
        if (is_long && word[len] != '=')
                return false;
        *value = is_long ? word + len + 1 : word + len;
        return true;
}

static const struct flag *find_in(const struct flag *flags, const char *word, const char **value)
{
        for (const struct flag *f = flags; f && f->name; f++)
                if (matches(word, f->name, value) || (f->alias && matches(word, f->alias, value)))
                        return f;
        return NULL;
}

const struct flag *flag_find(const struct verb *verb, const char *word, const char **value)
{
        const struct flag *f = find_in(global_flags, word, value);
        return f || !verb ? f : find_in(verb->flags, word, value);
}

static int parse_flag(struct ctl *ctl, char **argv, int argc, int *i)
{
        const char *value = NULL, *word = argv[*i];
        const struct flag *f = flag_find(ctl->verb, word, &value);
        if (!f)
                return unknown_flag(ctl, word);
        if (!f->value && value)
                return usage_error(ctl, "%s takes no value", f->name);
        if (f->value && !value) {
                if (*i + 1 >= argc)
                        return usage_error(ctl, "%s needs a value: %s", f->name, f->value);
                value = argv[++*i];
        }
        return set_flag(ctl, f, value);
}

static int check_args(const struct ctl *ctl)
{
        const struct verb *v = ctl->verb;
        if (ctl->help || ctl->version)
                return 0;
        if (!v)
                return usage_error(ctl, "a verb is missing");
        if (ctl->n_args < v->min_args)
                return usage_error(ctl, "%s: an argument is missing: %s", v->name, v->args);
        if (ctl->n_args > 0 && !ctl->args[0][0] && !v->hidden)
                return usage_error(ctl, "%s: an argument is empty: %s", v->name, v->args);
        if (ctl->n_args > v->max_args)
                return usage_error(ctl, "%s: one argument too many: '%.100s'", v->name, ctl->args[v->max_args]);
        if (v->raw && ctl->format == FORMAT_JSON)
                return usage_error(ctl, "%s: writes bytes, not JSON", v->name);
        return 0;
}

/* Known before anything is parsed: errors of the command line are JSON, too. */
static bool wants_json(int argc, char **argv)
{
        for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
                const char *value = NULL;
                const struct flag *f = argv[i][0] == '-' ? find_in(global_flags, argv[i], &value) : NULL;
                if (!value && i + 1 < argc)
                        value = argv[i + 1];
                if (f && (f->type == FLAG_JSON || (f->type == FLAG_FORMAT && value && strcmp(value, "json") == 0)))
                        return true;
        }
        return false;
}

int flags_parse(struct ctl *ctl, int argc, char **argv)
{
        bool flags_over = false;
        ctl->format = wants_json(argc, argv) ? FORMAT_JSON : FORMAT_TABLE;
        for (int i = 1; i < argc; i++) {
                int rc = 0;
                if (!flags_over && strcmp(argv[i], "--") == 0)
                        flags_over = true;
                else if (!flags_over && argv[i][0] == '-' && argv[i][1])
                        rc = parse_flag(ctl, argv, argc, &i);
                else if (ctl->verb)
                        ctl->args[ctl->n_args++] = argv[i];
                else if (!(ctl->verb = verb_by_name(argv[i])))
                        rc = unknown_verb(ctl, argv[i]);
                if (rc != 0)
                        return rc;
        }
        return check_args(ctl);
}
