/* SPDX-License-Identifier: Apache-2.0
 *
 * Contexts of two fake GPUs, one of which hangs in a call of CUDA: the other is used meanwhile. Copiers, and
 * the ring.
 */
#include "tests/lib/core.h"
#include "tests/lib/fake_cuda/state.h"

#include "daemon/device/cuda/device_private.h"

#define GPUS 2
#define SEGMENT (2 * MiB)

static struct fake_state *state;
static struct cuda *cuda;
static struct device *devices[GPUS];
static unsigned char ring[4096];
static unsigned pinned, n_unpinned, n_given_back;

static void on_unpinned(void *context)
{
        ck_assert_ptr_eq(context, ring);
        add_relaxed(&n_unpinned, 1);
}

static void give_back(void *arg)
{
        ck_assert_ptr_eq(arg, &pinned);
        n_given_back++;
}

static struct error error;

static void begin(void)
{
        const struct cuda_settings settings = {.context_retention_ns = 0};
        const struct cuda_opts opts = {.budget = 64 * MiB, .max_segment = 64 * MiB};
        char runtime[PATH_SIZE], driver[PATH_SIZE];
        char *path = suite_path("state.%d", (int)getpid());
        setenv("FAKECUDA_STATE", path, 1);
        setenv("FAKECUDA_DEVICES", "2", 1);
        fake_library("libcudart.so.13", runtime, sizeof(runtime));
        fake_library("libcuda.so.1", driver, sizeof(driver));
        setenv("STREAMER_CUDA_LIBRARY", driver, 1);
        state = fake_state_map(path);
        ck_assert_msg(cuda_new(&cuda, runtime, &settings, &error) == 0, "%s", error.text);
        cuda_set_ring(cuda, ring, sizeof(ring), &pinned, on_unpinned, ring);
        for (int i = 0; i < GPUS; i++)
                ck_assert_msg(cuda_device_new(&devices[i], cuda, i, &opts, core_wake, &error) == 0, "%s", error.text);
}

static bool is_closed(void)
{
        uv_run(&core_loop, UV_RUN_NOWAIT);
        return cuda_close(cuda);
}

static void end(void)
{
        AWAIT(is_closed());
        ck_assert_uint_eq(state->pinned, 0);
        for (int i = 0; i < GPUS; i++) {
                ck_assert(work_pool_stop(devices[i]->thread, now_ns() + 20 * SECOND));
                core_settle();
                devices[i] = device_free(devices[i]);
        }
        cuda = cuda_free(cuda);
}

/* On a device's thread: creates its context, which is idle afterwards. */
static struct use {
        struct work work;
        bool done;
} uses[GPUS];

static void use_run(struct work *work)
{
        struct device *d = devices[container_of(work, struct use, work) - uses];
        ck_assert_uint_ne(d->ops->ceiling(d), UINT64_MAX);
}

static void use_done(struct work *work)
{
        container_of(work, struct use, work)->done = true;
}

static void begin_use(unsigned gpu)
{
        uses[gpu].done = false;
        work_submit(devices[gpu]->thread, WORK_LANE_CPU, &uses[gpu].work, use_run, use_done);
}

static void end_use(unsigned gpu)
{
        core_until(uses[gpu].done);
}

static void use(unsigned gpu)
{
        begin_use(gpu);
        end_use(gpu);
}

static bool is_hung(void)
{
        cuda_tick(cuda);
        return state->hung == 1;
}

static bool has_no_context(void)
{
        cuda_tick(cuda);
        uv_run(&core_loop, UV_RUN_NOWAIT);
        return state->pinned == 0;
}

/* ---- calls that create a context, and that destroy it ---- */

static const char *const calls[] = {"cudaSetDevice",  "cudaFree",           "cudaHostRegister",
                                    "cudaMemGetInfo", "cudaHostUnregister", "cudaDeviceReset"};

CORE_FIXTURE(begin, end);

