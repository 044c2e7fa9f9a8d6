/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings from four places, each overriding the one before: defaults, file, environment, flags. The command line is
 * parsed twice: first for its grammar and for what decides the rest (--config, --help), and at the end for its values.
 *
 * A wrong value anywhere refuses the whole configuration, with its place.
 */
#include "daemon/config/config.h"

#include "daemon/config/setting.h"

#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <strings.h>

#define FILE_MAX MiB
#define ENV_MEMORY_LIMIT "RUNAI_STREAMER_MEMORY_LIMIT"

void config_init(struct config *config)
{
        *config = (struct config){0};
        for (size_t i = 0; i < n_settings; i++)
                setting_init(&settings[i], config);
}

void config_deinit(struct config *config)
{
        roles_deinit(&config->access);
        for (size_t i = 0; i < n_settings; i++)
                setting_deinit(&settings[i], config);
        *config = (struct config){0};
}

/* ---- the environment ---- */

/* Variables have 0 and 1 instead of words, and milliseconds without their unit. */
static const char *as_word(const struct setting *setting, const char *value, char buffer[32])
{
        bool yes = strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0;
        bool no = strcmp(value, "0") == 0 || strcasecmp(value, "false") == 0;
        if (setting->words == setting_bool_words && (yes || no))
                return yes ? "true" : "false";
        if (setting->words == setting_addressing_words && (yes || no))
                return yes ? "virtual" : "path";
        if (setting->kind == SETTING_DURATION && strlen(value) < 20 && strspn(value, "0123456789") == strlen(value)) {
                snprintf(buffer, 32, "%sms", value);
                return buffer;
        }
        return value;
}

static int apply_environment(struct config *config, struct error *error)
{
        for (size_t i = 0; i < n_settings; i++) {
                char why[SETTING_WHY], buffer[32];
                const struct setting *setting = &settings[i];
                /* An empty variable counts as unset, as shells and unit files write it. */
                const char *name = setting->env, *value = name != NULL ? filled(getenv(name)) : NULL;
                if (value == NULL && setting->env_old != NULL)
                        value = filled(getenv(name = setting->env_old));
                if (value != NULL && strcmp(name, ENV_MEMORY_LIMIT) == 0 &&
                    (strcmp(value, "-1") == 0 || strcmp(value, "0") == 0)) {
                        format_append(config->notes, sizeof(config->notes),
                                      ENV_MEMORY_LIMIT "=%s: the staging ring has its default size\n", value);
                        value = "0";
                }
                if (value != NULL &&
                    setting_set(setting, config, CONFIG_ENVIRONMENT, as_word(setting, value, buffer), why) < 0)
                        return error_set(error, STREAMER_EINVAL, "%s: %s", name, why);
        }
        return 0;
}

static int read_file(struct config *config, const char *path, struct error *error)
{
        cleanup_with(text_deinit) struct text text = {0};
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return error_errno(error, STREAMER_EINVAL, errno, "%s", path);
        config->path = path;
        return text_read_fd(&text, fd, FILE_MAX, path, error)
                       ?: config_parse_yaml(config, path, text.data, text.size, error);
}

/* ---- the whole ---- */

static void resolve_budgets(struct config *config)
{
        uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        for (size_t i = 0; i < config->n_devices; i++) {
                struct config_device *device = &config->devices[i];
                if (strcmp(device->name, "host") != 0)
                        continue;
                if (device->budget_percent != 0)
                        device->budget = memory / 100 * device->budget_percent;
                if (device->budget > memory)
                        format_append(config->notes, sizeof(config->notes),
                                      "host: the budget of %" PRIu64
                                      " bytes is more than this machine's memory of %" PRIu64 "\n",
                                      device->budget, memory);
        }
}

static int check_whole(struct config *config, struct error *error)
{
        const char *from = config->path != NULL ? config->path : CONFIG_DEFAULT_PATH;
        if (config->n_devices == 0)
                return error_set(error, STREAMER_EINVAL,
                                 "no device: give --device host=8GiB, or 'devices' in %s (see --help)", from);
        if (config->n_roots == 0)
                return error_set(error, STREAMER_EINVAL, "no root: give --root DIR, or 'roots' in %s (see --help)",
                                 from);
        if (config->io.memory_limit != 0 && config->io.memory_limit < config->io.block_size)
                return error_set(error, STREAMER_EINVAL,
                                 "memory limit: %" PRIu64 " bytes are less than one block of %" PRIu64,
                                 config->io.memory_limit, config->io.block_size);
        if (config->socket == NULL && (config->socket = strdup(CONFIG_DEFAULT_SOCKET)) == NULL)
                return error_no_memory(error);
        return access_check_roots(config, error);
}

static int load_all(struct config *config, struct flags_first *first, int argc, char **argv, struct error *error)
{
        /* The default file may be absent; one that cannot be read is an error. */
        bool absent = first->config == NULL && access(CONFIG_DEFAULT_PATH, F_OK) < 0 && errno == ENOENT;
        int r = absent ? 0 : read_file(config, first->config ?: CONFIG_DEFAULT_PATH, error);
        r = r ?: apply_environment(config, error) ?: flags_read(first, config, argc, argv, error)
                ?: check_whole(config, error);
        if (r == 0)
                resolve_budgets(config);
        return r;
}

int config_load(struct config *config, int argc, char **argv, struct error *error)
{
        struct flags_first first;
        config_init(config);
        if (flags_complete(argc, argv))
                return CONFIG_PRINTED;
        int r = flags_read(&first, NULL, argc, argv, error);
        if (r < 0)
                return r;
        if (first.help != NULL) {
                cleanup_free char *text = config_usage();
                return text != NULL && fputs(text, stdout) >= 0 ? CONFIG_PRINTED : error_no_memory(error);
        }
        if (first.version != NULL) {
                puts("streamerd " STREAMERD_VERSION);
                return CONFIG_PRINTED;
        }
        r = load_all(config, &first, argc, argv, error);
        if (r < 0) {
                config_deinit(config);
                return r;
        }
        if (first.check == NULL)
                return 0;
        printf("%sstreamerd: the settings are valid (%s)\n", config->notes, config->path ?: "no file");
        return CONFIG_PRINTED;
}
