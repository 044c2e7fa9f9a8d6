/* SPDX-License-Identifier: Apache-2.0
 *
 * Each CUDA call of a load on two GPUs fails once: each allocation, each copy, each event. Replicas lose at most one
 * device, and the other serves; ranks are ready together or fail together. All memory is freed, and the next load
 * succeeds on both. The fake GPUs have capacity for one model; both kinds of handle are tested.
 */
#include "daemon/device/cuda/api.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/suite.h"

#define TWO 2
#define MEMORY_MIB 8  /* a model takes 6, in three segments */
#define PLACES_MAX 60 /* of one call in one load; events are queried repeatedly */
#define MEMORY_ERROR 2
#define OTHER_ERROR 801

#define X(name, result, arguments) #name,
static const char *const calls[] = {CUDA_RUNTIME_CALLS(X) CUDA_DRIVER_CALLS(X) "cudaMemcpyBatchAsync"};
#undef X

static struct model *models[TWO]; /* by rank */
static char *report;

static void begin(void)
{
        static const struct gpu_daemon both = {
                .n = TWO,
                .mib = MEMORY_MIB,
                .cuda = "segment_size: 2MiB, context_retention: 0s",
                .devices = {"'cuda:0', budget: 64MiB", "'cuda:1', budget: 64MiB, handles: cuda-vmm-fd"}};
        report = suite_path("report-%d", (int)getpid());
        setenv("FAKECUDA_REPORT", report, 1);
        gpu_begin(&both);
}

static void write_rank(const char *folder, size_t rank)
{
        char *path = format_text("%s/model-rank-%zu-part-0.safetensors", folder, rank);
        models[rank] = model_new(40 + rank);
        model_add_many(models[rank], "layer", 5, 1 << 20);
        model_add_many(models[rank], "small", 20, 100);
        model_write(models[rank], path);
}

/* The source of both kinds of load; without a layout only its first file is loaded. */
static char *write_source(const char *layout)
{
        char *folder = suite_path("source-%d", (int)getpid());
        mkdir(folder, 0755);
        for (size_t i = 0; i < TWO; i++)
                write_rank(folder, i);
        return layout != NULL ? folder : suite_path("source-%d/model-rank-0-part-0.safetensors", (int)getpid());
}

static int load(const char *source, const char *layout)
{
        streamer_op *op;
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = source,
                                   .name = "m",
                                   .devices = cuda_devices,
                                   .n_devices = TWO,
                                   .layout = layout};
        int r = streamer_load(client, &opts, &op);
        if (r == 0) {
                r = streamer_op_wait(op, 20000, NULL);
                streamer_op_free(op);
        }
        return r;
}

static bool serves(size_t device, const struct model *m)
{
        streamer_lease *lease = NULL;
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = cuda_devices[device]};
        if (streamer_attach(client, "m", &opts, &lease) != 0)
                return false;
        lease_equals(lease, m);
        streamer_detach(lease);
        return true;
}

static bool all_is_back(void *arg)
{
        (void)arg;
        return used_on("cuda:0") + used_on("cuda:1") == 0;
}

/* One load. `failed`: a call of this name was made to fail in it; NULL: none. Returns whether it was. */
static bool live(const char *source, const char *layout, const char *call, uint32_t nth, uint32_t error)
{
        fake_arm(gpus, call, nth, error);
        int r = load(source, layout);
        bool hit = fake_disarm(gpus);
        unsigned n = 0;
        char *told = format_text("%s", r != 0 ? streamer_last_error(client) : "");
        for (size_t i = 0; i < TWO; i++)
                n += serves(i, models[layout != NULL ? i : 0]);
        if (r == 0)
                ck_assert_msg(n == TWO, "%s %u: the load is well, and %u devices serve", call, nth, n);
        else
                ck_assert_msg(n == (layout != NULL ? 0 : TWO - 1), "%s %u: %u devices serve after: %s", call, nth, n,
                              told);
        ck_assert_msg(r == 0 || (hit && strstr(told, "cuda:")), "%s %u: %s", call, nth, told);
        streamer_unload(client, "m", 0);
        ck_assert_msg(eventually(all_is_back, NULL, 10000), "%s %u: memory is still taken", call, nth);
        return hit;
}

/* How many calls failed somewhere. */
static unsigned fail_everywhere(const char *layout, uint32_t error)
{
        char *source = write_source(layout);
        unsigned made = 0;
        for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]); i++) {
                uint32_t nth = 1;
                while (nth <= PLACES_MAX && live(source, layout, calls[i], nth, error))
                        nth++;
                made += nth > 1;
        }
        ck_assert_msg(!live(source, layout, "nothing", 1, error), "a call of no name");
        return made;
}

/* A daemon that gave up has written no report: the next one does. */
static void end(void)
{
        pid_t pid = test_daemon.pid;
        fixture_stop();
        while (daemon_gave_up(&test_daemon)) {
                begin();
                live(write_source(NULL), NULL, "nothing", 1, MEMORY_ERROR);
                pid = test_daemon.pid;
                fixture_stop();
        }
        gpu_check_freed(report, pid);
}

static const char *const layouts[] = {NULL, "rank"};

FIXTURE(.each = {begin, end}, .timeout = 240);

/* Loop: replicas, ranks. */
TEST(out_of_memory_in_every_call_for_two_devices, .to = 2)
{
        ck_assert_uint_gt(fail_everywhere(layouts[_i], MEMORY_ERROR), 12); /* or the names are others */
}

TEST(a_failure_other_than_out_of_memory_in_every_call_for_two_devices, .to = 2, .slow = true)
{
        ck_assert_uint_gt(fail_everywhere(layouts[_i], OTHER_ERROR), 12);
}
