/* SPDX-License-Identifier: Apache-2.0
 *
 * Events of YAML, and the lists and small mappings that settings are made of. Anchors, aliases and tags are refused:
 * they let a file mean something else than it shows.
 */
#include "daemon/config/document/yaml.h"

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

int doc_next(struct doc *r)
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

bool doc_at(const struct doc *r, yaml_event_type_t type)
{
        return r->event.type == type;
}

const char *doc_scalar(const struct doc *r)
{
        return (const char *)r->event.data.scalar.value;
}

/* ---- keys ---- */

int doc_take_key(struct doc *r, const char *section)
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
void doc_mark_seen(struct doc *r)
{
        require(r->n_seen < DOC_KEYS_MAX);
        memcpy(r->seen[r->n_seen++], r->key, DOC_KEY_SIZE);
}

int doc_read_list(struct doc *r, int (*item)(struct doc *))
{
        doc_mark_seen(r);
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

/* Each key of the current item. */
static int read_fields(struct doc *r, const struct doc_list *list, void *entry, size_t i)
{
        bool seen[DOC_FIELDS_MAX] = {false};
        char where[DOC_KEY_SIZE / 2];
        int e;
        require(list->n_fields <= DOC_FIELDS_MAX);
        snprintf(where, sizeof(where), "%s[%zu]", list->key, i);
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

/* The array grows by a zeroed entry. */
static void *append_entry(struct doc *r, const struct doc_list *list)
{
        char *config = (char *)r->config, *entries;
        size_t *n = (size_t *)(void *)(config + list->n);
        memcpy(&entries, config + list->entries, sizeof(entries));
        if (*n == list->max) {
                doc_fail(r, list->too_many);
                return NULL;
        }
        entries = reallocarray(entries, *n + 1, list->entry_size);
        if (entries == NULL) {
                doc_fail(r, "no memory");
                return NULL;
        }
        memcpy(config + list->entries, &entries, sizeof(entries));
        return memset(entries + (*n)++ * list->entry_size, 0, list->entry_size);
}

static int read_entry(struct doc *r)
{
        const struct doc_list *list = r->list;
        size_t i = *(size_t *)(void *)((char *)r->config + list->n);
        void *entry = append_entry(r, list);
        if (entry == NULL)
                return r->error->code;
        r->entry_line = line_of(&r->event.start_mark);
        int e = read_fields(r, list, entry, i);
        return e < 0 ? e : list->check(r, entry);
}

int doc_read_entries(struct doc *r, const struct doc_list *list)
{
        r->list = list;
        return doc_read_list(r, read_entry);
}
