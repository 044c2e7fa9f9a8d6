/* SPDX-License-Identifier: Apache-2.0
 *
 * The verb `config` has a row for each key, and for each entry of a list.
 */
#include "daemon/config/reload.h"

#include "daemon/base/log/log.h"
#include "daemon/base/sys/systemd.h"
#include "daemon/base/util.h"
#include "daemon/config/setting.h"
#include "daemon/serve/monitor/monitor.h"
#include "daemon/serve/verbs/verbs.h"

#include <inttypes.h>

/* ---- what cannot be applied ---- */

static bool is_applied(const struct setting *setting)
{
        const char *key = setting->key ?: "";
        return strncmp(key, "limits.", strlen("limits.")) == 0 || strcmp(key, "log.level") == 0 ||
               strncmp(key, "encryption.", strlen("encryption.")) == 0 || strcmp(key, "disk_cache.budget") == 0 ||
               strcmp(key, "disk_cache.min_free") == 0 || strcmp(key, "disk_cache.offline") == 0 ||
               setting->list == &list_rules || setting->list == &list_preload || setting->list == &list_roots;
}

/* The environment stays as it was at the start, and a value from it may have been fitted to the machine. */
static bool is_fixed(size_t i, const struct config *running, const struct config *next)
{
        return running->origins[i] == CONFIG_ENVIRONMENT && next->origins[i] == CONFIG_ENVIRONMENT;
}

void reload_restart_keys(const struct config *running, const struct config *next, char *text, size_t size)
{
        text[0] = '\0';
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].key != NULL && !is_applied(&settings[i]) && !is_fixed(i, running, next) &&
                    !setting_equal(&settings[i], running, next))
                        format_append(text, size, "%s%s", text[0] != '\0' ? ", " : "", settings[i].key);
}

/* ---- the effective settings ---- */

/* `from`: the flag, the variable or the file; "" for a default. */
static void put_row(const struct config *config, struct items *rows, const struct setting *setting, const char *value)
{
        static const char *const origins[] = {[CONFIG_DEFAULT] = "default",
                                              [CONFIG_FILE] = "file",
                                              [CONFIG_ENVIRONMENT] = "environment",
                                              [CONFIG_FLAG] = "flag"};
        enum config_origin origin = config->origins[setting - settings];
        char name[64] = "";
        const char *from = name;
        if (origin == CONFIG_FILE)
                from = config->path ?: "";
        else if (origin == CONFIG_ENVIRONMENT)
                from = config_variable(config, setting->key) ?: "";
        else if (origin == CONFIG_FLAG)
                snprintf(name, sizeof(name), "--%s", setting->flag ?: SETTING_DISK_CACHE_FLAG);
        items_add(rows, kstr("key", setting->key), kstr("value", value), kstr("origin", origins[origin]),
                  kstr("from", from));
}

/* "host=90%", as on the command line. */
static void device_text(const struct config_device *device, char *text, size_t size)
{
        char budget[SETTING_NUMBER_TEXT];
        const char *mark = device->optional ? "?" : "";
        if (device->budget_percent != 0)
                snprintf(text, size, "%.200s%s=%u%%", device->name, mark, device->budget_percent);
        else
                snprintf(text, size, "%.200s%s=%s", device->name, mark, config_size_text(device->budget, budget));
}

/* A row for each entry. */
static void put_list(const struct config *config, struct items *rows, const struct setting *setting)
{
        size_t n = setting_list_n(setting, config);
        for (size_t i = 0; i < n; i++) {
                char text[SETTING_ENTRY_TEXT];
                if (setting->list == &list_devices)
                        device_text(&config->devices[i], text, sizeof(text));
                else
                        setting_entry_text(setting, config, i, text);
                put_row(config, rows, setting, text);
        }
        if (n == 0)
                put_row(config, rows, setting, "[]");
}

static void put_value(const struct config *config, struct items *rows, const struct setting *setting)
{
        cleanup_free char *value = setting_shown(setting, config);
        if (value != NULL)
                put_row(config, rows, setting, value);
}

static void describe(const struct reload *r, struct items *rows)
{
        for (size_t i = 0; i < n_settings; i++) {
                if (settings[i].kind == SETTING_LIST)
                        put_list(r->config, rows, &settings[i]);
                else if (settings[i].key != NULL)
                        put_value(r->config, rows, &settings[i]);
        }
}

/* ---- applying ---- */

