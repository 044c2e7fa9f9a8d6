/* SPDX-License-Identifier: Apache-2.0
 *
 * Replicas that wait for room, each on its own: who is read when, who serves meanwhile, who fails
 * alone, and that two loads never wait for each other. Ranks wait for all their devices together.
 */
#include "tests/lib/loading.h"

#include "daemon/base/util.h"

#include <openssl/sha.h>
#include <string.h>
#include <sys/stat.h>

#define ONE others[0]
#define TWO others[1]
#define ON(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(const char *)

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

/* ---- one that has room and one that waits ---- */

/* The model "m" serves on "one" and waits on "two". */
static void begin_waiting(struct watched *w)
{
        leave(1, 0);
        wait_on(w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        core_until(is_on("m", "one"));
        core_until(w->load->state == LOAD_QUEUED && !w->load->over);
        ck_assert(!w->ended);
}

START_TEST(what_has_room_serves_while_the_other_waits)
{
        struct watched w;
        begin_waiting(&w);
        serves_small(on("m", "one", GENERATION_READY), 1);
        target_is(&w, 0, "ready", false);
        target_is(&w, 1, "queued", true);
        ck_assert_uint_eq(TWO.allocs, 0);
        ck_assert_ptr_nonnull(on("m", "two", GENERATION_LOADING));
        give_back(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "two", GENERATION_READY), 1);
        ck_assert_uint_eq(on("m", "one", GENERATION_READY)->number, on("m", "two", GENERATION_READY)->number);
        ck_assert_uint_eq(w.progress.bytes, SMALL_BYTES);
}
END_TEST

START_TEST(room_that_comes_while_the_others_are_read_is_used_afterwards)
{
        struct watched w;
        leave(1, 0);
        fake_device_copies(&ONE);
        gate_init(&ONE.event, false);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        core_until(w.load->state == LOAD_READING);
        gate_await(&ONE.event, 1);
        target_is(&w, 0, "loading", false);
        target_is(&w, 1, "queued", true);
        give_back(1);
        core_until(TWO.device.used > 0);
        ck_assert_uint_eq(TWO.allocs, 0);
        gate_open(&ONE.event);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 1);
        serves_small(on("m", "two", GENERATION_READY), 1);
}
END_TEST

START_TEST(three_come_one_after_the_other)
{
        struct watched w;
        leave(1, 0);
        leave(2, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two", "three"));
        core_until(is_on("m", "one"));
        give_back(2);
        core_until(is_on("m", "three"));
        ck_assert(!w.ended);
        ck_assert(!is_on("m", "two"));
        give_back(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "two", GENERATION_READY), 1);
        serves_small(on("m", "three", GENERATION_READY), 1);
}
END_TEST

START_TEST(a_device_that_is_read_in_place_need_not_wait_for_one_that_is_not)
{
        struct watched w;
        leave(0, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "fake"));
        core_until(is_on("m", "fake"));
        ck_assert(!w.ended);
        give_back(0);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 1);
        serves_small(on("m", "fake", GENERATION_READY), 1);
}
END_TEST

START_TEST(those_that_all_have_room_are_read_once)
{
        struct watched w;
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.load->rounds, 1);
        ck_assert(is_on("m", "one") && is_on("m", "two"));
}
END_TEST

