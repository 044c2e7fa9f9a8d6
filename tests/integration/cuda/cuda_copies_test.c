/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies to GPUs, counted by the fake: as few as the file's layout permits, from pinned memory, and one read of
 * storage for several GPUs.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/doctor_checks.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#define BLOCK (2u << 20) /* as configured below */
#define BATCH 256u       /* copies in one call */
#define SAMPLES 3u       /* leaves that a load of a small model reads back */
#define SMALL 2000u      /* tensors of 100 bytes, each with its own address on the GPU */

/* With further settings of cuda; NULL: none. */
static void start_with(const char *io, const char *settings)
{
        const struct gpu_daemon two = {.n = 2,
                                       .runtime = "libcudart.so.12",
                                       .cuda = settings,
                                       .io = io,
                                       .devices = {"'cuda:0', budget: 64MiB", "'cuda:1', budget: 64MiB"}};
        gpu_begin(&two);
}

static void start(const char *settings)
{
        start_with("block_size: 2MiB", settings);
}

/* On the first n devices; reads it back on each. */
static void load_and_compare(struct model *m, size_t n)
{
        client_ok(client, load_on(write_model(m, "m.safetensors"), "m", cuda_devices, n, NULL), "m");
        for (size_t i = 0; i < n; i++)
                client_equals_on(client, "m", cuda_devices[i], m);
}

/* Seven whole blocks, whose tensors are multiples of the device's alignment and thus adjacent. */
static struct model *ordinary_model(void)
{
        struct model *m = model_new(31);
        model_add_many(m, "layer", 4, 3 * BLOCK / 2);
        model_add_many(m, "norm", 512, 4096);
        return m;
}

static struct model *small_model(void)
{
        struct model *m = model_new(32);
        model_add_many(m, "small", SMALL, 100);
        return m;
}

FIXTURE(.each = {NULL, fixture_stop});

/* Whole blocks are copied singly, tensors with addresses of their own in batches. */
static const struct {
        struct model *(*model)(void);
        const char *settings, *variable, *value; /* of the fake */
        uint32_t copies, batches, batched;
} counted[] = {
        {ordinary_model, "readback: false", NULL, NULL, 7, 0, 0},
        {ordinary_model, NULL, NULL, NULL, 7 + SAMPLES, 0, 0},
        {ordinary_model, "readback: false, batch_single_copies: true", NULL, NULL, 0, 7, 7},
        {small_model, "readback: false", NULL, NULL, 0, (SMALL + BATCH - 1) / BATCH, SMALL},
        /* Without batches: a driver that is too old; and one under WSL: registered memory has other addresses on the
         * GPU, and a batch passes the given addresses on. */
        {small_model, "readback: false", "FAKECUDA_VERSION", "12040", SMALL, 0, 0},
        {small_model, "readback: false", "FAKECUDA_HOST_POINTERS", "0", SMALL, 0, 0},
};

TEST(copies_are_as_few_as_layout_and_driver_permit, EACH(counted))
{
        if (counted[_i].variable != NULL)
                setenv(counted[_i].variable, counted[_i].value, 1);
        start(counted[_i].settings);
        load_and_compare(counted[_i].model(), 1);
        ck_assert_uint_eq(gpus->pageable, 0);
        ck_assert_uint_eq(gpus->copies, counted[_i].copies);
        ck_assert_uint_eq(gpus->batches, counted[_i].batches);
        ck_assert_uint_eq(gpus->batched, counted[_i].batched);
}

TEST(a_load_whose_bytes_differ_on_the_gpu_fails_and_names_a_tensor)
{
        setenv("FAKECUDA_DAMAGE", "1", 1);
        start(NULL);
        client_fails(client, load_on(write_model(ordinary_model(), "m.safetensors"), "m", cuda_devices, 1, NULL),
                     STREAMER_EFAILED, "its bytes on cuda:0 are not those that were read");
        client_wait_used(client, 0);
}

/* The fake runtime refuses to wait for an event that does not block. */
TEST(copies_are_polled_if_configured)
{
        struct model *m = ordinary_model();
        setenv("FAKECUDA_EVENT_MS", "5", 1);
        start("poll_copies: true");
        load_and_compare(m, 2);
        json_decref(client_call(client, "verify", "{\"model\":\"m\"}"));
        ck_assert_uint_eq(gpus->pageable, 0);
}

TEST(a_rejected_batch_is_copied_singly_and_not_retried, .to = 2)
{
        static const char *const refusals[] = {"cudaMemcpyBatchAsync:2:1", "cudaMemcpyBatchAsync:2:801"};
        struct model *m = small_model();
        setenv("FAKECUDA_FAIL", refusals[_i], 1);
        start("readback: false");
        load_and_compare(m, 1);
        ck_assert_uint_eq(gpus->batches, 1);
        ck_assert_uint_eq(gpus->copies, SMALL - BATCH);
        ck_assert(log_wait_for(test_daemon.log, "tensors are copied one by one"));
}

