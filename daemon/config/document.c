/* SPDX-License-Identifier: Apache-2.0
 *
 * The file: a small part of YAML.
 *
 *   mapping of keys > scalar | list of scalars or small mappings | section (a mapping of keys)
 *
 * It is read event by event, and the table of settings is the grammar, so depth is bounded: a value that its key does
 * not take is refused where it begins. Further documents, unknown keys and duplicate keys are refused; so are anchors,
 * aliases and tags, which hide the meaning of a file.
 */
#include "daemon/config/setting.h"

#include "daemon/base/util.h"

#include <yaml.h>

#define KEY_SIZE 64

struct doc {
        yaml_parser_t parser;
        yaml_event_t event; /* the current one; a function that reads a value ends at the value's last */
        const char *name;
        struct config *config;
        struct error *error;
        bool key_given[CONFIG_SETTINGS_MAX];     /* by index in `settings` */
        bool section_given[CONFIG_SETTINGS_MAX]; /* by that of its first setting */
};

/* "file:line: key: what" */
static int fail_at(const struct doc *doc, size_t line, const char *key, const char *what)
{
        return error_set(doc->error, STREAMER_EINVAL, "%s:%u: %s%s%s", doc->name, (unsigned)line + 1, key,
                         key[0] != '\0' ? ": " : "", what);
}

static int fail(const struct doc *doc, const char *key, const char *what)
{
        return fail_at(doc, doc->event.start_mark.line, key, what);
}

/* ---- events ---- */

static int next(struct doc *doc)
{
        char what[SETTING_WHY];
        yaml_event_delete(&doc->event);
        if (!yaml_parser_parse(&doc->parser, &doc->event)) {
                if (doc->parser.error == YAML_MEMORY_ERROR)
                        return error_no_memory(doc->error);
                snprintf(what, sizeof(what), "not YAML: %s", doc->parser.problem ?: "unreadable");
                return fail_at(doc, doc->parser.problem_mark.line, "", what);
        }
        const yaml_event_t *e = &doc->event;
        if (e->type == YAML_ALIAS_EVENT)
                return fail(doc, "", "aliases are not supported");
        /* The data of all values begin with the same two fields. */
        bool value = e->type == YAML_SCALAR_EVENT || e->type == YAML_SEQUENCE_START_EVENT ||
                     e->type == YAML_MAPPING_START_EVENT;
        if (value && e->data.scalar.anchor != NULL)
                return fail(doc, "", "anchors are not supported");
        if (value && e->data.scalar.tag != NULL)
                return fail(doc, "", "tags are not supported");
        return 0;
}

/* The next item of a list: 1, or 0 at its end. */
static int next_item(struct doc *doc)
{
        return next(doc) ?: doc->event.type != YAML_SEQUENCE_END_EVENT;
}

static const char *text_of(const struct doc *doc)
{
        return (const char *)doc->event.data.scalar.value;
}

static bool has_nul(const struct doc *doc)
{
        return strlen(text_of(doc)) != doc->event.data.scalar.length;
}

/* The next key of a mapping, as "WHERE.KEY": 1, or 0 at its end. */
static int next_key(struct doc *doc, const char *where, char key[KEY_SIZE])
{
        int r = next(doc);
        if (r < 0 || doc->event.type == YAML_MAPPING_END_EVENT)
                return r;
        if (doc->event.type != YAML_SCALAR_EVENT)
                return fail(doc, where, "a key must be a word");
        if (has_nul(doc))
                return fail(doc, where, "a NUL byte");
        snprintf(key, KEY_SIZE, "%s%s%s", where, where[0] != '\0' ? "." : "", text_of(doc));
        return 1;
}

/* ---- values ---- */

static int read_scalar(struct doc *doc, const struct setting *setting, void *base, const char *key)
{
        char why[SETTING_WHY];
        if (doc->event.type != YAML_SCALAR_EVENT)
                return fail(doc, key, "takes a single value");
        if (has_nul(doc))
                return fail(doc, key, "a NUL byte");
        return setting_set_field(setting, base, text_of(doc), why) < 0 ? fail(doc, key, why) : 0;
}

/* A list of single values, or one of them. */
static int read_values(struct doc *doc, const struct setting *setting, void *base, const char *key)
{
        bool is_list = doc->event.type == YAML_SEQUENCE_START_EVENT;
        int r = is_list ? next_item(doc) : 1;
        while (r > 0) {
                if (doc->event.type != YAML_SCALAR_EVENT)
                        return fail(doc, key, "takes a list of single values");
                r = read_scalar(doc, setting, base, key);
                if (r == 0 && is_list)
                        r = next_item(doc);
        }
        return r;
}

/* ---- lists ---- */

