/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_open(): the lease is of the generation that the load produces, it exists while the model loads, and
 * nothing is unloaded in between. Attach by digest; wait, cancel and keep_alive by name.
 */
#include "tests/lib/paused_load.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <malloc.h>
#include <sys/resource.h>

/* Until the next ones. */
static const streamer_open_opts *open_opts(const char *name, unsigned flags)
{
        static streamer_load_opts load = STREAMER_LOAD_OPTS_INIT;
        static streamer_attach_opts attach = STREAMER_ATTACH_OPTS_INIT;
        static const streamer_open_opts opts = {.struct_size = sizeof(opts), .load = &load, .attach = &attach};
        load.name = name;
        attach.flags = flags;
        return &opts;
}

static streamer_lease *open_model(const char *source, const char *name, unsigned flags)
{
        streamer_lease *lease = NULL;
        client_ok(client, streamer_open(client, source, open_opts(name, flags), &lease), "open");
        return lease;
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, fixture_disconnect});

TEST(a_file_is_loaded_and_attached_to, .to = 2)
{
        struct model *m = model_mixed(80, 4 << 20);
        streamer_lease *lease =
                open_model(fixture_write(m, "opened.safetensors"), NULL, _i ? STREAMER_ATTACH_READY : 0);
        ck_assert_str_eq(streamer_lease_model(lease), "opened");
        if (_i == 0)
                client_ok(client, streamer_wait(client, "opened", -1), "wait");
        lease_equals(lease, m);
        ck_assert_int_eq(streamer_unload(client, "opened", 0), STREAMER_EBUSY);
        streamer_detach(lease);
        client_unload(client, "opened");
}

/* At most `n` more descriptors. */
static struct rlimit limit_files(rlim_t n)
{
        struct rlimit before;
        int lowest = must(open("/dev/null", O_RDONLY | O_CLOEXEC));
        close(lowest);
        must(getrlimit(RLIMIT_NOFILE, &before));
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest + n, before.rlim_max}));
        return before;
}

TEST(a_reply_whose_descriptors_are_lost_fails_alone, .to = 2)
{
        struct model *m = model_mixed(83, 2 << 20);
        char *path = fixture_write(m, "lost.safetensors");
        streamer_open_opts opts = STREAMER_OPEN_OPTS_INIT;
        streamer_lease *lease = NULL;
        client_load(client, path, "lost");
        struct rlimit before = limit_files((rlim_t)_i);
        int attached = streamer_attach(client, "lost", NULL, &lease);
        int opened = streamer_open(client, path, &opts, &lease);
        char *text = format_text("%s", streamer_last_error(client));
        must(setrlimit(RLIMIT_NOFILE, &before));
        ck_assert_int_eq(attached, STREAMER_EOS);
        ck_assert_int_eq(opened, STREAMER_EOS);
        ck_assert_ptr_nonnull(strstr(text, "too many files are open (ulimit -n)"));
        client_wait_leases(client, 0);
        lease = client_attach(client, "lost");
        lease_equals(lease, m);
        streamer_detach(lease);
        client_unload(client, "lost");
}

TEST(an_operation_whose_lease_was_taken_has_no_descriptors)
{
        enum { N = 20 };
        struct model *m = model_mixed(83, 2 << 20);
        char *path = fixture_write(m, "many.safetensors");
        streamer_op *ops[N];
        streamer_lease *leases[N];
        client_load(client, path, "many");
        struct rlimit before = limit_files(8);
        int opened = 0;
        for (size_t i = 0; i < N && opened == 0; i++)
                opened = streamer_open_start(client, path, open_opts("many", 0), &ops[i])
                                 ?: streamer_op_lease(ops[i], -1, &leases[i]);
        must(setrlimit(RLIMIT_NOFILE, &before));
        client_ok(client, opened, "open");
        for (size_t i = 0; i < N; i++) {
                lease_equals(leases[i], m);
                streamer_detach(leases[i]);
                streamer_op_free(ops[i]);
        }
        client_wait_leases(client, 0);
        client_unload(client, "many");
}

