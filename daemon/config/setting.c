/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of a setting are those of its kind. A wrong value leaves the field unchanged.
 */
#include "daemon/config/setting.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <strings.h>

const char *const setting_bool_words[] = {"false", "true", NULL};
const char *const setting_addressing_words[] = {[S3_AUTO] = "auto", [S3_PATH] = "path", [S3_VIRTUAL] = "virtual", NULL};

__attribute__((format(printf, 2, 3))) int setting_wrong(char why[SETTING_WHY], const char *format, ...)
{
        va_list args;
        va_start(args, format);
        vsnprintf(why, SETTING_WHY, format, args);
        va_end(args);
        return -1;
}

int setting_check_absolute(const char *text, char why[SETTING_WHY])
{
        return text[0] == '/' ? 0 : setting_wrong(why, "'%.80s' is not an absolute path", text);
}

/* ---- numbers with units ---- */

/* Strictly: no sign, no fraction, no space, and no unit that could mean two things (GB may be a power of ten or of two,
 * a bare 30 may be seconds or milliseconds). */
static const struct unit {
        const char *name;
        uint64_t factor;
} sizes[] = {{"TiB", GiB << 10}, {"GiB", GiB}, {"MiB", MiB}, {"KiB", KiB}, {"", 1}},
  durations[] = {{"h", 3600 * SECOND}, {"m", 60 * SECOND}, {"s", SECOND}, {"ms", SECOND / 1000}};

enum number { NUMBER_OK, NUMBER_TOO_LARGE, NO_NUMBER };

static enum number parse_with_unit(const char *text, const struct unit *units, size_t n, uint64_t *value)
{
        char *end;
        if (text[0] < '0' || text[0] > '9')
                return NO_NUMBER;
        errno = 0;
        uint64_t number = strtoull(text, &end, 10);
        bool fits = errno == 0;
        for (size_t i = 0; i < n; i++)
                if (strcmp(end, units[i].name) == 0)
                        return fits && !__builtin_mul_overflow(number, units[i].factor, value) ? NUMBER_OK
                                                                                               : NUMBER_TOO_LARGE;
        return NO_NUMBER;
}

int config_parse_size(const char *text, uint64_t *bytes)
{
        return parse_with_unit(text, sizes, ARRAY_SIZE(sizes), bytes) == NUMBER_OK ? 0 : -1;
}

/* In the largest unit that divides it; a size below a MiB in bytes, and a duration below an hour in seconds. */
static const char *written(enum setting_kind kind, uint64_t value, char out[SETTING_NUMBER_TEXT])
{
        const struct unit *units = kind == SETTING_SIZE ? sizes : durations;
        for (size_t i = 0; kind != SETTING_NUMBER && value > 0 && i < ARRAY_SIZE(durations); i++)
                if (value % units[i].factor == 0 && units[i].factor != KiB && units[i].factor != 60 * SECOND) {
                        snprintf(out, SETTING_NUMBER_TEXT, "%" PRIu64 "%s", value / units[i].factor, units[i].name);
                        return out;
                }
        snprintf(out, SETTING_NUMBER_TEXT, "%" PRIu64 "%s", value, kind == SETTING_DURATION ? "s" : "");
        return out;
}

const char *config_size_text(uint64_t bytes, char out[SETTING_NUMBER_TEXT])
{
        return written(SETTING_SIZE, bytes, out);
}

