/* SPDX-License-Identifier: Apache-2.0
 *
 * The file: a small part of YAML.
 *
 *   mapping of keys > scalar | list of scalars or small mappings | section (a mapping of keys)
 *
 * The table of settings is the grammar, so depth is bounded. Further documents, unknown keys and duplicate keys are
 * refused; so are anchors, aliases and tags, which hide the meaning of a file: they are refused before it is read.
 */
#include "daemon/config/config.h"
#include "daemon/config/settings/setting.h"

#include "daemon/base/util.h"

#include <yaml.h>

#define KEY_SIZE 64
#define DEPTH_MAX 8 /* more than valid files have */

struct doc {
        yaml_document_t tree;
        const char *name;
        struct config *config;
        struct error *error;
};

/* "file:line: key: what" */
static int fail_at(const struct doc *doc, const yaml_mark_t *mark, const char *key, const char *what)
{
        return error_set(doc->error, STREAMER_EINVAL, "%s:%u: %s%s%s", doc->name, (unsigned)mark->line + 1, key,
                         key[0] != '\0' ? ": " : "", what);
}

static int fail(const struct doc *doc, const yaml_node_t *node, const char *key, const char *what)
{
        return fail_at(doc, &node->start_mark, key, what);
}

static yaml_node_t *node_of(struct doc *doc, int index)
{
        return yaml_document_get_node(&doc->tree, index);
}

static const char *text_of(const yaml_node_t *node)
{
        return (const char *)node->data.scalar.value;
}

/* ---- values ---- */

static int read_scalar(struct doc *doc, const struct setting *setting, void *base, const yaml_node_t *node,
                       const char *key)
{
        char why[SETTING_WHY];
        if (node->type != YAML_SCALAR_NODE)
                return fail(doc, node, key,
                            setting->several ? "takes a list of single values" : "takes a single value");
        if (strlen(text_of(node)) != node->data.scalar.length)
                return fail(doc, node, key, "a NUL byte");
        int r = base == doc->config ? setting_set(setting, doc->config, text_of(node), why)
                                    : setting_set_field(setting, base, text_of(node), why);
        return r < 0 ? fail(doc, node, key, why) : 0;
}

static int read_field(struct doc *doc, const struct setting *field, void *entry, const yaml_node_t *node,
                      const char *key)
{
        char why[SETTING_WHY];
        if (!field->several || node->type != YAML_SEQUENCE_NODE)
                return read_scalar(doc, field, entry, node, key);
        int r = field->set((char *)entry + field->offset, NULL, why);
        for (const yaml_node_item_t *item = node->data.sequence.items.start;
             r == 0 && item < node->data.sequence.items.top; item++)
                r = read_scalar(doc, field, entry, node_of(doc, *item), key);
        return r;
}

/* The key of a pair, which must differ from those before it: "WHERE.KEY". */
static int read_key(struct doc *doc, const yaml_node_t *mapping, const yaml_node_pair_t *pair, const char *where,
                    char key[KEY_SIZE])
{
        const yaml_node_t *node = node_of(doc, pair->key);
        if (node->type != YAML_SCALAR_NODE)
                return fail(doc, node, where, "a key must be a word");
        if (strlen(text_of(node)) != node->data.scalar.length)
                return fail(doc, node, where, "a NUL byte");
        snprintf(key, KEY_SIZE, "%s%s%s", where, where[0] != '\0' ? "." : "", text_of(node));
        for (const yaml_node_pair_t *other = mapping->data.mapping.pairs.start; other < pair; other++)
                if (strcmp(text_of(node_of(doc, other->key)), text_of(node)) == 0)
                        return fail(doc, node, key, "given twice");
        return 0;
}

/* ---- lists ---- */

