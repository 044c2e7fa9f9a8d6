/* SPDX-License-Identifier: Apache-2.0
 *
 * The file while it is read: for readers of keys that hold more than a value each. Private to
 * daemon/config.
 */
#ifndef DAEMON_CONFIG_DOCUMENT_YAML_H
#define DAEMON_CONFIG_DOCUMENT_YAML_H

#include "daemon/config/settings/setting.h"

#include <yaml.h>

#define DOC_KEY_SIZE 64
#define DOC_KEYS_MAX 128 /* more than there are valid keys */

struct doc_list;

struct doc {
        yaml_parser_t parser;
        yaml_event_t event; /* the current one */
        const char *name;
        struct config *config;
        struct error *error;
        char key[DOC_KEY_SIZE]; /* that is being read, for messages */
        char seen[DOC_KEYS_MAX][DOC_KEY_SIZE];
        size_t n_seen;
        const struct doc_list *list; /* that is being read */
        unsigned entry_line;
};

/* On to the next event, which is refused where it is an anchor, an alias or a tag. */
int doc_next(struct doc *doc);
bool doc_at(const struct doc *doc, yaml_event_type_t type);
const char *doc_scalar(const struct doc *doc);
/* "file:line: key: what"; STREAMER_EINVAL. */
int doc_fail(struct doc *doc, const char *what);

/* The current event is a key below `section` ("" at the top): it becomes doc->key. Refused where it was seen. */
int doc_take_key(struct doc *doc, const char *section);
/* doc->key is a valid key. */
void doc_mark_seen(struct doc *doc);

/* The current event is a list's key: each item of it. */
int doc_read_list(struct doc *doc, int (*item)(struct doc *doc));

/* One key of a small mapping: a scalar, or a list of scalars. set() is called with each value; for a
 * list with NULL first. 0, or -1 with a phrase in why. */
struct doc_field {
        const char *name;
        int (*set)(void *entry, const char *value, char why[SETTING_WHY]);
        bool list;
};

#define DOC_FIELDS_MAX 32

/* A list of small mappings, which becomes an array in struct config. */
struct doc_list {
        const char *key;
        const struct doc_field *fields;
        size_t n_fields, entry_size, max;
        const char *too_many; /* for messages */
        size_t entries, n;    /* offsets in struct config: the array, and its length */
        /* The last entry is read; doc->entry_line is its first line. */
        int (*check)(struct doc *doc, void *entry);
};

/* The current event is the list's key. */
int doc_read_entries(struct doc *doc, const struct doc_list *list);

#endif
