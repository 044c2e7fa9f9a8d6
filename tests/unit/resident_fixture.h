/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of resident models: one device, and generations as a load creates them.
 */
#ifndef TESTS_UNIT_RESIDENT_FIXTURE_H
#define TESTS_UNIT_RESIDENT_FIXTURE_H

#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/resident/model.h"

#define BUDGET (64 * MiB)

static struct fake_device fake;
static struct device *devices[2];
static struct resident resident;
static unsigned changes;

static void on_changed(struct resident *r, struct generation *generation, const char *removed)
{
        (void)removed;
        ck_assert_ptr_eq(r, &resident);
        ck_assert_ptr_nonnull(generation);
        changes++;
}

static void begin(void)
{
        fake_device_init(&fake, "fake", BUDGET, false);
        devices[0] = &fake.device;
        resident_init(&resident, core_wake, devices, 1, 2);
        resident.changed = on_changed;
}

/* Removes a name of any generation; false if none has one. */
static bool drop_one_name(void)
{
        list_each (pos, &resident.generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (list_empty(&g->names))
                        continue;
                char *name = format_text("%s", generation_name(g));
                generation_drop_name(g, name);
                free(name);
                return true;
        }
        return false;
}

/* Frees what a test left, as the daemon would. */
static void end(void)
{
        while (drop_one_name())
                ;
        core_until(resident_empty(&resident));
        ck_assert_uint_eq(fake.device.used, 0);
        ck_assert(resident_empty(&resident));
        fake_device_deinit(&fake);
}

/* ---- generations of loads ---- */

static struct generation *loading(const char *name)
{
        struct generation *g = generation_new(&resident, name, "/models/x", &fake.device, 0);
        ck_assert_ptr_nonnull(g);
        generation_assign_number(g);
        return g;
}

/* With its own memory: a segment and tables. */
static struct generation *loading_with(const char *name, uint64_t bytes)
{
        struct error error = {0};
        struct generation *g = loading(name);
        ck_assert_int_eq(generation_charge(g, bytes, &error), 0);
        ck_assert_int_eq(fake.device.ops->alloc(&fake.device, bytes, &g->segments[0], &error), 0);
        g->n_segments = 1;
        g->manifest.size = g->arrival.size = 4096;
        ck_assert_int_eq(host_table_new(&g->manifest, "m", 4096, &error), 0);
        ck_assert_int_eq(host_table_new(&g->arrival, "a", 4096, &error), 0);
        return g;
}

/* The load is done with it. */
static struct generation *ready(struct generation *g)
{
        generation_ready(g);
        generation_put(g);
        return g;
}

static struct generation *failed(struct generation *g, const char *text)
{
        struct error error;
        error_set(&error, STREAMER_EFAILED, "%s", text);
        generation_fail(g, &error);
        generation_put(g);
        return g;
}

#endif
