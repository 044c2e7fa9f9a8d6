/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon with GPUs, on the fake CUDA libraries: copies to devices, the time at which tensors become visible, and
 * the effects of a failing device. Tests logic, not speed.
 */
#include "tests/lib/gpu_daemon.h"
#include "tests/lib/suite.h"

static struct fake_state *gpus;

/* Two GPUs of 64 MiB, the second with descriptors; budgets that are larger than one of them. */
static void begin(void)
{
        static const struct gpu_daemon two = {
                .n = 2,
                .mib = 64,
                .cuda = "segment_size: 8MiB",
                .devices = {"'cuda:0', budget: 256MiB", "'cuda:1', budget: 256MiB, handles: cuda-vmm-fd"}};
        gpus = gpu_daemon_start(&two);
        client = client_open(&test_daemon);
}

static char *write_model(const struct model *m, const char *name)
{
        char *path = suite_path("%s", name);
        model_write(m, path);
        return path;
}

static int load_on(const char *path, const char *name, const char *device, streamer_op **op)
{
        streamer_load_opts opts = {
                .struct_size = sizeof(opts), .source = path, .name = name, .devices = &device, .n_devices = 1};
        return streamer_load(client, &opts, op);
}

/* Loads and waits: the outcome. */
static int loaded(const char *path, const char *name, const char *device)
{
        return client_load_with(client,
                                (streamer_load_opts){.source = path, .name = name, .devices = &device, .n_devices = 1});
}

/* ---- */

static const char *const devices[] = {"cuda:0", "cuda:1"};

FIXTURE(.each = {begin, fixture_stop});

TEST(a_model_on_the_gpu_equals_its_file, .to = 2)
{
        struct model *m = model_mixed(7, 20 << 20); /* several segments */
        char *args = "{\"model\":\"m\"}";

        ck_assert_int_eq(loaded(write_model(m, "m.safetensors"), "m", devices[_i]), 0);
        client_equals(client, "m", m);
        json_decref(client_call(client, "verify", args));
        ck_assert_uint_eq(gpus->pageable, 0);
        ck_assert_uint_ge(gpus->copied[_i], m->bytes);
        client_unload(client, "m");
}

TEST(a_gpu_without_models_has_no_context)
{
        struct model *m = model_mixed(8, 1 << 20);

        ck_assert_uint_eq(gpus->contexts[0] + gpus->contexts[1], 0);
        ck_assert_int_eq(loaded(write_model(m, "m.safetensors"), "m", "cuda:0"), 0);
        ck_assert_uint_eq(gpus->contexts[0], 1);
        ck_assert_uint_eq(gpus->contexts[1], 0);
        client_unload(client, "m");
        ck_assert_int_eq(loaded(suite_path("m.safetensors"), "m", "cuda:0"), 0);
        client_equals(client, "m", m);
}

TEST(no_tensor_is_visible_before_its_copy_completes, .to = 2)
{
        struct model *m = model_mixed(9, 12 << 20);
        streamer_progress p = {.struct_size = sizeof(p)};
        streamer_op *op;
        streamer_tensor t = STREAMER_TENSOR_INIT;

        gpus->hold = 1;
        client_ok(client, load_on(write_model(m, "m.safetensors"), "m", devices[_i], &op), "load");
        streamer_lease *lease = client_attach(client, "m");
        ck_assert_int_eq(streamer_op_wait(op, 300, &p), STREAMER_ETIMEOUT); /* read and hashed long since */
        ck_assert_uint_eq(p.bytes, 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), STREAMER_EBUSY);
        gpus->hold = 0;
        ck_assert_int_eq(streamer_op_wait(op, 20000, &p), 0);
        lease_equals(lease, m);
        streamer_detach(lease);
        streamer_op_free(op);
}

TEST(a_full_gpu_refuses_with_figures, .to = 2)
{
        struct model *m = model_mixed(10, 80 << 20), *fits = model_mixed(11, 1 << 20);

        ck_assert_int_eq(loaded(write_model(m, "m.safetensors"), "m", devices[_i]), STREAMER_ENOMEM);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "others use the device too"));
        ck_assert_int_eq(loaded(write_model(fits, "f.safetensors"), "f", devices[_i]), 0);
        client_equals(client, "f", fits);
}

