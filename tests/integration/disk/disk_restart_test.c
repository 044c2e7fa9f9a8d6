/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a resident model may be stale survives the daemon, as the model does.
 */
#include "tests/integration/disk_fixture.h"
#include "tests/lib/service_manager.h"

static struct model *model;
static struct manager manager;

#define ONE "s3://b/one/model.safetensors"

static void begin(void)
{
        model = model_mixed(93, 4 << 20);
        begin_store_with(model);
        const char *config =
                suite_file(format_text("config-%d.yaml", (int)getpid()),
                           "http: {backoff: 5ms, tries: 2, patience: 0s}\ndisk_cache: {min_free: 1, offline: allow}\n");
        manager_init(&manager, suite_path("managed-%d", (int)getpid()), 64,
                     (const char *const[]){"--device", "host=64MiB", "--root", "/tmp", "--disk-cache",
                                           format_text("%s=64MiB", cache_path()), "--config", config, "--log-level",
                                           "debug", NULL});
        manager_start(&manager);
        client = client_open(&manager.d);
}

static void end(void)
{
        streamer_close(client);
        manager_deinit(&manager);
}

static void restart_managed(bool crash)
{
        streamer_close(client);
        if (crash)
                manager_kill(&manager);
        else
                manager_stop(&manager);
        manager_start(&manager);
        client = client_open(&manager.d);
}

static bool is_stale(void)
{
        return json_is_true(json_object_get(client_show(client, "m"), "stale"));
}

FIXTURE(.each = {begin, end});

/* _i 1: over a crash. */
TEST(a_resident_model_that_may_be_stale_is_so_after_a_restart, .to = 2)
{
        store_behind(ONE, model, 1);
        ck_assert(log_wait_for(manager.d.log, "a source of 1 objects is stored"));
        store_status = 503;
        client_load(client, ONE, "m");
        ck_assert(is_stale());
        manager_wait(&manager, "sd-m", 2);
        for (int runs = 0; runs < 2; runs++) {
                restart_managed(_i);
                ck_assert(is_stale());
        }
        store_status = 0;
        client_load(client, ONE, "m"); /* which is resident */
        ck_assert(!is_stale());
        restart_managed(_i);
        ck_assert(!is_stale());
        store_status = 503;
        client_load(client, ONE, "m");
        ck_assert(is_stale());
        restart_managed(_i);
        ck_assert(is_stale());
        client_equals(client, "m", model);
}
