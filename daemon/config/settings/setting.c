/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/settings/setting.h"

#include "daemon/base/sys/listen.h"
#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <sys/un.h>

#define SECOND UINT64_C(1000000000)
#define HOUR (3600 * SECOND)
#define FIELD(name) offsetof(struct config, name)
#define RUNAI "RUNAI_STREAMER_"

/* A lower limit of 128 descriptors: one attach carries up to 66. Of 1 MiB of output: one reply. */
// clang-format off
const struct setting settings[] = {
        /* key                          flag            environment             kind              field                              initially       from    to         multiple of */
        {"socket",                      "socket",       "STREAMERD_SOCKET",     SETTING_PATH,     FIELD(socket),                     0,              0,      0,         1},
        {"state",                       "state",        "STATE_DIRECTORY",      SETTING_FOLDER,   FIELD(state),                      0,              0,      0,         1},
        {"exit_idle",                   "exit-idle",    NULL,                   SETTING_DURATION, FIELD(exit_idle_ns),               0,              0,      8784 * HOUR, 1},
        {"io.concurrency",              "concurrency",  RUNAI "CONCURRENCY",    SETTING_UNSIGNED, FIELD(io.concurrency),             16,             1,      1024,      1},
        {"io.block_size",               "block-size",   RUNAI "CHUNK_BYTESIZE", SETTING_SIZE,     FIELD(io.block_size),              8 * MiB,        MiB,    GiB,       MiB},
        {"io.memory_limit",             "memory-limit", RUNAI "MEMORY_LIMIT",   SETTING_SIZE,     FIELD(io.memory_limit),            0,              0,      GiB << 10, 1},
        {"io.stall",                    NULL,           NULL,                   SETTING_DURATION, FIELD(io.stall_ns),                30 * SECOND,    SECOND, HOUR,      1},
        {"limits.connections",          NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.connections),         8192,           1,      1000000,   1},
        {"limits.connections_per_uid",  NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.per_uid[QUOTA_CONNECTIONS]), 4096,           1,      1000000,   1},
        {"limits.leases_per_uid",       NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.per_uid[QUOTA_LEASES]),      16384,          1,      10000000,  1},
        {"limits.loads_per_uid",        NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.per_uid[QUOTA_LOADS]),       32,             1,      4096,      1},
        {"limits.models_per_uid",       NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.per_uid[QUOTA_MODELS]),      1024,           1,      65536,     1},
        {"limits.bytes_per_uid",        NULL,           NULL,                   SETTING_SIZE,     FIELD(limits.per_uid[QUOTA_BYTES]),       0,              0,      GiB << 20, 1},
        {"limits.leases_per_client",    NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.leases_per_client),   4096,           1,      1000000,   1},
        {"limits.loads",                NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.loads),               64,             1,      4096,      1},
        {"limits.queued",               NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.queued),              16,             0,      4096,      1},
        {"limits.requests_per_client",  NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.requests_per_client), 64,             1,      4096,      1},
        {"limits.output_per_client",    NULL,           NULL,                   SETTING_SIZE,     FIELD(limits.conn.output),   4 * MiB,        MiB,    GiB,       1},
        {"limits.fds_in_flight",        NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.fds_in_flight),       4096,           128,    1000000,   1},
        {"limits.fds_per_client",       NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.fds_per_client),      256,            128,    1000000,   1},
        {"limits.frame_timeout",        NULL,           NULL,                   SETTING_DURATION, FIELD(limits.conn.frame_timeout_ns),    10 * SECOND,    SECOND / 10, HOUR, 1},
        {"limits.preload_loads",        NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.preload_loads),       2,              1,      64,        1},
        {"limits.preload_retry",        NULL,           NULL,                   SETTING_DURATION, FIELD(limits.preload_retry_ns),    SECOND,         SECOND / 100, HOUR / 12, 1},
        {"limits.failed_kept",          NULL,           NULL,                   SETTING_COUNT,    FIELD(limits.failed_kept),         64,             0,      65536,     1},
        {"host_cache",                  NULL,           NULL,                   SETTING_SIZE,     FIELD(host_cache),                 0,              0,      GiB << 10, 1},
        {"residency.keep_alive",        "keep-alive",   NULL,                   SETTING_DURATION, FIELD(residency.keep_alive_ns),    0,              0,      8784 * HOUR, 1},
        {"residency.drain_timeout",     NULL,           NULL,                   SETTING_DURATION, FIELD(residency.drain_timeout_ns), 0,              0,      8784 * HOUR, 1},
        {"cuda.library",                NULL,           NULL,                   SETTING_FILE,     FIELD(cuda.library),               0,              0,      0,         1},
        {"cuda.across_uids",            NULL,           NULL,                   SETTING_BOOL,     FIELD(cuda.across_uids),           0,              0,      0,         1},
        {"cuda.trust_detach",           NULL,           NULL,                   SETTING_BOOL,     FIELD(cuda.trust_detach),          true,           0,      0,         1},
        {"cuda.segment_size",           NULL,           NULL,                   SETTING_SIZE,     FIELD(cuda.segment_size),          4 * GiB,        2 * MiB, GiB << 10, 2 * MiB},
        {"cuda.context_retention",      NULL,           NULL,                   SETTING_DURATION, FIELD(cuda.context_retention_ns),  60 * SECOND,    0,      8784 * HOUR, 1},
        {"cuda.context_at_start",       NULL,           NULL,                   SETTING_BOOL,     FIELD(cuda.context_at_start),      0,              0,      0,         1},
        {"cuda.poll_copies",            NULL,           NULL,                   SETTING_BOOL,     FIELD(cuda.poll_copies),           0,              0,      0,         1},
        {"cuda.batch_single_copies",    NULL,           NULL,                   SETTING_BOOL,     FIELD(cuda.batch_single_copies),   0,              0,      0,         1},
        {"publish.across_uids",         NULL,           NULL,                   SETTING_BOOL,     FIELD(publish.across_uids),        0,              0,      0,         1},
        {"publish.cuda_ipc",            NULL,           NULL,                   SETTING_BOOL,     FIELD(publish.cuda_ipc),           0,              0,      0,         1},
        {"http.ca",                     NULL,           NULL,                   SETTING_FILE,     FIELD(http.ca),                    0,              0,      0,         1},
        {"http.connect_timeout",        NULL,           NULL,                   SETTING_DURATION, FIELD(http.opts.connect_timeout_ns),    10 * SECOND,    SECOND / 10, HOUR, 1},
        {"http.stall",                  NULL,           RUNAI "S3_REQUEST_TIMEOUT_MS", SETTING_DURATION, FIELD(http.opts.stall_ns),              20 * SECOND,    SECOND / 10, HOUR, 1},
        {"http.tries",                  NULL,           NULL,                   SETTING_UNSIGNED, FIELD(http.opts.tries),                 6,              1,      100,       1},
        {"http.patience",               NULL,           NULL,                   SETTING_DURATION, FIELD(http.opts.patience_ns),           60 * SECOND,    0,      HOUR,      1},
        {"http.backoff",                NULL,           NULL,                   SETTING_DURATION, FIELD(http.opts.backoff_ns),            SECOND / 5,     SECOND / 1000, HOUR, 1},
        {"http.retry_after",            NULL,           NULL,                   SETTING_DURATION, FIELD(http.opts.retry_after_ns),        30 * SECOND,    SECOND / 1000, HOUR, 1},
        {"http.redirects",              NULL,           NULL,                   SETTING_UNSIGNED, FIELD(http.opts.redirects),             5,              0,      50,        1},
        {"http.threads",                NULL,           NULL,                   SETTING_UNSIGNED, FIELD(http.opts.threads),               0,              0,      64,        1},
        {"http.request_max",            NULL,           NULL,                   SETTING_SIZE,     FIELD(http.opts.request_max),           128 * MiB,      MiB,    GiB << 10, 1},
        {"s3.endpoint",                 NULL,           RUNAI "S3_ENDPOINT",    SETTING_FILE,     FIELD(s3.endpoint),                0,              0,      0,         1},
        {"s3.region",                   NULL,           NULL,                   SETTING_FILE,     FIELD(s3.region),                  0,              0,      0,         1},
        {"s3.addressing",               NULL,           RUNAI "S3_USE_VIRTUAL_ADDRESSING", SETTING_ADDRESSING, FIELD(s3.addressing), 0,              0,      0,         1},
        {"s3.unsigned",                 NULL,           RUNAI "S3_UNSIGNED",    SETTING_BOOL,     FIELD(s3.is_unsigned),             0,              0,      0,         1},
        {"s3.ca",                       NULL,           NULL,                   SETTING_FILE,     FIELD(s3.ca),                      0,              0,      0,         1},
        {"s3.profile",                  NULL,           NULL,                   SETTING_FILE,     FIELD(s3.profile),                 0,              0,      0,         1},
        {"s3.access_key",               NULL,           NULL,                   SETTING_FILE,     FIELD(s3.access_key),              0,              0,      0,         1},
        {"s3.secret_key",               NULL,           NULL,                   SETTING_FILE,     FIELD(s3.secret_key),              0,              0,      0,         1},
        {"s3.session_token",            NULL,           NULL,                   SETTING_FILE,     FIELD(s3.session_token),           0,              0,      0,         1},
        {"hf.endpoint",                 NULL,           "HF_ENDPOINT",          SETTING_FILE,     FIELD(hf.endpoint),                0,              0,      0,         1},
        {"hf.token",                    NULL,           "HF_TOKEN",             SETTING_FILE,     FIELD(hf.token),                   0,              0,      0,         1},
        {"metrics.listen",              "metrics-listen", NULL,                 SETTING_LISTEN,   FIELD(metrics.listen),             0,              0,      0,         1},
        {"log.level",                   "log-level",    RUNAI "LOG_LEVEL",      SETTING_LEVEL,    FIELD(log.level),                  LOG_LEVEL_INFO, 0,      0,         1},
        {"log.format",                  "log-format",   NULL,                   SETTING_LOG_FORMAT, FIELD(log.format),               0,              0,      0,         1},
};
// clang-format on
const size_t n_settings = ARRAY_SIZE(settings);

