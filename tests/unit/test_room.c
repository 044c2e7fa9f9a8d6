/* SPDX-License-Identifier: Apache-2.0
 *
 * Who gets how many bytes of a device, and when: what fits, what waits for memory on its way back,
 * who is evicted, who waits in which order, and who is refused with which words.
 */
#include "tests/lib/core.h"

#include "daemon/base/util.h"
#include "daemon/resident/lease.h"
#include "daemon/resident/room.h"

#include <string.h>
#include <sys/eventfd.h>

#define BUDGET (10 * MiB)
#define MAX_BLOCKED 2
#define N_ASKS 8

static struct fake_device fakes[2];
static struct device *devices[2];
static struct resident resident;
static struct room room;
static struct leases leases;

/* A load that asks for room. */
struct ask {
        struct room_request request;
        struct room_part parts[2];
        unsigned answers;
        struct error error;
        unsigned turn; /* of all answers */
};
static struct ask asks[N_ASKS];
static size_t n_asks;
static unsigned turns;

static int watch(struct process *process)
{
        (void)process;
        return 0;
}

static void unwatch(struct process *process)
{
        (void)process;
}

static void begin(void)
{
        for (unsigned i = 0; i < 2; i++) {
                fake_device_init(&fakes[i], i == 0 ? "first" : "second", BUDGET, false);
                fakes[i].device.number = i;
                devices[i] = &fakes[i].device;
        }
        resident_init(&resident, devices, 2, 0);
        ck_assert_int_eq(room_init(&room, &resident, core_wake, MAX_BLOCKED), 0);
        leases_init(&leases);
        leases.watch = watch;
        leases.unwatch = unwatch;
}

static void drop_all(void)
{
        list_each_safe (pos, &resident.generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (g->state == GENERATION_LOADING) {
                        generation_fail(g, &(struct error){.code = STREAMER_ECANCELED});
                        generation_unpin(g);
                } else if (!list_empty(&g->names)) {
                        generation_drop_name(g, generation_name(g));
                }
        }
}

/* Nothing is lost: every byte is unused in the end. */
static void end(void)
{
        for (size_t i = 0; i < n_asks; i++)
                room_withdraw(&asks[i].request);
        for (int i = 0; i < 2; i++) {
                gate_open(&fakes[i].release);
                __atomic_store_n(&fakes[i].ceiling, UINT64_MAX, __ATOMIC_SEQ_CST);
        }
        while (!resident_empty(&resident)) {
                drop_all();
                uv_run(&core_loop, UV_RUN_NOWAIT);
        }
        core_until(!room.posted && room.asking == 0 && !room.again);
        for (int i = 0; i < 2; i++) {
                ck_assert_uint_eq(fakes[i].device.used, 0);
                fake_device_deinit(&fakes[i]);
        }
        wake_drain(core_wake);
        room_deinit(&room);
}

/* ---- what stands ---- */

static struct generation *resident_model(const char *name, int device, uint64_t bytes)
{
        struct error error = {0};
        struct generation *g = generation_new(&resident, name, "/models/x", devices[device]);
        generation_assign_number(g);
        ck_assert_int_eq(generation_charge(g, bytes, &error), 0);
        ck_assert_int_eq(devices[device]->ops->alloc(devices[device], bytes, &g->segments[0], &error), 0);
        g->n_segments = 1;
        generation_ready(g);
        generation_unpin(g);
        return g;
}

static struct lease *lease_of(struct generation *g)
{
        struct process *process = leases_process_consume_fd(&leases, 100, 0, must(eventfd(0, EFD_CLOEXEC)));
        return lease_new(&leases, process, g, NULL);
}

static bool stands(const char *name)
{
        return resident_ready(&resident, name) != NULL;
}

/* ---- who asks ---- */

static void on_answer(struct room_request *request, const struct error *error)
{
        struct ask *ask = container_of(request, struct ask, request);
        ask->answers++;
        ask->error = *error;
        ask->turn = ++turns;
}

/* A load of this name that may evict; not sent yet. */
static struct ask *load_of(const char *name, int device, uint64_t bytes)
{
        struct ask *ask = &asks[n_asks++];
        ask->parts[0] = (struct room_part){generation_new(&resident, name, "/models/y", devices[device]), bytes};
        generation_assign_number(ask->parts[0].generation);
        ask->request = (struct room_request){.parts = ask->parts, .n_parts = 1, .evict = true, .answered = on_answer};
        list_init(&ask->request.link);
        return ask;
}

