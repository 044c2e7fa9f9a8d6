/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads that wait for memory: replicas wait together, hold nothing meanwhile and fail alone, two loads never deadlock,
 * and requests that join a waiting load change its terms.
 */
#include "tests/lib/load_fixture.h"

#define ONE others[0]
#define TWO others[1]

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
        resident_capacity_changed(&resident);
}

static void end(void)
{
        for (unsigned i = 0; i < OTHERS; i++)
                release_reserved(i);
        load_fixture_end();
}

static bool is_on(const char *name, const char *device)
{
        return resident_on(&resident, name, GENERATION_READY, resident_device(&resident, device, NULL)) != NULL;
}

static void target_waits(const struct watched *w, size_t i)
{
        uint64_t ns;
        ck_assert_str_eq(load_target_state(&w->load->targets[i], now_ns() + 1, &ns), "queued");
        ck_assert_uint_gt(ns, 0);
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

/* ---- replicas ---- */

CORE_FIXTURE(load_fixture_begin_multi, end);

TEST(replicas_wait_together_and_are_read_once)
{
        struct watched w;
        reserve_all_but(1, 0);
        reserve_all_but(2, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two", "three"));
        await_blocked(&w);
        release_reserved(2);
        core_until(!resident.capacity_changed.posted);
        for (size_t i = 0; i < 3; i++)
                target_waits(&w, i);
        ck_assert_uint_eq(ONE.device.used, 0);
        release_reserved(1);
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.progress.bytes, SMALL_BYTES);
        serves_small(on("one", GENERATION_READY), 1);
        serves_small(on("two", GENERATION_READY), 1);
        serves_small(on("three", GENERATION_READY), 1);
        ck_assert_uint_eq(on("one", GENERATION_READY)->number, on("two", GENERATION_READY)->number);
}

TEST(a_verified_replica_continues_when_another_fails)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        publish_sums(suite_folder(), (const char *const[]){"small.safetensors"}, 1);
        ONE.fail_put = 1;
        ask_for(&w, (struct load_args){.source = path, .sha256 = true, .wait = true, ON_FIELDS("one", "two")});
        ends(&w, LOAD_READY);
        ck_assert(on("two", GENERATION_READY)->verified);
        ck_assert(!is_on("m", "one"));
        core_until(ONE.device.used == 0);
}

/* A replica that was resident before the load is not held for it either. */
TEST(a_waiting_load_does_not_hold_its_serving_replicas)
{
        struct watched a, b;
        char *first = blocks_file("first.safetensors", 20), *second = blocks_file("second.safetensors", 24);
        wait_on(&a, first, "a", ON("one"));
        ends(&a, LOAD_READY);
        reserve_all_but(1, 0);
        wait_on(&a, first, "a", ON("one", "two"));
        core_until(a.load->admission.blocked);
        wait_on(&b, second, "b", ON("one"));
        ends(&b, LOAD_READY);
        release_reserved(1);
        ends(&a, LOAD_READY);
        ck_assert(is_on("a", "two"));
}

/* The stage lets four loads wait. */
TEST(a_load_that_waits_for_many_devices_counts_once)
{
        static const char *const names[] = {"a", "b", "c", "d", "e"};
        struct watched w[5];
        reserve_all_but(0, 0);
        reserve_all_but(1, 0);
        for (uint64_t i = 0; i < 5; i++) {
                char *name = format_text("%s.safetensors", names[i]);
                wait_on(&w[i], small_file(name, i), names[i], ON("one", "two"));
                if (i < 4)
                        await_blocked(&w[i]);
        }
        ends(&w[4], LOAD_FAILED);
        ck_assert_int_eq(w[4].error.code, STREAMER_ELIMIT);
        for (unsigned i = 0; i < 4; i++) {
                load_cancel(w[i].load);
                ends(&w[i], LOAD_CANCELLED);
        }
}

