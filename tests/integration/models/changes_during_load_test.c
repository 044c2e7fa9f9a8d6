/* SPDX-License-Identifier: Apache-2.0
 *
 * During a load its file may change or fail, and other loads, names and generations proceed.
 */
#include "tests/lib/paused_load.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

/* ---- files that change ---- */

static void truncate_file(void)
{
        must(truncate(paused.backing, (off_t)(model_data_offset(paused.model) + PAUSED_HALF * MIB)));
}

static void grow(void)
{
        paused_load_rewrite((off_t)file_size(paused.backing), 4096);
}

static void rewrite_in_place(void)
{
        paused_load_rewrite((off_t)model_data_offset(paused.model), 4096);
}

static const struct {
        void (*change)(void);
        const char *says; /* NULL: any text */
} file_changes[] = {{truncate_file, NULL}, {grow, "changed"}, {rewrite_in_place, "changed"}};

FIXTURE(.each = {paused_load_begin, paused_load_end}, .unavailable = fuse_file_unavailable);

TEST(a_file_that_changes_while_it_loads_fails_the_load, EACH(file_changes))
{
        streamer_op *op = paused_load_start("m");

        file_changes[_i].change();
        fuse_file_release(&paused.hang);
        paused_load_fails(op, file_changes[_i].says);
        client_wait_used(paused.client, paused.empty);
}

TEST(early_clients_are_notified_of_a_late_failure)
{
        bool seen[PAUSED_N] = {false};
        streamer_tensor t = STREAMER_TENSOR_INIT;
        int r;

        streamer_op *op = paused_load_start("m");
        streamer_lease *lease = client_attach(paused.client, "m");
        paused_load_take(lease, PAUSED_HALF, seen);
        paused_load_rewrite((off_t)model_data_offset(paused.model), 4096);
        fuse_file_release(&paused.hang);
        while ((r = streamer_tensor_next(lease, 20000, &t)) == 0)
                ;
        ck_assert_int_eq(r, STREAMER_EFAILED);
        paused_load_fails(op, NULL);
        /* Their memory stays valid. */
        client_ok(paused.client, streamer_tensor_find(lease, "t00", &t), "find");
        ck_assert(model_check(paused.model, 0, t.data));
        ck_assert_uint_gt(client_used(paused.client), paused.empty);
        streamer_detach(lease);
        client_wait_used(paused.client, paused.empty);
}

TEST(a_waiting_attach_receives_the_failure)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = STREAMER_ATTACH_READY, .timeout_ms = 50};
        streamer_lease *lease = NULL;

        streamer_op *op = paused_load_start("m");
        ck_assert_int_eq(streamer_attach(paused.client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        fuse_file_fail(&paused.hang);
        opts.timeout_ms = 20000;
        int r = streamer_attach(paused.client, "m", &opts, &lease);
        ck_assert_msg(r == STREAMER_EFAILED, "%s", streamer_strerror(r));
        paused_load_fails(op, NULL);
}

TEST(a_read_error_names_the_file_and_the_error)
{
        streamer_op *op = paused_load_start("m");

        fuse_file_fail(&paused.hang);
        paused_load_fails(op, "Input/output error");
        ck_assert_ptr_nonnull(strstr(streamer_last_error(paused.client), "m.safetensors"));
        client_wait_used(paused.client, paused.empty);
}

/* ---- concurrent changes ---- */

TEST(a_hanging_file_system_does_not_block_other_loads)
{
        streamer_op *op = paused_load_start("m");
        struct model *other = model_mixed(78, 8 << 20);
        char *path = suite_path("root/other.safetensors");

        model_place_data(other, 8, 1); /* misaligned: needs slots of the ring, too */
        model_write(other, path);
        for (int i = 0; i < 3; i++) {
                client_load(paused.client, path, "other");
                client_equals(paused.client, "other", other);
                client_unload(paused.client, "other");
        }
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        fuse_file_release(&paused.hang);
        client_ok(paused.client, streamer_op_wait(op, 20000, NULL), "load");
        client_equals(paused.client, "m", paused.model);
        streamer_op_free(op);
}

TEST(a_second_load_of_the_same_joins_the_first)
{
        streamer_progress first = {.struct_size = sizeof(first)}, second = first;
        streamer_client *c = client_open(&paused.d);

        streamer_op *op = paused_load_start("m"), *joined = client_load_begin(c, paused.hang.path, "m");
        ck_assert_int_eq(streamer_op_wait(joined, 50, NULL), STREAMER_ETIMEOUT);
        fuse_file_release(&paused.hang);
        client_ok(paused.client, streamer_op_wait(op, 20000, &first), "load");
        client_ok(c, streamer_op_wait(joined, 20000, &second), "joined load");
        ck_assert_uint_gt(first.generation, 0);
        ck_assert_uint_eq(first.generation, second.generation);
        client_equals(paused.client, "m", paused.model);
        streamer_op_free(op);
        streamer_op_free(joined);
        streamer_close(c);
}

TEST(cancel_ends_a_hung_load_and_frees_memory_after_its_read)
{
        streamer_op *op = paused_load_start("m");

        client_ok(paused.client, client_call_code(paused.client, "cancel", "{\"model\":\"m\"}"), "cancel");
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_ECANCELED);
        ck_assert_uint_gt(client_used(paused.client), paused.empty);
        fuse_file_release(&paused.hang);
        client_wait_used(paused.client, paused.empty);
        streamer_op_free(op);
}

