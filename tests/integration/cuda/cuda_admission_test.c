/* SPDX-License-Identifier: Apache-2.0
 *
 * Admission on fake GPUs: fragmented memory, memory of other processes, and eviction to the host cache. Tests logic,
 * not speed.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"
#include "tests/lib/fixture.h"

#define MIB (UINT64_C(1) << 20)

static struct fake_state *gpus;

/* GPUs of 64 MiB each, of which others have `others`, and no more than `largest` in one piece. The
 * first hands out cuda-ipc, the second descriptors. */
static void start(const char *others, const char *largest, const char *host_cache)
{
        int n = (int)getpid();
        char library[512], driver[512], *config = suite_path("cuda-%d.yaml", n), *state = suite_path("gpus-%d", n);

        fake_library("libcudart.so.13", library, sizeof(library));
        fake_library("libcuda.so.1", driver, sizeof(driver));
        setenv("FAKECUDA_DEVICES", "2", 1);
        setenv("FAKECUDA_MEM_MIB", "64", 1);
        setenv("FAKECUDA_OTHERS_MIB", others, 1);
        setenv("FAKECUDA_LARGEST_MIB", largest, 1);
        setenv("FAKECUDA_STATE", state, 1);
        gpus = fake_state_map(state);
        ck_assert_ptr_nonnull(gpus);
        setenv("STREAMER_CUDA_LIBRARY", driver, 1);
        char *text = format_text("host_cache: %s\ncuda: {library: '%s'}\n"
                                 "devices:\n"
                                 "  - {device: 'cuda:0', budget: 48MiB}\n"
                                 "  - {device: 'cuda:1', budget: 48MiB, handles: cuda-vmm-fd}\n",
                                 host_cache, realpath(library, NULL));
        file_write(config, text, strlen(text));
        daemon_init(&test_daemon, suite_path("d-%d", n));
        daemon_start(&test_daemon, (const char *const[]){"--config", config, "--root", suite_folder(), NULL});
        client = client_open(&test_daemon);
}

static void begin_in_pieces(void)
{
        start("0", "5", "0");
}

static void begin_alone(void)
{
        start("0", "64", "0");
}

static void begin_with_other_users(void)
{
        start("40", "64", "0");
}

/* Memory for two models of 20 MiB on each GPU, and for three in the host cache. */
static void begin_cache(void)
{
        start("0", "64", "66MiB");
}

static void begin_damaged(void)
{
        setenv("FAKECUDA_DAMAGE", "1", 1);
        begin_cache();
        unsetenv("FAKECUDA_DAMAGE");
}

static int loaded(const struct model *m, const char *name, const char *const *devices, size_t n)
{
        char *path = suite_path("%s.safetensors", name);
        model_write(m, path);
        return client_load_with(client,
                                (streamer_load_opts){.source = path, .name = name, .devices = devices, .n_devices = n});
}

/* Every byte, through the daemon's own handles. */
static void check_on(const char *name, const char *device, const struct model *m)
{
        streamer_lease *lease = client_attach_on(client, name, device);
        for (size_t i = 0; i < m->n; i++) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                client_ok(client, streamer_tensor_find(lease, m->tensors[i].name, &t), "find");
                char *copy = malloc(t.bytes + 1);
                client_ok(client, streamer_tensor_read(lease, &t, 0, copy, t.bytes), "read");
                ck_assert(model_check(m, i, copy));
                free(copy);
        }
        streamer_detach(lease);
}

static struct model *model_of_many(uint64_t seed, size_t n, uint64_t bytes)
{
        struct model *m = model_new(seed);
        model_add_many(m, "t", n, bytes);
        return m;
}

static const char *const devices[] = {"cuda:0", "cuda:1"};

/* ---- fragmented memory ---- */

FIXTURE(.each = {begin_in_pieces, fixture_stop});

TEST(memory_that_is_free_in_pieces_fails_with_the_devices_text, .to = 2)
{
        struct model *m = model_of_many(3, 2, 8 * MIB);
        ck_assert_int_eq(loaded(m, "m", &devices[_i], 1), STREAMER_ENOMEM);
        struct model *small = model_of_many(4, 4, MIB);
        ck_assert_int_eq(loaded(small, "small", &devices[_i], 1), 0);
        check_on("small", devices[_i], small);
        client_unload(client, "small");
}

