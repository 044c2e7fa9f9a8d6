/* SPDX-License-Identifier: Apache-2.0
 *
 * The host cache and models that are cut by rank, on stand-ins for two GPUs: their ranks are kept, dropped
 * and brought back together. Each rank has 20 MiB, and each GPU room for two of them.
 */
#include "tests/lib/gpus.h"
#include "tests/lib/storage.h"
#include "tests/lib/suite.h"
#include "tests/lib/tier.h"

#include <string.h>
#include <sys/stat.h>

#define MIB (UINT64_C(1) << 20)
#define RANK (20 * MIB)

static const char *const both[] = {"cuda:0", "cuda:1"};
static struct fake_state *state;
static streamer_client *client;

static void start(const char *more)
{
        const struct gpus two = {
                .n = 2, .mib = 64, .more = more, .devices = {"'cuda:0', budget: 48MiB", "'cuda:1', budget: 48MiB"}};
        state = gpus_start(&two);
        client = client_open(&stage);
}

/* Room for three ranks, which is one model. */
static void begin(void)
{
        start("host_cache: 66MiB\n");
}

static void begin_small(void)
{
        start("host_cache: 30MiB\n");
}

static void begin_damaged(void)
{
        setenv("FAKECUDA_DAMAGE", "1", 1);
        begin();
        unsetenv("FAKECUDA_DAMAGE");
}

static void end(void)
{
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&stage), 0);
}

/* ---- models ---- */

static struct model *rank_of(const char *name, unsigned rank)
{
        struct model *m = model_new(10 * (uint64_t)name[0] + rank);
        model_add_many(m, "t", 20, MIB);
        return m;
}

static char *path_of(const char *name, unsigned rank)
{
        return suite_path("%s/model-rank-%u-part-0.safetensors", name, rank);
}

static void write_ranks(const char *name)
{
        mkdir(suite_path("%s", name), 0755);
        for (unsigned i = 0; i < 2; i++) {
                struct model *m = rank_of(name, i);
                model_write(m, path_of(name, i));
                model_free(m);
        }
}

static int load_on(const char *name, const char *const *devices, size_t n, const char *layout)
{
        streamer_op *op;
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = n == 2 ? suite_path("%s", name) : path_of(name, 0),
                                   .name = name,
                                   .devices = devices,
                                   .n_devices = n,
                                   .layout = layout};
        client_ok(client, streamer_load(client, &opts, &op), name);
        int r = streamer_op_wait(op, -1, NULL);
        streamer_op_free(op);
        return r;
}

static int load_ranks(const char *name)
{
        return load_on(name, both, 2, "rank");
}

static void write_and_load(const char *name)
{
        write_ranks(name);
        client_ok(client, load_ranks(name), name);
}

static void serves_on(const char *name, const char *device, unsigned rank)
{
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = device};
        struct model *m = rank_of(name, rank);
        client_ok(client, streamer_attach(client, name, &opts, &lease), name);
        lease_equals(lease, m);
        streamer_detach(lease);
        model_free(m);
}

static void serves(const char *name)
{
        for (unsigned i = 0; i < 2; i++)
                serves_on(name, both[i], i);
        json_t *args = json_pack("{s:s}", "model", name);
        json_decref(client_call(client, "verify", json_dumps(args, 0)));
        json_decref(args);
}

static void is(const char *name, const char *what)
{
        ck_assert_str_eq(client_state(client, name), what);
}

static bool is_gone(void *name)
{
        return client_state(client, name)[0] == '\0';
}

/* "a" was evicted by "c". */
static void evict_first(void)
{
        write_and_load("a");
        write_and_load("b");
        write_and_load("c");
}

/* ---- kept ---- */

START_TEST(ranks_that_are_evicted_come_back_from_the_host_byte_for_byte)
{
        evict_first();
        is("a", "cached");
        tier_await(client, 2 * RANK);
        for (unsigned i = 0; i < 2; i++)
                file_uncache(path_of("a", i));
        uint64_t read = process_read_bytes(stage.pid);
        client_ok(client, load_ranks("a"), "a");
        ck_assert(process_read_no_model(stage.pid, read));
        serves("a");
        is("b", ""); /* while "a" was copied back there was no room for it */
        serves("c");
        tier_await(client, 0);
}
END_TEST

START_TEST(ranks_come_back_to_other_gpus_than_they_were_on)
{
        static const char *const swapped[] = {"cuda:1", "cuda:0"};
        evict_first();
        tier_await(client, 2 * RANK);
        client_unload(client, "c");
        for (unsigned i = 0; i < 2; i++)
                file_uncache(path_of("a", i));
        uint64_t read = process_read_bytes(stage.pid);
        client_ok(client, load_on("a", swapped, 2, "rank"), "a");
        ck_assert(process_read_no_model(stage.pid, read));
        serves_on("a", "cuda:1", 0);
        serves_on("a", "cuda:0", 1);
        tier_await(client, 0);
}
END_TEST

START_TEST(a_rank_takes_the_others_with_it_into_the_cache)
{
        write_and_load("a");
        write_and_load("b");
        write_ranks("s");
        client_ok(client, load_on("s", both, 1, NULL), "s");
        is("a", "cached");
        tier_await(client, 2 * RANK);
        serves_on("s", "cuda:0", 0);
        serves("b");
}
END_TEST

