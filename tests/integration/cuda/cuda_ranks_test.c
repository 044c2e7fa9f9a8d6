/* SPDX-License-Identifier: Apache-2.0
 *
 * Models of several ranks on fake GPUs: each rank is on its own device, and they fail, are cached and are restored
 * together. The model checker has their evictions and restores in any order.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/suite.h"

#define RANKS 3

static struct model *rank_of(const char *name, size_t rank, size_t tensors)
{
        struct model *m = model_new(10 * (uint64_t)name[0] + rank);
        model_add(m, "embed", "BF16", (uint64_t[]){1000, 64 + rank}, 2);
        model_add_many(m, "layer", tensors, 1 << 20);
        return m;
}

static char *folder_of(const char *name)
{
        return suite_path("%s-%d", name, (int)getpid());
}

static char *write_ranks(const char *name, size_t ranks, size_t tensors)
{
        char *folder = folder_of(name);
        mkdir(folder, 0755);
        for (size_t r = 0; r < ranks; r++)
                model_write(rank_of(name, r, tensors), format_text("%s/model-rank-%zu-part-0.safetensors", folder, r));
        return folder;
}

/* ---- loads ---- */

FIXTURE(.each = {gpu_begin_four, fixture_stop});

TEST(each_rank_is_on_its_own_device)
{
        ck_assert_int_eq(load_on(write_ranks("m", RANKS, 2), "m", cuda_devices, RANKS, "rank"), 0);
        for (size_t r = 0; r < RANKS; r++)
                client_equals_on(client, "m", cuda_devices[r], rank_of("m", r, 2));
        const json_t *model = client_show(client, "m");
        char digest[33];
        model_digest(rank_of("m", 2, 2), digest);
        ck_assert_uint_eq(json_array_size(json_at(model, "devices")), RANKS);
        ck_assert_str_eq(json_text(model, "digest"), ""); /* each rank has its own */
        ck_assert_str_eq(json_text(model, "devices.2.digest"), digest);
        ck_assert_uint_eq(json_number(model, "devices.2.rank"), 2);
        ck_assert_uint_eq(json_number(model, "tensors"), RANKS * 3);
        json_decref(client_call(client, "verify", "{\"model\":\"m\"}"));
        char *args = format_text("{\"model\":\"m\",\"source\":\"%s\"}", folder_of("m"));
        ck_assert_int_eq(client_call_code(client, "diff", args), STREAMER_EUNSUPPORTED);
        ck_assert_str_eq(streamer_last_error(client), "m: models of ranks are not compared");
}

TEST(ranks_fail_together)
{
        gpus->broken[1] = 700;
        client_fails(client, load_on(write_ranks("m", RANKS, 2), "m", cuda_devices, RANKS, "rank"), STREAMER_EFAILED,
                     "rank 1: cuda:1");
        for (int i = 0; i < RANKS; i++) {
                ck_assert_int_eq(attach_code(cuda_devices[i]), STREAMER_EFAILED);
                wait_until_freed(cuda_devices[i]);
        }
}

TEST(ranks_by_the_command_line)
{
        ctl_says(test_daemon.socket, 0, "", "load", write_ranks("m", 2, 2), "--name", "m", "--layout", "rank",
                 "--device", "1,0", NULL);
        const char *out = ctl_says(test_daemon.socket, 0, "cuda:1", "show", "m", NULL);
        ck_assert_msg(strstr(out, "rank 0") < strstr(out, "rank 1"), "%s", out);
}

/* Errors of sources with ranks, and of requests for them. */
static const struct {
        size_t ranks;
        const char *devices, *layout, *pattern, *says;
        int code;
} wrong[] = {
        {3, "0,1,2,3", "rank", NULL, "3 ranks for 4 devices", 1},
        {2, "0,1", "rank", "weights-{rank}.safetensors", "no file's name is like", 1},
        {2, "0,1", "rank", "weights.safetensors", "{rank} must stand in it once", 2},
        {2, "0,1", "row", NULL, "neither replica nor rank", 2},
        {2, "0,1", "replica", "model-rank-{rank}-part-{part}.safetensors", "only the layout 'rank'", 2},
};

TEST(an_incomplete_set_of_ranks_is_refused, EACH(wrong))
{
        ctl_says(test_daemon.socket, wrong[_i].code, wrong[_i].says, "load", write_ranks("m", wrong[_i].ranks, 2),
                 "--device", wrong[_i].devices, "--layout", wrong[_i].layout,
                 wrong[_i].pattern != NULL ? "--pattern" : NULL, wrong[_i].pattern, NULL);
}

/* ---- the host cache ---- */

/* It has memory for three ranks, and each GPU for two: "a" is evicted by "c". */
static void begin_cached(void)
{
        static const struct gpu_daemon two = {.n = 2,
                                              .mib = 64,
                                              .more = "host_cache: 70MiB\n",
                                              .devices = {"'cuda:0', budget: 50MiB", "'cuda:1', budget: 50MiB"}};
        gpu_begin(&two);
}

static int load_ranks(const char *name)
{
        return load_on(write_ranks(name, 2, 20), name, cuda_devices, 2, "rank");
}

static void serves(const char *name)
{
        for (unsigned i = 0; i < 2; i++)
                client_equals_on(client, name, cuda_devices[i], rank_of(name, i, 20));
}

FIXTURE(.each = {begin_cached, fixture_stop});

/* The first of them, or the second. */
TEST(one_rank_without_host_memory_caches_none, .from = 1, .to = 3)
{
        client_ok(client, load_ranks("a"), "a");
        client_ok(client, load_ranks("b"), "b");
        fake_arm(gpus, "cudaHostRegister", (uint32_t)_i, 2);
        client_ok(client, load_ranks("c"), "c");
        client_wait_host_cache(client, 0);
        ck_assert_str_eq(client_state(client, "a"), "");
        serves("c");
}

TEST(a_failed_restore_of_one_rank_fails_all_and_keeps_the_cached_ranks, .from = 1, .to = 3)
{
        client_ok(client, load_ranks("a"), "a");
        client_ok(client, load_ranks("b"), "b");
        client_ok(client, load_ranks("c"), "c");
        uint64_t cached = client_host_cache(client);
        client_unload(client, "c");
        fake_arm(gpus, "cudaMemcpy", (uint32_t)_i, 719);
        ck_assert_int_eq(load_on(folder_of("a"), "a", cuda_devices, 2, "rank"), STREAMER_EFAILED);
        ck_assert_uint_eq(client_host_cache(client), cached);
        client_ok(client, load_on(folder_of("a"), "a", cuda_devices, 2, "rank"), "a");
        serves("a");
}