TEST(the_lease_is_of_the_new_generation_while_the_old_one_serves)
{
        struct model *old = model_mixed(81, 2 << 20), *new = model_mixed(82, 2 << 20);
        client_load(client, fixture_write(old, "old.safetensors"), "both");
        streamer_lease *first = client_attach(client, "both");
        streamer_lease *second = open_model(fixture_write(new, "new.safetensors"), "both", STREAMER_ATTACH_READY);
        ck_assert_uint_gt(streamer_generation(second), streamer_generation(first));
        lease_equals(first, old);
        lease_equals(second, new);
        streamer_detach(first);
        streamer_detach(second);
        client_unload(client, "both");
}

TEST(open_attaches_to_a_resident_model_by_source_or_name)
{
        struct model *m = model_mixed(83, 2 << 20);
        const char *path = fixture_write(m, "there.safetensors");
        client_load(client, path, "there");
        streamer_lease *by_source = open_model(path, "there", 0), *by_name = open_model("there", NULL, 0);
        ck_assert_uint_eq(streamer_generation(by_source), streamer_generation(by_name));
        lease_equals(by_source, m);
        lease_equals(by_name, m);
        streamer_detach(by_source);
        streamer_detach(by_name);
        client_unload(client, "there");
}

TEST(open_of_an_invalid_source_fails)
{
        streamer_lease *lease;
        ck_assert_int_eq(streamer_open(client, "nobody", NULL, &lease), STREAMER_ENOENT);
        ck_assert_int_eq(streamer_open(client, fixture_path("missing.safetensors"), NULL, &lease), STREAMER_ENOENT);
        file_write(fixture_path("bad.safetensors"), "no safetensors", 14);
        ck_assert_int_eq(streamer_open(client, fixture_path("bad.safetensors"), NULL, &lease), STREAMER_EFAILED);
        ck_assert_str_ne(streamer_last_error(client), "");
        ck_assert_uint_eq(client_leases(client), 0);
        streamer_call(client, "unload", "{\"model\":\"bad\"}", NULL);
}

TEST(a_digest_alone_names_a_model)
{
        struct model *m = model_mixed(84, 2 << 20);
        client_load(client, fixture_write(m, "digest.safetensors"), "digest");
        streamer_lease *lease = client_attach(client, "digest"), *same = NULL;
        streamer_attach_opts opts = STREAMER_ATTACH_OPTS_INIT;
        opts.digest = streamer_digest(lease);
        client_ok(client, streamer_attach(client, NULL, &opts, &same), "attach by digest");
        ck_assert_str_eq(streamer_lease_model(same), "digest");
        lease_equals(same, m);
        opts.digest = "00000000000000000000000000000000";
        streamer_lease *none;
        ck_assert_int_eq(streamer_attach(client, NULL, &opts, &none), STREAMER_ENOENT);
        streamer_detach(lease);
        streamer_detach(same);
        const streamer_open_opts of_digest = {.struct_size = sizeof(of_digest), .attach = &opts};
        client_fails(client, streamer_open(client, fixture_path("digest.safetensors"), &of_digest, &same),
                     STREAMER_EDIGEST, "the model's digest is ");
        client_unload(client, "digest");
}

/* mallinfo2() counts what the allocator keeps for a thread as used, which differs by a few KiB. */
TEST(closed_clients_leave_no_memory)
{
        const char *source = fixture_write(model_mixed(85, 1 << 12), "small.safetensors");
        size_t used = 0;
        char *event;
        for (int i = 0; i < 500; i++) {
                streamer_client *c = client_open(&test_daemon);
                client_ok(c, streamer_subscribe(c, NULL), "subscribe");
                client_load(c, source, "small");
                streamer_detach(client_attach(c, "small"));
                client_unload(c, "small");
                client_ok(c, streamer_event_next(c, 10000, &event), "event");
                free(event);
                streamer_close(c);
                used = i < 100 ? mallinfo2().uordblks : used;
        }
        ck_assert_uint_le(mallinfo2().uordblks, used + 16384);
}

/* ---- while it loads ---- */

