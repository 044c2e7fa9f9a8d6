/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of loads that wait for memory: devices that another user has filled.
 */
#ifndef TESTS_UNIT_LOAD_WAITS_FIXTURE_H
#define TESTS_UNIT_LOAD_WAITS_FIXTURE_H

#include "tests/lib/load_fixture.h"

#include "daemon/base/util.h"

#define ONE others[0]
#define TWO others[1]
#define ON(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

/* The same for the fields of a request. */
#define ON_FIELDS(...)                                                                                                 \
        .devices = (const char *const[]){__VA_ARGS__},                                                                 \
        .n_devices = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

static uint64_t reserved[OTHERS];

/* Reserves all but `bytes` of a device for another user. */
static void reserve_all_but(unsigned i, uint64_t bytes)
{
        reserved[i] = BUDGET - bytes;
        others[i].device.used += reserved[i];
}

static void release_reserved(unsigned i)
{
        others[i].device.used -= reserved[i];
        reserved[i] = 0;
        admission_recheck(resident.admission);
}

static void end(void)
{
        for (unsigned i = 0; i < OTHERS; i++)
                release_reserved(i);
        load_fixture_end();
}

static void wait_on(struct watched *w, const char *source, const char *name, const char *const *names, size_t n)
{
        int r = load_request(w, &(struct load_request){.source = source,
                                                       .name = name,
                                                       .devices = names,
                                                       .n_devices = n,
                                                       .wait = true,
                                                       .caller = &core_caller});
        ck_assert_msg(r == 0, "%s", w->error.text);
}

static struct generation *on(const char *name, const char *device, enum generation_state state)
{
        return resident_on(&resident, name, state, resident_device(&resident, device, NULL));
}

static bool is_on(const char *name, const char *device)
{
        return on(name, device, GENERATION_READY) != NULL;
}

static void ends(struct watched *w, enum load_state state)
{
        core_until(w->ended);
        ck_assert_msg(w->state == state, "%s: %s", load_state_name(w->state), w->error.text);
}

static void target_is(const struct watched *w, size_t i, const char *state, bool waits)
{
        uint64_t ns;
        ck_assert_str_eq(load_target_state(&w->load->targets[i], now_ns() + 1, &ns), state);
        ck_assert_int_eq(ns > 0, waits);
}

static void await_blocked(const struct watched *w)
{
        core_until(w->load->state == LOAD_QUEUED && w->load->admission.blocked);
        ck_assert(!w->ended);
}

/* The model "m" serves on "one", and a load for both waits for "two". */
static void begin_waiting(struct watched *w)
{
        char *path = small_file("small.safetensors", 1);
        wait_on(w, path, "m", ON("one"));
        ends(w, LOAD_READY);
        reserve_all_but(1, 0);
        wait_on(w, path, "m", ON("one", "two"));
        await_blocked(w);
}

#endif
