/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/reload.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/config/settings/setting.h"

#include <inttypes.h>
#include <stdlib.h>

struct rows {
        const struct config *config;
        struct writer *writer;
        size_t n;
};

/* `from`: the flag, the variable or the file; "" for a default. */
static void put(struct rows *rows, const struct setting *setting, const char *value)
{
        static const char *const origins[] = {[CONFIG_DEFAULT] = "default",
                                              [CONFIG_FILE] = "file",
                                              [CONFIG_ENVIRONMENT] = "environment",
                                              [CONFIG_FLAG] = "flag"};
        enum config_origin origin = rows->config->origins[setting - settings];
        char name[64] = "";
        const char *from = name;
        if (origin == CONFIG_FILE)
                from = rows->config->path ?: "";
        else if (origin == CONFIG_ENVIRONMENT)
                from = setting->env_old == NULL || filled(getenv(setting->env)) != NULL ? setting->env
                                                                                        : setting->env_old;
        else if (origin == CONFIG_FLAG)
                snprintf(name, sizeof(name), "--%s", setting->flag);
        rows->n++;
        writer_map(rows->writer, 4);
        writer_kstr(rows->writer, "key", setting->key);
        writer_kstr(rows->writer, "value", value);
        writer_kstr(rows->writer, "origin", origins[origin]);
        writer_kstr(rows->writer, "from", from);
}

/* Roots and devices are listed; of other lists, the number. */
static void put_list(struct rows *rows, const struct setting *setting)
{
        const struct config *config = rows->config;
        char text[256];
        for (size_t i = 0; setting->list == &list_roots && i < config->n_roots; i++)
                put(rows, setting, config->roots[i]);
        for (size_t i = 0; setting->list == &list_devices && i < config->n_devices; i++) {
                const struct config_device *device = &config->devices[i];
                const char *mark = device->optional ? "?" : "";
                if (device->budget_percent != 0)
                        snprintf(text, sizeof(text), "%.200s%s=%u%%", device->name, mark, device->budget_percent);
                else
                        snprintf(text, sizeof(text), "%.200s%s=%" PRIu64, device->name, mark, device->budget);
                put(rows, setting, text);
        }
        if (setting->list == &list_roots || setting->list == &list_devices)
                return;
        snprintf(text, sizeof(text), "%zu", setting_list_n(setting, config));
        put(rows, setting, text);
}

static void put_value(struct rows *rows, const struct setting *setting)
{
        cleanup_free char *value = setting_text(setting, rows->config);
        cleanup_free char *redacted = value != NULL ? redact_source_new(value) : NULL;
        if (redacted == NULL)
                return;
        /* The name of a secret's location is none. */
        bool is_secret = setting->secret && filled(value) != NULL && !secret_is_reference(value);
        put(rows, setting, is_secret ? "(redacted)" : redacted);
}

size_t config_describe(const struct config *config, struct writer *writer)
{
        struct rows rows = {.config = config, .writer = writer};
        for (size_t i = 0; i < n_settings; i++) {
                if (settings[i].kind == SETTING_LIST)
                        put_list(&rows, &settings[i]);
                else if (settings[i].key != NULL)
                        put_value(&rows, &settings[i]);
        }
        return rows.n;
}