TEST(a_lost_context_takes_its_device_out_and_nothing_else)
{
        struct model *m = model_mixed(12, 4 << 20), *gone = model_mixed(16, 4 << 20);
        char *path = write_model(m, "m.safetensors");

        ck_assert_int_eq(loaded(path, "before", "cuda:1"), 0);
        ck_assert_int_eq(loaded(write_model(gone, "gone.safetensors"), "gone", "cuda:0"), 0);
        model_free(gone);
        gpus->broken[0] = 700;
        ck_assert_int_eq(loaded(path, "m", "cuda:0"), STREAMER_EFAILED);
        gpus->broken[0] = 0;
        ck_assert_int_eq(loaded(path, "m", "cuda:0"), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "out of service"));
        client_equals(client, "before", m);
        ck_assert_int_eq(loaded(path, "after", "cuda:1"), 0);
}

TEST(a_context_that_failed_is_created_for_the_next_load)
{
        struct model *m = model_mixed(15, 4 << 20);
        char *path = write_model(m, "m.safetensors");

        gpus->broken[0] = 46; /* another process has it for itself */
        ck_assert_int_eq(loaded(path, "m", "cuda:0"), STREAMER_EFAILED);
        gpus->broken[0] = 0;
        ck_assert_int_eq(loaded(path, "m", "cuda:0"), 0);
        client_equals(client, "m", m);
}

TEST(a_process_that_attaches_twice_opens_a_segment_once)
{
        struct model *m = model_mixed(14, 4 << 20);

        ck_assert_int_eq(loaded(write_model(m, "m.safetensors"), "m", "cuda:0"), 0);
        streamer_lease *first = client_attach(client, "m"), *second = client_attach(client, "m");
        ck_assert_uint_eq(gpus->opens, 1);
        streamer_detach(first);
        lease_equals(second, m);
        streamer_detach(second);
        client_equals(client, "m", m); /* opened again, after the last detach closed it */
        ck_assert_uint_eq(gpus->opens, 2);
}

TEST(memory_stays_until_a_killed_consumer_has_exited, .to = 2)
{
        struct model *m = model_mixed(13, 4 << 20);
        int ready[2];

        ck_assert_int_eq(loaded(write_model(m, "m.safetensors"), "m", devices[_i]), 0);
        must(pipe(ready));
        pid_t pid = must(fork());
        if (pid == 0) {
                streamer_client *mine = client_open(&test_daemon);
                client_attach(mine, "m");
                must((int)write(ready[1], "x", 1));
                pause();
                _exit(0);
        }
        char byte;
        ck_assert_int_eq(read(ready[0], &byte, 1), 1);
        ck_assert_int_eq(streamer_unload(client, "m", 0), STREAMER_EBUSY);
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        ck_assert_uint_gt(client_leases(client), 0);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        client_wait_leases(client, 0);
}

/* ---- names and budgets ---- */

#define UUID "fa4eda00-5eed-4000-8000-0000000000"

/* Two GPUs of 64 MiB; budgets in MiB, 0: not a device of the daemon. */
static const struct {
        const char *devices[3];
        uint64_t budget[2];
} names[] = {
        {{"'cuda:GPU-" UUID "01', budget: 50%"}, {0, 32}},
        {{"'cuda:GPU-" UUID "00', budget: 25%", "'cuda:1', budget: 16MiB"}, {16, 16}},
        {{"'cuda:MIG-" UUID "01', budget: 25%"}, {0, 16}}, /* as nvidia-smi calls it */
        {{"'cuda:all', budget: 75%"}, {48, 48}},
        {{"'cuda:all?', budget: 75%"}, {48, 48}},
        {{"'cuda:1', budget: 25%", "'cuda:all?', budget: 75%"}, {48, 16}}, /* the others */
};

