/* SPDX-License-Identifier: Apache-2.0
 *
 * The host cache with models of several ranks, on two fake GPUs: ranks are cached, dropped and restored together. A
 * rank has 20 MiB, and a GPU capacity for two.
 */
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#define MIB (UINT64_C(1) << 20)
#define RANK (20 * MIB)

/* The cache has memory for three ranks, which are one model. */
static void begin(void)
{
        static const struct gpu_daemon two = {.n = 2,
                                              .mib = 64,
                                              .more = "host_cache: 66MiB\n",
                                              .devices = {"'cuda:0', budget: 48MiB", "'cuda:1', budget: 48MiB"}};
        gpu_begin(&two);
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

static int load_ranks(const char *name, const char *const *on)
{
        return load_on(suite_path("%s", name), name, on, 2, "rank");
}

static void write_and_load(const char *name)
{
        write_ranks(name);
        client_ok(client, load_ranks(name, cuda_devices), name);
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
                serves_on(name, cuda_devices[i], i);
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
        client_ok(client, load_ranks("a", cuda_devices), "a");
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
        client_ok(client, load_ranks("a", swapped), "a");
        ck_assert(process_read_no_model(test_daemon.pid, read));
        serves_on("a", "cuda:1", 0);
        serves_on("a", "cuda:0", 1);
        client_wait_host_cache(client, 0);
}

TEST(a_changed_file_of_one_rank_invalidates_all_cached_ranks)
{
        evict_first();
        client_wait_host_cache(client, 2 * RANK);
        struct model *other = rank_of("x", 1);
        model_write(other, path_of("a", 1));
        client_ok(client, load_ranks("a", cuda_devices), "a");
        serves_on("a", "cuda:0", 0);
        client_equals_on(client, "a", "cuda:1", other);
}

/* ---- not cached ---- */

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
        fake_arm(gpus, "cudaHostRegister", (uint32_t)_i, 2);
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
        fake_arm(gpus, "cudaMemcpy", (uint32_t)_i, 719);
        ck_assert_int_eq(load_ranks("a", cuda_devices), STREAMER_EFAILED);
        ck_assert_uint_eq(client_host_cache(client), 2 * RANK);
        client_ok(client, load_ranks("a", cuda_devices), "a");
        serves("a");
}
