/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/managed_daemon.h"

#include "tests/lib/suite.h"

struct managed_daemon managed;

const char *managed_file(void)
{
        return suite_path("root/m.safetensors");
}

void managed_begin_sized(size_t max)
{
        mkdir(suite_path("root"), 0755);
        managed.model = model_mixed(70, 4 << 20);
        model_write(managed.model, managed_file());
        manager_init(&managed.m, suite_path("d"), max,
                     (const char *const[]){"--device", "host=64MiB", "--root", suite_path("root"), NULL});
        manager_start(&managed.m);
        client = client_open(&managed.m.d);
}

void managed_begin(void)
{
        managed_begin_sized(MANAGED_STORE);
}

void managed_end(void)
{
        streamer_close(client);
        manager_deinit(&managed.m);
}

void managed_load(const char *name)
{
        client_load(client, managed_file(), name);
        manager_wait(&managed.m, MANAGED_MODELS, 2);
}

streamer_lease *managed_attach(void)
{
        streamer_lease *lease = client_attach(client, "m");
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        return lease;
}

void managed_restart(int crash)
{
        if (crash)
                manager_kill(&managed.m);
        else
                manager_stop(&managed.m);
        manager_start(&managed.m);
}

void managed_reconnect(void)
{
        streamer_close(client);
        client = client_open(&managed.m.d);
}

void managed_restart_and_reconnect(int crash)
{
        managed_restart(crash);
        managed_reconnect();
}

struct stored *managed_segment(void)
{
        return manager_find(&managed.m, MANAGED_MODELS "1.0", 0);
}

struct stored *managed_record(void)
{
        return manager_find(&managed.m, MANAGED_MODELS "1.r", 0);
}