__attribute__((format(printf, 2, 3))) int setting_wrong(char why[SETTING_WHY], const char *format, ...)
{
        va_list args;
        va_start(args, format);
        vsnprintf(why, SETTING_WHY, format, args);
        va_end(args);
        return -1;
}

int setting_copy(char **field, const char *text, char why[SETTING_WHY])
{
        char *copy = strdup(text);
        if (copy == NULL)
                return setting_wrong(why, "no memory");
        free(*field);
        *field = copy;
        return 0;
}

int setting_append(char ***list, size_t *n, size_t max, const char *what, const char *text, char why[SETTING_WHY])
{
        if (*n == max)
                return setting_wrong(why, "more than %zu %s", max, what);
        char **grown = array_grow(*list, *n, sizeof(*grown));
        if (grown == NULL)
                return setting_wrong(why, "no memory");
        *list = grown;
        grown[*n] = NULL;
        int r = setting_copy(&grown[*n], text, why);
        *n += r == 0;
        return r;
}

void setting_clear_texts(char ***list, size_t *n)
{
        while (*n > 0)
                free((*list)[--*n]);
        free(*list);
        *list = NULL;
}

int setting_find_word(const char *const *words, const char *text)
{
        for (int i = 0; words[i] != NULL; i++)
                if (strcmp(text, words[i]) == 0)
                        return i;
        return -1;
}