/* ---- replicas that wait ---- */

static const char *target_state(size_t i, char state[32])
{
        json_t *status = client_call(client, "status", NULL);
        const json_t *load = json_array_get(json_object_get(status, "loads"), 0);
        const json_t *target = json_array_get(json_object_get(load, "targets"), i);
        const char *word = json_string_value(json_object_get(target, "state"));
        uint64_t waits = (uint64_t)json_integer_value(json_object_get(target, "waiting_ns"));
        snprintf(state, 32, "%s", word != NULL ? word : "");
        ck_assert_int_eq(waits > 0, strcmp(state, "queued") == 0);
        json_decref(status);
        return state;
}

static bool both_wait(void *arg)
{
        char state[32];
        (void)arg;
        return strcmp(target_state(1, state), "queued") == 0 && strcmp(target_state(0, state), "queued") == 0;
}

FIXTURE(.each = {begin_alone, fixture_stop});

TEST(replicas_wait_together)
{
        struct model *busy = model_of_many(11, 32, MIB), *m = model_of_many(12, 32, MIB);
        streamer_op *op;
        char *path = suite_path("m.safetensors");
        model_write(m, path);
        ck_assert_int_eq(loaded(busy, "busy", &devices[1], 1), 0);
        json_decref(client_call(client, "pin", "{\"model\":\"busy\"}"));
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = path,
                                   .name = "m",
                                   .devices = devices,
                                   .n_devices = 2,
                                   .flags = STREAMER_LOAD_WAIT};
        client_ok(client, streamer_load(client, &opts, &op), "m");
        ck_assert(eventually(both_wait, NULL, 20000));
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        struct ctl status;
        ctl(&status, test_daemon.socket, "status", NULL);
        ck_assert_ptr_nonnull(strstr(status.out, "\n  cuda:1 "));
        ck_assert_ptr_nonnull(strstr(status.out, " queued for "));
        ctl_free(&status);
        client_unload(client, "busy");
        client_ok(client, streamer_op_wait(op, -1, NULL), "wait");
        streamer_op_free(op);
        check_on("m", devices[0], m);
        check_on("m", devices[1], m);
        client_unload(client, "m");
}

/* ---- other users ---- */

FIXTURE(.each = {begin_with_other_users, fixture_stop});

TEST(memory_of_other_processes_is_reported_and_evicts_none, .to = 2)
{
        struct model *first = model_of_many(5, 8, MIB), *large = model_of_many(6, 30, MIB);
        ck_assert_int_eq(loaded(first, "first", &devices[_i], 1), 0);
        ck_assert_int_eq(loaded(large, "large", &devices[_i], 1), STREAMER_ENOMEM);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "others use the device too"));
        check_on("first", devices[_i], first);
        client_unload(client, "first");
}

TEST(models_are_evicted_to_fit_the_memory_that_others_leave, .to = 2)
{
        struct model *first = model_of_many(7, 14, MIB), *second = model_of_many(8, 16, MIB);
        ck_assert_int_eq(loaded(first, "first", &devices[_i], 1), 0);
        ck_assert_int_eq(loaded(second, "second", &devices[_i], 1), 0);
        ck_assert_str_eq(client_state(client, "first"), "");
        check_on("second", devices[_i], second);
        client_unload(client, "second");
}

/* ---- a lost GPU ---- */

static void assert_none_evicted(const struct model *m, const char *other)
{
        ck_assert_str_eq(client_state(client, "first"), "ready");
        ck_assert_str_eq(client_state(client, "second"), "ready");
        ck_assert_int_eq(loaded(m, "m", &other, 1), 0);
        check_on("m", other, m);
}

static const char *outlook_on(const char *device)
{
        static char room[16];
        json_t *reply = client_call(client, "load",
                                    format_text("{\"source\":\"%s\",\"devices\":[\"%s\"],\"dry_run\":true}",
                                                suite_path("m.safetensors"), device));
        snprintf(room, sizeof(room), "%s", json_string_value(json_object_get(reply, "admission")));
        json_decref(reply);
        return room;
}

