/* SPDX-License-Identifier: Apache-2.0
 *
 * The host cache with models of several ranks, on two fake GPUs: ranks are cached, dropped and restored together. A
 * rank has 20 MiB, and a GPU capacity for two.
 */
#include "tests/lib/gpu_daemon.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"
#include "tests/lib/fixture.h"

#define MIB (UINT64_C(1) << 20)
#define RANK (20 * MIB)

static const char *const both[] = {"cuda:0", "cuda:1"};
static struct fake_state *state;

static void start(const char *more)
{
        const struct gpu_daemon two = {
                .n = 2, .mib = 64, .more = more, .devices = {"'cuda:0', budget: 48MiB", "'cuda:1', budget: 48MiB"}};
        state = gpu_daemon_start(&two);
        client = client_open(&test_daemon);
}

/* Memory for three ranks, which are one model. */
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
        return client_load_with(client,
                                (streamer_load_opts){.source = n == 2 ? suite_path("%s", name) : path_of(name, 0),
                                                     .name = name,
                                                     .devices = devices,
                                                     .n_devices = n,
                                                     .layout = layout});
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
        struct model *m = rank_of(name, rank);
        client_equals_on(client, name, device, m);
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

/* "a" was evicted by "c". */
static void evict_first(void)
{
        write_and_load("a");
        write_and_load("b");
        write_and_load("c");
}

/* ---- cached ---- */

FIXTURE(.each = {begin, fixture_stop});

TEST(evicted_ranks_are_restored_byte_for_byte)
{
        evict_first();
        is("a", "cached");
        client_wait_host_cache(client, 2 * RANK);
        for (unsigned i = 0; i < 2; i++)
                file_uncache(path_of("a", i));
        uint64_t read = process_read_bytes(test_daemon.pid);
        client_ok(client, load_ranks("a"), "a");
        ck_assert(process_read_no_model(test_daemon.pid, read));
        serves("a");
        is("b", ""); /* it did not fit while "a" was restored */
        serves("c");
        client_wait_host_cache(client, 0);
}

TEST(ranks_are_restored_to_other_gpus)
{
        static const char *const swapped[] = {"cuda:1", "cuda:0"};
        evict_first();
        client_wait_host_cache(client, 2 * RANK);
        client_unload(client, "c");
        for (unsigned i = 0; i < 2; i++)
                file_uncache(path_of("a", i));
        uint64_t read = process_read_bytes(test_daemon.pid);
        client_ok(client, load_on("a", swapped, 2, "rank"), "a");
        ck_assert(process_read_no_model(test_daemon.pid, read));
        serves_on("a", "cuda:1", 0);
        serves_on("a", "cuda:0", 1);
        client_wait_host_cache(client, 0);
}

TEST(all_ranks_of_a_set_are_cached_together)
{
        write_and_load("a");
        write_and_load("b");
        write_ranks("s");
        client_ok(client, load_on("s", both, 1, NULL), "s");
        is("a", "cached");
        client_wait_host_cache(client, 2 * RANK);
        serves_on("s", "cuda:0", 0);
        serves("b");
}

TEST(ranks_are_dropped_from_the_cache_together)
{
        evict_first();
        write_and_load("d");
        is("a", "");
        is("b", "cached");
        client_wait_host_cache(client, 2 * RANK);
        client_unload(client, "b");
        client_wait_host_cache(client, 0);
}

TEST(a_changed_file_of_one_rank_invalidates_all_cached_ranks)
{
        evict_first();
        client_wait_host_cache(client, 2 * RANK);
        struct model *other = rank_of("x", 1);
        model_write(other, path_of("a", 1));
        client_ok(client, load_ranks("a"), "a");
        serves_on("a", "cuda:0", 0);
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = "cuda:1"};
        client_ok(client, streamer_attach(client, "a", &opts, &lease), "a");
        lease_equals(lease, other);
        streamer_detach(lease);
}

static void load_first_rank(const char *name)
{
        write_ranks(name);
        client_ok(client, load_on(name, both, 1, NULL), name);
}

FIXTURE(.each = {begin_small, fixture_stop});

/* It was pinned when it lost its name. */
TEST(a_draining_rank_does_not_keep_others_in_the_cache)
{
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = both[1]};
        write_and_load("a");
        client_ok(client, streamer_attach(client, "a", &opts, &lease), "a");
        client_ok(client, streamer_pin(client, "a", 1), "pin");
        json_decref(client_call(client, "unload", "{\"model\":\"a\",\"device\":\"cuda:1\",\"drain\":true}"));
        client_ok(client, streamer_pin(client, "a", 0), "unpin");
        load_first_rank("b");
        load_first_rank("c"); /* which evicts the remaining ranks of "a": they are not cached */
        is("a", "draining");
        client_wait_host_cache(client, 0);
        load_first_rank("d");
        is("b", "cached");
        streamer_detach(lease);
}

FIXTURE(.each = {begin, fixture_stop});

/* Loop test: by an unload, and by another model of that name. */
TEST(dropping_one_rank_from_the_cache_drops_all, .to = 2)
{
        evict_first();
        is("a", "cached");
        if (_i == 0) {
                json_decref(client_call(client, "unload", "{\"model\":\"a\",\"device\":\"cuda:1\"}"));
                ck_assert(eventually(client_is_unloaded, "a",
                                     20000)); /* its memory first, and the other rank by itself */
                client_wait_host_cache(client, 0);
                return;
        }
        client_unload(client, "b");
        client_ok(client, load_on("a", both, 1, NULL), "a");
        serves_on("a", "cuda:0", 0);
        client_wait_host_cache(client, 0);
}

/* ---- not cached ---- */

FIXTURE(.each = {begin_small, fixture_stop});

TEST(ranks_that_do_not_fit_together_are_not_cached)
{
        evict_first();
        is("a", "");
        client_wait_host_cache(client, 0);
}

FIXTURE(.each = {begin_damaged, fixture_stop});

TEST(a_wrong_byte_in_one_rank_caches_none)
{
        evict_first();
        client_wait_host_cache(client, 0);
        is("a", "");
        ck_assert(log_wait_for(test_daemon.log, "resident bytes differ from those that were loaded"));
}

FIXTURE(.each = {begin, fixture_stop});

/* The first of them, or the second. */
TEST(one_rank_without_host_memory_caches_none, .from = 1, .to = 3)
{
        write_and_load("a");
        write_and_load("b");
        fake_arm(state, "cudaHostRegister", (uint32_t)_i, 2);
        write_and_load("c");
        client_wait_host_cache(client, 0);
        is("a", "");
        serves("c");
}

TEST(a_failed_restore_of_one_rank_fails_all_and_keeps_the_cached_ranks, .from = 1, .to = 3)
{
        evict_first();
        client_wait_host_cache(client, 2 * RANK);
        client_unload(client, "c");
        fake_arm(state, "cudaMemcpy", (uint32_t)_i, 719);
        ck_assert_int_eq(load_ranks("a"), STREAMER_EFAILED);
        ck_assert_uint_eq(client_host_cache(client), 2 * RANK);
        client_ok(client, load_ranks("a"), "a");
        serves("a");
}
