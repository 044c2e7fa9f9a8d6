/* SPDX-License-Identifier: Apache-2.0
 *
 * Completion: `streamerctl complete -- WORDS...`, where the last word is the one that is being typed. Prints one
 * candidate per line, a tab, and its description; or ":files" where a path is expected. The shells' scripts
 * (config/completion) only pass this on, so that what they complete is what is parsed.
 *
 * Failures print nothing.
 */
#include "client/streamerctl/ctl.h"
#include "client/streamerctl/output.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DAEMON_MS 500
#define FILES ":files"

struct line {
        const struct verb *verb;    /* NULL: not typed yet */
        const char *current;        /* the last word */
        const struct flag *pending; /* the flag whose value it is; NULL: none */
        const char **args;          /* the verb's arguments before it */
        size_t n_args;
        const char *socket;
        bool flags_over;
};

/* ---- what has been typed ---- */

static void read_word(struct line *line, const char *word)
{
        const char *value = NULL;
        if (line->pending) {
                if (strcmp(line->pending->name, "--socket") == 0)
                        line->socket = word;
                line->pending = NULL;
        } else if (!line->flags_over && strcmp(word, "--") == 0) {
                line->flags_over = true;
        } else if (!line->flags_over && word[0] == '-') {
                const struct flag *f = flag_find(line->verb, word, &value);
                line->pending = f && f->value && !value ? f : NULL;
                if (value && strcmp(f->name, "--socket") == 0)
                        line->socket = value;
        } else if (!line->verb) {
                line->verb = verb_by_name(word);
        } else {
                line->args[line->n_args++] = word;
        }
}

/* ---- candidates ---- */

static void offer(const struct line *line, const char *word, const char *what)
{
        if (strncmp(word, line->current, strlen(line->current)) != 0)
                return;
        /* A name that is not printable cannot be typed, and may control the terminal. */
        char *printable = escape(word);
        if (strcmp(printable, word) == 0)
                printf("%s\t%s\n", word, what);
        streamer_free(printable);
}

static bool was_given(const struct line *line, const char *word)
{
        for (size_t i = 0; i < line->n_args; i++)
                if (strcmp(line->args[i], word) == 0)
                        return true;
        return false;
}

/* The rows of `list` in the daemon's reply, by one of their members; a model that is named already is not offered. */
static void offer_rows(const struct line *line, const char *verb, json_t *args, const char *list, const char *key,
                       const char *what_key)
{
        const json_t *row;
        streamer_client *client = NULL;
        json_auto_t *reply = NULL;
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = line->socket, .timeout_ms = DAEMON_MS};
        if (streamer_connect(&opts, &client) == 0)
                ask(client, verb, args, &reply);
        else
                json_decref(args);
        streamer_close(client);
        for (size_t i = 0; (row = json_array_get(json_object_get(reply, list), i)); i++)
                if (strcmp(list, "models") != 0 || !was_given(line, json_str(row, key)))
                        offer(line, json_str(row, key), json_str(row, what_key));
}

static void offer_verbs(const struct line *line)
{
        for (const struct verb *v = verbs; v->name; v++)
                if (!v->hidden)
                        offer(line, v->name, v->summary);
}

static void offer_flags(const struct line *line, const struct flag *flags)
{
        for (const struct flag *f = flags; f && f->name; f++)
                if (!f->hidden)
                        offer(line, f->name, f->help);
}

static void offer_kind(const struct line *line, const char *kind, size_t len)
{
        if (strncmp(kind, "MODEL", len) == 0)
                offer_rows(line, "list", json_object(), "models", "name", "state");
        else if (strncmp(kind, "TENSOR", len) == 0 && line->n_args > 0)
                offer_rows(line, "show", json_pack("{s:s, s:b}", "model", line->args[0], "tensors", 1), "tensor_list",
                           "name", "dtype");
        else if (strncmp(kind, "DEVICE", len) == 0)
                offer_rows(line, "status", json_object(), "devices", "device", "page_kind");
        else if (strncmp(kind, "VERB", len) == 0)
                offer_verbs(line);
        else if (strncmp(kind, "SOURCE", len) == 0 || strncmp(kind, "PATH", len) == 0 ||
                 strncmp(kind, "COMMAND", len) == 0)
                puts(FILES);
}

/* Flags with a fixed set of values. */
static void offer_value(const struct line *line)
{
        static const struct {
                const char *flag, *words[4];
        } rows[] = {
                {"--output", {"table", "wide", "json"}},
                {"--verify", {"none", "sha256"}},
                {"--layout", {"replica", "rank"}},
                {"--for", {"ready", "unloaded"}},
        };
        offer_kind(line, line->pending->value, strlen(line->pending->value));
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
                for (size_t k = 0; strcmp(rows[i].flag, line->pending->name) == 0 && rows[i].words[k]; k++)
                        offer(line, rows[i].words[k], "");
}

/* The word of `args` for this position; the last one stands for all that follow it. */
static void offer_argument(const struct line *line)
{
        const char *kind = line->verb->args, *next;
        for (size_t i = 0; i < line->n_args && (next = strchr(kind, ' ')); i++)
                kind = next + 1 + (strncmp(next, " -- ", 4) == 0 ? 3 : 0);
        kind += *kind == '[';
        size_t len = strspn(kind, "ABCDEFGHIJKLMNOPQRSTUVWXYZ");
        if (len > 0 && line->n_args < line->verb->max_args)
                offer_kind(line, kind, len);
}

int verb_complete(struct ctl *ctl)
{
        struct line line = {.current = "", .socket = ctl->socket, .args = calloc(ctl->n_args + 1, sizeof(char *))};
        if (!line.args)
                return 0;
        for (size_t i = 0; i + 1 < ctl->n_args; i++)
                read_word(&line, ctl->args[i]);
        if (ctl->n_args > 0)
                line.current = ctl->args[ctl->n_args - 1];
        if (line.pending) {
                offer_value(&line);
        } else if (line.current[0] == '-' && !line.flags_over) {
                offer_flags(&line, line.verb ? line.verb->flags : NULL);
                offer_flags(&line, global_flags);
        } else if (!line.verb) {
                offer_verbs(&line);
        } else {
                offer_argument(&line);
        }
        free(line.args);
        return 0;
}
