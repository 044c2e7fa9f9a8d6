/* SPDX-License-Identifier: Apache-2.0
 *
 * The stage of the tests of loads that wait for room: devices that somebody else has filled. Each test is a process of
 * its own, so all of it is static.
 */
#ifndef TESTS_UNIT_LOAD_WAITS_STAGE_H
#define TESTS_UNIT_LOAD_WAITS_STAGE_H

#include "tests/lib/loading.h"

#include "daemon/base/util.h"

#include <string.h>

#define ONE others[0]
#define TWO others[1]
#define ON(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

/* The same for the fields of a request. */
#define ON_FIELDS(...)                                                                                                 \
        .devices = (const char *const[]){__VA_ARGS__},                                                                 \
        .n_devices = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

static uint64_t taken[OTHERS];

/* All but so many bytes of a device are somebody's. */
static void leave(unsigned i, uint64_t bytes)
{
        taken[i] = BUDGET - bytes;
        others[i].device.used += taken[i];
}

static void give_back(unsigned i)
{
        others[i].device.used -= taken[i];
        taken[i] = 0;
        room_stir(resident.room);
}

static void end(void)
{
        for (unsigned i = 0; i < OTHERS; i++)
                give_back(i);
        loading_end();
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

/* The model "m" serves on "one" and waits on "two". */
static void begin_waiting(struct watched *w)
{
        leave(1, 0);
        wait_on(w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        core_until(is_on("m", "one"));
        core_until(w->load->state == LOAD_QUEUED && !w->load->over);
        ck_assert(!w->ended);
}

#endif
