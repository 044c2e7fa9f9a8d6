/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads that wait for memory: their order, their number, and loads on several devices.
 */
#include "tests/unit/admission_fixture.h"

static struct ask *and_of(struct ask *ask, int device, uint64_t bytes)
{
        const char *name = generation_name(ask->parts[0].generation);
        ask->parts[1] = part_of(name, device, bytes);
        ask->request.n_parts = 2;
        return ask;
}

/* ---- waiting ---- */

CORE_FIXTURE(begin_admission, end_admission);

TEST(priority_is_first_then_age)
{
        struct generation *a = resident_model("a", 0, BUDGET);
        admission.max_blocked = 3;
        set_pin(a, true);
        struct ask *low = patient(load_of("low", 0, 2 * MiB), 0);
        struct ask *old = patient(load_of("old", 0, 2 * MiB), 7);
        struct ask *new = patient(load_of("new", 0, 2 * MiB), 7);
        waits(low);
        set_pin(a, false);
        generation_drop_name(a, "a");
        granted(low);
        granted(old);
        granted(new);
        ck_assert_uint_eq(old->turn, 1);
        ck_assert_uint_eq(new->turn, 2);
        ck_assert_uint_eq(low->turn, 3);
}

TEST(a_blocked_load_does_not_delay_one_that_fits)
{
        set_pin(resident_model("a", 0, 5 * MiB), true);
        struct ask *big = patient(load_of("big", 0, 6 * MiB), 9);
        waits(big);
        granted(asked(load_of("small", 0, 5 * MiB)));
        waits(big);
}

TEST(the_queue_of_requests_is_bounded)
{
        set_pin(resident_model("a", 0, 5 * MiB), true);
        struct ask *a = patient(load_of("m1", 0, 6 * MiB), 0), *b = patient(load_of("m2", 0, 6 * MiB), 0);
        struct ask *c = patient(load_of("m3", 0, 6 * MiB), 0);
        refused(c, STREAMER_ELIMIT, "2 loads wait for memory");
        waits(a);
        admission_withdraw(&a->request);
        struct ask *d = patient(load_of("m4", 0, 6 * MiB), 0);
        waits(d);
        waits(b);
}

static struct ask *of_user(struct ask *ask, uid_t uid)
{
        ask->request.shares = true;
        ask->request.uid = uid;
        return ask;
}

TEST(one_user_has_at_most_half_of_the_queue)
{
        set_pin(resident_model("a", 0, 5 * MiB), true);
        admission.max_blocked = 4;
        for (int i = 0; i < 2; i++)
                waits(patient(of_user(load_of(i == 0 ? "m1" : "m2", 0, 6 * MiB), 7), 0));
        refused(patient(of_user(load_of("m3", 0, 6 * MiB), 7), 0), STREAMER_ELIMIT,
                "uid 7 has 2 loads that wait for memory");
        waits(patient(of_user(load_of("m4", 0, 6 * MiB), 8), 0));
        waits(patient(load_of("m5", 0, 6 * MiB), 0));
}

TEST(a_raised_priority_moves_a_request_to_the_front)
{
        struct generation *a = resident_model("a", 0, BUDGET);
        set_pin(a, true);
        struct ask *first = patient(load_of("first", 0, 2 * MiB), 7);
        struct ask *second = patient(load_of("second", 0, 2 * MiB), 7);
        waits(first);
        waits(second);
        admission_set_priority(&second->request, 8);
        admission_set_priority(&first->request, 7);
        set_pin(a, false);
        generation_drop_name(a, "a");
        granted(first);
        granted(second);
        ck_assert_uint_eq(second->turn, 1);
        admission_set_priority(&first->request, 9); /* answered: nothing moves */
}

static struct ask *raised;

static void on_answer_raise(struct admission_request *request, const struct error *error)
{
        on_answer(request, error);
        admission_set_priority(&raised->request, 9);
}

TEST(a_granted_request_is_not_granted_again_before_its_callback)
{
        struct ask *first = load_of("first", 0, 2 * MiB);
        raised = load_of("second", 0, 2 * MiB);
        first->request.answered = on_answer_raise;
        asked(first);
        asked(raised);
        granted(first);
        granted(raised);
        ck_assert_uint_eq(raised->answers, 1);
        ck_assert_uint_eq(devices[0]->used, 4 * MiB);
}

TEST(a_load_that_never_fits_is_refused_at_once)
{
        refused(patient(load_of("m", 0, BUDGET + 1), 0), STREAMER_ENOMEM,
                "10485761 bytes needed, 10485760 bytes of 10.0 MiB free; more than the whole budget (first: nothing "
                "resident)");
}

TEST(a_withdrawn_request_is_not_answered)
{
        struct lease *lease = lease_of(resident_model("a", 0, 8 * MiB));
        struct ask *gone = patient(load_of("gone", 0, 8 * MiB), 1), *next = patient(load_of("next", 0, 8 * MiB), 0);
        waits(gone);
        admission_withdraw(&gone->request);
        admission_withdraw(&gone->request);
        lease_end(&leases, lease);
        granted(next);
        ck_assert_uint_eq(gone->answers, 0);
}

