/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/config/reload.h"

#include "daemon/base/log/log.h"
#include "daemon/base/sys/systemd.h"
#include "daemon/base/util.h"
#include "daemon/config/settings/setting.h"
#include "daemon/serve/verbs/verbs.h"

#include <string.h>

/* ---- what cannot be applied ---- */

static bool is_applied(const struct setting *setting)
{
        const char *key = setting->key ?: "";
        return strncmp(key, "limits.", strlen("limits.")) == 0 || strcmp(key, "log.level") == 0 ||
               setting->list == &list_rules || setting->list == &list_preload;
}

void reload_restart_keys(const struct config *running, const struct config *next, char *text, size_t size)
{
        text[0] = '\0';
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].key != NULL && !is_applied(&settings[i]) && !setting_equal(&settings[i], running, next))
                        format_append(text, size, "%s%s", text[0] != '\0' ? ", " : "", settings[i].key);
}

/* ---- reading ---- */

static void read_run(struct work *work)
{
        struct reload *r = container_of(work, struct reload, work);
        enum config_action action;
        if (config_load(&r->next, r->argc, r->argv, &action, r->notes, sizeof(r->notes), &r->error) < 0) {
                r->next = (struct config){0};
                return;
        }
        roles_open(&r->next.access, &r->error);
}

/* ---- applying ---- */

#define SWAP(a, b)                                                                                                     \
        do {                                                                                                           \
                __typeof__(a) swap_ = (a);                                                                             \
                (a) = (b);                                                                                             \
                (b) = swap_;                                                                                           \
        } while (0)

static void apply(struct reload *r)
{
        char restart[1024];
        reload_restart_keys(r->config, &r->next, restart, sizeof(restart));
        for (size_t i = 0; i < n_settings; i++)
                if (is_applied(&settings[i]))
                        r->config->origins[i] = r->next.origins[i];
        r->config->limits = r->next.limits;
        r->config->log.level = r->next.log.level;
        SWAP(r->config->access, r->next.access);
        SWAP(r->config->preload, r->next.preload);
        r->apply(r);
        if (restart[0] != '\0')
                log_warn("reload: applied, but for what needs a restart: %s", restart);
        else
                log_info("reload: applied");
        verbs_reloaded(r->server, NULL, restart);
}

static void start(struct reload *reload);

static void read_done(struct work *work)
{
        struct reload *r = container_of(work, struct reload, work);
        if (r->server->closing || r->again) {
                config_deinit(&r->next);
                r->running = false;
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
        config_deinit(&r->next);
        r->running = false;
        manager_notify_ready(r->manager);
        if (r->again) /* another reload was requested meanwhile */
                reload_begin(r);
}

static void start(struct reload *r)
{
        r->running = true;
        r->again = false;
        r->error = (struct error){0};
        work_submit(r->server->pool, WORK_LANE_CPU, &r->work, read_run, read_done);
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

static void on_asked(struct server *server)
{
        reload_begin(server->reload_context);
}

static size_t on_describe(const struct server *server, struct writer *rows)
{
        return config_describe(((const struct reload *)server->reload_context)->config, rows);
}

void reload_init(struct reload *r, struct server *server, struct manager *manager, struct config *config, int argc,
                 char **argv, void (*apply_fn)(struct reload *))
{
        *r = (struct reload){
                .server = server, .manager = manager, .config = config, .argc = argc, .argv = argv, .apply = apply_fn};
        server->reload = on_asked;
        server->reload_context = r;
        server->describe_config = on_describe;
}