START_TEST(ranks_leave_the_cache_together)
{
        evict_first();
        write_and_load("d");
        is("a", "");
        is("b", "cached");
        tier_await(client, 2 * RANK);
        client_unload(client, "b");
        tier_await(client, 0);
}
END_TEST

START_TEST(one_rank_whose_file_has_changed_is_none_that_is_cached)
{
        evict_first();
        tier_await(client, 2 * RANK);
        struct model *other = rank_of("x", 1);
        model_write(other, path_of("a", 1));
        client_ok(client, load_ranks("a"), "a");
        serves_on("a", "cuda:0", 0);
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = "cuda:1"};
        client_ok(client, streamer_attach(client, "a", &opts, &lease), "a");
        lease_equals(lease, other);
        streamer_detach(lease);
        model_free(other);
}
END_TEST

static void load_first_rank(const char *name)
{
        write_ranks(name);
        client_ok(client, load_on(name, both, 1, NULL), name);
}

/* It was pinned when it lost its name. */
START_TEST(a_rank_that_drains_keeps_no_other_in_the_cache)
{
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = both[1]};
        write_and_load("a");
        client_ok(client, streamer_attach(client, "a", &opts, &lease), "a");
        client_ok(client, streamer_pin(client, "a", 1), "pin");
        json_decref(client_call(client, "unload", "{\"model\":\"a\",\"device\":\"cuda:1\",\"drain\":true}"));
        client_ok(client, streamer_pin(client, "a", 0), "unpin");
        load_first_rank("b");
        load_first_rank("c"); /* which evicts what is left of "a": it is not kept */
        is("a", "draining");
        tier_await(client, 0);
        load_first_rank("d");
        is("b", "cached");
        streamer_detach(lease);
}
END_TEST

/* Loop test: by an unload, and by another model of that name. */
START_TEST(a_rank_that_leaves_the_cache_takes_the_others_along)
{
        evict_first();
        is("a", "cached");
        if (_i == 0) {
                json_decref(client_call(client, "unload", "{\"model\":\"a\",\"device\":\"cuda:1\"}"));
                ck_assert(eventually(is_gone, "a", 20000)); /* its memory first, and the other rank by itself */
                tier_await(client, 0);
                return;
        }
        client_unload(client, "b");
        client_ok(client, load_on("a", both, 1, NULL), "a");
        serves_on("a", "cuda:0", 0);
        tier_await(client, 0);
}
END_TEST

/* ---- not kept ---- */

START_TEST(ranks_that_do_not_fit_together_are_not_kept)
{
        evict_first();
        is("a", "");
        tier_await(client, 0);
}
END_TEST

START_TEST(a_byte_of_a_rank_that_differs_keeps_none)
{
        evict_first();
        tier_await(client, 0);
        is("a", "");
        ck_assert(log_will_say(stage.log, "resident bytes differ from those that were loaded"));
}
END_TEST

/* The first of them, or the second. */
START_TEST(host_memory_that_one_rank_cannot_have_keeps_none)
{
        write_and_load("a");
        write_and_load("b");
        fake_arm(state, "cudaHostRegister", (uint32_t)_i, 2);
        write_and_load("c");
        tier_await(client, 0);
        is("a", "");
        serves("c");
}
END_TEST

START_TEST(a_copy_back_that_fails_for_one_rank_fails_all_and_leaves_the_cached_ones)
{
        evict_first();
        tier_await(client, 2 * RANK);
        client_unload(client, "c");
        fake_arm(state, "cudaMemcpy", (uint32_t)_i, 719);
        ck_assert_int_eq(load_ranks("a"), STREAMER_EFAILED);
        ck_assert_uint_eq(tier_used(client), 2 * RANK);
        client_ok(client, load_ranks("a"), "a");
        serves("a");
}
END_TEST

int main(void)
{
        suite_begin("ranks in the host cache");
        TCase *kept = suite_group("kept", NULL, NULL, 60);
        tcase_add_checked_fixture(kept, begin, end);
        tcase_add_test(kept, ranks_that_are_evicted_come_back_from_the_host_byte_for_byte);
        tcase_add_test(kept, ranks_come_back_to_other_gpus_than_they_were_on);
        tcase_add_test(kept, a_rank_takes_the_others_with_it_into_the_cache);
        tcase_add_test(kept, ranks_leave_the_cache_together);
        tcase_add_loop_test(kept, a_rank_that_leaves_the_cache_takes_the_others_along, 0, 2);
        tcase_add_test(kept, one_rank_whose_file_has_changed_is_none_that_is_cached);
        tcase_add_loop_test(kept, host_memory_that_one_rank_cannot_have_keeps_none, 1, 3);
        tcase_add_loop_test(kept, a_copy_back_that_fails_for_one_rank_fails_all_and_leaves_the_cached_ones, 1, 3);
        TCase *small = suite_group("a small cache", NULL, NULL, 60);
        tcase_add_checked_fixture(small, begin_small, end);
        tcase_add_test(small, ranks_that_do_not_fit_together_are_not_kept);
        tcase_add_test(small, a_rank_that_drains_keeps_no_other_in_the_cache);
        TCase *damaged = suite_group("damage", NULL, NULL, 60);
        tcase_add_checked_fixture(damaged, begin_damaged, end);
        tcase_add_test(damaged, a_byte_of_a_rank_that_differs_keeps_none);
        return suite_run();
}