/* The keys of an entry. *given: a bit for each. */
static int read_fields(struct doc *doc, const struct setting_list *list, void *entry, const char *where,
                       unsigned *given)
{
        char key[KEY_SIZE];
        int r;
        while ((r = next_key(doc, where, key)) > 0) {
                size_t i = 0;
                while (i < list->n_fields && strcmp(list->fields[i].key, text_of(doc)) != 0)
                        i++;
                if (i == list->n_fields || (*given >> i & 1) != 0)
                        return fail(doc, key, i == list->n_fields ? "unknown key" : "given twice");
                *given |= 1u << i;
                const struct setting *field = &list->fields[i];
                r = next(doc)
                            ?: field->kind == SETTING_LIST ? read_values(doc, field, entry, key)
                                                           : read_scalar(doc, field, entry, key);
                if (r < 0)
                        return r;
        }
        return r;
}

static int read_entry(struct doc *doc, const struct setting *setting, const char *where)
{
        const struct setting_list *list = setting->list;
        char why[SETTING_WHY];
        unsigned given = 0;
        size_t line = doc->event.start_mark.line;
        bool by_keys = list->fields[0].key != NULL;
        if (doc->event.type == YAML_SCALAR_EVENT && (list->set_word != NULL || !by_keys))
                return read_scalar(doc, setting, doc->config, where);
        if (doc->event.type != YAML_MAPPING_START_EVENT || !by_keys)
                return fail(doc, where, list->takes ?: "takes keys of its own");
        char *entry = setting_list_append(setting, doc->config, why);
        if (entry == NULL)
                return fail(doc, where, why);
        if (list->line != 0)
                *(unsigned *)(void *)(entry + list->line) = (unsigned)line + 1;
        int r = read_fields(doc, list, entry, where, &given);
        return r == 0 && list->check(doc->config, entry, given, why) < 0 ? fail_at(doc, line, where, why) : r;
}

static int read_list(struct doc *doc, const struct setting *setting)
{
        int r;
        if (doc->event.type != YAML_SEQUENCE_START_EVENT)
                return fail(doc, setting->key, "takes a list");
        if (setting->list == &list_rules) {
                doc->config->access.given = true;
                doc->config->access.file = doc->name;
        }
        for (size_t i = 0; (r = next_item(doc)) > 0; i++) {
                char where[KEY_SIZE / 2];
                snprintf(where, sizeof(where), "%s[%zu]", setting->key, i);
                r = read_entry(doc, setting, where);
                if (r < 0)
                        return r;
        }
        return r;
}

/* ---- keys ---- */

/* The first setting whose key is this text up to `end`: '.' after the name of a section, or the NUL. */
static const struct setting *find(const char *text, char end)
{
        size_t len = strlen(text);
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].key != NULL && strncmp(settings[i].key, text, len) == 0 && settings[i].key[len] == end)
                        return &settings[i];
        return NULL;
}

static int read_setting(struct doc *doc, const struct setting *setting)
{
        doc->config->origins[setting - settings] = CONFIG_FILE;
        return setting->kind == SETTING_LIST ? read_list(doc, setting)
                                             : read_scalar(doc, setting, doc->config, setting->key);
}

/* Of the file (section "") or of a section. */
static int read_keys(struct doc *doc, const char *section)
{
        char key[KEY_SIZE];
        int r;
        bool whole = section[0] == '\0';
        if (doc->event.type != YAML_MAPPING_START_EVENT)
                return fail(doc, section, whole ? "must be a mapping of keys" : "takes keys of its own");
        while ((r = next_key(doc, section, key)) > 0) {
                const struct setting *setting = strchr(text_of(doc), '.') == NULL ? find(key, '\0') : NULL;
                const struct setting *first = setting == NULL && whole ? find(key, '.') : NULL; /* of a section */
                if (setting == NULL && first == NULL)
                        return fail(doc, key, "unknown key");
                bool *given =
                        setting != NULL ? &doc->key_given[setting - settings] : &doc->section_given[first - settings];
                if (*given)
                        return fail(doc, key, "given twice");
                *given = true;
                r = next(doc);
                if (r == 0)
                        r = setting != NULL ? read_setting(doc, setting) : read_keys(doc, key);
                if (r < 0)
                        return r;
        }
        return r;
}

/* ---- the file ---- */

/* A file of comments alone is valid: its document is one empty scalar, or there is none. */
static int read_document(struct doc *doc)
{
        int r = next(doc) ?: next(doc); /* the stream's begin, and its end or the document's begin */
        if (r < 0 || doc->event.type == YAML_STREAM_END_EVENT)
                return r;
        r = next(doc);
        bool empty = doc->event.type == YAML_SCALAR_EVENT && doc->event.data.scalar.length == 0;
        if (r == 0 && !empty)
                r = read_keys(doc, "");
        r = r ?: next(doc) ?: next(doc);
        return r == 0 && doc->event.type != YAML_STREAM_END_EVENT ? fail(doc, "", "more than one document") : r;
}

int config_parse_yaml(struct config *config, const char *name, const char *text, size_t len, struct error *error)
{
        struct doc doc = {.name = name, .config = config, .error = error};
        if (!yaml_parser_initialize(&doc.parser))
                return error_no_memory(error);
        yaml_parser_set_encoding(&doc.parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&doc.parser, (const unsigned char *)text, len);
        int r = read_document(&doc);
        yaml_event_delete(&doc.event);
        yaml_parser_delete(&doc.parser);
        return r;
}