static struct ask *and_of(struct ask *ask, int device, uint64_t bytes)
{
        const char *name = generation_name(ask->parts[0].generation);
        ask->parts[1] = (struct room_part){generation_new(&resident, name, "/models/y", devices[device]), bytes};
        ask->request.n_parts = 2;
        return ask;
}

static struct ask *asked(struct ask *ask)
{
        room_ask(&room, &ask->request);
        ck_assert_uint_eq(ask->answers, 0);
        return ask;
}

/* Until the room has nothing to do but wait. */
static void quiet(void)
{
        core_until(!room.posted && room.asking == 0 && !room.again);
}

static void granted(struct ask *ask)
{
        core_until(ask->answers > 0);
        ck_assert_msg(ask->error.code == 0, "%s", ask->error.text);
        ck_assert_uint_eq(ask->parts[0].generation->charged, ask->parts[0].bytes);
}

static void refused(struct ask *ask, int code, const char *what)
{
        core_until(ask->answers > 0);
        ck_assert_int_eq(ask->error.code, code);
        ck_assert_msg(strstr(ask->error.text, what) != NULL, "%s", ask->error.text);
}

static void waits(struct ask *ask)
{
        quiet();
        ck_assert_uint_eq(ask->answers, 0);
}

/* ---- it fits ---- */

START_TEST(what_fits_is_granted_and_charged)
{
        struct ask *ask = asked(load_of("m", 0, BUDGET));
        granted(ask);
        ck_assert_uint_eq(devices[0]->used, BUDGET);
        ck_assert_uint_eq(devices[1]->used, 0);
}
END_TEST

START_TEST(no_two_count_on_the_same_bytes)
{
        struct ask *a = asked(load_of("a", 0, 6 * MiB)), *b = asked(load_of("b", 0, 6 * MiB));
        granted(a);
        refused(b, STREAMER_ENOMEM, "6291456 bytes needed, 4194304 of 10485760 free (first: a 6291456 (loading))");
}
END_TEST

START_TEST(devices_do_not_share)
{
        struct ask *a = asked(load_of("a", 0, BUDGET)), *b = asked(load_of("b", 1, BUDGET));
        granted(a);
        granted(b);
}
END_TEST

/* ---- memory on its way back ---- */

START_TEST(a_load_waits_for_memory_that_is_being_released)
{
        gate_init(&fakes[0].release, false);
        resident_model("old", 0, 8 * MiB);
        generation_drop_name(resident_ready(&resident, "old"), "old");
        struct ask *ask = asked(load_of("m", 0, 8 * MiB));
        gate_await(&fakes[0].release, 1);
        waits(ask);
        gate_open(&fakes[0].release);
        granted(ask);
}
END_TEST

START_TEST(what_comes_back_is_spoken_for_by_the_first)
{
        gate_init(&fakes[0].release, false);
        resident_model("old", 0, 8 * MiB);
        generation_drop_name(resident_ready(&resident, "old"), "old");
        struct ask *first = asked(load_of("first", 0, 9 * MiB)), *late = asked(load_of("late", 0, 2 * MiB));
        refused(late, STREAMER_ENOMEM, "2097152 bytes needed, 1048576 of");
        struct ask *small = asked(load_of("small", 0, MiB));
        granted(small);
        waits(first);
        gate_open(&fakes[0].release);
        granted(first);
}
END_TEST

START_TEST(a_model_that_drains_is_not_on_its_way_back)
{
        struct generation *old = resident_model("old", 0, 8 * MiB);
        struct lease *lease = lease_of(old);
        generation_drop_name(old, "old");
        refused(asked(load_of("m", 0, 8 * MiB)), STREAMER_ENOMEM, "old 8388608 (draining, 1 lease by 1 process)");
        lease_end(&leases, lease);
        granted(asked(load_of("n", 0, 8 * MiB)));
}
END_TEST

START_TEST(memory_that_work_still_touches_is_waited_for)
{
        struct generation *old = resident_model("old", 0, 8 * MiB);
        generation_pin(old);
        generation_drop_name(old, "old");
        struct ask *ask = asked(load_of("m", 0, 8 * MiB));
        waits(ask);
        generation_unpin(old);
        granted(ask);
}
END_TEST

