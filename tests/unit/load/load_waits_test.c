/* SPDX-License-Identifier: Apache-2.0
 *
 * Replicas that wait for memory independently: the order of reads, which replicas are ready, and that two loads never
 * deadlock.
 */
#include "tests/unit/load_waits_fixture.h"

#include <openssl/sha.h>

/* ---- an admitted and a waiting replica ---- */

CORE_FIXTURE(load_fixture_begin_multi, end);

TEST(an_admitted_target_serves_while_the_other_waits)
{
        struct watched w;
        begin_waiting(&w);
        serves_small(on("m", "one", GENERATION_READY), 1);
        target_is(&w, 0, "ready", false);
        target_is(&w, 1, "queued", true);
        ck_assert_uint_eq(TWO.allocs, 0);
        ck_assert_ptr_nonnull(on("m", "two", GENERATION_LOADING));
        release_reserved(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "two", GENERATION_READY), 1);
        ck_assert_uint_eq(on("m", "one", GENERATION_READY)->number, on("m", "two", GENERATION_READY)->number);
        ck_assert_uint_eq(w.progress.bytes, SMALL_BYTES);
}

TEST(memory_freed_during_a_round_is_used_afterwards)
{
        struct watched w;
        reserve_all_but(1, 0);
        fake_device_copies(&ONE);
        gate_init(&ONE.event, false);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        core_until(w.load->state == LOAD_READING);
        gate_await(&ONE.event, 1);
        target_is(&w, 0, "loading", false);
        target_is(&w, 1, "queued", true);
        release_reserved(1);
        core_until(TWO.device.used > 0);
        ck_assert_uint_eq(TWO.allocs, 0);
        gate_open(&ONE.event);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 1);
        serves_small(on("m", "two", GENERATION_READY), 1);
}

TEST(three_waiting_targets_are_admitted_in_turn)
{
        struct watched w;
        reserve_all_but(1, 0);
        reserve_all_but(2, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two", "three"));
        core_until(is_on("m", "one"));
        release_reserved(2);
        core_until(is_on("m", "three"));
        ck_assert(!w.ended);
        ck_assert(!is_on("m", "two"));
        release_reserved(1);
        ends(&w, LOAD_READY);
        serves_small(on("m", "two", GENERATION_READY), 1);
        serves_small(on("m", "three", GENERATION_READY), 1);
}

TEST(a_device_read_in_place_does_not_wait_for_the_others)
{
        struct watched w;
        reserve_all_but(0, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "fake"));
        core_until(is_on("m", "fake"));
        ck_assert(!w.ended);
        release_reserved(0);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 1);
        serves_small(on("m", "fake", GENERATION_READY), 1);
}

TEST(replicas_admitted_together_are_read_once)
{
        struct watched w;
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        ends(&w, LOAD_READY);
        ck_assert_uint_eq(w.load->rounds, 1);
        ck_assert(is_on("m", "one") && is_on("m", "two"));
}

TEST(blocked_loads_hold_no_memory)
{
        struct watched w;
        reserve_all_but(0, 0);
        reserve_all_but(1, 0);
        wait_on(&w, small_file("small.safetensors", 1), "m", ON("one", "two"));
        core_until(w.load->targets[0].admission.blocked && w.load->targets[1].admission.blocked);
        target_is(&w, 0, "queued", true);
        target_is(&w, 1, "queued", true);
        ck_assert_uint_eq(ONE.device.used, BUDGET);
        load_cancel(w.load);
        ends(&w, LOAD_CANCELLED);
        ck_assert_uint_eq(ONE.allocs + TWO.allocs, 0);
}

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

