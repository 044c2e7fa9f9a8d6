/* SPDX-License-Identifier: Apache-2.0
 *
 * The host cache with several fake GPUs, each with capacity for two models of 20 MiB: one copy serves all replicas, the
 * budget is never exceeded, and failures cost no copy. The model checker has evictions and restores in any order.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#define SIZE (20 * MIB + 4096) /* of the segment and the manifest */

static uint64_t ring; /* bytes of it, which are pinned, too */

static void start(const char *host_cache, const char *settings)
{
        const struct gpu_daemon three = {.n = 3,
                                         .mib = 64,
                                         .cuda = settings,
                                         .more = host_cache,
                                         .devices = {"'cuda:0', budget: 48MiB",
                                                     "'cuda:1', budget: 48MiB, handles: cuda-vmm-fd",
                                                     "'cuda:2', budget: 48MiB", "host, budget: 48MiB"}};
        gpu_begin(&three);
}

static void begin(void)
{
        start("host_cache: 66MiB\n", NULL); /* three models */
}

static void begin_two(void)
{
        start("host_cache: 42MiB\n", NULL);
}

static void begin_damaged(void)
{
        setenv("FAKECUDA_DAMAGE", "1", 1);
        start("host_cache: 66MiB\n", "readback: false");
        unsetenv("FAKECUDA_DAMAGE");
}

/* ---- models ---- */

static char *path_of(const char *name)
{
        return suite_path("%s.safetensors", name);
}

static struct model *named(const char *name)
{
        struct model *m = model_new((uint64_t)name[0]);
        model_add_many(m, "t", 20, MIB);
        return m;
}

static int load(const char *name, const char *const *on, size_t n)
{
        return load_on(path_of(name), name, on, n, NULL);
}

static void write_one(const char *name)
{
        struct model *m = named(name);
        model_write(m, path_of(name));
}

/* Each letter is a model, loaded from its own file. */
static void write_and_load(const char *letters, const char *const *on, size_t n)
{
        for (const char *l = letters; *l != '\0'; l++) {
                const char name[2] = {*l, '\0'};
                write_one(name);
                client_ok(client, load(name, on, n), name);
        }
}

/* It is loaded without reading its file. */
static void comes_back(const char *name, const char *const *on, size_t n)
{
        file_uncache(path_of(name));
        uint64_t read = process_read_bytes(test_daemon.pid);
        client_ok(client, load(name, on, n), name);
        ck_assert(process_read_no_model(test_daemon.pid, read));
}

static void serves(const char *name, const char *const *on, size_t n)
{
        struct model *m = named(name);
        for (size_t i = 0; i < n; i++)
                client_equals_on(client, name, on[i], m);
}

/* As a user counts them: "a ready device", a line each, without the others' columns. */
static size_t listed(const char *name, const char *state, const char *tier)
{
        size_t n = 0, i;
        json_t *list = client_call(client, "list", NULL);
        const json_t *m;
        json_array_foreach(json_object_get(list, "models"), i, m)
        {
                n += strcmp(json_text(m, "name"), name) == 0 && strcmp(json_text(m, "state"), state) == 0 &&
                     strcmp(json_text(m, "tier"), tier) == 0;
        }
        return n;
}

static void is_cached(const char *name, bool cached)
{
        ck_assert_msg(listed(name, "cached", "host") == cached, "%s is%s cached", name, cached ? " not" : "");
}

/* ---- other GPUs ---- */

FIXTURE(.each = {begin, fixture_stop});

TEST(one_copy_serves_all_replicas_of_a_load)
{
        write_and_load("abc", cuda_devices, 1);
        client_wait_host_cache(client, SIZE);
        client_unload(client, "c");
        uint64_t before[3] = {gpus->copied[0], gpus->copied[1], gpus->copied[2]};
        comes_back("a", cuda_devices, 3);
        serves("a", cuda_devices, 3);
        ck_assert(log_wait_for(test_daemon.log, "GiB/s, from the host cache"));
        json_decref(client_call(client, "verify", "{\"model\":\"a\"}"));
        for (size_t i = 0; i < 3; i++) /* the fake counts only copies by streams */
                ck_assert_uint_eq(gpus->copied[i], before[i]);
        client_wait_host_cache(client, 0);
}

TEST(a_replica_with_a_failed_restore_fails_alone, .from = 1, .to = 3)
{
        write_and_load("abc", cuda_devices, 1);
        client_wait_host_cache(client, SIZE);
        fake_arm(gpus, "cudaMemcpy", (uint32_t)_i, 719);
        ck_assert_int_eq(load("a", &cuda_devices[1], 2), STREAMER_EFAILED);
        ck_assert_uint_eq(listed("a", "ready", "device"), 1);
        ck_assert_uint_eq(client_host_cache(client), SIZE);
        comes_back("a", &cuda_devices[1], 2);
        serves("a", &cuda_devices[1], 2);
}