int reload_apply(struct reload *r, struct error *error)
{
        const struct limits *l = &r->config->limits;
        struct server *server = r->server;
        server->loads->max_running = (unsigned)l->loads;
        server->resident->failed_kept = l->failed_kept;
        server->resident->admission->max_blocked = l->queued;
        server->decrypted_across_uids = r->config->encryption.across_uids;
        const struct disk_limits disk = config_disk_limits(r->config);
        if (r->sources->disk != NULL) {
                disk_cache_configure(r->sources->disk, &disk);
                disk_writer_trim(server->loads->disk_writer);
        }
        return desired_configure(&server->desired, r->config->preload, r->config->n_preload, error);
}

void reload_set_keyring(struct loads *loads, struct keyring *keyring)
{
        keyring_free(loads->keyring);
        loads->keyring = keyring;
        if (keyring->n_keys > 0)
                keyring_protect_process();
}

static void apply(struct reload *r)
{
        char restart[1024];
        struct error error;
        const struct config before = *r->config;
        reload_restart_keys(r->config, &r->next, restart, sizeof(restart));
        for (size_t i = 0; i < n_settings; i++)
                if (is_applied(&settings[i]))
                        r->config->origins[i] = r->next.origins[i];
        r->config->limits = r->next.limits;
        r->config->log.level = r->next.log.level;
        r->config->access = r->next.access;
        r->config->disk_cache.budget = r->next.disk_cache.budget;
        r->config->disk_cache.min_free = r->next.disk_cache.min_free;
        r->config->disk_cache.offline = r->next.disk_cache.offline;
        r->config->encryption = r->next.encryption;
        r->next.encryption = before.encryption;
        reload_set_keyring(r->server->loads, r->keyring);
        r->keyring = NULL;
        r->config->preload = r->next.preload;
        r->config->n_preload = r->next.n_preload;
        r->config->roots = r->next.roots;
        r->config->n_roots = r->next.n_roots;
        r->next.roots = before.roots;
        r->next.n_roots = before.n_roots;
        r->next.access = before.access;
        r->next.preload = before.preload;
        r->next.n_preload = before.n_preload;
        require(r->roots != NULL);
        source_roots_free(r->sources->roots);
        r->sources->roots = r->roots;
        r->roots = NULL;
        log_set_level(r->config->log.level);
        if (reload_apply(r, &error) < 0)
                log_error("reload: %s", error.text);
        if (restart[0] != '\0')
                log_warn("reload: applied, but for what needs a restart: %s", restart);
        else
                log_info("reload: applied");
        verbs_reloaded(r->server, NULL, restart);
}

static void start(struct reload *reload);

static void read_run(struct work *work)
{
        struct reload *r = container_of(work, struct reload, work);
        const struct config *next = &r->next;
        if (config_load(&r->next, r->argc, r->argv, &r->error) == 0 &&
            source_roots_new(&r->roots, (const char *const *)next->roots, next->n_roots, &r->error) == 0 &&
            roles_open(&r->next.access, r->roots, &r->error) == 0)
                config_keyring(&r->next, &r->keyring, &r->error);
}

static void drop_next(struct reload *r)
{
        config_deinit(&r->next);
        r->roots = source_roots_free(r->roots);
        r->keyring = keyring_free(r->keyring);
}

static void read_done(struct work *work)
{
        struct reload *r = container_of(work, struct reload, work);
        if (r->server->closing || r->again) {
                drop_next(r);
                if (!r->server->closing)
                        start(r);
                return;
        }
        if (r->error.code != 0) {
                log_error("reload: refused, the settings stay as they are: %s", r->error.text);
                verbs_reloaded(r->server, &r->error, "");
        } else {
                apply(r);
        }
        drop_next(r);
        r->running = false;
        manager_notify_ready(r->server);
}

static void start(struct reload *r)
{
        r->running = true;
        r->again = false;
        r->error = (struct error){0};
        work_submit(r->server->loads->pool, WORK_LANE_CPU, &r->work, read_run, read_done);
}

void reload_begin(struct reload *r)
{
        if (r->server->closing)
                return;
        if (r->running) {
                r->again = true; /* the file may have changed since it was read */
                return;
        }
        log_info("reload: reading the settings (%s)", r->config->path != NULL ? r->config->path : "no file");
        notify_reloading();
        start(r);
}

void reload_init(struct reload *r, struct server *server, struct config *config, struct sources *sources, int argc,
                 char **argv)
{
        *r = (struct reload){.server = server, .config = config, .sources = sources, .argc = argc, .argv = argv};
        server->reload = r;
        server->reload_begin = reload_begin;
        server->describe_config = describe;
}
