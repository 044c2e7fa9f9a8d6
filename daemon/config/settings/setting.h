/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of settings with a single value. File, environment and flags write through it, so a value is checked alike
 * wherever it comes from. The lists of roots and devices are separate.
 */
#ifndef DAEMON_CONFIG_SETTINGS_SETTING_H
#define DAEMON_CONFIG_SETTINGS_SETTING_H

#include "daemon/config/settings/values.h"

#define SETTING_LIST_MAX 64
#define SETTING_WHY 200

enum setting_kind {
        SETTING_PATH,
        SETTING_FILE,
        SETTING_ADDRESSING,
        SETTING_FOLDER,
        SETTING_BOOL,
        SETTING_COUNT,
        SETTING_UNSIGNED,
        SETTING_SIZE,
        SETTING_DURATION,
        SETTING_LEVEL,
        SETTING_LOG_FORMAT,
        SETTING_LISTEN
};

struct setting {
        const char *key;  /* "section.name", as in the file */
        const char *flag; /* without "--"; NULL if none */
        const char *env;  /* NULL if none */
        enum setting_kind kind;
        size_t offset;    /* in struct config */
        uint64_t initial; /* the default of a number */
        uint64_t min, max, multiple;
};

extern const struct setting settings[];
extern const size_t n_settings;

void settings_init(struct config *config);   /* the defaults, into a zeroed one */
void settings_deinit(struct config *config); /* frees the texts of the table */

/* 0, or -1 with a phrase in why: what is wrong with the value. */
int setting_set(const struct setting *setting, struct config *config, const char *text, char why[SETTING_WHY]);

/* The value as it would be written in the file; "" if it is not set. The caller's to free; NULL: no memory. */
char *setting_text(const struct setting *setting, const struct config *config);

bool setting_equal(const struct setting *setting, const struct config *a, const struct config *b);

/* Says it in why. -1. */
__attribute__((format(printf, 2, 3))) int setting_wrong(char why[SETTING_WHY], const char *format, ...);
/* In place of what *field holds, if anything. */
int setting_copy(char **field, const char *text, char why[SETTING_WHY]);
/* A copy of the text becomes the last of at most `max`, which messages call `what`. */
int setting_append(char ***list, size_t *n, size_t max, const char *what, const char *text, char why[SETTING_WHY]);
void setting_clear_texts(char ***list, size_t *n);
/* The index of the text among the words, which end with NULL; -1: none. */
int setting_find_word(const char *const *words, const char *text);

/* Sizes ("8GiB", "512MiB", "4096") and durations ("30s", "5m", "250ms"): 0 or -1 (syntax, overflow). */
int config_parse_size(const char *text, uint64_t *bytes);
int config_parse_duration(const char *text, uint64_t *ns);

/* ---- lists ---- */

int setting_add_root(struct config *config, const char *path, char why[SETTING_WHY]);

/* "host", "host=8GiB", "host=90%". */
int setting_add_device(struct config *config, const char *text, char why[SETTING_WHY]);
/* Its parts, as words, each NULL where it is not given. */
enum device_part { PART_DEVICE, PART_BUDGET, PART_PAGES, PART_PREFAULT, PART_HANDLES, DEVICE_PARTS };
int setting_add_device_parts(struct config *config, const char *const parts[DEVICE_PARTS], char why[SETTING_WHY]);
void setting_clear_devices(struct config *config);

/* A bool: "true", "false". */
int setting_parse_bool(void *field, const char *text, char why[SETTING_WHY]);
/* An enum s3_addressing: "auto", "path", "virtual". */
int setting_parse_addressing(void *field, const char *text, char why[SETTING_WHY]);

#endif