/* ---- numbers with units ---- */

/* Strictly: no sign, no fraction, no space, and no unit that could mean two things (GB may be a power of ten or of two,
 * a bare 30 may be seconds or milliseconds). */
struct unit {
        const char *name;
        uint64_t factor;
};

static int parse_with_unit(const char *text, const struct unit *units, size_t n, uint64_t *value)
{
        char *end;
        if (text[0] < '0' || text[0] > '9')
                return -1;
        errno = 0;
        uint64_t number = strtoull(text, &end, 10);
        if (errno != 0)
                return -1;
        for (size_t i = 0; i < n; i++)
                if (strcmp(end, units[i].name) == 0)
                        return __builtin_mul_overflow(number, units[i].factor, value) ? -1 : 0;
        return -1;
}

int config_parse_size(const char *text, uint64_t *bytes)
{
        static const struct unit units[] = {{"", 1}, {"KiB", KiB}, {"MiB", MiB}, {"GiB", GiB}, {"TiB", GiB << 10}};
        return parse_with_unit(text, units, ARRAY_SIZE(units), bytes);
}

int config_parse_duration(const char *text, uint64_t *ns)
{
        static const struct unit units[] = {{"ms", SECOND / 1000}, {"s", SECOND}, {"m", 60 * SECOND}, {"h", HOUR}};
        return parse_with_unit(text, units, ARRAY_SIZE(units), ns);
}