START_TEST(all_that_are_blocked_hold_nothing)
{
        struct watched w;
        leave(0, 0);
        leave(1, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        core_until(w.load->targets[0].room.blocked && w.load->targets[1].room.blocked);
        target_is(&w, 0, "queued", true);
        target_is(&w, 1, "queued", true);
        ck_assert_uint_eq(ONE.device.used, BUDGET);
        load_cancel(w.load);
        ends(&w, LOAD_CANCELLED);
        ck_assert_uint_eq(ONE.allocs + TWO.allocs, 0);
}
END_TEST

/* Its published digest beside it, in the same folder. */
static void publish(const char *path)
{
        unsigned char digest[SHA256_DIGEST_LENGTH];
        size_t size, n = 0;
        char *data = file_read(path, &size), line[200];
        SHA256((const unsigned char *)data, size, digest);
        for (size_t i = 0; i < sizeof(digest); i++)
                n += (size_t)snprintf(line + n, sizeof(line) - n, "%02x", digest[i]);
        n += (size_t)snprintf(line + n, sizeof(line) - n, "  %s\n", strrchr(path, '/') + 1);
        file_write(suite_path("SHA256SUMS"), line, n);
        free(data);
}

START_TEST(published_digests_are_compared_in_each_round)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        publish(path);
        leave(1, 0);
        int r = load_request(&w, &(struct load_request){.source = path,
                                                        .name = "m",
                                                        .devices = (const char *const[]){"one", "two"},
                                                        .n_devices = 2,
                                                        .sha256 = true,
                                                        .wait = true,
                                                        .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        core_until(is_on("m", "one"));
        core_until(w.load->state == LOAD_QUEUED && !w.load->over);
        TWO.fail_put = _i == 0 ? 0 : 1;
        give_back(1);
        ends(&w, LOAD_READY);
        ck_assert(on("m", "one", GENERATION_READY)->verified);
        ck_assert(_i == 1 || on("m", "two", GENERATION_READY)->verified);
        ck_assert_int_eq(is_on("m", "two"), _i == 0);
}
END_TEST

/* ---- two loads ---- */

/* Each has a half of what it needs, and would have the other's half next: what serves is not held. */
START_TEST(two_loads_do_not_wait_for_each_others_devices)
{
        struct watched a, b;
        char *first = blocks_file("first.safetensors", 20), *second = blocks_file("second.safetensors", 24);
        leave(1, 0);
        wait_on(&a, first, "a", ON("one", "two"));
        core_until(is_on("a", "one"));
        wait_on(&b, second, "b", ON("two", "one"));
        core_until(is_on("b", "one")); /* a was evicted there */
        ck_assert(!is_on("a", "one"));
        ck_assert(!a.ended && !b.ended);
        give_back(1);
        ends(&a, LOAD_READY);
        ends(&b, LOAD_READY);
        ck_assert(is_on("b", "two"));
}
END_TEST

/* What was there before the load is not held for it either. */
START_TEST(what_serves_already_is_not_held_by_a_load_that_waits_for_more)
{
        struct watched a, b;
        char *first = blocks_file("first.safetensors", 20), *second = blocks_file("second.safetensors", 24);
        wait_on(&a, first, "a", ON("one"));
        ends(&a, LOAD_READY);
        leave(1, 0);
        wait_on(&a, first, "a", ON("one", "two"));
        core_until(a.load->targets[1].room.blocked);
        wait_on(&b, second, "b", ON("one"));
        ends(&b, LOAD_READY);
        give_back(1);
        ends(&a, LOAD_READY);
        ck_assert(is_on("a", "two"));
}
END_TEST

/* The stage lets four loads wait. */
START_TEST(a_load_counts_once_among_those_that_wait_however_many_devices_it_waits_for)
{
        static const char *const names[] = {"a", "b", "c", "d", "e"};
        struct watched w[5];
        leave(0, 0);
        leave(1, 0);
        for (uint64_t i = 0; i < 5; i++) {
                char *name = format_text("%s.safetensors", names[i]);
                wait_on(&w[i], small_file(name, i), names[i], ON("one", "two"));
                free(name);
                if (i < 4)
                        core_until(w[i].load->targets[0].room.blocked && w[i].load->targets[1].room.blocked);
        }
        ends(&w[4], LOAD_FAILED);
        ck_assert_int_eq(w[4].error.code, STREAMER_ELIMIT);
        for (unsigned i = 0; i < 4; i++)
                load_cancel(w[i].load);
}
END_TEST

START_TEST(what_is_wished_again_is_wished_of_what_serves_already_too)
{
        struct watched w, again;
        begin_waiting(&w);
        int r = load_request(&again, &(struct load_request){.source = w.load->source,
                                                            .name = "m",
                                                            .devices = (const char *const[]){"one", "two"},
                                                            .n_devices = 2,
                                                            .pin = true,
                                                            .keep_alive_ns = 7,
                                                            .priority = 9,
                                                            .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        ck_assert_ptr_eq(again.load, w.load);
        ck_assert(on("m", "one", GENERATION_READY)->pinned);
        ck_assert_uint_eq(on("m", "one", GENERATION_READY)->keep_alive_ns, 7);
        ck_assert_uint_eq(on("m", "one", GENERATION_READY)->priority, 9);
        ck_assert_uint_eq(w.load->priority, 9);
        give_back(1);
        ends(&w, LOAD_READY);
        ends(&again, LOAD_READY);
        ck_assert(on("m", "two", GENERATION_READY)->pinned);
}
END_TEST

/* ---- failing ---- */

START_TEST(one_that_could_never_fit_fails_alone)
{
        struct watched w;
        TWO.device.budget = MiB;
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "one"));
        ck_assert_ptr_nonnull(strstr(on("m", "two", GENERATION_FAILED)->error.text, "does not fit"));
        TWO.device.budget = BUDGET;
}
END_TEST

START_TEST(cancelling_ends_the_wait_and_leaves_what_serves)
{
        struct watched w;
        begin_waiting(&w);
        ck_assert_ptr_eq(loads_find(&loads, "m"), w.load);
        load_cancel(w.load);
        ends(&w, LOAD_CANCELLED);
        serves_small(on("m", "one", GENERATION_READY), 1);
        ck_assert_ptr_nonnull(on("m", "two", GENERATION_FAILED));
        ck_assert_uint_eq(TWO.allocs, 0);
}
END_TEST

START_TEST(who_waits_goes_on_when_all_that_were_read_have_failed)
{
        struct watched w;
        if (_i == 0)
                ONE.fail_alloc = 1;
        else
                ONE.fail_put = 1;
        leave(1, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        core_until(on("m", "one", GENERATION_FAILED) != NULL);
        core_until(w.load->state == LOAD_QUEUED && !w.load->over);
        ck_assert(!w.ended);
        target_is(&w, 0, "failed", false);
        give_back(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "two", GENERATION_READY), 1);
}
END_TEST

START_TEST(who_waited_may_fail_without_the_others)
{
        struct watched w;
        begin_waiting(&w);
        TWO.fail_alloc = 1;
        give_back(1);
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "one"));
        ck_assert_ptr_nonnull(on("m", "two", GENERATION_FAILED));
        ck_assert_uint_eq(w.progress.bytes, SMALL_BYTES);
}
END_TEST