/* ---- eviction ---- */

START_TEST(the_least_recently_used_is_evicted)
{
        struct generation *a = resident_model("a", 0, 4 * MiB), *b = resident_model("b", 0, 4 * MiB);
        a->last_used_ns = 2;
        b->last_used_ns = 1;
        granted(asked(load_of("m", 0, 5 * MiB)));
        ck_assert(stands("a"));
        ck_assert(!stands("b"));
}
END_TEST

START_TEST(an_attach_makes_a_model_recently_used)
{
        struct generation *a = resident_model("a", 0, 4 * MiB);
        struct generation *b = resident_model("b", 0, 4 * MiB);
        ck_assert_uint_le(a->last_used_ns, b->last_used_ns);
        lease_end(&leases, lease_of(a));
        granted(asked(load_of("m", 0, 5 * MiB)));
        ck_assert(stands("a"));
        ck_assert(!stands("b"));
}
END_TEST

START_TEST(leased_pinned_and_loading_models_stay)
{
        struct lease *lease = lease_of(resident_model("leased", 0, 3 * MiB));
        resident_model("pinned", 0, 3 * MiB)->pinned = true;
        granted(asked(load_of("loading", 0, 3 * MiB)));
        refused(asked(load_of("m", 0, 2 * MiB)), STREAMER_ENOMEM,
                "leased 3145728 (ready, 1 lease by 1 process), pinned 3145728 (ready, pinned), loading 3145728");
        ck_assert(stands("leased") && stands("pinned"));
        lease_end(&leases, lease);
        granted(asked(load_of("n", 0, 2 * MiB)));
        ck_assert(!stands("leased"));
}
END_TEST

START_TEST(who_may_not_evict_is_refused)
{
        resident_model("a", 0, 8 * MiB);
        struct ask *ask = load_of("m", 0, 8 * MiB);
        ask->request.evict = false;
        refused(asked(ask), STREAMER_ENOMEM, "a 8388608 (ready)");
        ck_assert(stands("a"));
}
END_TEST

START_TEST(the_generation_that_serves_this_very_name_stays)
{
        resident_model("m", 0, 8 * MiB);
        refused(asked(load_of("m", 0, 8 * MiB)), STREAMER_ENOMEM, "m 8388608 (ready)");
        ck_assert(stands("m"));
}
END_TEST

START_TEST(nobody_is_evicted_where_it_would_not_suffice)
{
        resident_model("a", 0, 4 * MiB);
        resident_model("pinned", 0, 4 * MiB)->pinned = true;
        refused(asked(load_of("m", 0, 8 * MiB)), STREAMER_ENOMEM, "a 4194304 (ready), pinned 4194304 (ready, pinned)");
        ck_assert(stands("a"));
}
END_TEST

START_TEST(an_alias_goes_with_its_generation)
{
        struct generation *a = resident_model("a", 0, 8 * MiB);
        ck_assert_int_eq(generation_add_name(a, "b"), 0);
        granted(asked(load_of("m", 0, 8 * MiB)));
        ck_assert(!stands("a") && !stands("b"));
}
END_TEST

START_TEST(what_was_evicted_for_one_is_not_taken_by_another)
{
        gate_init(&fakes[0].release, false);
        resident_model("old", 0, BUDGET);
        struct ask *first = asked(load_of("first", 0, 8 * MiB));
        waits(first);
        gate_await(&fakes[0].release, 1);
        struct ask *second = asked(load_of("second", 0, 4 * MiB));
        refused(second, STREAMER_ENOMEM, "4194304 bytes needed");
        gate_open(&fakes[0].release);
        granted(first);
}
END_TEST

/* ---- waiting ---- */

static struct ask *patient(struct ask *ask, uint64_t priority)
{
        ask->request.wait = true;
        ask->request.priority = priority;
        return asked(ask);
}

START_TEST(a_load_that_wants_to_wait_gets_what_becomes_free)
{
        struct lease *lease = lease_of(resident_model("a", 0, 8 * MiB));
        struct ask *ask = patient(load_of("m", 0, 8 * MiB), 0);
        waits(ask);
        ck_assert(ask->request.blocked);
        lease_end(&leases, lease);
        granted(ask);
}
END_TEST