/* The keys of an entry. *given: a bit for each. */
static int read_fields(struct doc *doc, const struct setting_list *list, void *entry, const yaml_node_t *mapping,
                       const char *where, unsigned *given)
{
        int r = 0;
        for (const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
             r == 0 && pair < mapping->data.mapping.pairs.top; pair++) {
                char key[KEY_SIZE];
                size_t i = 0;
                r = read_key(doc, mapping, pair, where, key);
                while (r == 0 && i < list->n_fields &&
                       strcmp(list->fields[i].key, text_of(node_of(doc, pair->key))) != 0)
                        i++;
                if (r == 0 && i == list->n_fields)
                        return fail(doc, node_of(doc, pair->key), key, "unknown key");
                if (r == 0)
                        r = read_field(doc, &list->fields[i], entry, node_of(doc, pair->value), key);
                *given |= 1u << i;
        }
        return r;
}

static int read_entry(struct doc *doc, const struct setting *setting, const yaml_node_t *node, const char *where)
{
        const struct setting_list *list = setting->list;
        char why[SETTING_WHY];
        unsigned given = 0;
        bool by_keys = list->fields[0].key != NULL;
        if (node->type == YAML_SCALAR_NODE && (list->set_word != NULL || !by_keys))
                return read_scalar(doc, setting, doc->config, node, where);
        if (node->type != YAML_MAPPING_NODE || !by_keys)
                return fail(doc, node, where, list->takes ?: "takes keys of its own");
        char *entry = setting_list_append(setting, doc->config, why);
        if (entry == NULL)
                return fail(doc, node, where, why);
        if (list->line != 0)
                *(unsigned *)(void *)(entry + list->line) = (unsigned)node->start_mark.line + 1;
        int r = read_fields(doc, list, entry, node, where, &given);
        return r == 0 && list->check(doc->config, entry, given, why) < 0 ? fail(doc, node, where, why) : r;
}

static int read_list(struct doc *doc, const struct setting *setting, const yaml_node_t *node)
{
        struct config *config = doc->config;
        int r = 0;
        size_t i = 0;
        if (node->type != YAML_SEQUENCE_NODE)
                return fail(doc, node, setting->key, "takes a list");
        config->origins[setting - settings] = (unsigned char)config->origin;
        if (setting->list == &list_rules) {
                config->access.given = true;
                free(config->access.file);
                config->access.file = strdup(doc->name);
                if (config->access.file == NULL)
                        return error_set(doc->error, STREAMER_ENOMEM, "%s: no memory", doc->name);
        }
        for (const yaml_node_item_t *item = node->data.sequence.items.start;
             r == 0 && item < node->data.sequence.items.top; item++) {
                char where[KEY_SIZE / 2];
                snprintf(where, sizeof(where), "%s[%zu]", setting->key, i++);
                r = read_entry(doc, setting, node_of(doc, *item), where);
        }
        return r;
}

/* ---- keys ---- */

static bool is_section(const char *key)
{
        size_t len = strlen(key);
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].key != NULL && strncmp(settings[i].key, key, len) == 0 && settings[i].key[len] == '.')
                        return true;
        return false;
}

/* Of the file (section "") or of a section. */
static int read_keys(struct doc *doc, const yaml_node_t *mapping, const char *section)
{
        int r = 0;
        if (mapping->type != YAML_MAPPING_NODE)
                return fail(doc, mapping, section,
                            section[0] != '\0' ? "takes keys of its own" : "must be a mapping of keys");
        for (const yaml_node_pair_t *pair = mapping->data.mapping.pairs.start;
             r == 0 && pair < mapping->data.mapping.pairs.top; pair++) {
                char key[KEY_SIZE];
                r = read_key(doc, mapping, pair, section, key);
                if (r < 0)
                        return r;
                const yaml_node_t *name = node_of(doc, pair->key), *value = node_of(doc, pair->value);
                const struct setting *setting = strchr(text_of(name), '.') == NULL ? setting_find(key) : NULL;
                if (setting != NULL)
                        r = setting->kind == SETTING_LIST ? read_list(doc, setting, value)
                                                          : read_scalar(doc, setting, doc->config, value, key);
                else if (section[0] == '\0' && is_section(key))
                        r = read_keys(doc, value, key);
                else
                        r = fail(doc, name, key, "unknown key");
        }
        return r;
}