static int parse_number(const struct setting *setting, const char *text, uint64_t *value, char why[SETTING_WHY])
{
        char from[SETTING_NUMBER_TEXT], to[SETTING_NUMBER_TEXT];
        if (setting->kind == SETTING_DURATION &&
            parse_with_unit(text, durations, ARRAY_SIZE(durations), value) != NUMBER_OK)
                return setting_wrong(why, "'%.40s' is not a duration (with ms, s, m or h)", text);
        if (setting->kind == SETTING_SIZE && config_parse_size(text, value) < 0)
                return setting_wrong(why, "'%.40s' is not a size (bytes, or with KiB, MiB, GiB, TiB)", text);
        if (setting->kind == SETTING_NUMBER &&
            (config_parse_size(text, value) < 0 || strspn(text, "0123456789") != strlen(text)))
                return setting_wrong(why, "'%.40s' is not a number", text);
        if (*value < setting->min && setting->max == UINT64_MAX)
                return setting_wrong(why, "%.40s is less than %s", text, written(setting->kind, setting->min, from));
        if (*value < setting->min || *value > setting->max)
                return setting_wrong(why, "%.40s is not within %s to %s", text,
                                     written(setting->kind, setting->min, from),
                                     written(setting->kind, setting->max, to));
        if (setting->multiple != 0 && *value % setting->multiple != 0)
                return setting_wrong(why, "%.40s is not a multiple of %s", text,
                                     written(setting->kind, setting->multiple, from));
        return 0;
}

static int parse_word(const struct setting *setting, const char *text, uint64_t *value, char why[SETTING_WHY])
{
        const char *const *words = setting->words;
        char list[120] = "";
        if (words == log_levels && strcasecmp(text, "warning") == 0)
                text = "warn";
        for (*value = 0; words[*value] != NULL; (*value)++)
                if (strcasecmp(text, words[*value]) == 0)
                        return 0;
        for (size_t i = 0; words[i] != NULL; i++)
                format_append(list, sizeof(list), "%s%s", i == 0 ? "" : words[i + 1] == NULL ? " or " : ", ", words[i]);
        return setting_wrong(why, "'%.40s' is not %s", text, words == setting_bool_words ? "true or false" : list);
}

/* ---- lists ---- */

struct array {
        char *entries;
        size_t n;
};

static struct array *array_of(const struct setting *setting, const void *base)
{
        return (struct array *)((uintptr_t)base + setting->offset);
}

size_t setting_list_n(const struct setting *setting, const void *base)
{
        return array_of(setting, base)->n;
}

static char *entry_of(const struct setting *setting, const void *base, size_t i)
{
        return array_of(setting, base)->entries + i * setting->list->entry_size;
}

void *setting_list_append(const struct setting *setting, void *base, char why[SETTING_WHY])
{
        const struct setting_list *list = setting->list;
        struct array *array = array_of(setting, base);
        size_t max = list->max != 0 ? list->max : SETTING_LIST_MAX;
        if (array->n == max) {
                setting_wrong(why, "more than %zu entries", max);
                return NULL;
        }
        char *entries = array_grow(array->entries, array->n, list->entry_size);
        if (entries == NULL) {
                setting_wrong(why, "no memory");
                return NULL;
        }
        array->entries = entries;
        void *entry = memset(entry_of(setting, base, array->n++), 0, list->entry_size);
        for (size_t i = 0; i < list->n_fields; i++)
                setting_init(&list->fields[i], entry);
        return entry;
}

static int append_text(const struct setting *setting, void *base, const char *text, char why[SETTING_WHY])
{
        const struct setting_list *list = setting->list;
        void *entry = setting_list_append(setting, base, why);
        int r = entry == NULL            ? -1
                : list->set_word != NULL ? list->set_word(entry, text, why)
                                         : setting_set_field(&list->fields[0], entry, text, why);
        return r == 0 && list->check != NULL ? list->check(base, entry, 1, why) : r;
}

static void clear(const struct setting *setting, void *base)
{
        struct array *array = array_of(setting, base);
        for (size_t i = 0; i < array->n; i++)
                for (size_t k = 0; k < setting->list->n_fields; k++)
                        setting_deinit(&setting->list->fields[k], entry_of(setting, base, i));
        free(array->entries);
        *array = (struct array){0};
}

static bool lists_equal(const struct setting *setting, const void *a, const void *b)
{
        const struct setting_list *list = setting->list;
        size_t n = setting_list_n(setting, a);
        bool equal = n == setting_list_n(setting, b);
        for (size_t i = 0; equal && i < n; i++)
                for (size_t k = 0; equal && k < list->n_fields; k++)
                        equal = setting_equal(&list->fields[k], entry_of(setting, a, i), entry_of(setting, b, i));
        return equal;
}