/* ---- several devices ---- */

TEST(all_devices_or_none)
{
        struct generation *a = resident_model("a", 1, 8 * MiB);
        set_pin(a, true);
        struct ask *both = asked(and_of(load_of("m", 0, 4 * MiB), 1, 4 * MiB));
        refused(both, STREAMER_ENOMEM, "(second: a 8.0 MiB (ready, pinned))");
        ck_assert_ptr_eq(both->request.refused, devices[1]);
        ck_assert_uint_eq(devices[0]->used, 0);
        set_pin(a, false);
        struct ask *again = asked(and_of(load_of("n", 0, 4 * MiB), 1, 4 * MiB));
        granted(again);
        ck_assert_uint_eq(again->parts[1].generation->charged, 4 * MiB);
        ck_assert(!is_ready("a"));
}

/* Not the other one, which may become free. */
TEST(the_device_that_a_load_never_fits_refuses_it)
{
        set_pin(resident_model("a", 0, 8 * MiB), true);
        struct ask *both = patient(and_of(load_of("m", 0, 4 * MiB), 1, BUDGET + 1), 0);
        refused(both, STREAMER_ENOMEM, "10485761 bytes needed");
        ck_assert_ptr_eq(both->request.refused, devices[1]);
}

TEST(a_full_device_prevents_eviction_on_the_other)
{
        resident_model("a", 0, 8 * MiB);
        set_pin(resident_model("b", 1, 8 * MiB), true);
        refused(asked(and_of(load_of("m", 0, 8 * MiB), 1, 8 * MiB)), STREAMER_ENOMEM, "second: b");
        ck_assert(is_ready("a"));
}

TEST(two_requests_for_both_devices_do_not_deadlock)
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
        generation_put(x->parts[0].generation);
        generation_put(x->parts[1].generation);
        granted(y);
}

/* ---- a device that does not answer ---- */

/* The first device's thread is being asked. */
static void await_question(void)
{
        core_until(admission.devices[0].asked != admission.devices[0].answered);
        gate_await(&fakes[0].answer, 1);
}

TEST(a_shared_device_that_does_not_answer_delays_no_load_on_another)
{
        gate_init(&fakes[0].answer, false);
        fake_device_share(&fakes[0], BUDGET);
        struct ask *first = asked(load_of("first", 0, MiB));
        await_question();
        granted(asked(load_of("second", 1, MiB)));
        fake_device_share(&fakes[1], BUDGET);
        struct ask *behind = asked(load_of("behind", 0, MiB));
        granted(asked(load_of("third", 1, MiB)));
        ck_assert_uint_eq(first->answers + behind->answers, 0);
        ck_assert_uint_eq(fakes[0].asked, 1);
        gate_open(&fakes[0].answer);
        granted(first);
        granted(behind);
        ck_assert_uint_eq(fakes[0].asked, 2); /* for the one that was submitted while it was being asked */
}

TEST(a_load_is_not_overtaken_while_one_of_its_devices_is_asked)
{
        gate_init(&fakes[0].answer, false);
        fake_device_share(&fakes[0], BUDGET);
        struct ask *both = asked(and_of(load_of("both", 0, 6 * MiB), 1, 6 * MiB));
        await_question();
        struct ask *late = patient(load_of("late", 1, 6 * MiB), 0);
        granted(asked(load_of("small", 1, 4 * MiB)));
        core_until(late->request.blocked);
        gate_open(&fakes[0].answer);
        granted(both);
        ck_assert_uint_eq(late->answers, 0);
}

TEST(a_blocked_load_reserves_nothing_while_its_device_is_asked)
{
        set_pin(resident_model("a", 0, 8 * MiB), true);
        fake_device_share(&fakes[0], BUDGET);
        struct ask *both = patient(and_of(load_of("both", 0, 6 * MiB), 1, 6 * MiB), 0);
        core_until(both->request.blocked);
        gate_init(&fakes[0].answer, false);
        resident_capacity_changed(&resident);
        await_question();
        granted(asked(load_of("m", 1, 6 * MiB)));
}

/* ---- estimates ---- */

TEST(a_query_is_answered_when_the_device_was_asked_and_takes_nothing)
{
        fake_device_share(&fakes[0], 7 * MiB);
        gate_init(&fakes[0].answer, false);
        struct ask *query = load_of("q", 0, 0);
        query->request.query = true;
        asked(query);
        await_question();
        ck_assert_uint_eq(query->answers, 0);
        gate_open(&fakes[0].answer);
        core_until(query->answers > 0);
        ck_assert_int_eq(query->error.code, 0);
        ck_assert_uint_eq(device_budget(devices[0]), 7 * MiB);
        ck_assert_uint_eq(devices[0]->used, 0);
}