FIXTURE(.each = {begin_alone, fixture_stop});

/* Loop: the lost GPU. A failing load does not evict the models of clients: neither the load that finds the context
 * destroyed, nor later ones. */
TEST(a_load_on_a_lost_gpu_evicts_none, .to = 2)
{
        struct model *m = model_of_many(13, 20, MIB);
        ck_assert_int_eq(loaded(m, "first", &devices[_i], 1), 0);
        ck_assert_int_eq(loaded(m, "second", &devices[_i], 1), 0);
        gpus->broken[_i] = 700;
        ck_assert_int_eq(loaded(m, "m", &devices[_i], 1), STREAMER_EFAILED);
        gpus->broken[_i] = 0;
        ck_assert_int_eq(loaded(m, "m", &devices[_i], 1), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "out of service"));
        ck_assert_str_eq(outlook_on(devices[_i]), "blocked");
        assert_none_evicted(m, devices[!_i]);
}

/* ---- the host cache ---- */

static struct model *named(const char *name)
{
        return model_of_many((uint64_t)name[0], 20, MIB);
}

static void load_named(const char *name, const char *device)
{
        ck_assert_int_eq(loaded(named(name), name, &device, 1), 0);
}

/* Two fit. */
static void evict_a(const char *device)
{
        load_named("a", device);
        load_named("b", device);
        load_named("c", device);
}

/* Loaded again from its unchanged file. */
static uint64_t reload_model(const char *name, const char *device)
{
        streamer_op *op;
        streamer_progress p = {.struct_size = sizeof(p)};
        const char *const list[] = {device};
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = suite_path("%s.safetensors", name),
                                   .name = name,
                                   .devices = list,
                                   .n_devices = 1};
        client_ok(client, streamer_load(client, &opts, &op), name);
        client_ok(client, streamer_op_wait(op, -1, &p), name);
        streamer_op_free(op);
        return p.generation;
}

FIXTURE(.each = {begin_cache, fixture_stop});

TEST(an_evicted_model_is_restored_byte_for_byte, .to = 2)
{
        const char *device = devices[_i];
        evict_a(device);
        ck_assert_str_eq(client_state(client, "a"), "cached");
        client_wait_host_cache(client, 20 * MIB);
        char *path = suite_path("a.safetensors");
        file_uncache(path);
        uint64_t read = process_read_bytes(test_daemon.pid);
        uint64_t generation = reload_model("a", device);
        ck_assert(process_read_no_model(test_daemon.pid, read));
        ck_assert_uint_gt(generation, 3);
        check_on("a", device, named("a"));
        check_on("c", device, named("c"));
        ck_assert_str_eq(client_state(client, "a"), "ready");
        ck_assert_str_eq(client_state(client, "b"), "cached");
        client_wait_host_cache(client, 20 * MIB);
        char digest[33];
        streamer_lease *lease = client_attach(client, "a");
        model_digest(named("a"), digest);
        ck_assert_str_eq(streamer_digest(lease), digest);
        streamer_detach(lease);
        json_decref(client_call(client, "verify", "{\"model\":\"a\"}"));
}

TEST(a_cached_model_cannot_be_attached)
{
        streamer_lease *lease;
        evict_a(devices[0]);
        ck_assert_int_eq(streamer_attach(client, "a", NULL, &lease), STREAMER_ENOENT);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "is in the host cache"));
}

TEST(a_changed_file_is_not_restored_from_the_cache)
{
        evict_a(devices[0]);
        struct model *other = model_of_many(99, 20, MIB);
        ck_assert_int_eq(loaded(other, "a", devices, 1), 0);
        check_on("a", devices[0], other);
}

TEST(the_cache_has_its_own_budget_and_order)
{
        static const char *const names[] = {"a", "b", "c", "d", "e", "f"};
        for (size_t i = 0; i < 6; i++)
                load_named(names[i], devices[0]);
        ck_assert_str_eq(client_state(client, "a"), "");
        ck_assert_str_eq(client_state(client, "b"), "cached");
        ck_assert_str_eq(client_state(client, "d"), "cached");
        ck_assert_str_eq(client_state(client, "f"), "ready");
        client_wait_host_cache(client, 60 * MIB);
}