TEST(a_repeated_load_changes_the_settings_of_serving_replicas)
{
        struct watched w, again;
        begin_waiting(&w);
        ask_for(&again, (struct load_args){.source = w.load->source,
                                           .retention = {.keep_alive_ns = 7, .priority = 9, .pinned = true},
                                           ON_FIELDS("one", "two")});
        ck_assert_ptr_eq(again.load, w.load);
        ck_assert(on("one", GENERATION_READY)->settings.pinned);
        ck_assert_uint_eq(on("one", GENERATION_READY)->settings.keep_alive_ns, 7);
        ck_assert_uint_eq(on("one", GENERATION_READY)->settings.priority, 9);
        ck_assert_uint_eq(w.load->priority, 9);
        release_reserved(1);
        ends(&w, LOAD_READY);
        ends(&again, LOAD_READY);
        ck_assert(on("two", GENERATION_READY)->settings.pinned);
}

/* ---- joining requests ---- */

/* "old" has most of a device and is evicted; before the load gets the memory, another user takes it. */
static void begin_evicting(unsigned device)
{
        struct watched old;
        wait_on(&old, blocks_file("old.safetensors", 24), "old", &(const char *){others[device].device.name}, 1);
        ends(&old, LOAD_READY);
        core_until(loads_empty(&loads));
        gate_init(&others[device].release, false);
}

static void evict_for_other_user(unsigned device)
{
        reserve_all_but(device, 0);
        gate_open(&others[device].release);
}

/* By the same name, which joins at once, or by another, which joins when the source is open. */
static const char *const joining_names[] = {"m", "n"};

TEST(a_joining_request_that_waits_makes_the_load_wait, .to = 2)
{
        struct watched a, b;
        char *path = blocks_file("first.safetensors", 20);
        begin_evicting(0);
        ask_for(&a, (struct load_args){.source = path, ON_FIELDS("one")});
        core_until(a.load->state == LOAD_QUEUED && !is_on("old", "one"));
        ask_for(&b, (struct load_args){.source = path, .name = joining_names[_i], .wait = true, ON_FIELDS("one")});
        core_until(b.request->load == a.load);
        evict_for_other_user(0);
        core_until(a.ended || a.load->admission.blocked);
        ck_assert_msg(!a.ended && !b.ended, "%s", a.error.text);
        release_reserved(0);
        ends(&a, LOAD_READY);
        ends(&b, LOAD_READY);
        ck_assert(is_on(joining_names[_i], "one"));
}

TEST(a_joining_request_that_may_evict_evicts_for_the_load, .to = 2)
{
        struct watched a, b;
        char *path = blocks_file("first.safetensors", 20);
        begin_evicting(0);
        gate_open(&ONE.release);
        ask_for(&a, (struct load_args){.source = path, .wait = true, .no_evict = true, ON_FIELDS("one")});
        core_until(a.load->admission.blocked);
        ask_for(&b, (struct load_args){.source = path, .name = joining_names[_i], ON_FIELDS("one")});
        ends(&a, LOAD_READY);
        ends(&b, LOAD_READY);
        ck_assert(!is_on("old", "one"));
}

TEST(a_joining_request_that_may_not_evict_waits)
{
        struct watched a, b;
        char *path = blocks_file("first.safetensors", 20);
        begin_evicting(0);
        gate_open(&ONE.release);
        struct load_args what = {.source = path, .wait = true, .no_evict = true, ON_FIELDS("one")};
        ask_for(&a, what);
        core_until(a.load->admission.blocked);
        ask_for(&b, what);
        ck_assert_ptr_eq(a.load, b.load);
        core_until(!resident.capacity_changed.posted);
        ck_assert(is_on("old", "one") && a.load->admission.blocked);
        load_cancel(a.load);
        ends(&b, LOAD_CANCELLED);
}

TEST(a_waiting_load_protects_no_model)
{
        struct watched a, b, c;
        char *first = blocks_file("first.safetensors", 20), *second = blocks_file("second.safetensors", 24);
        wait_on(&a, first, "m", ON("one"));
        ends(&a, LOAD_READY);
        begin_evicting(1);
        struct load_args what = {.source = first, ON_FIELDS("one", "two")};
        ask_for(&a, what);
        core_until(a.load->state == LOAD_QUEUED && !is_on("old", "two"));
        what.wait = true;
        ask_for(&b, what);
        ck_assert_ptr_eq(a.load, b.load);
        evict_for_other_user(1);
        core_until(a.load->admission.blocked);
        wait_on(&c, second, "c", ON("one"));
        ends(&c, LOAD_READY);
        release_reserved(1);
        ends(&a, LOAD_READY);
        ends(&b, LOAD_READY);
}

