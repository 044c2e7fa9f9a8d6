/* SPDX-License-Identifier: Apache-2.0
 *
 * The configuration file, and the readers of keys that hold more than a value each. Private to daemon/config.
 */
#ifndef DAEMON_CONFIG_DOCUMENT_DOCUMENT_H
#define DAEMON_CONFIG_DOCUMENT_DOCUMENT_H

#include "daemon/config/settings/setting.h"

#include <yaml.h>

/* YAML text of this length, as a file of this name, into a config that has its defaults. */
int config_parse_yaml(struct config *config, const char *name, const char *text, size_t len, struct error *error);

/* ---- the file while it is read ---- */

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

const char *doc_scalar(const struct doc *doc);
/* "file:line: key: what"; STREAMER_EINVAL. */
int doc_fail(struct doc *doc, const char *what);

/* ---- small mappings ---- */

/* One key of a small mapping: a scalar, or a list of scalars. set() is called with the member of the entry and each
 * value; for a list with NULL first. 0, or -1 with a phrase in why. */
struct doc_field {
        const char *name;
        int (*set)(void *member, const char *value, char why[SETTING_WHY]);
        size_t offset; /* of the member */
        bool list;
};
/* A text: the member is a char *, which doc_clear_texts() frees. */
int doc_set_text(void *member, const char *value, char why[SETTING_WHY]);
#define DOC_TEXT(type, name) #name, doc_set_text, offsetof(type, name), false

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

extern const struct doc_list http_hosts, s3_sources, preload_entries;

/* The current event is the list's key. */
int doc_read_entries(struct doc *doc, const struct doc_list *list);

/* Of entries that consist of texts and plain values. */
bool doc_same_texts(const struct doc_list *list, const void *a, const void *b);
void doc_clear_texts(const struct doc_list *list, void *entry);
void doc_clear_entries(const struct doc_list *list, struct config *config);

/* ---- sections ---- */

/* The current event is the key. */
int access_read_roles(struct doc *doc);
/* Once all roots are known: a rule's must be below one of the daemon's. */
int access_check_roots(const struct config *config, struct error *error);
/* The current event is an item of http.allow_plain. */
int http_read_plain_host(struct doc *doc);

bool http_same_hosts(const struct config *a, const struct config *b);
bool s3_same_sources(const struct config *a, const struct config *b);

#endif