/* Although it was requested first. */
TEST(a_pinned_model_is_not_dropped_from_the_cache)
{
        static const char *const names[] = {"d", "e", "f"};
        evict_a(devices[0]);
        ck_assert_str_eq(client_state(client, "a"), "cached");
        json_decref(client_call(client, "pin", "{\"model\":\"a\"}"));
        for (size_t i = 0; i < 3; i++)
                load_named(names[i], devices[0]);
        ck_assert_str_eq(client_state(client, "a"), "cached");
        ck_assert_str_eq(client_state(client, "b"), "");
        ck_assert_str_eq(client_state(client, "c"), "cached");
}

TEST(unload_drops_the_cached_copy)
{
        evict_a(devices[0]);
        client_unload(client, "a");
        ck_assert_str_eq(client_state(client, "a"), "");
        client_wait_host_cache(client, 0);
}

/* One replica is in the cache, the other serves. */
TEST(unload_drops_the_cached_and_the_serving_copy)
{
        ck_assert_int_eq(loaded(named("a"), "a", devices, 2), 0);
        load_named("b", devices[0]);
        load_named("c", devices[0]);
        ck_assert_str_eq(client_state(client, "a"), "ready");
        ck_assert_uint_gt(client_host_cache(client), 0);
        client_unload(client, "a");
        ck_assert_str_eq(client_state(client, "a"), "");
        client_wait_host_cache(client, 0);
}

TEST(a_cached_generation_cannot_be_attached, .to = 2)
{
        streamer_lease *lease;
        load_named("a", devices[_i]);
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .generation = reload_model("a", devices[_i])};
        load_named("b", devices[_i]);
        load_named("c", devices[_i]);
        ck_assert_int_eq(streamer_attach(client, "a", &opts, &lease), STREAMER_ENOENT);
        opts.flags = STREAMER_ATTACH_READY;
        ck_assert_int_eq(streamer_attach(client, "a", &opts, &lease), STREAMER_ENOENT);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "is in the host cache"));
}

TEST(the_pin_of_a_cached_model_is_restored_with_it)
{
        evict_a(devices[0]);
        ck_assert_str_eq(client_state(client, "a"), "cached");
        json_decref(client_call(client, "pin", "{\"model\":\"a\"}"));
        reload_model("a", devices[0]);
        json_t *reply = client_call(client, "show", "{\"model\":\"a\"}");
        ck_assert(json_is_true(json_object_get(json_array_get(json_object_get(reply, "models"), 0), "pinned")));
}

/* ---- cache failures ---- */

FIXTURE(.each = {begin_damaged, fixture_stop});

TEST(a_copy_with_a_modified_byte_is_not_cached, .to = 2)
{
        evict_a(devices[_i]);
        client_wait_host_cache(client, 0);
        ck_assert_str_eq(client_state(client, "a"), "");
        ck_assert(log_wait_for(test_daemon.log, "resident bytes differ from those that were loaded"));
}

FIXTURE(.each = {begin_cache, fixture_stop});

TEST(unpinnable_host_memory_caches_no_model, .to = 2)
{
        load_named("a", devices[_i]);
        load_named("b", devices[_i]);
        fake_arm(gpus, "cudaHostRegister", 1, 2);
        load_named("c", devices[_i]);
        client_wait_host_cache(client, 0);
        ck_assert_str_eq(client_state(client, "a"), "");
        check_on("c", devices[_i], named("c"));
        load_named("d", devices[_i]);
        ck_assert_str_eq(client_state(client, "b"), "cached");
}

TEST(a_failed_restore_keeps_the_cached_copy, .to = 2)
{
        evict_a(devices[_i]);
        client_unload(client, "c");
        streamer_load_opts opts = {
                .source = suite_path("a.safetensors"), .name = "a", .devices = &devices[_i], .n_devices = 1};
        fake_arm(gpus, "cudaMemcpy", 1, 719);
        ck_assert_int_eq(client_load_with(client, opts), STREAMER_EFAILED);
        ck_assert_uint_eq(client_host_cache(client), 20 * MIB);
        reload_model("a", devices[_i]);
        check_on("a", devices[_i], named("a"));
}
