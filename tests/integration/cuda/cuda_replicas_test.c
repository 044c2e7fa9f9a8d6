/* SPDX-License-Identifier: Apache-2.0
 *
 * Replicas on several fake GPUs: they are read once, and each fails alone. Tests logic, not speed.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

/* ---- replicas ---- */

FIXTURE(.each = {gpu_begin_four, fixture_stop});

TEST(replicas_are_read_once_and_copied_to_each_device)
{
        struct model *m = model_mixed(1, 20 << 20);
        char *path = write_model(m, "m.safetensors");
        file_uncache(path);
        uint64_t before = process_read_bytes(test_daemon.pid);
        ck_assert_int_eq(load_on(path, "m", cuda_devices, 3, NULL), 0);
        uint64_t read = process_read_bytes(test_daemon.pid) - before;
        for (size_t i = 0; i < 3; i++) {
                client_equals_on(client, "m", cuda_devices[i], m);
                ck_assert_uint_ge(gpus->copied[i], m->bytes);
                ck_assert_uint_lt(gpus->copied[i], m->bytes + m->bytes / 10);
        }
        ck_assert_uint_eq(gpus->copied[3], 0);
        ck_assert_uint_eq(gpus->pageable, 0);
        json_decref(client_call(client, "verify", "{\"model\":\"m\"}"));
        if (read < file_size(path) / 2)
                SKIP("this file system does not count bytes read");
        ck_assert_uint_le(read, file_size(path) + file_size(path) / 10);
}

TEST(replicas_are_one_model_with_several_devices)
{
        static const char *const in_reverse[] = {"cuda:1", "cuda:0"};
        struct model *m = model_mixed(2, 4 << 20);
        ck_assert_int_eq(load_on(write_model(m, "m.safetensors"), "m", in_reverse, 2, NULL), 0);
        streamer_lease *lease = client_attach_on(client, "m", "cuda:1");
        const json_t *model = client_show(client, "m"), *devices = json_object_get(model, "devices");
        ck_assert_uint_eq(json_array_size(devices), 2);
        ck_assert_uint_eq(json_number(model, "bytes"), m->bytes);
        ck_assert_uint_eq(json_number(model, "tensors"), m->n);
        ck_assert_uint_eq(json_number(model, "leases"), 1);
        for (size_t i = 0; i < 2; i++) {
                const json_t *d = json_array_get(devices, i);
                ck_assert_str_eq(json_text(d, "device"), cuda_devices[i]);
                ck_assert_str_eq(json_text(d, "state"), "ready");
                ck_assert_str_eq(json_text(d, "digest"), json_text(model, "digest"));
                ck_assert_uint_eq(json_number(d, "leases"), i);
                ck_assert_uint_ge(json_number(d, "bytes"), m->bytes);
        }
        ck_assert_uint_eq(json_array_size(json_at(client_call(client, "list", NULL), "models")), 1);
        ck_assert_str_eq(json_text(client_call(client, "ps", NULL), "leases.0.device"), "cuda:1");
        uint64_t used = used_on("cuda:1");
        ck_assert_int_eq(streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), 0);
        wait_until_freed("cuda:0");
        ck_assert_uint_eq((uint64_t)client_metric(client, "streamerd_device_draining_bytes{device=\"cuda:0\"}"), 0);
        ck_assert_uint_eq((uint64_t)client_metric(client, "streamerd_device_draining_bytes{device=\"cuda:1\"}"), used);
        streamer_detach(lease);
}

TEST(load_and_attach_must_name_one_of_several_devices)
{
        struct model *m = model_mixed(3, 1 << 20);
        char *path = write_model(m, "m.safetensors");
        client_load_fails(client, path, "m", STREAMER_EINVAL,
                          "device: the daemon has 4 devices, name one: cuda:0, cuda:1, cuda:2, cuda:3");
        ck_assert_int_eq(load_on(path, "m", cuda_devices, 1, NULL), 0);
        ck_assert_int_eq(attach_code(NULL), 0);
        ck_assert_int_eq(load_on(path, "m", cuda_devices, 2, NULL), 0);
        client_fails(client, attach_code(NULL), STREAMER_EINVAL,
                     "m: is on several devices, one must be named: cuda:0, cuda:1");
        ck_assert_int_eq(attach_code("cuda:1"), 0);
        client_fails(client, attach_code("cuda:2"), STREAMER_ENOENT, "cuda:0, cuda:1");
        ck_assert_int_eq(attach_code("cuda:9"), STREAMER_ENOENT);
}