START_TEST(priority_goes_first_then_age)
{
        struct generation *a = resident_model("a", 0, BUDGET);
        room.max_blocked = 3;
        a->pinned = true;
        struct ask *low = patient(load_of("low", 0, 2 * MiB), 0);
        struct ask *old = patient(load_of("old", 0, 2 * MiB), 7);
        struct ask *new = patient(load_of("new", 0, 2 * MiB), 7);
        waits(low);
        a->pinned = false;
        generation_drop_name(a, "a");
        granted(low);
        granted(old);
        granted(new);
        ck_assert_uint_eq(old->turn, 1);
        ck_assert_uint_eq(new->turn, 2);
        ck_assert_uint_eq(low->turn, 3);
}
END_TEST

START_TEST(a_blocked_load_holds_up_none_that_fits)
{
        resident_model("a", 0, 5 * MiB)->pinned = true;
        struct ask *big = patient(load_of("big", 0, 6 * MiB), 9);
        waits(big);
        granted(asked(load_of("small", 0, 5 * MiB)));
        waits(big);
}
END_TEST

START_TEST(only_so_many_wait)
{
        resident_model("a", 0, 5 * MiB)->pinned = true;
        struct ask *a = patient(load_of("m1", 0, 6 * MiB), 0), *b = patient(load_of("m2", 0, 6 * MiB), 0);
        struct ask *c = patient(load_of("m3", 0, 6 * MiB), 0);
        refused(c, STREAMER_ELIMIT, "2 loads wait for memory");
        waits(a);
        room_withdraw(&a->request);
        struct ask *d = patient(load_of("m4", 0, 6 * MiB), 0);
        waits(d);
        waits(b);
}
END_TEST

START_TEST(requests_of_one_owner_count_as_one_of_those_that_wait)
{
        resident_model("a", 0, 5 * MiB)->pinned = true;
        struct ask *a = load_of("m1", 0, 6 * MiB), *b = load_of("m2", 0, 6 * MiB);
        a->request.owner = b->request.owner = &room;
        waits(patient(a, 0));
        struct ask *c = patient(load_of("m3", 0, 6 * MiB), 0);
        waits(patient(b, 0));
        waits(c);
        refused(patient(load_of("m4", 0, 6 * MiB), 0), STREAMER_ELIMIT, "2 loads wait for memory");
        room_withdraw(&a->request);
        waits(b);
        refused(patient(load_of("m5", 0, 6 * MiB), 0), STREAMER_ELIMIT, "2 loads wait for memory");
}
END_TEST

static unsigned told_blocked;

static void on_blocked(struct room_request *request)
{
        ck_assert(request->blocked);
        told_blocked++;
}

START_TEST(who_is_blocked_is_told_once)
{
        struct generation *a = resident_model("a", 0, 8 * MiB);
        struct lease *lease = lease_of(a);
        struct ask *ask = load_of("m", 0, 8 * MiB);
        ask->request.waits = on_blocked;
        waits(patient(ask, 0));
        ck_assert_uint_eq(told_blocked, 1);
        room_stir(&room);
        waits(ask);
        ck_assert_uint_eq(told_blocked, 1);
        gate_init(&fakes[0].release, false);
        lease_end(&leases, lease); /* a is evicted, and its memory on its way */
        core_until(!ask->request.blocked);
        gate_open(&fakes[0].release);
        granted(ask);
        ck_assert_uint_eq(told_blocked, 1);
}
END_TEST

START_TEST(a_priority_that_is_raised_moves_a_request_before_the_others)
{
        struct generation *a = resident_model("a", 0, BUDGET);
        a->pinned = true;
        struct ask *first = patient(load_of("first", 0, 2 * MiB), 7);
        struct ask *second = patient(load_of("second", 0, 2 * MiB), 7);
        waits(first);
        waits(second);
        room_set_priority(&second->request, 8);
        room_set_priority(&first->request, 7);
        a->pinned = false;
        generation_drop_name(a, "a");
        granted(first);
        granted(second);
        ck_assert_uint_eq(second->turn, 1);
        room_set_priority(&first->request, 9); /* answered: nothing moves */
}
END_TEST

START_TEST(what_could_never_fit_is_not_kept_waiting)
{
        refused(patient(load_of("m", 0, BUDGET + 1), 0), STREAMER_ENOMEM, "10485761 bytes needed");
}
END_TEST