static streamer_op *open_held(unsigned flags)
{
        streamer_op *op = NULL;
        client_ok(client, streamer_open_start(client, paused.hang.path, open_opts("m", flags), &op), "open_start");
        return op;
}

FIXTURE(.each = {paused_load_begin, paused_load_end}, .unavailable = fuse_file_unavailable);

TEST(open_returns_a_lease_before_the_model_is_ready)
{
        bool seen[PAUSED_N] = {false};
        streamer_lease *lease = NULL;
        streamer_progress p = STREAMER_PROGRESS_INIT;
        paused_load_start("m");
        streamer_op *op = open_held(0);
        ck_assert_str_eq(streamer_op_model(op), "m");
        client_ok(client, streamer_op_lease(op, PATIENCE_MS, &lease), "op_lease");
        paused_load_take(lease, PAUSED_HALF, seen);
        ck_assert_int_eq(streamer_op_wait(op, 0, &p), STREAMER_ETIMEOUT);
        ck_assert_str_eq(p.state, "loading");
        ck_assert_int_eq(streamer_op_lease(op, 0, &lease), STREAMER_EINVAL);
        ck_assert_int_eq(streamer_wait(client, "m", 1), STREAMER_ETIMEOUT);
        fuse_file_release(&paused.hang);
        client_ok(client, streamer_op_wait(op, -1, &p), "op_wait");
        ck_assert_uint_eq(p.generation, streamer_generation(lease));
        lease_equals(lease, paused.model);
        streamer_detach(lease);
}

TEST(a_lease_of_the_ready_model_is_waited_for)
{
        streamer_lease *lease = NULL;
        paused_load_start("m");
        streamer_op *op = open_held(STREAMER_ATTACH_READY);
        ck_assert_int_eq(streamer_op_lease(op, 10, &lease), STREAMER_ETIMEOUT);
        fuse_file_release(&paused.hang);
        client_ok(client, streamer_op_lease(op, -1, &lease), "op_lease");
        lease_equals(lease, paused.model);
        streamer_detach(lease);
}

TEST(an_unused_lease_ends_with_the_operation)
{
        streamer_op *load = paused_load_start("m"), *op = open_held(0);
        streamer_op_free(op);
        fuse_file_release(&paused.hang);
        client_ok(client, streamer_op_wait(load, -1, NULL), "op_wait");
        client_wait_leases(client, 0);
}

TEST(a_load_that_is_cancelled_ends_the_open)
{
        streamer_lease *lease = NULL;
        paused_load_start("m");
        streamer_op *op = open_held(STREAMER_ATTACH_READY);
        client_ok(client, streamer_cancel(client, "m"), "cancel");
        ck_assert_int_eq(streamer_op_lease(op, PATIENCE_MS, &lease), STREAMER_ECANCELED);
        ck_assert_int_eq(streamer_op_wait(op, PATIENCE_MS, NULL), STREAMER_ECANCELED);
        fuse_file_release(&paused.hang);
}

/* ---- huge pages ---- */

FIXTURE(.first = machine_settings_lock);

TEST(hugetlb_pages_are_mapped_for_reading_alone)
{
        struct model *m = model_mixed(84, 2 << 20);
        if (!hugepages_allow(64 << 20))
                SKIP("vm.nr_overcommit_hugepages cannot be set");
        fixture_begin((const char *const[]){"--device", "host=64MiB", NULL});
        fixture_connect();
        streamer_lease *lease =
                open_model(fixture_write(m, "huge.safetensors"), NULL, STREAMER_ATTACH_READY | STREAMER_ATTACH_PRIVATE);
        json_t *list = client_call(client, "list", NULL);
        bool huge = strcmp(json_text(list, "models.0.devices.0.page_kind"), "hugetlb") == 0;
        ck_assert_int_eq(streamer_lease_writable(lease), !huge);
        lease_equals(lease, m);
        streamer_detach(lease);
        streamer_close(client);
        fixture_end();
        if (!huge)
                SKIP("vm.nr_overcommit_hugepages cannot be set");
}