/* ---- fields ---- */

int setting_set_field(const struct setting *setting, void *base, const char *text, char why[SETTING_WHY])
{
        void *field = (char *)base + setting->offset;
        uint64_t value = 0;
        if (setting->kind == SETTING_LIST)
                return append_text(setting, base, text, why);
        if (setting->kind == SETTING_OWN)
                return setting->set(field, text, why);
        if (setting->kind == SETTING_TEXT) {
                if (setting->check != NULL && setting->check(text, why) < 0)
                        return -1;
                char *copy = strdup(text);
                if (copy == NULL)
                        return setting_wrong(why, "no memory");
                secret_free(*(char **)field);
                *(char **)field = copy;
                return 0;
        }
        if (text[0] == '\0')
                return setting_wrong(why, "has no value");
        if (setting->kind == SETTING_WORD ? parse_word(setting, text, &value, why) < 0
                                          : parse_number(setting, text, &value, why) < 0)
                return -1;
        if (setting->size == 1)
                *(uint8_t *)field = (uint8_t)value;
        else if (setting->size == 4)
                *(uint32_t *)field = (uint32_t)value;
        else
                *(uint64_t *)field = value;
        return 0;
}

void setting_init(const struct setting *setting, void *base)
{
        char why[SETTING_WHY];
        require(setting->initial == NULL || setting->kind == SETTING_TEXT ||
                setting_set_field(setting, base, setting->initial, why) == 0);
}

void setting_deinit(const struct setting *setting, void *base)
{
        if (setting->kind == SETTING_LIST)
                clear(setting, base);
        else if (setting->kind == SETTING_TEXT)
                secret_free(*(char **)((char *)base + setting->offset));
}

char *setting_text(const struct setting *setting, const void *base)
{
        char number[SETTING_NUMBER_TEXT];
        if (setting->kind == SETTING_TEXT)
                return strdup(*(char *const *)((const char *)base + setting->offset) ?: "");
        const void *field = (const char *)base + setting->offset;
        if (setting->kind == SETTING_OWN) {
                char text[PATH_MAX];
                require(setting->text != NULL);
                setting->text(field, text, sizeof(text));
                return strdup(text);
        }
        uint64_t value = setting->size == 1   ? *(const uint8_t *)field
                         : setting->size == 4 ? *(const uint32_t *)field
                                              : *(const uint64_t *)field;
        return strdup(setting->kind == SETTING_WORD ? setting->words[value] : written(setting->kind, value, number));
}

bool setting_equal(const struct setting *setting, const void *a, const void *b)
{
        const char *x = (const char *)a + setting->offset, *y = (const char *)b + setting->offset;
        if (setting->kind == SETTING_LIST)
                return lists_equal(setting, a, b);
        /* "" in the file says what its absence says. */
        return setting->kind == SETTING_TEXT ? same_text(filled(*(char *const *)x), filled(*(char *const *)y))
                                             : memcmp(x, y, setting->size) == 0;
}

/* ---- for people ---- */

char *setting_shown(const struct setting *setting, const void *base)
{
        cleanup_free char *value = setting_text(setting, base);
        if (value != NULL && setting->secret && filled(value) != NULL && !secret_is_reference(value))
                return strdup("(redacted)");
        return value != NULL ? redact_source_new(value) : NULL;
}

/* Of a list, that is whether it has entries; of words and numbers, that it is not zero. */
static bool is_set(const struct setting *setting, const void *base)
{
        static const char zeros[sizeof(uint64_t)];
        const char *field = (const char *)base + setting->offset;
        if (setting->kind == SETTING_LIST)
                return setting_list_n(setting, base) > 0 ||
                       (setting->list->may_be_empty && *(const bool *)(field + sizeof(struct array)));
        if (setting->kind == SETTING_TEXT)
                return filled(*(char *const *)field) != NULL;
        require(setting->kind == SETTING_OWN || setting->size <= sizeof(zeros));
        return setting->kind == SETTING_OWN || memcmp(field, zeros, setting->size) != 0;
}

