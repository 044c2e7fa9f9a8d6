/* SPDX-License-Identifier: Apache-2.0
 *
 * The file: a small part of YAML, read event by event.
 *
 *   mapping of keys > scalar | list of scalars or small mappings | section (a mapping of scalars)
 *
 * No step of the descent calls itself, so depth is bounded by the grammar. Further documents, unknown keys and keys
 * given twice are refused.
 */
#include "daemon/config/document/document.h"

#include "daemon/base/util.h"

#include <string.h>

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
        doc_mark_seen(r);
        int e = doc_next(r);
        if (e < 0)
                return e;
        if (!doc_at(r, YAML_SCALAR_EVENT))
                return doc_fail(r, "takes a single value");
        return setting_set(setting, r->config, doc_scalar(r), why) < 0 ? doc_fail(r, why) : 0;
}

/* { device: host, budget: 8GiB, pages: thp } */
static int read_device_map(struct doc *r)
{
#define PART(part, name)                                                                                               \
        {                                                                                                              \
                name, doc_set_text, part * sizeof(char *), false                                                       \
        }
        static const struct doc_field fields[] = {PART(PART_DEVICE, "device"), PART(PART_BUDGET, "budget"),
                                                  PART(PART_PAGES, "pages"), PART(PART_PREFAULT, "prefaulted"),
                                                  PART(PART_HANDLES, "handles")};
        static const struct doc_list map = {.fields = fields, .n_fields = ARRAY_SIZE(fields)};
#undef PART
        char *parts[DEVICE_PARTS] = {NULL}, why[SETTING_WHY];
        int e = doc_read_fields(r, &map, "devices", parts);
        if (e == 0 && setting_add_device_parts(r->config, (const char *const *)parts, why) < 0)
                e = doc_fail(r, why);
        doc_clear_texts(&map, parts);
        return e;
}

static int read_device(struct doc *r)
{
        char why[SETTING_WHY];
        if (doc_at(r, YAML_MAPPING_START_EVENT))
                return read_device_map(r);
        if (!doc_at(r, YAML_SCALAR_EVENT))
                return doc_fail(
                        r, "a device is a word such as host=8GiB, or { device, budget, pages, prefaulted, handles }");
        return setting_add_device(r->config, doc_scalar(r), why) < 0 ? doc_fail(r, why) : 0;
}

static int read_root(struct doc *r)
{
        char why[SETTING_WHY];
        if (!doc_at(r, YAML_SCALAR_EVENT))
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
                        return doc_read_list(r, items[i].item);
        return strcmp(r->key, "access.roles") == 0 ? access_read_roles(r) : doc_fail(r, "unknown key");
}

static int read_section(struct doc *r)
{
        char section[DOC_KEY_SIZE];
        memcpy(section, r->key, DOC_KEY_SIZE);
        doc_mark_seen(r);
        int e = doc_next(r);
        if (e == 0 && !doc_at(r, YAML_MAPPING_START_EVENT))
                return doc_fail(r, "takes keys of its own");
        while (e == 0 && (e = doc_next(r)) == 0 && !doc_at(r, YAML_MAPPING_END_EVENT)) {
                e = doc_take_key(r, section);
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
        int e = doc_take_key(r, "");
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
        int e = doc_next(r);
        /* A file of comments alone is valid: its document is one empty scalar. */
        if (e < 0 || (doc_at(r, YAML_SCALAR_EVENT) && r->event.data.scalar.length == 0))
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
