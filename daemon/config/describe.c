/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/reload.h"

#include "daemon/base/text/secret.h"
#include "daemon/base/util.h"
#include "daemon/config/settings/setting.h"

#include <inttypes.h>
#include <stdlib.h>

#define OLD_CHUNK "RUNAI_STREAMER_BLOCK_BYTESIZE" /* the older name of io.block_size's variable */

static const char *const origins[] = {[CONFIG_DEFAULT] = "default",
                                      [CONFIG_FILE] = "file",
                                      [CONFIG_ENVIRONMENT] = "environment",
                                      [CONFIG_FLAG] = "flag"};

struct rows {
        const struct config *config;
        struct writer *writer;
        size_t n;
};

/* `from`: the flag, the variable or the file; "" for a default. */
static void put(struct rows *rows, enum config_origin origin, const char *key, const char *value, const char *flag,
                const char *variable)
{
        const struct config *config = rows->config;
        char name[64] = "";
        const char *from = name;
        if (origin == CONFIG_FILE)
                from = config->path != NULL ? config->path : "";
        else if (origin == CONFIG_ENVIRONMENT)
                from = variable != NULL && getenv(variable) != NULL ? variable : OLD_CHUNK;
        else if (origin == CONFIG_FLAG)
                snprintf(name, sizeof(name), "--%s", flag);
        rows->n++;
        writer_map(rows->writer, 4);
        writer_kstr(rows->writer, "key", key);
        writer_kstr(rows->writer, "value", value);
        writer_kstr(rows->writer, "origin", origins[origin]);
        writer_kstr(rows->writer, "from", from);
}

static void put_count(struct rows *rows, const char *key, size_t n)
{
        char text[32];
        snprintf(text, sizeof(text), "%zu", n);
        put(rows, n > 0 ? CONFIG_FILE : CONFIG_DEFAULT, key, text, NULL, NULL);
}

size_t config_describe(const struct config *config, struct writer *writer)
{
        static const char *const secrets[] = {"s3.access_key", "s3.secret_key", "s3.session_token", "hf.token", NULL};
        struct rows rows = {.config = config, .writer = writer};
        char text[256];
        for (size_t i = 0; i < config->n_roots; i++)
                put(&rows, config->roots_origin, "roots", config->roots[i], "root", NULL);
        for (size_t i = 0; i < config->n_devices; i++) {
                const struct config_device *device = &config->devices[i];
                const char *mark = device->optional ? "?" : "";
                if (device->budget_percent != 0)
                        snprintf(text, sizeof(text), "%.200s%s=%u%%", device->name, mark, device->budget_percent);
                else
                        snprintf(text, sizeof(text), "%.200s%s=%" PRIu64, device->name, mark, device->budget);
                put(&rows, config->devices_origin, "devices", text, "device", NULL);
        }
        for (size_t i = 0; i < n_settings; i++) {
                const struct setting *setting = &settings[i];
                cleanup_free char *value = setting_text(setting, config);
                cleanup_free char *redacted = value != NULL ? redact_source_new(value) : NULL;
                if (redacted == NULL)
                        continue;
                /* The name of a secret's location is none. */
                bool is_secret = setting_find_word(secrets, setting->key) >= 0 && filled(value) != NULL &&
                                 !secret_is_reference(value);
                put(&rows, config->origins[i], setting->key, is_secret ? "(redacted)" : redacted, setting->flag,
                    setting->env);
        }
        put_count(&rows, "access.roles", config->access.n);
        put_count(&rows, "preload", config->preload.n);
        put_count(&rows, "http.allow_plain", config->http.n_allow_plain);
        put_count(&rows, "http.hosts", config->http.n_hosts);
        put_count(&rows, "s3.sources", config->n_s3_sources);
        return rows.n;
}
