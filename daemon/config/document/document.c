/* SPDX-License-Identifier: Apache-2.0
 *
 * The file: a small part of YAML, read event by event.
 *
 *   mapping of keys > scalar | list of scalars or small mappings | section (a mapping of scalars)
 *
 * No step of the descent calls itself, so depth is bounded by the grammar. Further documents, unknown keys and keys
 * given twice are refused; so are anchors, aliases and tags, which let a file mean something else than it shows.
 */
#include "daemon/config/document/document.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <string.h>

/* ---- events ---- */

static unsigned line_of(const yaml_mark_t *mark)
{
        return (unsigned)mark->line + 1;
}

int doc_fail(struct doc *r, const char *what)
{
        return error_set(r->error, STREAMER_EINVAL, "%s:%u: %s%s%s", r->name, line_of(&r->event.start_mark), r->key,
                         r->key[0] != '\0' ? ": " : "", what);
}

static int check_marks(struct doc *r, const yaml_char_t *anchor, const yaml_char_t *tag)
{
        if (anchor != NULL)
                return doc_fail(r, "anchors are not supported");
        return tag != NULL ? doc_fail(r, "tags are not supported") : 0;
}

static int check_event(struct doc *r)
{
        const yaml_event_t *e = &r->event;
        switch (e->type) {
        case YAML_ALIAS_EVENT:
                return doc_fail(r, "aliases are not supported");
        case YAML_SCALAR_EVENT:
                if (strlen((const char *)e->data.scalar.value) != e->data.scalar.length)
                        return doc_fail(r, "a NUL byte");
                return check_marks(r, e->data.scalar.anchor, e->data.scalar.tag);
        case YAML_SEQUENCE_START_EVENT:
                return check_marks(r, e->data.sequence_start.anchor, e->data.sequence_start.tag);
        case YAML_MAPPING_START_EVENT:
                return check_marks(r, e->data.mapping_start.anchor, e->data.mapping_start.tag);
        default:
                return 0;
        }
}

/* On to the next event, which is refused where it is an anchor, an alias or a tag. */
static int next(struct doc *r)
{
        yaml_event_delete(&r->event);
        if (!yaml_parser_parse(&r->parser, &r->event)) {
                const yaml_parser_t *p = &r->parser;
                if (p->error == YAML_MEMORY_ERROR)
                        return error_set(r->error, STREAMER_ENOMEM, "%s: no memory", r->name);
                return error_set(r->error, STREAMER_EINVAL, "%s:%u: not YAML: %s", r->name, line_of(&p->problem_mark),
                                 p->problem ?: "unreadable");
        }
        return check_event(r);
}

const char *doc_scalar(const struct doc *r)
{
        return (const char *)r->event.data.scalar.value;
}

/* ---- keys ---- */

/* The current event is a key below `section` ("" at the top): it becomes r->key. Refused where it was seen. */
static int take_key(struct doc *r, const char *section)
{
        snprintf(r->key, sizeof(r->key), "%s", section);
        if (r->event.type != YAML_SCALAR_EVENT)
                return doc_fail(r, "a key must be a word");
        snprintf(r->key, sizeof(r->key), "%s%s%s", section, section[0] != '\0' ? "." : "", doc_scalar(r));
        for (size_t i = 0; i < r->n_seen; i++)
                if (strcmp(r->seen[i], r->key) == 0)
                        return doc_fail(r, "given twice");
        return 0;
}

/* The key is a valid one, so there are few. */
static void mark_seen(struct doc *r)
{
        require(r->n_seen < DOC_KEYS_MAX);
        memcpy(r->seen[r->n_seen++], r->key, DOC_KEY_SIZE);
}

/* The current event is a list's key: each item of it. */
static int read_list(struct doc *r, int (*item)(struct doc *))
{
        mark_seen(r);
        int e = next(r);
        if (e == 0 && r->event.type != YAML_SEQUENCE_START_EVENT)
                return doc_fail(r, "takes a list");
        while (e == 0 && (e = next(r)) == 0 && r->event.type != YAML_SEQUENCE_END_EVENT)
                e = item(r);
        return e;
}

/* ---- small mappings ---- */

int doc_set_text(void *member, const char *value, char why[SETTING_WHY])
{
        return setting_copy(member, value, why);
}

/* The current event is a field's value: it, or each item of it. */
static int read_field(struct doc *r, const struct doc_field *field, void *member)
{
        char why[SETTING_WHY];
        bool list = field->list && r->event.type == YAML_SEQUENCE_START_EVENT;
        int e = 0;
        if (list)
                e = field->set(member, NULL, why) < 0 ? doc_fail(r, why) : next(r);
        while (e == 0 && !(list && r->event.type == YAML_SEQUENCE_END_EVENT)) {
                if (r->event.type != YAML_SCALAR_EVENT)
                        return doc_fail(r, field->list ? "takes a list of single values" : "takes a single value");
                if (field->set(member, doc_scalar(r), why) < 0)
                        return doc_fail(r, why);
                if (!list)
                        break;
                e = next(r);
        }
        return e;
}

