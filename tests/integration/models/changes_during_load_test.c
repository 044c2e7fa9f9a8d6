/* SPDX-License-Identifier: Apache-2.0
 *
 * During a load its file may change or fail, and other loads, names and generations proceed.
 */
#include "tests/lib/paused_load.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

FIXTURE(.each = {paused_load_begin, paused_load_end}, .unavailable = fuse_file_unavailable);

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
        paused_load_fails(op, "changed");
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

TEST(a_loading_model_accepts_a_new_priority)
{
        struct ctl result;
        streamer_op *op = client_load_begin_with(
                paused.client, (streamer_load_opts){.source = paused.hang.path, .name = "m", .priority = 700});

        fuse_file_wait_held(&paused.hang);
        ck_assert_uint_eq(json_number(client_show(paused.client, "m"), "priority"), 700);
        ctl(&result, paused.d.socket, "set-priority", "m", "9000", NULL);
        ck_assert_int_eq(result.code, 0);
        ck_assert_uint_eq(json_number(client_show(paused.client, "m"), "priority"), 9000);
        fuse_file_release(&paused.hang);
        client_ok(paused.client, client_load_end(op), "load");
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
        wire_connect(&w, &paused.d);
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
