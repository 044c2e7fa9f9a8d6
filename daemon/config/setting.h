/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of settings. It describes each one: its key in the file, its flag, its variable, its default and its help.
 * From it follow the parsers of file, environment and flags, --help, the manual page streamerd(8), completion, the verb
 * `config`, and what a reload compares. Entries of lists are described by tables of their own, in lists.c.
 */
#pragma once

#include "daemon/config/config.h"

#define SETTING_LIST_MAX 64
#define SETTING_WHY 200

enum setting_kind {
        SETTING_TEXT,     /* a char *, which check() may refuse */
        SETTING_WORD,     /* one of `words`: a bool or an enum */
        SETTING_NUMBER,   /* an unsigned integer of any width, as the next two */
        SETTING_SIZE,     /* bytes */
        SETTING_DURATION, /* nanoseconds */
        SETTING_OWN,      /* set() reads it */
        SETTING_LIST,     /* an array: the pointer, and after it the length; a value is appended to it */
        SETTING_ACTION,   /* a flag that is no setting, a text in struct actions */
};

struct setting {
        const char *key; /* "section.name", as in the file, or the key in an entry of a list; NULL: not in the file */
        enum setting_kind kind;
        size_t offset, size;         /* of the field, in struct config or in the entry */
        const char *initial;         /* the default; NULL: none, or zero */
        uint64_t min, max, multiple; /* of a number; multiple 0: of any */
        const char *const *words;    /* by value, up to a NULL */
        int (*check)(const char *text,
                     char why[SETTING_WHY]); /* of TEXT: 0, or -1 with a phrase in why; NULL: any text */
        int (*set)(void *field, const char *text, char why[SETTING_WHY]); /* of OWN, likewise */
        void (*text)(const void *field, char *out, size_t size); /* of OWN, in an entry: the reverse; "" if not set */
        bool secret;                                             /* not shown, unless it is the name of a location */
        const struct setting_list *list;
        /* flag: without "--". argument: in --help; DIR, FILE and PATH are completed to paths; NULL: takes none. */
        const char *flag, *argument, *help;
        const char *env, *env_note, *env_old; /* the variable; what --help adds; its older name */
};
#define SETTING_FIELD(type, name) .offset = offsetof(type, name), .size = sizeof(((type *)0)->name)

struct setting_list {
        const struct setting *fields; /* of an entry; a single one without a key: the entry is that value */
        size_t n_fields, entry_size;
        size_t max;        /* entries; 0: SETTING_LIST_MAX */
        const char *takes; /* for messages, where an entry has neither form; NULL: keys */
        size_t line;       /* offset of an unsigned in the entry, its line in the file; 0: none */
        bool may_be_empty; /* a bool follows the length: that the list is given, which has a meaning if it is empty */
        int (*set_word)(void *entry, const char *text, char why[SETTING_WHY]); /* an entry as one word; NULL */
        /* A complete entry, the last of the array; `given`: a bit for each field. 0, or -1 with a phrase in why. */
        int (*check)(struct config *config, void *entry, unsigned given, char why[SETTING_WHY]);
};

/* It sets two keys, and is read where flags are. */
#define SETTING_DISK_CACHE_FLAG "disk-cache"

/* Actions of the command line, which decide the rest: their values, "" of one that takes none; NULL: not given. */
struct actions {
        const char *config, *help, *version, *check;
};

extern const struct setting settings[];
extern const size_t n_settings;
extern const struct setting_list list_roots, list_keys, list_also, list_devices, list_plain_hosts, list_hosts,
        list_s3_sources, list_gcs_sources, list_azure_sources, list_preload, list_rules;
extern const char *const setting_bool_words[], *const setting_addressing_words[];

/* Of the table: also stores where the value is from. The first value of a list of another origin clears it. */
int setting_set(const struct setting *setting, struct config *config, enum config_origin origin, const char *text,
                char why[SETTING_WHY]);

/* The same of a variable that other programs read, too, and that may hold what is valid there alone: a number becomes
 * the nearest valid one, and anything else leaves the setting as it is. `why`: what became of it; "": it is as given.
 */
void setting_set_foreign(const struct setting *setting, struct config *config, const char *text, char why[SETTING_WHY]);

/* ---- fields, in struct config or an entry ---- */

void setting_init(const struct setting *setting, void *base); /* the default, of a zeroed field; no texts */
void setting_deinit(const struct setting *setting, void *base);
int setting_set_field(const struct setting *setting, void *base, const char *text, char why[SETTING_WHY]);
/* The value as it would be written in the file; "" if it is not set. The caller's to free; NULL: no memory. */
char *setting_text(const struct setting *setting, const void *base);
bool setting_equal(const struct setting *setting, const void *a, const void *b); /* OWN: by its bytes */

/* ---- lists ---- */

size_t setting_list_n(const struct setting *setting, const void *base);
/* A new last entry with its defaults; NULL with a phrase in why. */
void *setting_list_append(const struct setting *setting, void *base, char why[SETTING_WHY]);

/* Entry i as it would be written in the file, "{ role: load, users: [1001] }", without fields that are not set; secrets
 * and queries are redacted. Cut at SETTING_ENTRY_TEXT - 1 bytes. */
#define SETTING_ENTRY_TEXT 640
void setting_entry_text(const struct setting *setting, const void *base, size_t i, char text[SETTING_ENTRY_TEXT]);
/* A value for people: redacted if it is a secret that names no location. The caller's to free; NULL: no memory. */
char *setting_shown(const struct setting *setting, const void *base);

/* ---- for set() and check() ---- */

/* A phrase in why. -1. */
__attribute__((format(printf, 2, 3))) int setting_wrong(char why[SETTING_WHY], const char *format, ...);

/* Once all roots are known: a rule's must be below one of the daemon's. */
int access_check_roots(const struct config *config, struct error *error);

#define SETTING_NUMBER_TEXT 24
/* "8GiB", as config_parse_size() reads it. Returns out. */
const char *config_size_text(uint64_t bytes, char out[SETTING_NUMBER_TEXT]);
/* "8GiB", "512MiB", "4096": 0 or -1 (syntax, overflow). */
int config_parse_size(const char *text, uint64_t *bytes);
int setting_check_absolute(const char *text, char why[SETTING_WHY]); /* of a path */