static uint64_t budget_of(const json_t *configured, unsigned gpu)
{
        char *name = format_text("cuda:%u", gpu);
        for (size_t i = 0; i < json_array_size(configured); i++) {
                const json_t *d = json_array_get(configured, i);
                if (strcmp(json_string_value(json_object_get(d, "device")), name) == 0)
                        return (uint64_t)json_integer_value(json_object_get(d, "budget"));
        }
        return 0;
}

FIXTURE();

TEST(a_gpu_is_named_by_number_uuid_or_all_and_has_its_budget, EACH(names))
{
        struct gpu_daemon two = {.n = 2, .mib = 64};
        memcpy(two.devices, names[_i].devices, sizeof(names[_i].devices));
        gpus = gpu_daemon_start(&two);
        client = client_open(&test_daemon);
        json_t *status = client_call(client, "status", NULL);
        for (unsigned gpu = 0; gpu < 2; gpu++) {
                uint64_t budget = budget_of(json_object_get(status, "devices"), gpu);
                ck_assert_uint_le(budget, names[_i].budget[gpu] << 20);
                ck_assert_uint_ge(budget + 100, names[_i].budget[gpu] << 20); /* a percent is whole bytes */
        }
        fixture_stop();
}

TEST(a_gpu_that_is_optional_may_be_absent)
{
        static const struct gpu_daemon one = {
                .n = 1, .mib = 64, .devices = {"'cuda:0?', budget: 16MiB", "'cuda:7?', budget: 16MiB"}};
        gpus = gpu_daemon_start(&one);
        client = client_open(&test_daemon);
        json_t *status = client_call(client, "status", NULL);
        ck_assert_uint_eq(json_array_size(json_object_get(status, "devices")), 1);
        const json_t *absent = json_object_get(status, "absent");
        ck_assert_uint_eq(json_array_size(absent), 1);
        ck_assert_str_eq(json_string_value(json_object_get(json_array_get(absent, 0), "device")), "cuda:7");
        ck_assert_ptr_nonnull(strstr(json_string_value(json_object_get(json_array_get(absent, 0), "why")),
                                     "no such GPU (1 visible)"));
        fixture_stop();
}

/* A GPU that alone is optional does not make a daemon. */
TEST(without_cuda_the_daemon_has_what_works)
{
        static const struct gpu_daemon none = {.n = 1, .mib = 64, .devices = {"'cuda:all?'"}};
        char config[PATH_SIZE];
        gpu_daemon_prepare(&none, suite_folder(), "none", config);
        file_write(config, "cuda: {library: /nowhere}\n", 26);
        daemon_init(&test_daemon, suite_path("d"));
        const char *root = suite_folder();
        ck_assert_int_eq(daemon_run(&test_daemon, (const char *const[]){"--config", config, "--root", root, "--device",
                                                                        "cuda:all?", NULL}),
                         1);
        ck_assert(log_wait_for(test_daemon.log, "no device works: cuda:all: CUDA is unavailable: "));
        daemon_start(&test_daemon, (const char *const[]){"--config", config, "--root", root, "--device", "host=16MiB",
                                                         "--device", "cuda:all?", NULL});
        client = client_open(&test_daemon);
        json_t *status = client_call(client, "status", NULL);
        ck_assert_uint_eq(json_array_size(json_object_get(status, "devices")), 1);
        ck_assert_uint_eq(json_array_size(json_object_get(status, "absent")), 1);
        fixture_stop();
}

TEST(a_gpu_by_two_names_is_configured_twice)
{
        static const struct gpu_daemon one = {.n = 1, .mib = 64, .devices = {"'cuda:0', budget: 16MiB"}};
        gpus = gpu_daemon_start(&one);
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
        const char *config = suite_path("gpus-%d.yaml", (int)getpid()), *uuid = "cuda:GPU-" UUID "00=16MiB";
        ck_assert_int_eq(
                daemon_run(&test_daemon, (const char *const[]){"--config", config, "--root", suite_folder(), "--device",
                                                               "cuda:0=16MiB", "--device", uuid, NULL}),
                1);
        ck_assert(log_wait_for(test_daemon.log, "device cuda:0 is configured twice"));
}