/* The current event is the start of a mapping, which messages call `where`: each of its keys. */
static int read_fields(struct doc *r, const struct doc_list *list, const char *where, void *entry)
{
        bool seen[DOC_FIELDS_MAX] = {false};
        int e;
        require(list->n_fields <= DOC_FIELDS_MAX);
        snprintf(r->key, sizeof(r->key), "%s", where);
        if (r->event.type != YAML_MAPPING_START_EVENT)
                return doc_fail(r, "takes keys of its own");
        while ((e = next(r)) == 0 && r->event.type != YAML_MAPPING_END_EVENT) {
                snprintf(r->key, sizeof(r->key), "%s", where);
                if (r->event.type != YAML_SCALAR_EVENT)
                        return doc_fail(r, "a key must be a word");
                snprintf(r->key, sizeof(r->key), "%s.%s", where, doc_scalar(r));
                size_t i = 0;
                while (i < list->n_fields && strcmp(list->fields[i].name, doc_scalar(r)) != 0)
                        i++;
                if (i == list->n_fields)
                        return doc_fail(r, "unknown key");
                if (seen[i])
                        return doc_fail(r, "given twice");
                seen[i] = true;
                e = next(r);
                if (e == 0)
                        e = read_field(r, &list->fields[i], (char *)entry + list->fields[i].offset);
                if (e < 0)
                        return e;
        }
        snprintf(r->key, sizeof(r->key), "%s", where);
        return e;
}

/* ---- lists of them ---- */

static size_t *length_of(const struct doc_list *list, struct config *config)
{
        return (size_t *)(void *)((char *)config + list->n);
}

static char **entries_of(const struct doc_list *list, struct config *config)
{
        return (char **)(void *)((char *)config + list->entries);
}

/* The array grows by a zeroed entry. */
static int read_entry(struct doc *r)
{
        const struct doc_list *list = r->list;
        char where[DOC_KEY_SIZE / 2], **entries = entries_of(list, r->config);
        size_t *n = length_of(list, r->config);
        if (*n == list->max)
                return doc_fail(r, list->too_many);
        char *grown = reallocarray(*entries, *n + 1, list->entry_size);
        if (grown == NULL)
                return doc_fail(r, "no memory");
        *entries = grown;
        void *entry = memset(grown + *n * list->entry_size, 0, list->entry_size);
        snprintf(where, sizeof(where), "%s[%zu]", list->key, (*n)++);
        r->entry_line = line_of(&r->event.start_mark);
        int e = read_fields(r, list, where, entry);
        return e < 0 ? e : list->check(r, entry);
}

int doc_read_entries(struct doc *r, const struct doc_list *list)
{
        r->list = list;
        return read_list(r, read_entry);
}

bool doc_same_texts(const struct doc_list *list, const void *a, const void *b)
{
        bool same = true;
        for (size_t i = 0; i < list->n_fields; i++) {
                const struct doc_field *field = &list->fields[i];
                if (field->set == doc_set_text)
                        same = same && same_text(*(char *const *)((const char *)a + field->offset),
                                                 *(char *const *)((const char *)b + field->offset));
        }
        return same;
}

void doc_clear_texts(const struct doc_list *list, void *entry)
{
        for (size_t i = 0; i < list->n_fields; i++)
                if (list->fields[i].set == doc_set_text)
                        secret_free(*(char **)((char *)entry + list->fields[i].offset));
}

void doc_clear_entries(const struct doc_list *list, struct config *config)
{
        char **entries = entries_of(list, config);
        for (size_t *n = length_of(list, config); *n > 0;)
                doc_clear_texts(list, *entries + --*n * list->entry_size);
        free(*entries);
        *entries = NULL;
}

/* ---- keys with a value ---- */

static const struct setting *find_setting(const char *key)
{
        for (size_t i = 0; i < n_settings; i++)
                if (strcmp(settings[i].key, key) == 0)
                        return &settings[i];
        return NULL;
}

static bool is_section(const char *key)
{
        size_t len = strlen(key);
        for (size_t i = 0; i < n_settings; i++)
                if (strncmp(settings[i].key, key, len) == 0 && settings[i].key[len] == '.')
                        return true;
        return false;
}

static int read_setting(struct doc *r, const struct setting *setting)
{
        char why[SETTING_WHY];
        mark_seen(r);
        int e = next(r);
        if (e < 0)
                return e;
        if (r->event.type != YAML_SCALAR_EVENT)
                return doc_fail(r, "takes a single value");
        return setting_set(setting, r->config, doc_scalar(r), why) < 0 ? doc_fail(r, why) : 0;
}