TEST(published_digests_are_compared_in_each_pass, .to = 2)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        publish(path);
        reserve_all_but(1, 0);
        int r = load_request(&w, &(struct load_request){.source = path,
                                                        .name = "m",
                                                        .devices = (const char *const[]){"one", "two"},
                                                        .n_devices = 2,
                                                        .sha256 = true,
                                                        .wait = true,
                                                        .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        core_until(is_on("m", "one"));
        core_until(w.load->state == LOAD_QUEUED);
        TWO.fail_put = _i == 0 ? 0 : 1;
        release_reserved(1);
        ends(&w, LOAD_READY);
        ck_assert(on("m", "one", GENERATION_READY)->verified);
        ck_assert(_i == 1 || on("m", "two", GENERATION_READY)->verified);
        ck_assert_int_eq(is_on("m", "two"), _i == 0);
}

/* The other may wait for ever. */
TEST(a_failed_target_frees_its_memory_while_another_waits, .to = 2)
{
        struct watched w;
        char *path = small_file("small.safetensors", 1);
        publish(path);
        reserve_all_but(1, 0);
        ONE.fail_put = 1;
        int r = load_request(&w, &(struct load_request){.source = path,
                                                        .name = "m",
                                                        .devices = (const char *const[]){"one", "two"},
                                                        .n_devices = 2,
                                                        .sha256 = _i == 1,
                                                        .wait = true,
                                                        .caller = &core_caller});
        ck_assert_int_eq(r, 0);
        core_until(on("m", "one", GENERATION_FAILED) != NULL);
        core_until(ONE.device.used == 0);
        ck_assert(!w.ended);
        release_reserved(1);
        ends(&w, LOAD_READY);
        ck_assert(is_on("m", "two") && !is_on("m", "one"));
}

/* With fragmented memory the load is planned again, from headers that the test has made invalid. */
TEST(a_failed_replan_leaves_the_serving_replica)
{
        struct watched w;
        begin_waiting(&w);
        fake_device_share(&TWO, BUDGET);
        TWO.fail_alloc = 1;
        gate_init(&TWO.alloc, false);
        release_reserved(1);
        core_until(w.load->state == LOAD_ALLOCATING);
        struct st_header *header = &w.load->parts[0].resolved.headers[0];
        header->tensors[header->n_tensors - 1].end = UINT64_MAX;
        gate_open(&TWO.alloc);
        ends(&w, LOAD_READY);
        serves_small(on("m", "one", GENERATION_READY), 1);
        struct generation *two = on("m", "two", GENERATION_FAILED);
        ck_assert_ptr_nonnull(two);
        ck_assert_ptr_nonnull(strstr(two->error.text, "overflow"));
        core_until(TWO.device.used == 0);
}

/* ---- two loads ---- */

/* Each load serves on one device and waits for the other's: ready replicas are not held. */
TEST(two_loads_do_not_wait_for_each_others_devices)
{
        struct watched a, b;
        char *first = blocks_file("first.safetensors", 20), *second = blocks_file("second.safetensors", 24);
        reserve_all_but(1, 0);
        wait_on(&a, first, "a", ON("one", "two"));
        core_until(is_on("a", "one"));
        wait_on(&b, second, "b", ON("two", "one"));
        core_until(is_on("b", "one")); /* a was evicted from it */
        ck_assert(!is_on("a", "one"));
        ck_assert(!a.ended && !b.ended);
        release_reserved(1);
        ends(&a, LOAD_READY);
        ends(&b, LOAD_READY);
        ck_assert(is_on("b", "two"));
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
        core_until(a.load->targets[1].admission.blocked);
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
                free(name);
                if (i < 4)
                        core_until(w[i].load->targets[0].admission.blocked && w[i].load->targets[1].admission.blocked);
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
        ck_assert(on("m", "one", GENERATION_READY)->settings.pinned);
        ck_assert_uint_eq(on("m", "one", GENERATION_READY)->settings.keep_alive_ns, 7);
        ck_assert_uint_eq(on("m", "one", GENERATION_READY)->settings.priority, 9);
        ck_assert_uint_eq(w.load->priority, 9);
        release_reserved(1);
        ends(&w, LOAD_READY);
        ends(&again, LOAD_READY);
        ck_assert(on("m", "two", GENERATION_READY)->settings.pinned);
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

static void ask_for(struct watched *w, struct load_request what)
{
        what.caller = &core_caller;
        int r = load_request(w, &what);
        ck_assert_msg(r == 0, "%s", w->error.text);
}

/* By the same name, which joins at once, or by another, which joins when the source is open. */
static const char *const joining_names[] = {"m", "n"};

TEST(a_joining_request_that_waits_makes_the_load_wait, .to = 2)
{
        struct watched a, b;
        char *path = blocks_file("first.safetensors", 20);
        begin_evicting(0);
        ask_for(&a, (struct load_request){.source = path, .name = "m", ON_FIELDS("one")});
        core_until(a.load->state == LOAD_QUEUED && !is_on("old", "one"));
        ask_for(&b, (struct load_request){.source = path, .name = joining_names[_i], .wait = true, ON_FIELDS("one")});
        core_until(b.watch.load == a.load);
        evict_for_other_user(0);
        core_until(a.ended || a.load->targets[0].admission.blocked);
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
        ask_for(&a,
                (struct load_request){.source = path, .name = "m", .wait = true, .no_evict = true, ON_FIELDS("one")});
        core_until(a.load->targets[0].admission.blocked);
        ask_for(&b, (struct load_request){.source = path, .name = joining_names[_i], ON_FIELDS("one")});
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
        struct load_request what = {.source = path, .name = "m", .wait = true, .no_evict = true, ON_FIELDS("one")};
        ask_for(&a, what);
        core_until(a.load->targets[0].admission.blocked);
        ask_for(&b, what);
        ck_assert_ptr_eq(a.load, b.load);
        core_until(!resident.admission->posted);
        ck_assert(is_on("old", "one") && a.load->targets[0].admission.blocked);
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
        struct load_request what = {.source = first, .name = "m", ON_FIELDS("one", "two")};
        ask_for(&a, what);
        core_until(a.load->state == LOAD_QUEUED && !is_on("old", "two"));
        what.wait = true;
        ask_for(&b, what);
        ck_assert_ptr_eq(a.load, b.load);
        evict_for_other_user(1);
        core_until(a.load->targets[1].admission.blocked);
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
        struct load_request what = {.source = path, .name = "m", ON_FIELDS("one", "two")};
        ask_for(&a, what);
        core_until(a.load->targets[1].state == TARGET_FAILED && a.load->state == LOAD_READING);
        what.wait = true;
        ask_for(&b, what);
        ck_assert_ptr_ne(a.load, b.load);
        gate_open(&ONE.put);
        ends(&a, LOAD_READY);
        ck_assert(!is_on("m", "two"));
        core_until(b.load->targets[1].admission.blocked);
        release_reserved(1);
        ends(&b, LOAD_READY);
        ck_assert(is_on("m", "one") && is_on("m", "two"));
        ck_assert_uint_eq(ONE.allocs, 1);
}
