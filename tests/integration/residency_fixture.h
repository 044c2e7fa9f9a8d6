/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the residency tests: a small daemon and models that fill it.
 */
#ifndef TESTS_INTEGRATION_RESIDENCY_FIXTURE_H
#define TESTS_INTEGRATION_RESIDENCY_FIXTURE_H

#include "tests/lib/streamerctl.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#define SIZE (UINT64_C(8) << 20)

static uint64_t empty; /* of the device, with the witness alone */

/* The witness takes part of the first 8 MiB. */
static void begin(void)
{
        fixture_begin((const char *const[]){"--device", "host=36MiB", NULL});
        streamer_client *c = client_open(&test_daemon);
        client_ok(c, streamer_pin(c, "witness", 1), "pin");
        streamer_close(c);
}

static void connect_client(void)
{
        client = client_open(&test_daemon);
        empty = client_used(client);
}

static void unload_all(void)
{
        static const char *const names[] = {"a", "b", "c", "d", "e"};
        for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
                streamer_unload(client, names[i], STREAMER_UNLOAD_DRAIN);
}

static void end_test(void)
{
        unload_all();
        client_wait_used(client, empty);
        fixture_disconnect();
}

/* The file of a model; the same each time. */
static struct model *model_of(const char *name, const char **path)
{
        struct model *m = model_mixed((uint64_t)name[0], SIZE);
        *path = fixture_write(m, format_text("%s.safetensors", name));
        return m;
}

static struct model *load(const char *name)
{
        const char *path;
        struct model *m = model_of(name, &path);
        client_load(client, path, name);
        return m;
}

static bool is_resident(const char *name)
{
        return strcmp(client_state(client, name), "ready") == 0;
}

#endif