/* { device: host, budget: 8GiB, pages: thp } */
static int read_device_map(struct doc *r)
{
        static const struct doc_field fields[] = {
                {"device", doc_set_text, PART_DEVICE * sizeof(char *), false},
                {"budget", doc_set_text, PART_BUDGET * sizeof(char *), false},
                {"pages", doc_set_text, PART_PAGES * sizeof(char *), false},
                {"prefaulted", doc_set_text, PART_PREFAULT * sizeof(char *), false},
                {"handles", doc_set_text, PART_HANDLES * sizeof(char *), false},
        };
        static const struct doc_list map = {.fields = fields, .n_fields = ARRAY_SIZE(fields)};
        char *parts[DEVICE_PARTS] = {NULL}, why[SETTING_WHY];
        int e = read_fields(r, &map, "devices", parts);
        if (e == 0 && setting_add_device_parts(r->config, (const char *const *)parts, why) < 0)
                e = doc_fail(r, why);
        doc_clear_texts(&map, parts);
        return e;
}

static int read_device(struct doc *r)
{
        char why[SETTING_WHY];
        if (r->event.type == YAML_MAPPING_START_EVENT)
                return read_device_map(r);
        if (r->event.type != YAML_SCALAR_EVENT)
                return doc_fail(
                        r, "a device is a word such as host=8GiB, or { device, budget, pages, prefaulted, handles }");
        return setting_add_device(r->config, doc_scalar(r), why) < 0 ? doc_fail(r, why) : 0;
}

static int read_root(struct doc *r)
{
        char why[SETTING_WHY];
        if (r->event.type != YAML_SCALAR_EVENT)
                return doc_fail(r, "a root is a path");
        return setting_add_root(r->config, doc_scalar(r), why) < 0 ? doc_fail(r, why) : 0;
}

/* ---- keys with more than a value ---- */

static int read_list_key(struct doc *r)
{
        static const struct doc_list *const mappings[] = {&http_hosts, &s3_sources, &preload_entries};
        static const struct {
                const char *key;
                int (*item)(struct doc *r);
        } items[] = {{"roots", read_root}, {"devices", read_device}, {"http.allow_plain", http_read_plain_host}};
        for (size_t i = 0; i < ARRAY_SIZE(mappings); i++)
                if (strcmp(mappings[i]->key, r->key) == 0)
                        return doc_read_entries(r, mappings[i]);
        for (size_t i = 0; i < ARRAY_SIZE(items); i++)
                if (strcmp(items[i].key, r->key) == 0)
                        return read_list(r, items[i].item);
        return strcmp(r->key, "access.roles") == 0 ? access_read_roles(r) : doc_fail(r, "unknown key");
}

static int read_section(struct doc *r)
{
        char section[DOC_KEY_SIZE];
        memcpy(section, r->key, DOC_KEY_SIZE);
        mark_seen(r);
        int e = next(r);
        if (e == 0 && r->event.type != YAML_MAPPING_START_EVENT)
                return doc_fail(r, "takes keys of its own");
        while (e == 0 && (e = next(r)) == 0 && r->event.type != YAML_MAPPING_END_EVENT) {
                e = take_key(r, section);
                if (e < 0)
                        return e;
                const struct setting *setting = find_setting(r->key);
                e = setting != NULL ? read_setting(r, setting) : read_list_key(r);
        }
        return e;
}

/* ---- the file ---- */

static int read_key(struct doc *r)
{
        int e = take_key(r, "");
        if (e < 0)
                return e;
        bool dotted = strchr(r->key, '.') != NULL; /* as only keys of sections are */
        const struct setting *setting = dotted ? NULL : find_setting(r->key);
        if (setting != NULL)
                return read_setting(r, setting);
        if (is_section(r->key) || strcmp(r->key, "access") == 0)
                return read_section(r);
        return dotted ? doc_fail(r, "unknown key") : read_list_key(r);
}

static int read_document(struct doc *r)
{
        int e = next(r);
        /* A file of comments alone is valid: its document is one empty scalar. */
        if (e < 0 || (r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0))
                return e;
        if (r->event.type != YAML_MAPPING_START_EVENT)
                return doc_fail(r, "must be a mapping of keys");
        while ((e = next(r)) == 0 && r->event.type != YAML_MAPPING_END_EVENT)
                if ((e = read_key(r)) < 0)
                        return e;
        r->key[0] = '\0';
        return e;
}

static int read_stream(struct doc *r)
{
        int e = next(r); /* the stream's start */
        if (e == 0)
                e = next(r);
        if (e < 0 || r->event.type == YAML_STREAM_END_EVENT)
                return e;
        e = read_document(r);
        if (e == 0)
                e = next(r); /* the document's end */
        if (e == 0)
                e = next(r);
        return e == 0 && r->event.type != YAML_STREAM_END_EVENT ? doc_fail(r, "more than one document") : e;
}

int config_parse_yaml(struct config *config, const char *name, const char *text, size_t len, struct error *error)
{
        struct doc r = {.name = name, .config = config, .error = error};
        if (!yaml_parser_initialize(&r.parser))
                return error_set(error, STREAMER_ENOMEM, "%s: no memory", name);
        yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, len);
        int e = read_stream(&r);
        yaml_event_delete(&r.event);
        yaml_parser_delete(&r.parser);
        return e;
}