/* While no event fires nothing is copied, so the next block given to the GPU was read during the copy. */
TEST(reads_and_copies_overlap_with_one_block_in_flight)
{
        struct model *m = ordinary_model();
        char *path = write_model(m, "m.safetensors");
        start_with("block_size: 2MiB, concurrency: 1", NULL);
        gpus->hold = 1;
        streamer_op *op = load_begin(path, "m", cuda_devices, 1, NULL);
        AWAIT(gpus->copies >= 2);
        ck_assert_uint_eq(gpus->copied[0], 0);
        gpus->hold = 0;
        client_ok(client, client_load_end(op), "load");
        ck_assert_uint_eq(gpus->copied[0], m->bytes);
}

/* Pieces of 1 MiB, through two of the four slots, which are recycled. */
TEST(verify_reads_back_through_the_ring)
{
        struct model *m = model_mixed(41, 12 << 20);
        start_with("block_size: 2MiB, memory_limit: 8MiB", NULL);
        ck_assert(log_wait_for(test_daemon.log, "io.memory_limit: 4 slots for 32 reader threads, which want two each"));
        load_and_compare(m, 1);
        uint32_t loaded = gpus->copies;
        for (size_t i = 0; i < 3; i++)
                json_decref(client_call(client, "verify", "{\"model\":\"m\"}"));
        ck_assert_uint_ge(gpus->copies - loaded, 3 * 12);
        ck_assert_uint_eq(gpus->pageable, 0);
}

static const struct {
        const char *settings, *call;
} read_backs[] = {{NULL, "cudaMemcpyAsync"}, {NULL, "cudaEventSynchronize"}, {"poll_copies: true", "cudaEventQuery"}};

TEST(a_failed_read_back_fails_only_its_verify, EACH(read_backs))
{
        struct model *m = model_mixed(42, 4 << 20);
        start(read_backs[_i].settings);
        load_and_compare(m, 1);
        fake_arm(gpus, read_backs[_i].call, 2, 1);
        ck_assert_int_eq(streamer_call(client, "verify", "{\"model\":\"m\"}", NULL), STREAMER_EFAILED);
        ck_assert(fake_disarm(gpus));
        json_decref(client_call(client, "verify", "{\"model\":\"m\"}"));
}

#define AT_ONCE 4 /* workers that one device may have */

TEST(a_stalled_gpu_does_not_delay_a_verify_on_another)
{
        static const char *const verify[] = {"verify", "m", NULL};
        struct model *m = model_mixed(44, 4 << 20);
        struct ctl_running running[AT_ONCE];
        struct ctl result;
        start(NULL);
        load_and_compare(m, 1);
        client_ok(client, load_to(write_model(m, "n.safetensors"), "n", "cuda:1"), "n");
        uint32_t before = gpus->copies;
        gpus->held[0] = 1;
        for (size_t i = 0; i < AT_ONCE; i++)
                ctl_start(&running[i], test_daemon.socket, verify);
        AWAIT(gpus->copies - before >= AT_ONCE);
        json_decref(client_call(client, "verify", "{\"model\":\"n\"}"));
        gpus->held[0] = 0;
        for (size_t i = 0; i < AT_ONCE; i++) {
                ctl_finish(&running[i], &result);
                ck_assert_int_eq(result.code, 0);
        }
}

TEST(unloading_a_device_during_verify_does_not_stop_the_others)
{
        static const char *const verify[] = {"verify", "m", "-o", "json", NULL};
        struct model *m = model_mixed(45, 4 << 20);
        struct ctl_running running;
        struct ctl result;
        start(NULL);
        load_and_compare(m, 2);
        uint32_t before = gpus->copies;
        gpus->held[0] = 1;
        ctl_start(&running, test_daemon.socket, verify);
        AWAIT(gpus->copies > before);
        json_decref(client_call(client, "unload", "{\"model\":\"m\",\"device\":\"cuda:0\",\"drain\":true}"));
        gpus->held[0] = 0;
        ctl_finish(&running, &result);
        ck_assert_msg(result.code == 0 && strstr(result.out, "\"devices\":2") != NULL, "%s%s", result.out, result.err);
}

/* A context is destroyed after its last model was freed. */
static void ring_is(const char *pinned)
{
        AWAIT(strcmp(json_text(client_call(client, "status", NULL), "ring.pinned"), pinned) == 0);
}

TEST(a_ring_is_pinned_while_a_gpu_holds_something)
{
        struct model *m = small_model();
        start("context_retention: 0s");
        ring_is("no");
        load_and_compare(m, 1);
        ring_is("yes");
        client_unload(client, "m");
        client_wait_used(client, 0);
        ring_is("no");
}

TEST(a_ring_that_cannot_be_pinned_is_tried_once_and_copied_from)
{
        struct model *m = small_model();
        setenv("FAKECUDA_FAIL", "cudaHostRegister:0:2", 1);
        start("segment_size: 2MiB");
        fake_arm(gpus, "cudaHostRegister", UINT32_MAX, 2); /* counts */
        model_add_many(m, "large", 4, 2 << 20);            /* a segment for each */
        load_and_compare(m, 1);
        ck_assert_uint_eq(gpus->fail_seen, 1);
        ck_assert_uint_gt(gpus->pageable, 0);
        ring_is("refused");
        doctor_ask();
        doctor_found("warn", "memlock", "could not be pinned");
}