START_TEST(who_withdraws_is_not_answered)
{
        struct lease *lease = lease_of(resident_model("a", 0, 8 * MiB));
        struct ask *gone = patient(load_of("gone", 0, 8 * MiB), 1), *next = patient(load_of("next", 0, 8 * MiB), 0);
        waits(gone);
        room_withdraw(&gone->request);
        room_withdraw(&gone->request);
        lease_end(&leases, lease);
        granted(next);
        ck_assert_uint_eq(gone->answers, 0);
}
END_TEST

/* ---- several devices ---- */

START_TEST(all_devices_or_none)
{
        struct generation *a = resident_model("a", 1, 8 * MiB);
        a->pinned = true;
        struct ask *both = asked(and_of(load_of("m", 0, 4 * MiB), 1, 4 * MiB));
        refused(both, STREAMER_ENOMEM, "(second: a 8388608 (ready, pinned))");
        ck_assert_uint_eq(devices[0]->used, 0);
        a->pinned = false;
        struct ask *again = asked(and_of(load_of("n", 0, 4 * MiB), 1, 4 * MiB));
        granted(again);
        ck_assert_uint_eq(again->parts[1].generation->charged, 4 * MiB);
        ck_assert(!stands("a"));
}
END_TEST

START_TEST(nobody_is_evicted_on_one_device_where_the_other_is_full)
{
        resident_model("a", 0, 8 * MiB);
        resident_model("b", 1, 8 * MiB)->pinned = true;
        refused(asked(and_of(load_of("m", 0, 8 * MiB), 1, 8 * MiB)), STREAMER_ENOMEM, "second: b");
        ck_assert(stands("a"));
}
END_TEST

START_TEST(two_that_want_both_devices_do_not_wait_for_each_other)
{
        struct lease *lease = lease_of(resident_model("a", 0, 6 * MiB));
        struct ask *x = and_of(load_of("x", 0, 6 * MiB), 1, 6 * MiB);
        struct ask *y = and_of(load_of("y", 1, 6 * MiB), 0, 6 * MiB);
        patient(x, 0);
        patient(y, 0);
        waits(x);
        waits(y);
        ck_assert_uint_eq(devices[1]->used, 0);
        lease_end(&leases, lease);
        granted(x);
        waits(y);
        generation_ready(x->parts[0].generation);
        generation_ready(x->parts[1].generation);
        generation_unpin(x->parts[0].generation);
        generation_unpin(x->parts[1].generation);
        granted(y);
}
END_TEST

START_TEST(parts_on_one_device_are_added_up)
{
        refused(asked(and_of(load_of("m", 0, 6 * MiB), 0, 6 * MiB)), STREAMER_ENOMEM, "12582912 bytes needed");
}
END_TEST

/* ---- devices that others use too ---- */

START_TEST(what_others_have_of_a_device_is_not_granted)
{
        fake_device_share(&fakes[0], 4 * MiB);
        refused(asked(load_of("m", 0, 5 * MiB)), STREAMER_ENOMEM,
                "5242880 bytes needed, 4194304 of 4194304 free, others use the device too");
        granted(asked(load_of("n", 0, 4 * MiB)));
}
END_TEST

START_TEST(what_others_give_back_is_found_by_the_tick)
{
        fake_device_share(&fakes[0], 4 * MiB);
        struct ask *ask = patient(load_of("m", 0, 5 * MiB), 0);
        waits(ask);
        __atomic_store_n(&fakes[0].ceiling, 5 * MiB, __ATOMIC_SEQ_CST);
        room_tick(&room);
        granted(ask);
}
END_TEST

START_TEST(a_device_that_was_asked_for_nothing_is_let_go)
{
        fake_device_share(&fakes[0], 4 * MiB);
        refused(asked(load_of("m", 0, 5 * MiB)), STREAMER_ENOMEM, "bytes needed");
        core_until(__atomic_load_n(&fakes[0].idled, __ATOMIC_SEQ_CST) == 1);
        ck_assert_uint_eq(fakes[0].asked, 1);
        ck_assert_uint_eq(fakes[1].asked, 0);
        granted(asked(load_of("n", 0, 4 * MiB)));
        quiet();
        ck_assert_uint_eq(__atomic_load_n(&fakes[0].idled, __ATOMIC_SEQ_CST), 1);
}
END_TEST