/* Each of the requests joins the load. */
TEST(a_connection_watches_a_limited_number_of_loads)
{
        enum { WATCHED = 256 };
        static const char limit[] = "load: this connection watches 256 loads, the most that it may";
        struct wire w;
        struct request load = {.verb = VERB_load, .u.load = {.source = paused.hang.path, .name = "m", .watch = true}};
        const char *told = "";
        size_t len = 0;
        bool done = false;
        streamer_op *op = paused_load_start("m");
        wire_open(&w, &paused.d);
        wire_hello(&w);
        for (load.id = 2; load.id < 2 + WATCHED; load.id++) {
                ck_assert(wire_request(&w, &load));
                do
                        ck_assert(wire_read(&w));
                while (object_get(&w.reply.unpacked.data, "event") != NULL);
                ck_assert(object_bool(&w.reply.unpacked.data, "ok", &done) && done);
        }
        ck_assert(wire_request(&w, &load));
        ck_assert(wire_read_code(&w, "limit"));
        ck_assert(object_str(&w.reply.unpacked.data, "text", &told, &len));
        ck_assert_msg(len == strlen(limit) && memcmp(told, limit, len) == 0, "%.*s", (int)len, told);
        wire_close(&w);
        fuse_file_release(&paused.hang);
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), 0);
        streamer_op_free(op);
}

TEST(the_old_generation_serves_until_the_new_one_is_ready)
{
        struct model *old = model_mixed(79, 2 << 20);
        char *path = suite_path("root/old.safetensors");

        model_write(old, path);
        client_load(paused.client, path, "m");
        streamer_lease *lease = client_attach(paused.client, "m");
        streamer_op *op = paused_load_start("m");
        client_equals(paused.client, "m", old);
        fuse_file_release(&paused.hang);
        client_ok(paused.client, streamer_op_wait(op, 20000, NULL), "load");
        client_equals(paused.client, "m", paused.model);
        lease_equals(lease, old);
        streamer_detach(lease);
}

TEST(a_failed_new_generation_leaves_the_old_one_serving)
{
        struct model *old = model_mixed(80, 2 << 20);
        char *path = suite_path("root/old.safetensors");

        model_write(old, path);
        client_load(paused.client, path, "m");
        streamer_op *op = paused_load_start("m");
        fuse_file_fail(&paused.hang);
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_EFAILED);
        client_equals(paused.client, "m", old);
        streamer_op_free(op);
        client_load(paused.client, path, "m"); /* the failure is no obstacle */
        client_equals(paused.client, "m", old);
}

TEST(missing_tensors_read_as_busy_from_many_leases)
{
        enum { LEASES = 20 };
        streamer_lease *leases[LEASES];
        streamer_op *op = paused_load_start("m");

        for (int i = 0; i < LEASES; i++) {
                bool seen[PAUSED_N] = {false};
                leases[i] = client_attach(paused.client, "m");
                paused_load_take(leases[i], PAUSED_HALF, seen);
        }
        fuse_file_release(&paused.hang);
        client_ok(paused.client, streamer_op_wait(op, 20000, NULL), "load");
        for (int i = 0; i < LEASES; i++) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                for (int k = 0; k < PAUSED_HALF; k++)
                        client_ok(paused.client, streamer_tensor_next(leases[i], 20000, &t), "next");
                ck_assert_int_eq(streamer_tensor_next(leases[i], 20000, &t), STREAMER_EEND);
                streamer_detach(leases[i]);
        }
}
