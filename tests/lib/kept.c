/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/kept.h"

#include "tests/lib/suite.h"

#include <string.h>
#include <sys/stat.h>

struct kept_stage kept;

const char *kept_file(void)
{
        return suite_path("root/m.safetensors");
}

void kept_begin_sized(size_t max)
{
        mkdir(suite_path("root"), 0755);
        kept.model = model_mixed(70, 4 << 20);
        model_write(kept.model, kept_file());
        manager_init(&kept.m, suite_path("d"), max,
                     (const char *const[]){"--device", "host=64MiB", "--root", suite_path("root"), NULL});
        manager_start(&kept.m);
        kept.client = client_open(&kept.m.d);
}

void kept_begin(void)
{
        kept_begin_sized(KEPT_STORE);
}

void kept_end(void)
{
        streamer_close(kept.client);
        manager_deinit(&kept.m);
}

void kept_load(const char *name)
{
        client_load(kept.client, kept_file(), name);
        manager_wait(&kept.m, KEPT_MODELS, 2);
}

streamer_lease *kept_attach(void)
{
        streamer_lease *lease = client_attach(kept.client, "m");
        manager_wait(&kept.m, KEPT_PROCESSES, 1);
        return lease;
}

void kept_restart(int crash)
{
        if (crash)
                manager_kill(&kept.m);
        else
                manager_stop(&kept.m);
        manager_start(&kept.m);
}

void kept_reconnect(void)
{
        streamer_close(kept.client);
        kept.client = client_open(&kept.m.d);
}

void kept_restart_and_reconnect(int crash)
{
        kept_restart(crash);
        kept_reconnect();
}

bool kept_log_says(const char *text)
{
        return log_will_say(kept.m.d.log, text);
}

struct stored *kept_segment(void)
{
        return manager_find(&kept.m, KEPT_MODELS "1.0", 0);
}

struct stored *kept_record(void)
{
        return manager_find(&kept.m, KEPT_MODELS "1.r", 0);
}
