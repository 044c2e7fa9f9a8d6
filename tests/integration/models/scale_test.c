/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of 100,000 tensors; a thousand processes that attach at once.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

#define MIB (UINT64_C(1) << 20)

static size_t tensors(void)
{
        return suite_short() ? 5000 : 100000;
}

static unsigned processes(void)
{
        return suite_short() ? 50 : 1000;
}

/* A sanitizer's own books are several times as large. */
static void assert_memory(void)
{
        if (!suite_short())
                ck_assert_uint_le(fixture_memory(), 64 * MIB);
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .timeout = 100);

TEST(a_model_of_100_000_tensors)
{
        struct model *m = model_new(1);
        char *long_name = must_alloc(5000);
        uint64_t bytes = 100;

        /* Files list tensors in any order. */
        memset(long_name, 'x', 4999);
        model_add(m, long_name, "U8", &bytes, 1);
        model_add_many(m, "model.layers.weight", tensors() - 2, 150);
        model_add(m, "a", "U8", &bytes, 1);
        client = client_open(&test_daemon);
        client_load(client, fixture_write(m, "many.safetensors"), "many");
        client_equals(client, "many", m);
        assert_memory();
        json_t *reply = client_call(client, "show", "{\"model\":\"many\",\"tensors\":true}");
        ck_assert_uint_eq(json_array_size(json_object_get(reply, "tensor_list")), m->n);
        ck_assert_int_eq(client_call_code(client, "verify", "{\"model\":\"many\"}"), 0);
        client_unload(client, "many");
        streamer_close(client);
}

TEST(a_model_of_many_files)
{
        struct model *m = model_new(2);

        model_add_many(m, "w", 3000, 1000);
        model_write_sharded(m, fixture_path("files"), 100, true);
        client = client_open(&test_daemon);
        client_load(client, fixture_path("files"), "files");
        client_equals(client, "files", m);
        client_unload(client, "files");
        streamer_close(client);
}

TEST(many_models_are_listed_whole)
{
        struct model *m = model_new(3);
        uint64_t four = 4;

        model_add(m, "t", "U8", &four, 1);
        client = client_open(&test_daemon);
        for (int i = 0; i < 100; i++)
                client_load(client, fixture_write(m, format_text("m%03d.safetensors", i)), NULL);
        json_t *models = json_object_get(client_call(client, "list", NULL), "models");
        ck_assert_uint_eq(json_array_size(models), 101);
        for (int i = 0; i < 100; i++) {
                const char *name = json_string_value(json_object_get(json_array_get(models, (size_t)i), "name"));
                ck_assert_str_eq(name, format_text("m%03d", i));
                client_unload(client, name);
        }
        streamer_close(client);
}

/* Attaches, reports it, and keeps the lease until it is killed. */
static _Noreturn void keep_lease(int ready)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease = client_attach(c, "witness");

        client_ok(c, streamer_tensor_find(lease, "step", &t), "find");
        _exit(!model_check(fixture_witness, model_index(fixture_witness, "step"), t.data) || write(ready, "", 1) != 1 ||
              pause());
}

TEST(a_thousand_processes_attach_at_once)
{
        unsigned n = processes(), ready = 0;
        int ends[2];
        char bytes[64];
        ssize_t got;

        must(pipe2(ends, O_CLOEXEC));
        pid_t *pids = must_alloc(n * sizeof(*pids));
        for (unsigned i = 0; i < n; i++) {
                pids[i] = must(fork());
                if (pids[i] == 0)
                        keep_lease(ends[1]);
        }
        close(ends[1]);
        while (ready < n && (got = must(read(ends[0], bytes, sizeof(bytes)))) > 0)
                ready += (unsigned)got;
        ck_assert_uint_eq(ready, n);
        client = client_open(&test_daemon);
        ck_assert_uint_eq(client_leases(client), n);
        client_equals(client, "witness", fixture_witness);
        for (unsigned i = 0; i < n; i++) {
                kill(pids[i], SIGKILL);
                waitpid(pids[i], NULL, 0);
        }
        client_wait_leases(client, 0);
        assert_memory();
        streamer_close(client);
}

TEST(many_loads_at_once)
{
        enum { LOADS = 40 };
        streamer_op *ops[LOADS];
        struct model *models[LOADS];

        client = client_open(&test_daemon);
        for (int i = 0; i < LOADS; i++) {
                models[i] = model_mixed((uint64_t)i + 100, MIB);
                const char *path = fixture_write(models[i], format_text("at-once-%d.safetensors", i));
                ops[i] = client_load_begin(client, path, format_text("l%d", i));
        }
        for (int i = 0; i < LOADS; i++) {
                client_ok(client, streamer_op_wait(ops[i], 30000, NULL), "load");
                client_equals(client, format_text("l%d", i), models[i]);
                streamer_op_free(ops[i]);
                client_unload(client, format_text("l%d", i));
        }
        streamer_close(client);
}