/* "a" serves on the first GPU, and was evicted from the second. */
static void evict_one_replica(void)
{
        write_and_load("a", cuda_devices, 2);
        write_and_load("bc", &cuda_devices[1], 1);
        client_wait_host_cache(client, SIZE);
}

TEST(a_restored_replica_has_the_number_of_the_model_that_serves)
{
        evict_one_replica();
        uint64_t number = json_number(client_show(client, "a"), "generation");
        comes_back("a", &cuda_devices[1], 1);
        ck_assert_uint_eq(listed("a", "ready", "device"), 1);
        ck_assert_uint_eq(listed("a", "draining", "device"), 0);
        const json_t *model = client_show(client, "a");
        ck_assert_uint_eq(json_number(model, "generation"), number);
        ck_assert_uint_eq(json_array_size(json_object_get(model, "devices")), 2);
        serves("a", cuda_devices, 2);
}

/* A load that may wait for memory holds no reference to what serves. */
TEST(a_load_that_may_wait_attaches_to_the_replica_that_serves)
{
        struct wire w;
        const char *devices[] = {"cuda:0", "cuda:1"};
        evict_one_replica();
        struct request load = {.verb = VERB_load,
                               .id = 2,
                               .u.load = {.source = path_of("a"),
                                          .name = "a",
                                          .devices = {.v = devices, .n = 2},
                                          .device = "cuda:0",
                                          .watch = true,
                                          .attach = true,
                                          .wait = true}};
        gpus->held[1] = 1;
        wire_connect(&w, &test_daemon);
        ck_assert(wire_request(&w, &load));
        ck_assert(object_str_eq(wire_reply_ok(&w), "device", "cuda:0"));
        gpus->held[1] = 0;
        struct request detach = {.verb = VERB_detach, .id = 3, .u.detach = {.lease = wire_number(&w, "lease")}};
        ck_assert(wire_request(&w, &detach));
        client_wait_leases(client, 0);
}

/* A restored copy has no arrival log, so it becomes visible when its load is complete. */
TEST(attach_waits_until_a_model_is_restored)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .device = "cuda:1", .timeout_ms = 100};
        streamer_lease *lease;
        write_and_load("abc", cuda_devices, 1);
        client_wait_host_cache(client, SIZE);
        gpus->held[2] = 1;
        streamer_op *op = load_begin(path_of("a"), "a", &cuda_devices[1], 2, NULL);
        AWAIT(client_call_code(client, "show", "{\"model\":\"a\",\"device\":\"cuda:1\",\"tensors\":true}") == 0);
        ck_assert_int_eq(streamer_attach(client, "a", &opts, &lease), STREAMER_ETIMEOUT);
        gpus->held[2] = 0;
        ck_assert_int_eq(client_load_end(op), 0);
        serves("a", &cuda_devices[1], 2);
        client_wait_leases(client, 0);
}

TEST(memory_pinned_by_a_lost_gpu_is_not_copied_from)
{
        write_and_load("abc", cuda_devices, 1);
        client_wait_host_cache(client, SIZE);
        gpus->broken[0] = 700;
        ck_assert_int_eq(load("a", cuda_devices, 1), STREAMER_EFAILED);
        gpus->broken[0] = 0;
        file_uncache(path_of("a"));
        uint64_t read = process_read_bytes(test_daemon.pid);
        client_ok(client, load("a", &cuda_devices[1], 1), "a");
        ck_assert(!process_read_no_model(test_daemon.pid, read));
        serves("a", &cuda_devices[1], 1);
}

/* ---- the budget ---- */

static bool never_passed(void)
{
        return gpus->pinned_most <= ring + 42 * MIB;
}

/* Two models of the first GPU are cached. The second GPU evicts one of its own, for which one of them is dropped, whose
 * memory is not freed yet. */
static streamer_op *evict_while_nothing_is_freed(void)
{
        write_and_load("a", cuda_devices, 1);
        ring = gpus->pinned;
        write_and_load("bcd", cuda_devices, 1);
        write_and_load("ef", &cuda_devices[1], 1);
        client_wait_host_cache(client, 2 * SIZE);
        fake_hang(gpus, "cudaHostUnregister", 0);
        write_one("g");
        return load_begin(path_of("g"), "g", &cuda_devices[1], 1, NULL);
}

FIXTURE(.each = {begin_two, fixture_stop});

