/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of 100,000 tensors; 300 generations of one name; a thousand processes that attach at once.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

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
}

/* In whatever order they were made; of one that was unloaded and is leased the last one. */
TEST(names_are_listed_in_order, .to = 2)
{
        enum { N = 200 };
        const char *last = "";
        size_t n = 0;
        client = client_open(&test_daemon);
        const char *file = fixture_write(model_mixed(4, 1 << 18), "ordered.safetensors");
        for (int i = 0; i < N; i++)
                client_load(client, file, format_text("ordered-%03d", _i ? i : N - 1 - i));
        streamer_lease *lease = client_attach(client, "witness");
        streamer_lease *drained = client_attach(client, "ordered-007");
        for (int i = 0; i < N; i++)
                if (i != 7)
                        client_unload(client, format_text("ordered-%03d", i));
        client_ok(client, streamer_unload(client, "ordered-007", STREAMER_UNLOAD_DRAIN), "unload");
        for (int i = N; i < 2 * N; i++)
                client_load(client, fixture_path("witness.safetensors"),
                            format_text("ordered-%03d", _i ? i : 3 * N - i));
        json_auto_t *list = client_call(client, "list", NULL);
        size_t index;
        json_t *model;
        json_array_foreach(json_object_get(list, "models"), index, model)
        {
                const char *name = json_string_value(json_object_get(model, "name"));
                ck_assert_int_lt(strcmp(last, name), 0);
                last = name;
                n += strncmp(name, "ordered-", 8) == 0;
        }
        ck_assert_uint_eq(n, N + 1);
        streamer_detach(drained);
        streamer_detach(lease);
        for (int i = N; i < 2 * N; i++)
                client_unload(client, format_text("ordered-%03d", _i ? i : 3 * N - i));
}

/* One reply cannot hold as many generations as clients may lease of one name. */
TEST(a_list_longer_than_one_reply_is_complete)
{
        enum { N = 300 };
        static streamer_lease *leases[N];
        char *path = fixture_path("long");
        for (int i = 0; i < 15; i++) { /* most of the maximum path length */
                must(mkdir(path, 0755));
                path = format_text("%s/%0220d", path, i);
        }
        must(mkdir(path, 0755));
        path = format_text("%s/many.safetensors", path);
        struct model *m = model_mixed(3, 1 << 18);
        client = client_open(&test_daemon);
        client_load(client, fixture_write(m, "zebra.safetensors"), "zebra");
        for (int i = 0; i < N; i++) {
                struct model *none = model_new(1);
                char *metadata = format_text("{\"i\":\"%d\"}", i);
                model_set_metadata(none, metadata);
                model_write(none, path);
                client_load(client, path, "many");
                leases[i] = client_attach(client, "many");
        }
        ck_assert_str_eq(client_state(client, "zebra"), "ready");
        ck_assert_str_eq(client_state(client, "witness"), "ready");
        for (int i = 0; i < N; i++)
                streamer_detach(leases[i]);
        client_unload(client, "many");
        client_unload(client, "zebra");
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
        for (unsigned i = 0; i < n; i++)
                child_kill(pids[i]);
        client_wait_leases(client, 0);
        assert_memory();
}