/* ---- the file ---- */

static int syntax_error(const struct doc *doc, const yaml_parser_t *parser)
{
        char what[SETTING_WHY];
        if (parser->error == YAML_MEMORY_ERROR)
                return error_set(doc->error, STREAMER_ENOMEM, "%s: no memory", doc->name);
        snprintf(what, sizeof(what), "not YAML: %s", parser->problem ?: "unreadable");
        return fail_at(doc, &parser->problem_mark, "", what);
}

static int parser_init(const struct doc *doc, yaml_parser_t *parser, const char *text, size_t len)
{
        if (!yaml_parser_initialize(parser))
                return error_set(doc->error, STREAMER_ENOMEM, "%s: no memory", doc->name);
        yaml_parser_set_encoding(parser, YAML_UTF8_ENCODING);
        yaml_parser_set_input_string(parser, (const unsigned char *)text, len);
        return 0;
}

/* How a token changes the depth. */
static int depth_of(yaml_token_type_t type)
{
        switch (type) {
        case YAML_BLOCK_SEQUENCE_START_TOKEN:
        case YAML_BLOCK_MAPPING_START_TOKEN:
        case YAML_FLOW_SEQUENCE_START_TOKEN:
        case YAML_FLOW_MAPPING_START_TOKEN:
                return 1;
        case YAML_BLOCK_END_TOKEN:
        case YAML_FLOW_SEQUENCE_END_TOKEN:
        case YAML_FLOW_MAPPING_END_TOKEN:
                return -1;
        default:
                return 0;
        }
}

/* Before the tree is made: libyaml's time grows with the square of the depth. */
static int check_tokens(const struct doc *doc, const char *text, size_t len)
{
        yaml_parser_t parser;
        yaml_token_t token;
        int depth = 0, r = parser_init(doc, &parser, text, len);
        if (r < 0)
                return r;
        for (bool end = false; r == 0 && !end;) {
                if (!yaml_parser_scan(&parser, &token)) {
                        r = syntax_error(doc, &parser);
                        break;
                }
                depth += depth_of(token.type);
                const char *what = token.type == YAML_ANCHOR_TOKEN  ? "anchors are not supported"
                                   : token.type == YAML_ALIAS_TOKEN ? "aliases are not supported"
                                   : token.type == YAML_TAG_TOKEN   ? "tags are not supported"
                                   : depth > DEPTH_MAX              ? "too many levels"
                                                                    : NULL;
                if (what != NULL)
                        r = fail_at(doc, &token.start_mark, "", what);
                end = token.type == YAML_STREAM_END_TOKEN;
                yaml_token_delete(&token);
        }
        yaml_parser_delete(&parser);
        return r;
}

/* Reads the next document, if it is the only one. *end: there is none. */
static int read_document(struct doc *doc, yaml_parser_t *parser, bool first, bool *end)
{
        if (!yaml_parser_load(parser, &doc->tree))
                return syntax_error(doc, parser);
        const yaml_node_t *root = yaml_document_get_root_node(&doc->tree);
        int r = 0;
        *end = root == NULL;
        if (root != NULL && !first)
                r = fail_at(doc, &doc->tree.start_mark, "", "more than one document");
        /* A file of comments alone is valid: its document is one empty scalar. */
        else if (root != NULL && (root->type != YAML_SCALAR_NODE || root->data.scalar.length > 0))
                r = read_keys(doc, root, "");
        yaml_document_delete(&doc->tree);
        return r;
}

int config_parse_yaml(struct config *config, const char *name, const char *text, size_t len, struct error *error)
{
        struct doc doc = {.name = name, .config = config, .error = error};
        yaml_parser_t parser;
        bool end = false;
        int r = check_tokens(&doc, text, len);
        if (r < 0)
                return r;
        r = parser_init(&doc, &parser, text, len);
        for (bool first = true; r == 0 && !end; first = false)
                r = read_document(&doc, &parser, first, &end);
        yaml_parser_delete(&parser);
        return r;
}