START_TEST(a_source_that_changes_meanwhile_fails_who_waited)
{
        struct watched w;
        begin_waiting(&w);
        small_file("small.safetensors", 2);
        give_back(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 1);
        ck_assert_ptr_nonnull(strstr(on("m", "two", GENERATION_FAILED)->error.text, "changed"));
}
END_TEST

START_TEST(the_daemons_end_waits_for_nobody)
{
        struct watched w;
        begin_waiting(&w);
        loads_cancel_all(&loads);
        core_until(loads_empty(&loads));
}
END_TEST

/* ---- ranks ---- */

START_TEST(ranks_wait_for_all_their_devices_and_hold_none)
{
        struct watched w;
        char *folder = suite_path("ranks-%d", (int)getpid());
        mkdir(folder, 0755);
        for (uint64_t i = 0; i < 2; i++) {
                struct model *m = small_model(i);
                model_write(m, format_text("%s/r%d.safetensors", folder, (int)i));
                model_free(m);
        }
        leave(1, 0);
        int r = load_request(&w, &(struct load_request){.source = folder,
                                                        .name = "m",
                                                        .devices = (const char *const[]){"one", "two"},
                                                        .n_devices = 2,
                                                        .pattern = "r{rank}.safetensors",
                                                        .wait = true,
                                                        .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        core_until(w.load->targets[0].room.blocked);
        core_settle();
        ck_assert_uint_eq(ONE.device.used, 0);
        target_is(&w, 0, "queued", true);
        target_is(&w, 1, "queued", true);
        give_back(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 0);
        serves_small(on("m", "two", GENERATION_READY), 1);
}
END_TEST

int main(void)
{
        suite_begin("loads that wait for room");
        TCase *rounds = core_group("rounds", loading_begin_several, end);
        tcase_add_test(rounds, what_has_room_serves_while_the_other_waits);
        tcase_add_test(rounds, room_that_comes_while_the_others_are_read_is_used_afterwards);
        tcase_add_test(rounds, three_come_one_after_the_other);
        tcase_add_test(rounds, a_device_that_is_read_in_place_need_not_wait_for_one_that_is_not);
        tcase_add_test(rounds, those_that_all_have_room_are_read_once);
        tcase_add_test(rounds, all_that_are_blocked_hold_nothing);
        tcase_add_loop_test(rounds, published_digests_are_compared_in_each_round, 0, 2);
        TCase *two = core_group("two loads", loading_begin_several, end);
        tcase_add_test(two, two_loads_do_not_wait_for_each_others_devices);
        tcase_add_test(two, what_serves_already_is_not_held_by_a_load_that_waits_for_more);
        tcase_add_test(two, a_load_counts_once_among_those_that_wait_however_many_devices_it_waits_for);
        tcase_add_test(two, what_is_wished_again_is_wished_of_what_serves_already_too);
        TCase *failing = core_group("failing", loading_begin_several, end);
        tcase_add_test(failing, one_that_could_never_fit_fails_alone);
        tcase_add_test(failing, cancelling_ends_the_wait_and_leaves_what_serves);
        tcase_add_loop_test(failing, who_waits_goes_on_when_all_that_were_read_have_failed, 0, 2);
        tcase_add_test(failing, who_waited_may_fail_without_the_others);
        tcase_add_test(failing, a_source_that_changes_meanwhile_fails_who_waited);
        tcase_add_test(failing, the_daemons_end_waits_for_nobody);
        TCase *ranks = core_group("ranks", loading_begin_several, end);
        tcase_add_test(ranks, ranks_wait_for_all_their_devices_and_hold_none);
        return suite_run();
}
