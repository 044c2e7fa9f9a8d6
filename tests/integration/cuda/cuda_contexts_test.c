/* SPDX-License-Identifier: Apache-2.0
 *
 * When the daemon creates and destroys a GPU's context. The fake GPUs count contexts and registered memory.
 */
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/suite.h"

static struct model *model;
static char *path;

/* Two GPUs of 64 MiB and the host, with these settings of `cuda`. */
static void begin(const char *settings)
{
        gpu_begin(&(struct gpu_daemon){
                .n = 2,
                .mib = 64,
                .cuda = settings,
                .devices = {"'cuda:0', budget: 32MiB", "'cuda:1', budget: 32MiB", "host, budget: 32MiB"}});
        model = model_mixed(21, 4 << 20);
        path = write_model(model, "m.safetensors");
}

static void end(const char *name)
{
        client_equals(client, name, model);
        fixture_stop();
        ck_assert_uint_eq(gpus->pinned, 0); /* also if a context was idle */
}

/* Attaching would create a context of this process's own, and be counted: models are compared at the end. */
static void load(const char *name, const char *device)
{
        client_ok(client, load_to(path, name, device), name);
}

static void unload(const char *name)
{
        client_unload(client, name);
        client_wait_used(client, 0);
}

/* So long the daemon retains an unused context at least. */
#define LINGER_NS UINT64_C(1000000000)

/* The number of contexts that a load on the unused cuda:0 creates. A load that takes longer than that may create a
 * second one, so it is repeated. */
static uint32_t contexts_of_load(const char *name)
{
        for (;;) {
                uint32_t before = gpus->contexts[0];
                uint64_t began = clock_ns();
                load(name, "cuda:0");
                if (clock_ns() - began < LINGER_NS)
                        return gpus->contexts[0] - before;
                unload(name);
                AWAIT(gpus->pinned == 0);
        }
}

static bool both_have_contexts(void)
{
        return gpus->contexts[0] == 1 && gpus->contexts[1] == 1;
}

TEST(a_context_is_retained_for_the_next_model)
{
        begin(NULL);
        load("m", "cuda:0");
        unload("m");
        ck_assert_uint_gt(gpus->pinned, 0);
        load("m", "cuda:0");
        ck_assert_uint_eq(gpus->contexts[0], 1);
        ck_assert_uint_eq(gpus->contexts[1], 0);
        ck_assert_uint_eq(gpus->pageable, 0);
        end("m");
}

TEST(a_context_is_destroyed_after_its_retention_time)
{
        begin("context_retention: 50ms");
        ck_assert_uint_eq(contexts_of_load("m"), 1);
        unload("m");
        AWAIT(gpus->pinned == 0);
        ck_assert_uint_eq(contexts_of_load("m"), 1);
        ck_assert_uint_eq(gpus->pageable, 0);
        end("m");
}

/* The first context registers the ring for all of them. */
TEST(the_context_of_the_ring_lives_while_other_contexts_exist)
{
        begin("context_retention: 0s");
        load("pins", "cuda:0");
        load("other", "cuda:1");
        uint32_t before = gpus->contexts[0];
        client_unload(client, "pins");
        load("pins", "cuda:0");
        ck_assert_uint_eq(gpus->contexts[0], before);
        client_unload(client, "pins");
        unload("other");
        AWAIT(gpus->pinned == 0);
        ck_assert_uint_eq(contexts_of_load("pins"), 1);
        ck_assert_uint_eq(gpus->pageable, 0);
        end("pins");
}

TEST(contexts_can_be_created_at_start)
{
        begin("context_at_start: true, context_retention: 0s");
        AWAIT(both_have_contexts());
        load("m", "cuda:1");
        unload("m");
        load("m", "cuda:0");
        ck_assert(both_have_contexts());
        end("m");
}

TEST(a_context_that_cannot_be_created_at_start_is_created_by_a_load)
{
        setenv("FAKECUDA_FAIL", "cudaFree:1:46", 1);
        begin("context_at_start: true");
        ck_assert(log_wait_for(test_daemon.log, "no context at start"));
        load("m", "cuda:0");
        load("n", "cuda:1");
        end("m");
}

/* Of a file of its own, so that it joins no other load. */
static void begin_load(const char *name, const char *device)
{
        load_begin(write_model(model, format_text("%s.safetensors", name)), name, &device, 1, NULL);
}

/* The first GPU hangs. The daemon must end within its ten seconds (daemon_stop), and say why without it.
 * tests/unit/device/cuda/cuda_context_test.c has each call of a context. */
TEST(a_gpu_that_hangs_blocks_neither_another_nor_the_daemons_end)
{
        begin("context_retention: 0s");
        fake_hang(gpus, "cudaMemGetInfo", 0);
        begin_load("x", "cuda:0");
        AWAIT(gpus->hung == 1);
        begin_load("y", "cuda:0");
        load("n", "cuda:1");
        load("h", "host");
        ck_assert_uint_eq(gpus->hung, 1);
        fixture_stop();
        ck_assert(log_wait_for(test_daemon.log, "a call of CUDA has not returned: ending without it"));
}