TEST(a_gpu_that_hangs_does_not_block_another, EACH(calls))
{
        fake_hang(state, calls[_i], 0);
        begin_use(0);
        AWAIT(is_hung());
        use(1);
        fake_unhang(state);
        end_use(0);
        AWAIT(has_no_context());
}

TEST(a_gpu_that_hangs_is_not_closed, EACH(calls))
{
        fake_hang(state, calls[_i], 0);
        begin_use(0);
        AWAIT(is_hung());
        ck_assert(!is_closed());
        fake_unhang(state);
}

/* The context is destroyed once, and then created again. */
TEST(a_context_that_is_being_destroyed_is_waited_for)
{
        use(0);
        fake_hang(state, "cudaDeviceReset", 0);
        AWAIT(is_hung());
        begin_use(0);
        fake_unhang(state);
        end_use(0);
        ck_assert_uint_eq(state->contexts[0], 2);
}

/* ---- copiers ---- */

static struct copier *copier;
static struct segment segment;

static void copy_once(void)
{
        void *event;
        ck_assert_int_eq(devices[0]->ops->alloc(devices[0], SEGMENT, &segment, &error), 0);
        copier = copier ?: devices[0]->ops->copier_new(devices[0], &error);
        ck_assert_ptr_nonnull(copier);
        const struct device_span span = {.segment = &segment, .from = ring, .len = sizeof(ring)};
        ck_assert_int_eq(devices[0]->ops->copy(copier, &span, 1, &event, &error), 0);
        ck_assert_int_eq(devices[0]->ops->copied(copier, event, true, &error), 1);
}

static void *free_copier(void *unused)
{
        devices[0]->ops->copier_free(copier);
        return NULL;
}

static const char *const copier_calls[] = {"cudaEventDestroy", "cudaStreamDestroy"};

TEST(a_copier_that_hangs_does_not_block_another_gpu, EACH(copier_calls))
{
        pthread_t thread;
        copy_once();
        fake_hang(state, copier_calls[_i], 0);
        must(pthread_create(&thread, NULL, free_copier, NULL));
        AWAIT(is_hung());
        use(1);
        devices[0]->ops->release(&segment); /* the copier holds the context */
        fake_unhang(state);
        pthread_join(thread, NULL);
        AWAIT(has_no_context());
}

/* The fake aborts if the copier touches them. */
TEST(a_copier_of_a_destroyed_context_leaves_its_streams_alone)
{
        copy_once();
        devices[0]->ops->release(&segment);
        AWAIT(has_no_context());
        AWAIT(is_closed());
        devices[0]->ops->copier_free(copier);
}

TEST(a_copier_gets_new_streams_in_a_new_context)
{
        copy_once();
        devices[0]->ops->release(&segment);
        AWAIT(has_no_context());
        copy_once();
        devices[0]->ops->copier_free(copier);
        devices[0]->ops->release(&segment);
}

/* ---- the ring ---- */

TEST(the_next_load_pins_a_ring_that_was_refused)
{
        fake_arm(state, "cudaHostRegister", 1, 2);
        use(0);
        ck_assert_uint_eq(pinned, RING_PIN_REFUSED);
        use(1);
        ck_assert_uint_eq(pinned, RING_PINNED);
}

TEST(the_ring_is_given_back_only_while_no_context_pins_it)
{
        cuda_if_unpinned(cuda, give_back, &pinned);
        ck_assert_uint_eq(n_given_back, 1);
        fake_hang(state, "cudaHostRegister", 0);
        begin_use(0);
        AWAIT(is_hung());
        cuda_if_unpinned(cuda, give_back, &pinned);
        fake_unhang(state);
        end_use(0);
        cuda_if_unpinned(cuda, give_back, &pinned);
        ck_assert_uint_eq(n_given_back, 1);
        ck_assert_uint_eq(n_unpinned, 0);
        AWAIT(has_no_context() && load_relaxed(&n_unpinned) == 1);
        cuda_if_unpinned(cuda, give_back, &pinned);
        ck_assert_uint_eq(n_given_back, 2);
}