/* ---- a look ---- */

START_TEST(a_look_names_victims_and_changes_nothing)
{
        struct generation *a = resident_model("a", 0, 4 * MiB);
        resident_model("b", 0, 4 * MiB);
        struct room_outlook outlook;
        room_look(&room, devices[0], "m", 2 * MiB, true, &outlook);
        ck_assert_int_eq((int)outlook.outcome, (int)ROOM_FITS);
        room_look(&room, devices[0], "m", 5 * MiB, true, &outlook);
        ck_assert_int_eq((int)outlook.outcome, (int)ROOM_EVICTS);
        ck_assert_uint_eq(outlook.n_victims, 1);
        ck_assert_ptr_eq(outlook.victims[0], a);
        room_look(&room, devices[0], "a", 7 * MiB, true, &outlook);
        ck_assert_int_eq((int)outlook.outcome, (int)ROOM_BLOCKED);
        room_look(&room, devices[0], "m", 5 * MiB, false, &outlook);
        ck_assert_int_eq((int)outlook.outcome, (int)ROOM_BLOCKED);
        ck_assert_uint_eq(outlook.n_victims, 0);
        quiet();
        ck_assert(stands("a") && stands("b"));
}
END_TEST

int main(void)
{
        suite_begin("room");
        TCase *fits = core_group("it fits", begin, end);
        tcase_add_test(fits, what_fits_is_granted_and_charged);
        tcase_add_test(fits, no_two_count_on_the_same_bytes);
        tcase_add_test(fits, devices_do_not_share);
        TCase *back = core_group("memory on its way back", begin, end);
        tcase_add_test(back, a_load_waits_for_memory_that_is_being_released);
        tcase_add_test(back, what_comes_back_is_spoken_for_by_the_first);
        tcase_add_test(back, a_model_that_drains_is_not_on_its_way_back);
        tcase_add_test(back, memory_that_work_still_touches_is_waited_for);
        TCase *evicting = core_group("eviction", begin, end);
        tcase_add_test(evicting, the_least_recently_used_is_evicted);
        tcase_add_test(evicting, an_attach_makes_a_model_recently_used);
        tcase_add_test(evicting, leased_pinned_and_loading_models_stay);
        tcase_add_test(evicting, who_may_not_evict_is_refused);
        tcase_add_test(evicting, the_generation_that_serves_this_very_name_stays);
        tcase_add_test(evicting, nobody_is_evicted_where_it_would_not_suffice);
        tcase_add_test(evicting, an_alias_goes_with_its_generation);
        tcase_add_test(evicting, what_was_evicted_for_one_is_not_taken_by_another);
        TCase *waiting = core_group("waiting", begin, end);
        tcase_add_test(waiting, a_load_that_wants_to_wait_gets_what_becomes_free);
        tcase_add_test(waiting, priority_goes_first_then_age);
        tcase_add_test(waiting, a_blocked_load_holds_up_none_that_fits);
        tcase_add_test(waiting, only_so_many_wait);
        tcase_add_test(waiting, what_could_never_fit_is_not_kept_waiting);
        tcase_add_test(waiting, requests_of_one_owner_count_as_one_of_those_that_wait);
        tcase_add_test(waiting, who_is_blocked_is_told_once);
        tcase_add_test(waiting, a_priority_that_is_raised_moves_a_request_before_the_others);
        tcase_add_test(waiting, who_withdraws_is_not_answered);
        TCase *several = core_group("several devices", begin, end);
        tcase_add_test(several, all_devices_or_none);
        tcase_add_test(several, nobody_is_evicted_on_one_device_where_the_other_is_full);
        tcase_add_test(several, two_that_want_both_devices_do_not_wait_for_each_other);
        tcase_add_test(several, parts_on_one_device_are_added_up);
        TCase *others = core_group("devices that others use too", begin, end);
        tcase_add_test(others, what_others_have_of_a_device_is_not_granted);
        tcase_add_test(others, what_others_give_back_is_found_by_the_tick);
        tcase_add_test(others, a_device_that_was_asked_for_nothing_is_let_go);
        TCase *looking = core_group("a look", begin, end);
        tcase_add_test(looking, a_look_names_victims_and_changes_nothing);
        return suite_run();
}