/* ---- fields ---- */

static bool is_text(const struct setting *setting)
{
        return setting->kind == SETTING_PATH || setting->kind == SETTING_FILE || setting->kind == SETTING_FOLDER ||
               setting->kind == SETTING_LISTEN;
}

static char **text_of(const struct setting *setting, const struct config *config)
{
        return (char **)(void *)((char *)config + setting->offset);
}

static uint64_t get_number(const struct setting *setting, const struct config *config)
{
        const void *field = (const char *)config + setting->offset;
        switch (setting->kind) {
        case SETTING_BOOL:
                return *(const bool *)field;
        case SETTING_COUNT:
        case SETTING_SIZE:
        case SETTING_DURATION:
                return *(const uint64_t *)field;
        default: /* enums are unsigned */
                return *(const unsigned *)field;
        }
}

/* In range: the table's limits fit the field. */
static void set_number(const struct setting *setting, struct config *config, uint64_t value)
{
        void *field = (char *)config + setting->offset;
        switch (setting->kind) {
        case SETTING_BOOL:
                *(bool *)field = value;
                break;
        case SETTING_COUNT:
        case SETTING_SIZE:
        case SETTING_DURATION:
                *(uint64_t *)field = value;
                break;
        default:
                *(unsigned *)field = (unsigned)value;
        }
}

/* ---- values ---- */

int setting_parse_bool(void *field, const char *text, char why[SETTING_WHY])
{
        bool yes = strcmp(text, "true") == 0;
        *(bool *)field = yes;
        return yes || strcmp(text, "false") == 0 ? 0 : setting_wrong(why, "'%.40s' is not true or false", text);
}

static const char *const addressings[] = {[S3_AUTO] = "auto", [S3_PATH] = "path", [S3_VIRTUAL] = "virtual", NULL};

/* `value`: of an enum, as parsed; negative: the text is none of the words. */
static int set_enum(unsigned *field, int value, const char *text, const char *words, char why[SETTING_WHY])
{
        if (value < 0)
                return setting_wrong(why, "'%.40s' is not %s", text, words);
        *field = (unsigned)value;
        return 0;
}

int setting_parse_addressing(void *field, const char *text, char why[SETTING_WHY])
{
        return set_enum(field, setting_find_word(addressings, text), text, "auto, path or virtual", why);
}

/* A limit as one would write it: the largest unit that divides it. */
static const char *written(const struct setting *setting, uint64_t value, char out[24])
{
        static const struct {
                enum setting_kind kind;
                uint64_t factor;
                const char *unit;
        } units[] = {
                {SETTING_SIZE, GiB << 10, "TiB"}, {SETTING_SIZE, GiB, "GiB"},
                {SETTING_SIZE, MiB, "MiB"},       {SETTING_DURATION, HOUR, "h"},
                {SETTING_DURATION, SECOND, "s"},  {SETTING_DURATION, SECOND / 1000, "ms"},
        };
        for (size_t i = 0; i < ARRAY_SIZE(units); i++)
                if (units[i].kind == setting->kind && value > 0 && value % units[i].factor == 0) {
                        snprintf(out, 24, "%" PRIu64 "%s", value / units[i].factor, units[i].unit);
                        return out;
                }
        snprintf(out, 24, "%" PRIu64, value);
        return out;
}