TEST(a_pending_copy_on_one_device_hides_the_tensor_on_all)
{
        struct model *m = model_mixed(8, 12 << 20);
        streamer_progress p = {.struct_size = sizeof(p)};
        streamer_tensor t = STREAMER_TENSOR_INIT;
        gpus->held[1] = 1;
        streamer_op *op = load_begin(write_model(m, "m.safetensors"), "m", cuda_devices, 2, NULL);
        streamer_lease *lease[2] = {client_attach_on(client, "m", "cuda:0"), client_attach_on(client, "m", "cuda:1")};
        ck_assert_int_eq(streamer_op_wait(op, 300, &p), STREAMER_ETIMEOUT); /* read and hashed long since */
        ck_assert_uint_eq(p.bytes, 0);
        for (size_t i = 0; i < 2; i++)
                ck_assert_int_eq(streamer_tensor_get(lease[i], 0, &t), STREAMER_EBUSY);
        gpus->held[1] = 0;
        ck_assert_int_eq(streamer_op_wait(op, PATIENCE_MS, &p), 0);
        ck_assert_uint_eq(p.bytes, m->bytes);
        for (size_t i = 0; i < 2; i++) {
                lease_equals(lease[i], m);
                streamer_detach(lease[i]);
        }
}

TEST(status_shows_the_charge_of_a_load_on_each_device)
{
        char *path = write_model(model_mixed(12, 4 << 20), "m.safetensors");
        ck_assert_int_eq(load_on(path, "m", cuda_devices, 1, NULL), 0);
        gpus->held[1] = 1;
        streamer_op *op = load_begin(path, "m", cuda_devices, 2, NULL);
        AWAIT(used_on("cuda:1") > 0);
        const json_t *targets = json_at(client_call(client, "status", NULL), "loads.0.targets");
        ck_assert_str_eq(json_text(targets, "0.state"), "ready");
        ck_assert_uint_eq(json_number(targets, "0.bytes"), 0);
        ck_assert_str_eq(json_text(targets, "1.state"), "loading");
        ck_assert_uint_eq(json_number(targets, "1.bytes"), used_on("cuda:1"));
        gpus->held[1] = 0;
        ck_assert_int_eq(streamer_op_wait(op, PATIENCE_MS, NULL), 0);
}

/* ---- one of several fails ---- */

TEST(a_lost_device_fails_alone)
{
        struct model *m = model_mixed(9, 20 << 20);
        streamer_device_failure f = STREAMER_DEVICE_FAILURE_INIT;
        streamer_progress p = {.struct_size = sizeof(p)};
        gpus->broken[1] = 700;
        streamer_op *op = load_begin(write_model(m, "m.safetensors"), "m", cuda_devices, 2, NULL);
        ck_assert_int_eq(streamer_op_wait(op, PATIENCE_MS, &p), STREAMER_EFAILED);
        ck_assert_str_eq(p.state, "ready");
        ck_assert_uint_eq(streamer_op_failure_count(op), 1);
        ck_assert_int_eq(streamer_op_failure_get(op, 0, &f), 0);
        ck_assert_int_eq(streamer_op_failure_get(op, 1, &f), STREAMER_ENOENT);
        ck_assert_str_eq(f.device, "cuda:1");
        ck_assert_msg(strstr(f.text, "cuda:1") != NULL, "%s", f.text);
        client_equals_on(client, "m", "cuda:0", m);
        ck_assert_int_ne(attach_code("cuda:1"), 0);
        const json_t *model = client_show(client, "m");
        ck_assert_str_eq(json_text(model, "state"), "ready");
        ck_assert_str_eq(json_text(model, "devices.1.state"), "failed");
        ck_assert_str_ne(json_text(model, "devices.1.error"), "");
        wait_until_freed("cuda:1");
        client_unload(client, "m");
        ck_assert_int_eq(client_call_code(client, "show", "{\"model\":\"m\"}"), STREAMER_ENOENT);
}

