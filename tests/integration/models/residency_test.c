/* SPDX-License-Identifier: Apache-2.0
 *
 * Several models on a device with capacity for three of 8 MiB: eviction, waiting, and expiry.
 */
#include "tests/integration/residency_fixture.h"

static streamer_op *load_with(const char *name, unsigned flags, uint64_t keep_alive_ms)
{
        const char *path;
        streamer_op *op;
        model_of(name, &path);
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = path,
                                   .name = name,
                                   .flags = flags,
                                   .keep_alive_ms = keep_alive_ms};
        client_ok(client, streamer_load(client, &opts, &op), "load");
        return op;
}

static bool is_queued(void *name)
{
        bool queued = false;
        size_t i;
        const json_t *l;
        json_t *status = client_call(client, "status", NULL);
        json_array_foreach(json_object_get(status, "loads"), i, l)
        {
                queued = queued || (strcmp(json_string_value(json_object_get(l, "name")), name) == 0 &&
                                    strcmp(json_string_value(json_object_get(l, "state")), "queued") == 0);
        }
        json_decref(status);
        return queued;
}

static const char *own_comm(void)
{
        static char comm[32];
        FILE *f = fopen("/proc/self/comm", "re");
        if (f == NULL || fgets(comm, sizeof(comm), f) == NULL)
                die("no name of its own");
        fclose(f);
        comm[strcspn(comm, "\n")] = '\0';
        return comm;
}

/* ---- eviction ---- */

FIXTURE(.all = {begin, fixture_end}, .each = {connect_client, end_test});

TEST(the_least_recently_used_is_evicted)
{
        load("a");
        load("b");
        load("c");
        streamer_detach(client_attach(client, "a"));
        struct model *d = load("d");
        ck_assert(is_resident("a") && is_resident("c") && is_resident("d"));
        ck_assert(client_is_unloaded("b"));
        client_equals(client, "d", d);
}

TEST(leased_and_pinned_models_stay_and_the_error_names_the_holders)
{
        const char *path;
        load("a");
        load("b");
        load("c");
        streamer_lease *lease = client_attach(client, "a");
        client_ok(client, streamer_pin(client, "b", 1), "pin");
        struct model *d = load("d");
        ck_assert(is_resident("a") && is_resident("b"));
        ck_assert(client_is_unloaded("c"));
        streamer_lease *second = client_attach(client, "d");
        model_of("e", &path);
        client_load_fails(client, path, "e", STREAMER_ENOMEM,
                          format_text("(ready, 1 lease by 1 process: pid %d uid %u %s)", (int)getpid(),
                                      (unsigned)getuid(), own_comm()));
        client_load_fails(client, path, "e", STREAMER_ENOMEM, "(ready, pinned)");
        lease_equals(second, d);
        streamer_detach(lease);
        streamer_detach(second);
        streamer_unload(client, "e", 0);
        client_ok(client, streamer_pin(client, "b", 0), "unpin");
}

TEST(a_load_that_may_not_evict_fails)
{
        load("a");
        load("b");
        load("c");
        streamer_op *op = load_with("d", STREAMER_LOAD_NO_EVICT, 0);
        ck_assert_int_eq(streamer_op_wait(op, -1, NULL), STREAMER_ENOMEM);
        streamer_op_free(op);
        ck_assert(is_resident("a") && is_resident("b") && is_resident("c"));
        streamer_unload(client, "d", 0);
}

TEST(a_dry_run_lists_the_victims_and_evicts_none)
{
        const char *path;
        struct ctl result;
        load("a");
        load("b");
        load("c");
        model_of("d", &path);
        ctl(&result, test_daemon.socket, "load", path, "--dry-run", NULL);
        ck_assert_int_eq(result.code, 0);
        ck_assert_ptr_nonnull(strstr(result.out, "evicts   a, generation"));
        ctl_free(&result);
        ctl(&result, test_daemon.socket, "load", path, "--dry-run", "--no-evict", NULL);
        ck_assert_ptr_nonnull(strstr(result.out, "insufficient memory"));
        ctl_free(&result);
        ck_assert(is_resident("a") && is_resident("b") && is_resident("c"));
}

TEST(a_new_generation_does_not_evict_the_one_it_replaces)
{
        const char *path;
        load("a");
        struct model *kept = load("b");
        client_ok(client, streamer_pin(client, "a", 1), "pin");
        load("c");
        client_ok(client, streamer_pin(client, "c", 1), "pin");
        model_of("d", &path);
        client_load_fails(client, path, "b", STREAMER_ENOMEM, "b ");
        client_equals(client, "b", kept);
        streamer_unload(client, "b", 0);
        client_ok(client, streamer_pin(client, "a", 0), "unpin");
        client_ok(client, streamer_pin(client, "c", 0), "unpin");
}

TEST(a_pin_passes_to_the_next_generation)
{
        const char *path;
        load("a");
        client_ok(client, streamer_pin(client, "a", 1), "pin");
        model_of("b", &path);
        client_load(client, path, "a");
        load("c");
        load("d");
        load("e");
        ck_assert(is_resident("a"));
        client_ok(client, streamer_pin(client, "a", 0), "unpin");
}

/* ---- waiting ---- */

FIXTURE(.all = {begin, fixture_end}, .each = {connect_client, end_test});

/* Loop test: it gets freed memory, or is cancelled. */
TEST(a_waiting_load_is_listed_until_it_ends, .to = 2)
{
        load("a");
        load("b");
        load("c");
        streamer_lease *leases[] = {client_attach(client, "a"), client_attach(client, "b"), client_attach(client, "c")};
        streamer_op *op = load_with("d", STREAMER_LOAD_WAIT, 0);
        ck_assert(eventually(is_queued, "d", 20000));
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        if (_i == 0)
                streamer_detach(leases[1]);
        else
                ck_assert_int_eq(client_call_code(client, "cancel", "{\"model\":\"d\"}"), 0);
        ck_assert_int_eq(streamer_op_wait(op, -1, NULL), _i == 0 ? 0 : STREAMER_ECANCELED);
        ck_assert_int_eq(client_is_unloaded("b"), _i == 0);
        streamer_op_free(op);
        if (_i == 1)
                streamer_detach(leases[1]);
        streamer_detach(leases[0]);
        streamer_detach(leases[2]);
}

/* ---- time ---- */

FIXTURE(.all = {begin, fixture_end}, .each = {connect_client, end_test});

/* Loop test: leased, or pinned. It is pinned until it is leased: its keep-alive would pass before. */
TEST(a_model_expires_after_its_keep_alive_if_neither_leased_nor_pinned, .to = 2)
{
        streamer_lease *lease = NULL;
        streamer_op *op = load_with("a", STREAMER_LOAD_PIN, 1);
        client_ok(client, streamer_op_wait(op, -1, NULL), "wait");
        streamer_op_free(op);
        if (_i == 0) {
                lease = client_attach(client, "a");
                client_ok(client, streamer_pin(client, "a", 0), "unpin");
        }
        op = load_with("b", 0, 1);
        streamer_op_wait(op, -1, NULL);
        streamer_op_free(op);
        ck_assert(eventually(client_is_unloaded, "b", 20000));
        ck_assert(is_resident("a"));
        if (_i == 0)
                streamer_detach(lease);
        else
                client_ok(client, streamer_pin(client, "a", 0), "unpin");
        ck_assert(eventually(client_is_unloaded, "a", 20000));
}