TEST(a_load_waits_for_cache_memory_that_another_gpu_frees)
{
        streamer_op *op = evict_while_nothing_is_freed();
        AWAIT(listed("e", "cached", "host") == 1);
        is_cached("a", false);
        json_decref(client_call(client, "verify", "{\"model\":\"f\"}")); /* the other GPU is not held up */
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        ck_assert(never_passed());
        fake_unhang(gpus);
        ck_assert_int_eq(client_load_end(op), 0);
        serves("g", &cuda_devices[1], 1);
        client_wait_host_cache(client, 2 * SIZE);
        is_cached("e", true);
        comes_back("e", &cuda_devices[2], 1);
        serves("e", &cuda_devices[2], 1);
        ck_assert(never_passed());
}

/* For ten seconds. */
TEST(a_gpu_that_never_frees_does_not_delay_another)
{
        streamer_op *op = evict_while_nothing_is_freed();
        ck_assert_int_eq(client_load_end(op), 0);
        is_cached("e", false);
        serves("g", &cuda_devices[1], 1);
        ck_assert(log_wait_for(test_daemon.log, "e: not copied to the host cache: what is to be freed for it"));
        ck_assert_uint_eq(client_host_cache(client), 2 * SIZE);
        fake_unhang(gpus);
        client_wait_host_cache(client, SIZE);
        ck_assert(never_passed());
}

/* ---- failures ---- */

FIXTURE(.each = {begin_damaged, fixture_stop});

TEST(a_copy_with_a_modified_byte_is_not_cached, .to = 2)
{
        write_and_load("abc", &cuda_devices[_i], 1);
        client_wait_host_cache(client, 0);
        ck_assert_str_eq(client_state(client, "a"), "");
        ck_assert(log_wait_for(test_daemon.log, "resident bytes differ from those that were loaded"));
}

FIXTURE(.each = {begin_two, fixture_stop});

TEST(unpinnable_host_memory_caches_no_model_and_reserves_nothing, .to = 2)
{
        const char *const *on = &cuda_devices[_i];
        write_and_load("ab", on, 1);
        fake_arm(gpus, "cudaHostRegister", 1, 2);
        write_and_load("c", on, 1);
        client_wait_host_cache(client, 0);
        is_cached("a", false);
        serves("c", on, 1);
        write_and_load("de", on, 1);
        client_wait_host_cache(client, 2 * SIZE);
}

/* ---- as users see it ---- */

/* Of the row that begins with the name: the words of three columns. */
static void row_is(const char *list, const char *name, const char *state, const char *device, const char *tier)
{
        char row_state[64], row_device[64], row_tier[64];
        const char *row = strstr(list, format_text("\n%s ", name));
        ck_assert_msg(row != NULL, "%s is not listed:\n%s", name, list);
        /* NAME STATE TENSORS SIZE(2) DEVICE LEASES KEPT(empty) TIER */
        ck_assert_int_eq(sscanf(row, "%*s %63s %*s %*s %*s %63s %*s %63s", row_state, row_device, row_tier), 3);
        ck_assert_str_eq(row_state, state);
        ck_assert_str_eq(row_device, device);
        ck_assert_str_eq(row_tier, tier);
}

TEST(list_and_status_show_cached_models)
{
        write_and_load("ab", cuda_devices, 1);
        ck_assert_ptr_null(strstr(ctl_says(test_daemon.socket, 0, "", "list", NULL), "TIER"));
        write_and_load("c", cuda_devices, 1);
        client_wait_host_cache(client, SIZE);
        const char *list = ctl_says(test_daemon.socket, 0, "TIER", "list", NULL);
        row_is(list, "a", "cached", "cuda:0", "host");
        row_is(list, "b", "ready", "cuda:0", "device");
        row_is(list, "c", "ready", "cuda:0", "device");
        ctl_says(test_daemon.socket, 0, "host cache 20.0 MiB of 42.0 MiB, 1 models", "status", NULL);
        write_and_load("de", cuda_devices, 1); /* which evict b and c: a was cached first */
        ck_assert(log_wait_for(test_daemon.log, "a: leaves the host cache"));
}

TEST(a_cached_model_cannot_be_attached)
{
        streamer_lease *lease;
        write_and_load("abc", cuda_devices, 1);
        client_fails(client, streamer_attach(client, "a", NULL, &lease), STREAMER_ENOENT, "is in the host cache");
        streamer_attach_opts opts = {.struct_size = sizeof(opts),
                                     .generation = json_number(client_show(client, "a"), "generation")};
        ck_assert_int_eq(streamer_attach(client, "a", &opts, &lease), STREAMER_ENOENT);
        opts.flags = STREAMER_ATTACH_READY;
        client_fails(client, streamer_attach(client, "a", &opts, &lease), STREAMER_ENOENT, "is in the host cache");
}
