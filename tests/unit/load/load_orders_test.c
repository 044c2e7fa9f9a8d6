/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads, cancels, unloads and other users of the memory, in random orders of completion (tests/lib/orders.h): each
 * load ends once, for a reason that exists; the memory of the devices is accounted for at each step; what serves at the
 * end has the right bytes; and no order leaves a load or memory behind. ORDERS: how many are tried.
 */
#include "tests/lib/load_fixture.h"
#include "tests/lib/orders.h"

#define LOADS 8u
#define ROOM (8 * MiB) /* of a device: two of the models */

static struct watched watched[LOADS];
static unsigned n_loads;
static bool cancels; /* a load was cancelled */
static uint64_t reserved[1 + OTHERS];
static char *files[2];

static void reserve(unsigned device, uint64_t bytes)
{
        devices[device]->used += bytes - reserved[device];
        reserved[device] = bytes;
        resident_capacity_changed(&resident);
}

static void begin_a_load(void)
{
        static const char *const sets[][2] = {{"one"}, {"one", "two"}, {"two", "three"}, {"fake", "one"}};
        const char *const *set = sets[orders_choose(4)];
        ask_for(&watched[n_loads++], (struct load_args){.source = files[orders_choose(2)],
                                                        .name = orders_choose(3) == 0 ? "n" : "m",
                                                        .devices = set,
                                                        .n_devices = set[1] != NULL ? 2 : 1,
                                                        .wait = orders_choose(2),
                                                        .no_evict = orders_choose(4) == 0});
}

static void cancel_a_load(void)
{
        struct watched *w = n_loads > 0 ? &watched[orders_choose(n_loads)] : NULL;
        if (w == NULL || w->ended || load_ended(w->request->load->state))
                return;
        load_cancel(w->request->load);
        cancels = true;
}

static void unload_a_model(void)
{
        const char *name = orders_choose(2) ? "m" : "n";
        struct generation *g = resident_on(&resident, name, GENERATION_READY, devices[orders_choose(1 + OTHERS)]);
        if (g != NULL)
                generation_drop_name(g, name);
}

static void act(void)
{
        unsigned dice = orders_choose(6);
        if (dice == 0)
                cancel_a_load();
        else if (dice == 1)
                unload_a_model();
        else if (dice == 2)
                reserve(orders_choose(1 + OTHERS), BUDGET - orders_choose(3) * ROOM / 2);
        else
                begin_a_load();
}

/* One generation serves a name on a device, and what is charged to a device is charged to its generations. */
static void check_accounts(void)
{
        for (unsigned d = 0; d < 1 + OTHERS; d++) {
                uint64_t charged = reserved[d];
                unsigned serving[2] = {0};
                list_each_item (const struct generation, g, &resident.generations, link) {
                        bool ready = g->device == devices[d] && g->state == GENERATION_READY;
                        charged += g->device == devices[d] ? g->charged : 0;
                        serving[0] += ready && generation_has_name(g, "m");
                        serving[1] += ready && generation_has_name(g, "n");
                }
                ck_assert_uint_eq(charged, devices[d]->used);
                ck_assert_uint_le(serving[0], 1);
                ck_assert_uint_le(serving[1], 1);
        }
}

static void check_end(const struct watched *w)
{
        ck_assert_msg(w->ended, "a load never ends: %s", load_state_name(w->request->load->state));
        if (w->state == LOAD_CANCELLED)
                ck_assert(cancels);
        if (w->state == LOAD_READY || w->state == LOAD_CANCELLED)
                return;
        ck_assert(!w->serves);
        ck_assert_msg(w->error.code == STREAMER_ENOMEM || strstr(w->error.text, " fails") != NULL, "%s", w->error.text);
}

/* The fault of one device: an allocation, a copy or its event. */
static void inject(struct fake_device *device)
{
        unsigned *faults[] = {&device->fail_alloc, &device->fail_put, &device->fail_event};
        *faults[orders_choose(3)] = 1 + orders_choose(3);
}

CORE_FIXTURE(load_fixture_begin_multi, load_fixture_end);

TEST(loads_end_in_any_order_of_completion, .to = (int)env_number("ORDERS", suite_short() ? 4 : 10))
{
        files[0] = small_file("a.safetensors", 1);
        files[1] = small_file("b.safetensors", 2);
        orders_begin((uint64_t)_i);
        if (orders_choose(2))
                fake_device_copies(&others[0]);
        inject(&others[orders_choose(3)]);
        for (unsigned d = 0; d < 1 + OTHERS; d++)
                reserve(d, BUDGET - ROOM);
        while (n_loads < LOADS) {
                if (orders_choose(3) == 0 || !orders_step())
                        act();
                check_accounts();
        }
        while (orders_step())
                check_accounts();
        for (unsigned d = 0; d < 1 + OTHERS; d++)
                reserve(d, 0);
        while (orders_step())
                check_accounts();
        for (unsigned i = 0; i < LOADS; i++)
                check_end(&watched[i]);
        list_each_item (const struct generation, g, &resident.generations, link)
                if (g->state == GENERATION_READY)
                        serves_small(g, strcmp(g->source, files[0]) == 0 ? 1 : 2);
        orders_end();
}