/* The load cannot serve the new request, and the new request does not report the loss of the device as its own failure.
 */
TEST(a_load_that_has_lost_a_device_is_not_joined)
{
        struct watched a, b;
        char *path = small_file("small.safetensors", 1);
        reserve_all_but(1, 0);
        gate_init(&ONE.put, false);
        struct load_args what = {.source = path, ON_FIELDS("one", "two")};
        ask_for(&a, what);
        core_until(a.load->targets[1].state == TARGET_FAILED && a.load->state == LOAD_READING);
        what.wait = true;
        ask_for(&b, what);
        ck_assert_ptr_ne(a.load, b.load);
        gate_open(&ONE.put);
        ends(&a, LOAD_READY);
        ck_assert(!is_on("m", "two"));
        core_until(b.load->admission.blocked);
        release_reserved(1);
        ends(&b, LOAD_READY);
        ck_assert(is_on("m", "one") && is_on("m", "two"));
        ck_assert_uint_eq(ONE.allocs, 1);
}

/* ---- failing ---- */

TEST(a_load_that_could_never_fit_fails_alone)
{
        struct watched w;
        TWO.device.budget = MiB;
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "one"));
        ck_assert_ptr_nonnull(strstr(on("two", GENERATION_FAILED)->error->text, "does not fit"));
        TWO.device.budget = BUDGET;
}

TEST(a_replica_continues_when_another_fails_after_the_wait, .to = 2)
{
        struct watched w;
        if (_i == 0)
                ONE.fail_alloc = 1;
        else
                ONE.fail_put = 1;
        reserve_all_but(1, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        await_blocked(&w);
        release_reserved(1);
        ends(&w, LOAD_READY);
        ck_assert_str_eq(w.targets[0], "failed");
        serves_small(on("two", GENERATION_READY), 1);
}

TEST(a_device_that_is_lost_during_the_wait_fails_alone)
{
        struct watched w;
        reserve_all_but(1, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        await_blocked(&w);
        __atomic_store_n(&TWO.device.lost, true, __ATOMIC_SEQ_CST);
        resident_capacity_changed(&resident);
        ends(&w, LOAD_READY);
        ck_assert_str_eq(w.targets[1], "failed");
        serves_small(on("one", GENERATION_READY), 1);
}

TEST(a_waiting_target_may_fail_without_the_others)
{
        struct watched w;
        begin_waiting(&w);
        TWO.fail_alloc = 1;
        release_reserved(1);
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "one"));
        ck_assert_ptr_nonnull(on("two", GENERATION_FAILED));
        ck_assert_uint_eq(w.progress.bytes, SMALL_BYTES);
}

TEST(a_source_that_changes_during_the_wait_fails_the_load)
{
        struct watched w;
        begin_waiting(&w);
        small_file("small.safetensors", 2);
        release_reserved(1);
        ends(&w, LOAD_FAILED);
        serves_small(on("one", GENERATION_READY), 1);
        ck_assert_ptr_nonnull(strstr(on("two", GENERATION_FAILED)->error->text, "changed"));
}

/* ---- ranks ---- */

TEST(ranks_wait_for_all_their_devices_without_holding_any)
{
        struct watched w;
        reserve_all_but(1, 0);
        ask_for(&w,
                (struct load_args){.source = ranks_folder(2), .pattern = RANKS, .wait = true, ON_FIELDS("one", "two")});
        core_until(w.load->admission.blocked);
        core_settle();
        ck_assert_uint_eq(ONE.device.used, 0);
        target_waits(&w, 0);
        target_waits(&w, 1);
        release_reserved(1);
        ends(&w, LOAD_READY);
        serves_small(on("one", GENERATION_READY), 50);
        serves_small(on("two", GENERATION_READY), 51);
}
