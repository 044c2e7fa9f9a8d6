/* SPDX-License-Identifier: Apache-2.0
 *
 * A configuration file of any bytes: an accepted one respects the limits of the table, a refused one has an error, and
 * neither leaks.
 */
#include "daemon/config/config.h"
#include "daemon/config/setting.h"
#include "tests/fuzz/fuzz.h"

static void check_setting(const struct setting *setting, const struct config *config)
{
        const void *field = (const char *)config + setting->offset;
        uint64_t value = 0, words = 0;
        if (setting->kind == SETTING_TEXT || setting->kind == SETTING_LIST || setting->kind == SETTING_ACTION ||
            setting->kind == SETTING_OWN)
                return;
        holds(setting->size <= sizeof(value));
        memcpy(&value, field, setting->size); /* little-endian */
        while (setting->kind == SETTING_WORD && setting->words[words] != NULL)
                words++;
        if (setting->kind == SETTING_WORD)
                holds(value < words);
        else
                holds(value >= setting->min && value <= setting->max &&
                      (setting->multiple == 0 || value % setting->multiple == 0));
}

static void check_accepted(const struct config *config)
{
        for (size_t i = 0; i < n_settings; i++)
                check_setting(&settings[i], config);
        holds(config->socket == NULL || config->socket[0] == '/');
        holds(config->n_roots <= SETTING_LIST_MAX && config->n_devices <= SETTING_LIST_MAX);
        holds(config->disk_cache.min_free.percent < 100);
        holds(config->disk_cache.min_free.bytes == 0 || config->disk_cache.min_free.percent == 0);
        holds(config->n_s3_sources <= SETTING_LIST_MAX);
        for (size_t i = 0; i < config->n_s3_sources; i++)
                holds(strncmp(config->s3_sources[i].source, "s3://", 5) == 0);
        for (size_t i = 0; i < config->n_roots; i++)
                holds(config->roots[i][0] == '/');
        for (size_t i = 0; i < config->n_devices; i++) {
                const struct config_device *device = &config->devices[i];
                holds(strcmp(device->name, "host") == 0 || strncmp(device->name, "cuda:", 5) == 0);
                holds((device->budget == 0) != (device->budget_percent == 0));
                holds(device->budget_percent <= 100);
        }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct config config;
        struct error error = {0};
        config_init(&config);
        if (config_parse_yaml(&config, "fuzz.yaml", (const char *)data, size, &error) == 0)
                check_accepted(&config);
        else
                holds(error.code < 0 && strncmp(error.text, "fuzz.yaml:", strlen("fuzz.yaml:")) == 0);
        config_deinit(&config);
        return 0;
}
