/* SPDX-License-Identifier: Apache-2.0
 *
 * The file: a small part of YAML, read event by event.
 *
 *   mapping of keys > scalar | list of scalars or small mappings | section (a mapping of scalars)
 *
 * No step of the descent calls itself, so depth is bounded by the grammar. Anchors, aliases, tags
 * and further documents are refused: they let a file mean something else than it shows. So are
 * unknown keys and keys given twice.
 */
#include "daemon/config/lists.h"

#include "daemon/base/util.h"

#include <string.h>

/* ---- events ---- */

static unsigned line_of(const yaml_mark_t *mark)
{
        return (unsigned)mark->line + 1;
}

unsigned doc_line(const struct doc *r)
{
        return line_of(&r->event.start_mark);
}

int doc_fail(struct doc *r, const char *what)
{
        return error_set(r->error, STREAMER_EINVAL, "%s:%u: %s%s%s", r->name, line_of(&r->event.start_mark), r->key,
                         r->key[0] != '\0' ? ": " : "", what);
}

static int syntax_error(struct doc *r)
{
        const yaml_parser_t *p = &r->parser;
        if (p->error == YAML_MEMORY_ERROR)
                return error_set(r->error, STREAMER_ENOMEM, "%s: no memory", r->name);
        return error_set(r->error, STREAMER_EINVAL, "%s:%u: not YAML: %s", r->name, line_of(&p->problem_mark),
                         p->problem ?: "unreadable");
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

int doc_next(struct doc *r)
{
        yaml_event_delete(&r->event);
        if (!yaml_parser_parse(&r->parser, &r->event))
                return syntax_error(r);
        return check_event(r);
}

bool doc_at(const struct doc *r, yaml_event_type_t type)
{
        return r->event.type == type;
}

const char *doc_scalar(const struct doc *r)
{
        return (const char *)r->event.data.scalar.value;
}

/* ---- keys ---- */

/* The current event is a key below `section` ("" at the top): it becomes r->key. */
static int take_key(struct doc *r, const char *section)
{
        snprintf(r->key, sizeof(r->key), "%s", section);
        if (!doc_at(r, YAML_SCALAR_EVENT))
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

/* ---- values ---- */

static int read_setting(struct doc *r, const struct setting *setting)
{
        char why[SETTING_WHY];
        mark_seen(r);
        int e = doc_next(r);
        if (e < 0)
                return e;
        if (!doc_at(r, YAML_SCALAR_EVENT))
                return doc_fail(r, "takes a single value");
        return setting_set(setting, r->config, doc_scalar(r), why) < 0 ? doc_fail(r, why) : 0;
}

static int read_section(struct doc *r)
{
        char section[DOC_KEY_SIZE];
        memcpy(section, r->key, DOC_KEY_SIZE);
        mark_seen(r);
        int e = doc_next(r);
        if (e == 0 && !doc_at(r, YAML_MAPPING_START_EVENT))
                return doc_fail(r, "takes keys of its own");
        while (e == 0 && (e = doc_next(r)) == 0 && !doc_at(r, YAML_MAPPING_END_EVENT)) {
                e = take_key(r, section);
                if (e < 0)
                        return e;
                const struct setting *setting = find_setting(r->key);
                if (setting != NULL)
                        e = read_setting(r, setting);
                else if (strcmp(r->key, "access.roles") == 0)
                        e = access_read_roles(r);
                else if (strcmp(r->key, "http.allow_plain") == 0)
                        e = http_read_allow_plain(r);
                else if (strcmp(r->key, "http.hosts") == 0)
                        e = http_read_hosts(r);
                else if (strcmp(r->key, "s3.sources") == 0)
                        e = s3_read_sources(r);
                else
                        e = doc_fail(r, "unknown key");
        }
        return e;
}

/* { device: host, budget: 8GiB, pages: thp }: one value of it. */
static int read_device_part(struct doc *r, char *parts[DEVICE_PARTS])
{
        static const char *const words[DEVICE_PARTS] = {"device", "budget", "pages", "spare", "handles"};
        size_t i = 0;
        if (!doc_at(r, YAML_SCALAR_EVENT))
                return doc_fail(r, "a key must be a word");
        while (i < DEVICE_PARTS && strcmp(words[i], doc_scalar(r)) != 0)
                i++;
        snprintf(r->key, sizeof(r->key), "devices.%s", doc_scalar(r));
        if (i == DEVICE_PARTS)
                return doc_fail(r, "unknown key");
        if (parts[i] != NULL)
                return doc_fail(r, "given twice");
        int e = doc_next(r);
        if (e < 0)
                return e;
        if (!doc_at(r, YAML_SCALAR_EVENT))
                return doc_fail(r, "takes a single value");
        parts[i] = strdup(doc_scalar(r));
        return parts[i] != NULL ? 0 : error_set(r->error, STREAMER_ENOMEM, "%s: no memory", r->name);
}

static int read_device_map(struct doc *r)
{
        char *parts[DEVICE_PARTS] = {NULL};
        char why[SETTING_WHY];
        int e;
        while ((e = doc_next(r)) == 0 && !doc_at(r, YAML_MAPPING_END_EVENT) && (e = read_device_part(r, parts)) == 0)
                ;
        snprintf(r->key, sizeof(r->key), "devices");
        if (e == 0 && setting_add_device_parts(r->config, (const char *const *)parts, why) < 0)
                e = doc_fail(r, why);
        for (size_t i = 0; i < DEVICE_PARTS; i++)
                free(parts[i]);
        return e;
}

static int read_device(struct doc *r)
{
        char why[SETTING_WHY];
        if (doc_at(r, YAML_MAPPING_START_EVENT))
                return read_device_map(r);
        if (!doc_at(r, YAML_SCALAR_EVENT))
                return doc_fail(r,
                                "a device is a word such as host=8GiB, or { device, budget, pages, spare, handles }");
        return setting_add_device(r->config, doc_scalar(r), why) < 0 ? doc_fail(r, why) : 0;
}

static int read_root(struct doc *r)
{
        char why[SETTING_WHY];
        if (!doc_at(r, YAML_SCALAR_EVENT))
                return doc_fail(r, "a root is a path");
        return setting_add_root(r->config, doc_scalar(r), why) < 0 ? doc_fail(r, why) : 0;
}

int doc_read_list(struct doc *r, int (*item)(struct doc *))
{
        mark_seen(r);
        int e = doc_next(r);
        if (e == 0 && !doc_at(r, YAML_SEQUENCE_START_EVENT))
                return doc_fail(r, "takes a list");
        while (e == 0 && (e = doc_next(r)) == 0 && !doc_at(r, YAML_SEQUENCE_END_EVENT))
                e = item(r);
        return e;
}

/* ---- small mappings ---- */

/* The current event is a field's value: it, or each item of it. */
static int read_field(struct doc *r, const struct doc_field *field, void *entry)
{
        char why[SETTING_WHY];
        bool list = field->list && doc_at(r, YAML_SEQUENCE_START_EVENT);
        int e = 0;
        if (list)
                e = field->set(entry, NULL, why) < 0 ? doc_fail(r, why) : doc_next(r);
        while (e == 0 && !(list && doc_at(r, YAML_SEQUENCE_END_EVENT))) {
                if (!doc_at(r, YAML_SCALAR_EVENT))
                        return doc_fail(r, field->list ? "takes a list of single values" : "takes a single value");
                if (field->set(entry, doc_scalar(r), why) < 0)
                        return doc_fail(r, why);
                if (!list)
                        break;
                e = doc_next(r);
        }
        return e;
}

void *doc_grow(struct doc *r, const struct doc_list *list, void *entries, size_t n)
{
        if (n == list->max) {
                doc_fail(r, list->too_many);
                return NULL;
        }
        char *grown = reallocarray(entries, n + 1, list->entry_size);
        if (grown == NULL)
                doc_fail(r, "no memory");
        else
                memset(grown + n * list->entry_size, 0, list->entry_size);
        return grown;
}

/* The current event is a key of the item that messages call `where`. NULL: the document has failed. */
static const struct doc_field *take_field(struct doc *r, const struct doc_list *list, const char *where)
{
        snprintf(r->key, sizeof(r->key), "%s", where);
        if (!doc_at(r, YAML_SCALAR_EVENT)) {
                doc_fail(r, "a key must be a word");
                return NULL;
        }
        snprintf(r->key, sizeof(r->key), "%s.%s", where, doc_scalar(r));
        for (size_t i = 0; i < list->n_fields; i++)
                if (strcmp(list->fields[i].name, doc_scalar(r)) == 0)
                        return &list->fields[i];
        doc_fail(r, "unknown key");
        return NULL;
}

int doc_read_entry(struct doc *r, const struct doc_list *list, void *entries, size_t i)
{
        void *entry = (char *)entries + i * list->entry_size;
        bool seen[DOC_FIELDS_MAX] = {false};
        char where[DOC_KEY_SIZE / 2];
        int e;
        require(list->n_fields <= DOC_FIELDS_MAX);
        snprintf(where, sizeof(where), "%s[%zu]", list->name, i);
        snprintf(r->key, sizeof(r->key), "%s", where);
        if (!doc_at(r, YAML_MAPPING_START_EVENT))
                return doc_fail(r, "takes keys of its own");
        while ((e = doc_next(r)) == 0 && !doc_at(r, YAML_MAPPING_END_EVENT)) {
                const struct doc_field *field = take_field(r, list, where);
                if (field == NULL)
                        return r->error->code;
                if (seen[field - list->fields])
                        return doc_fail(r, "given twice");
                seen[field - list->fields] = true;
                e = doc_next(r);
                if (e == 0)
                        e = read_field(r, field, entry);
                if (e < 0)
                        return e;
        }
        snprintf(r->key, sizeof(r->key), "%s", where);
        return e;
}

/* ---- the file ---- */

static int read_key(struct doc *r)
{
        int e = take_key(r, "");
        if (e < 0)
                return e;
        const struct setting *setting = strchr(r->key, '.') == NULL ? find_setting(r->key) : NULL;
        if (setting != NULL)
                return read_setting(r, setting);
        if (strcmp(r->key, "preload") == 0)
                return preload_read(r);
        if (strcmp(r->key, "roots") == 0)
                return doc_read_list(r, read_root);
        if (strcmp(r->key, "devices") == 0)
                return doc_read_list(r, read_device);
        return is_section(r->key) || strcmp(r->key, "access") == 0 ? read_section(r) : doc_fail(r, "unknown key");
}

/* An empty document is one empty scalar: a file of comments alone is fine. */
static bool is_empty(const struct doc *r)
{
        return doc_at(r, YAML_SCALAR_EVENT) && r->event.data.scalar.length == 0;
}

static int read_document(struct doc *r)
{
        int e = doc_next(r);
        if (e < 0 || is_empty(r))
                return e;
        if (!doc_at(r, YAML_MAPPING_START_EVENT))
                return doc_fail(r, "must be a mapping of keys");
        while ((e = doc_next(r)) == 0 && !doc_at(r, YAML_MAPPING_END_EVENT))
                if ((e = read_key(r)) < 0)
                        return e;
        r->key[0] = '\0';
        return e;
}

static int read_stream(struct doc *r)
{
        int e = doc_next(r); /* the stream's start */
        if (e == 0)
                e = doc_next(r);
        if (e < 0 || doc_at(r, YAML_STREAM_END_EVENT))
                return e;
        e = read_document(r);
        if (e == 0)
                e = doc_next(r); /* the document's end */
        if (e == 0)
                e = doc_next(r);
        return e == 0 && !doc_at(r, YAML_STREAM_END_EVENT) ? doc_fail(r, "more than one document") : e;
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