static void append_entry(const struct setting_list *list, const void *entry, char text[SETTING_ENTRY_TEXT]);

static void append_field(const struct setting *field, const void *base, char text[SETTING_ENTRY_TEXT])
{
        if (field->kind != SETTING_LIST) {
                cleanup_free char *value = setting_shown(field, base);
                format_append(text, SETTING_ENTRY_TEXT, "%s", value ?: "");
                return;
        }
        format_append(text, SETTING_ENTRY_TEXT, "[");
        for (size_t i = 0; i < setting_list_n(field, base); i++) {
                format_append(text, SETTING_ENTRY_TEXT, "%s", i > 0 ? ", " : "");
                append_entry(field->list, entry_of(field, base, i), text);
        }
        format_append(text, SETTING_ENTRY_TEXT, "]");
}

static void append_entry(const struct setting_list *list, const void *entry, char text[SETTING_ENTRY_TEXT])
{
        const char *separator = "{ ";
        if (list->fields[0].key == NULL) {
                append_field(&list->fields[0], entry, text);
                return;
        }
        for (size_t i = 0; i < list->n_fields; i++) {
                const struct setting *field = &list->fields[i];
                cleanup_free char *own = field->kind == SETTING_OWN ? setting_text(field, entry) : NULL;
                if (!is_set(field, entry) || (field->kind == SETTING_OWN && filled(own) == NULL))
                        continue;
                format_append(text, SETTING_ENTRY_TEXT, "%s%s: ", separator, field->key);
                append_field(field, entry, text);
                separator = ", ";
        }
        format_append(text, SETTING_ENTRY_TEXT, " }");
}

void setting_entry_text(const struct setting *setting, const void *base, size_t i, char text[SETTING_ENTRY_TEXT])
{
        text[0] = '\0';
        append_entry(setting->list, entry_of(setting, base, i), text);
}

/* ---- the table ---- */

int setting_set(const struct setting *setting, struct config *config, enum config_origin origin, const char *text,
                char why[SETTING_WHY])
{
        unsigned char *from = &config->origins[setting - settings];
        if (setting->kind == SETTING_LIST && *from != origin)
                clear(setting, config);
        int r = setting_set_field(setting, config, text, why);
        if (r == 0)
                *from = (unsigned char)origin;
        return r;
}

/* Of a number that is too small, too large or between two multiples: the nearest below it that is valid, or the least.
 * False: there is none. Zero means the default in other programs. */
static bool fit_number(const struct setting *setting, const char *text, char fitted[SETTING_NUMBER_TEXT])
{
        bool is_time = setting->kind == SETTING_DURATION;
        uint64_t value = 0;
        if (!is_time && setting->kind != SETTING_SIZE && setting->kind != SETTING_NUMBER)
                return false;
        enum number r = parse_with_unit(text, is_time ? durations : sizes,
                                        is_time ? ARRAY_SIZE(durations) : ARRAY_SIZE(sizes), &value);
        if (r == NUMBER_TOO_LARGE || value > setting->max)
                value = setting->max;
        if (r == NO_NUMBER || value == 0)
                return false;
        if (value < setting->min)
                value = setting->min;
        written(setting->kind, setting->multiple != 0 ? value / setting->multiple * setting->multiple : value, fitted);
        return true;
}

void setting_set_foreign(const struct setting *setting, struct config *config, const char *text, char why[SETTING_WHY])
{
        char fitted[SETTING_NUMBER_TEXT], no[SETTING_WHY];
        size_t len;
        why[0] = '\0';
        if (setting_set(setting, config, CONFIG_ENVIRONMENT, text, why) == 0)
                return;
        bool fits = fit_number(setting, text, fitted);
        require(!fits || setting_set(setting, config, CONFIG_ENVIRONMENT, fitted, no) == 0);
        len = strlen(why);
        if (fits)
                snprintf(why + len, SETTING_WHY - len, ": %s is used", fitted);
        else
                snprintf(why + len, SETTING_WHY - len, ": ignored");
}
