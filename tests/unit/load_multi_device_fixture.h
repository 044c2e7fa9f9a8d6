/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of loads for several devices.
 */
#ifndef TESTS_UNIT_LOAD_MULTI_DEVICE_FIXTURE_H
#define TESTS_UNIT_LOAD_MULTI_DEVICE_FIXTURE_H

#include "tests/lib/load_fixture.h"

#include "daemon/base/util.h"
#include "daemon/resident/model_set.h"
#include "tests/lib/kernel_counters.h"

/* ---- loads of several devices ---- */

static void start_on(struct watched *w, const char *source, const char *const *names, size_t n, const char *pattern)
{
        int r = load_request(w, &(struct load_request){.source = source,
                                                       .name = "m",
                                                       .devices = names,
                                                       .n_devices = n,
                                                       .pattern = pattern,
                                                       .caller = &core_caller});
        ck_assert_msg(r == 0, "%s", w->error.text);
}

#define ON(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

/* The outcome of a load, kept after its end. */
static struct generation *on(const char *device, enum generation_state state)
{
        return resident_on(&resident, "m", state, resident_device(&resident, device, NULL));
}

static void serves_on(const char *device, uint64_t seed)
{
        struct generation *g = on(device, GENERATION_READY);
        ck_assert_msg(g != NULL, "does not serve on %s", device);
        serves_small(g, seed);
}

static void failed_on(const char *device, const char *says)
{
        struct generation *g = on(device, GENERATION_FAILED);
        ck_assert_msg(g != NULL, "has not failed on %s", device);
        ck_assert_msg(strstr(g->error.text, says) != NULL, "%s", g->error.text);
        ck_assert_ptr_null(on(device, GENERATION_READY));
}

static void ends(struct watched *w, enum load_state state)
{
        core_until(w->ended);
        ck_assert_msg(w->state == state, "%s: %s", load_state_name(w->state), w->error.text);
}

#endif