static int parse_number(const struct setting *setting, const char *text, uint64_t *value, char why[SETTING_WHY])
{
        switch (setting->kind) {
        case SETTING_SIZE:
                if (config_parse_size(text, value) < 0)
                        return setting_wrong(why, "'%.40s' is not a size (bytes, or with KiB, MiB, GiB, TiB)", text);
                break;
        case SETTING_DURATION:
                if (config_parse_duration(text, value) < 0)
                        return setting_wrong(why, "'%.40s' is not a duration (with ms, s, m or h)", text);
                break;
        default:
                if (config_parse_size(text, value) < 0 || strspn(text, "0123456789") != strlen(text))
                        return setting_wrong(why, "'%.40s' is not a number", text);
        }

        char from[24], to[24];
        if (*value < setting->min || *value > setting->max)
                return setting_wrong(why, "%.40s is not within %s to %s", text, written(setting, setting->min, from),
                                     written(setting, setting->max, to));
        if (*value % setting->multiple != 0)
                return setting_wrong(why, "%.40s is not a multiple of %s", text,
                                     written(setting, setting->multiple, from));
        return 0;
}

_Static_assert(ARRAY_SIZE(settings) <= CONFIG_SETTINGS_MAX, "each has an origin");

static int set_field(const struct setting *setting, struct config *config, const char *text, char why[SETTING_WHY])
{
        void *field = (char *)config + setting->offset;
        struct listen_address address;
        uint64_t value = 0;
        if (text[0] == '\0')
                return is_text(setting) && setting->kind != SETTING_PATH ? setting_copy(field, text, why)
                                                                         : setting_wrong(why, "has no value");

        switch (setting->kind) {
        case SETTING_PATH:
                if (text[0] == '/' && strlen(text) >= sizeof(((struct sockaddr_un *)0)->sun_path))
                        return setting_wrong(why, "longer than a socket's path may be (107 bytes)");
                /* fall through */
        case SETTING_FOLDER:
                if (text[0] != '/')
                        return setting_wrong(why, "'%.80s' is not an absolute path", text);
                return setting_copy(field, text, why);
        case SETTING_FILE:
                return setting_copy(field, text, why);
        case SETTING_LISTEN:
                return listen_parse(text, &address, why) < 0 ? -1 : setting_copy(field, text, why);
        case SETTING_BOOL:
                return setting_parse_bool(field, text, why);
        case SETTING_ADDRESSING:
                return setting_parse_addressing(field, text, why);
        case SETTING_LEVEL:
                return set_enum(field, log_level_parse(text), text, "error, warn, info or debug", why);
        case SETTING_LOG_FORMAT:
                return set_enum(field, log_format_parse(text), text, "auto, plain, prefix, journal or json", why);
        default:
                if (parse_number(setting, text, &value, why) < 0)
                        return -1;
                set_number(setting, config, value);
                return 0;
        }
}

int setting_set(const struct setting *setting, struct config *config, const char *text, char why[SETTING_WHY])
{
        int r = set_field(setting, config, text, why);
        if (r == 0)
                config->origins[setting - settings] = (unsigned char)config->origin;
        return r;
}

char *setting_text(const struct setting *setting, const struct config *config)
{
        char number[24];
        if (is_text(setting))
                return strdup(*text_of(setting, config) ?: "");
        uint64_t value = get_number(setting, config);
        switch (setting->kind) {
        case SETTING_BOOL:
                return strdup(value ? "true" : "false");
        case SETTING_LEVEL:
                return strdup(log_levels[value]);
        case SETTING_ADDRESSING:
                return strdup(addressings[value]);
        case SETTING_LOG_FORMAT:
                return strdup(log_formats[value]);
        default:
                return strdup(written(setting, value, number));
        }
}

bool setting_equal(const struct setting *setting, const struct config *a, const struct config *b)
{
        return is_text(setting) ? same_text(*text_of(setting, a), *text_of(setting, b))
                                : get_number(setting, a) == get_number(setting, b);
}

void settings_init(struct config *config)
{
        for (size_t i = 0; i < n_settings; i++)
                if (!is_text(&settings[i]))
                        set_number(&settings[i], config, settings[i].initial);
}

void settings_deinit(struct config *config)
{
        for (size_t i = 0; i < n_settings; i++)
                if (is_text(&settings[i]))
                        secret_free(*text_of(&settings[i], config));
}

/* ---- roots ---- */

int setting_add_root(struct config *config, const char *path, char why[SETTING_WHY])
{
        if (path[0] != '/')
                return setting_wrong(why, "'%.80s' is not an absolute path", path);
        config->roots_origin = config->origin;
        return setting_append(&config->roots, &config->n_roots, SETTING_LIST_MAX, "roots", path, why);
}