/* While its copies are on their way, a part of them done. */
TEST(a_device_lost_during_a_copy_fails_alone)
{
        struct model *m = model_mixed(10, 20 << 20);
        streamer_progress p = {.struct_size = sizeof(p)};
        streamer_tensor t = STREAMER_TENSOR_INIT;
        gpus->held[2] = 1;
        streamer_op *op = load_begin(write_model(m, "m.safetensors"), "m", cuda_devices, 3, NULL);
        streamer_lease *lease = client_attach_on(client, "m", "cuda:2");
        while (gpus->copied[0] == 0)
                ck_assert_int_eq(streamer_op_wait(op, 10, &p), STREAMER_ETIMEOUT);
        gpus->broken[2] = 700;
        gpus->held[2] = 0;
        ck_assert_int_eq(streamer_op_wait(op, PATIENCE_MS, &p), STREAMER_EFAILED);
        gpus->broken[2] = 0; /* a driver would free its memory on the device; the fake needs a reset */
        ck_assert_str_eq(p.state, "ready");
        client_equals_on(client, "m", "cuda:0", m);
        client_equals_on(client, "m", "cuda:1", m);
        /* Its client is notified, and has seen only tensors that are in place. */
        ck_assert_int_eq(streamer_tensor_next(lease, PATIENCE_MS, &t), STREAMER_EFAILED);
        streamer_detach(lease);
}

/* ---- by the command line ---- */

TEST(streamerctl_names_the_device_that_failed_and_exits_1)
{
        struct model *m = model_mixed(14, 20 << 20);
        struct ctl r;
        char *path = write_model(m, "m.safetensors");
        ctl(&r, test_daemon.socket, "load", path, "--device", "0", "--device", "3", "--json", NULL);
        ck_assert_int_eq(r.code, 1);
        ck_assert_ptr_nonnull(strstr(r.err, "\"text\":\"cuda:3: does not fit"));
        json_t *loaded = json_loads(r.out, 0, NULL);
        ck_assert_str_eq(json_text(loaded, "state"), "ready");
        ck_assert_uint_eq(json_array_size(json_at(loaded, "failed")), 1);
        ck_assert_str_eq(json_text(loaded, "failed.0.device"), "cuda:3");
        ctl(&r, test_daemon.socket, "cat", "m", m->tensors[0].name, "--device", "0", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_uint_eq(r.out_size, m->tensors[0].bytes);
        ck_assert(model_check(m, 0, r.out));
}

TEST(a_dry_run_estimates_each_device)
{
        struct model *m = model_mixed(15, 20 << 20);
        char *path = write_model(m, "m.safetensors");
        char *args = format_text("{\"source\":\"%s\",\"dry_run\":true,\"devices\":[\"cuda:0\",\"cuda:3\"]}", path);
        json_t *plan = client_call(client, "load", args), *devices = json_object_get(plan, "devices");
        ck_assert_uint_eq(json_number(plan, "files"), 1);
        ck_assert_uint_eq(json_number(plan, "tensors"), m->n);
        ck_assert_uint_eq(json_number(plan, "bytes"), m->bytes);
        ck_assert_uint_eq(json_array_size(devices), 2);
        for (size_t i = 0; i < 2; i++) {
                const json_t *row = json_array_get(devices, i);
                ck_assert_uint_eq(json_number(row, "budget"), i == 0 ? 64 << 20 : 8 << 20);
                ck_assert_uint_eq(json_number(row, "free"), json_number(row, "budget"));
                ck_assert_uint_eq(json_number(row, "copied_bytes"), m->bytes);
                ck_assert_uint_ge(json_number(row, "segments"), 1);
                ck_assert_uint_ge(json_number(row, "blocks"), 1);
                ck_assert(json_is_true(json_object_get(row, "fits")) == (i == 0));
                ck_assert_str_eq(json_text(row, "admission"), i == 0 ? "fits" : "blocked");
        }
        ck_assert_uint_eq(used_on("cuda:0"), 0);

        uint64_t needed = json_number(json_array_get(devices, 0), "needed");
        ck_assert_int_eq(load_to(path, "m", "cuda:0"), 0);
        ck_assert_uint_eq(used_on("cuda:0"), needed);
        plan = client_call(client, "load",
                           format_text("{\"source\":\"%s\",\"dry_run\":true,\"devices\":[\"cuda:0\"]}", path));
        ck_assert(json_is_true(json_object_get(plan, "resident")));
        ck_assert_uint_eq(json_number(plan, "free"), json_number(plan, "budget") - needed);
}
