/* SPDX-License-Identifier: Apache-2.0
 *
 * The daemon with GPUs, on the fake CUDA libraries: other users of a GPU, and the names and budgets of GPUs.
 */
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/suite.h"

/* ---- other users ---- */

/* Of two GPUs of 64 MiB, the second with descriptors; budgets that are larger than one of them. */
static void begin_with_other_users(void)
{
        static const struct gpu_daemon two = {
                .n = 2,
                .mib = 64,
                .cuda = "segment_size: 8MiB",
                .devices = {"'cuda:0', budget: 256MiB", "'cuda:1', budget: 256MiB, handles: cuda-vmm-fd"}};
        setenv("FAKECUDA_OTHERS_MIB", "40", 1);
        gpu_begin(&two);
}

FIXTURE(.each = {begin_with_other_users, fixture_stop});

TEST(memory_of_other_processes_is_reported_and_evicts_none, .to = 2)
{
        struct model *first = model_mixed(10, 8 << 20);
        ck_assert_int_eq(load_to(write_model(first, "f.safetensors"), "first", cuda_devices[_i]), 0);
        client_fails(client, load_to(write_model(model_mixed(11, 30 << 20), "m.safetensors"), "m", cuda_devices[_i]),
                     STREAMER_ENOMEM, "others use the device too");
        client_equals(client, "first", first);
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

FIXTURE();

TEST(a_gpu_is_named_by_number_uuid_or_all_and_has_its_budget, EACH(names))
{
        struct gpu_daemon two = {.n = 2, .mib = 64};
        memcpy(two.devices, names[_i].devices, sizeof(names[_i].devices));
        gpu_begin(&two);
        json_t *status = client_call(client, "status", NULL);
        for (unsigned gpu = 0; gpu < 2; gpu++) {
                const json_t *row = json_find(json_at(status, "devices"), "device", cuda_devices[gpu]);
                uint64_t budget = json_number(row, "budget");
                ck_assert_uint_le(budget, names[_i].budget[gpu] << 20);
                ck_assert_uint_ge(budget + 100, names[_i].budget[gpu] << 20); /* a percent is whole bytes */
        }
        fixture_stop();
}

TEST(a_gpu_that_is_optional_may_be_absent)
{
        static const struct gpu_daemon one = {
                .n = 1, .mib = 64, .devices = {"'cuda:0?', budget: 16MiB", "'cuda:7?', budget: 16MiB"}};
        gpu_begin(&one);
        json_t *status = client_call(client, "status", NULL);
        ck_assert_uint_eq(json_array_size(json_object_get(status, "devices")), 1);
        ck_assert_uint_eq(json_array_size(json_at(status, "absent")), 1);
        ck_assert_str_eq(json_text(status, "absent.0.device"), "cuda:7");
        ck_assert_ptr_nonnull(strstr(json_text(status, "absent.0.why"), "no such GPU (1 visible)"));
        fixture_stop();
}

/* A GPU that alone is optional does not make a daemon. */
TEST(without_cuda_the_daemon_has_what_works)
{
        static const struct gpu_daemon none = {.n = 1, .mib = 64, .devices = {"'cuda:all?'"}};
        char *config = gpu_prepare(&none, suite_folder(), "none");
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
        const char *config = gpu_start(&one), *uuid = "cuda:GPU-" UUID "00=16MiB";
        ck_assert_int_eq(daemon_stop(&test_daemon), 0);
        ck_assert_int_eq(
                daemon_run(&test_daemon, (const char *const[]){"--config", config, "--root", suite_folder(), "--device",
                                                               "cuda:0=16MiB", "--device", uuid, NULL}),
                1);
        ck_assert(log_wait_for(test_daemon.log, "device cuda:0 is configured twice"));
}
