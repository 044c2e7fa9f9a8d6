/* SPDX-License-Identifier: Apache-2.0
 *
 * While a model loads, its tensors are handed out complete and hashed, in the order of arrival; its file may change or
 * fail; and other loads, names and generations proceed.
 */
#include "tests/lib/paused_load.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <sys/socket.h>

FIXTURE(.each = {paused_load_begin, paused_load_end}, .unavailable = fuse_file_unavailable);

/* _i 0: the load continues; 1: it fails; 2: the lease is detached. */
TEST(a_lease_survives_a_reconnect_while_its_model_loads, .to = 3)
{
        bool seen[PAUSED_N] = {false};
        streamer_tensor t = STREAMER_TENSOR_INIT;
        paused_load_start("m");
        streamer_lease *lease = client_attach(client, "m");
        paused_load_take(lease, PAUSED_HALF, seen);
        must(shutdown(client_socket(client), SHUT_RDWR));
        if (_i == 1)
                client_ok(client, streamer_call(client, "cancel", "{\"model\":\"m\"}", NULL), "cancel");
        fuse_file_release(&paused.hang);
        if (_i == 0) {
                paused_load_take(lease, PAUSED_HALF, seen);
                ck_assert_int_eq(streamer_tensor_next(lease, PATIENCE_MS, &t), STREAMER_EEND);
                lease_equals(lease, paused.model);
        } else if (_i == 1) {
                ck_assert_int_eq(streamer_tensor_next(lease, PATIENCE_MS, &t), STREAMER_ECANCELED);
        }
        streamer_detach(lease);
        ck_assert_uint_eq(client_leases(client), 0);
}

/* More replies than the daemon queues for a client; one write for all requests, since it will stop reading them. */
static void do_not_read(struct wire *w)
{
        size_t size;
        const char *all = wire_frames(&(struct request){.verb = VERB_metrics, .id = 100}, 1000, &size);
        ck_assert(wire_send(w, all, size));
        for (int i = 0; i < 50; i++) /* turns of the daemon's loop, in which it reads on until it has enough */
                json_decref(client_call(client, "ping", NULL));
}

static const msgpack_object *next_lease_event(struct wire *w)
{
        const msgpack_object *event;
        do
                event = wire_next(w);
        while (!object_str_eq(event, "event", "lease"));
        return event;
}

/* It receives both events late, and in order. */
TEST(a_slow_reader_receives_ready_before_revoked)
{
        struct wire w;
        struct request attach = {.verb = VERB_attach, .id = 1, .u.attach = {.model = "m"}};
        struct request detach = {.verb = VERB_detach, .id = 2};
        const msgpack_object *event;
        streamer_op *op = paused_load_start("m");
        wire_connect(&w, &test_daemon);
        ck_assert(wire_request(&w, &attach));
        wire_read_ok(&w);
        detach.u.detach.lease = wire_number(&w, "lease");
        do_not_read(&w);
        fuse_file_release(&paused.hang);
        client_ok(client, client_load_end(op), "load");
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_FORCE), "unload");
        do
                event = next_lease_event(&w);
        while (object_str_eq(event, "state", "loading"));
        ck_assert(object_str_eq(event, "state", "ready"));
        ck_assert_ptr_nonnull(object_get(event, "digest"));
        ck_assert(object_str_eq(next_lease_event(&w), "state", "revoked"));
        ck_assert(wire_request(&w, &detach));
        do /* all earlier frames, too: the daemon reads no more requests while too much output is queued */
                wire_reply(&w);
        while (wire_number(&w, "id") != detach.id);
        client_wait_leases(client, 0);
}

TEST(progress_counts_bytes_in_place)
{
        streamer_progress p = {.struct_size = sizeof(p)};
        bool seen[PAUSED_N] = {false};
        streamer_op *op = paused_load_start("m");
        streamer_lease *lease = client_attach(client, "m");
        paused_load_take(lease, PAUSED_HALF, seen);
        do
                ck_assert_int_eq(streamer_op_wait(op, 10, &p), STREAMER_ETIMEOUT);
        while (p.tensors < PAUSED_HALF);
        ck_assert_uint_eq(p.bytes, PAUSED_HALF * MIB);
        ck_assert_uint_eq(p.total, PAUSED_N * MIB);
        ck_assert_uint_eq(p.tensors, PAUSED_HALF);
        ck_assert_uint_eq(p.tensors_total, PAUSED_N);
        ck_assert_str_eq(p.state, "loading");
        streamer_detach(lease);
        fuse_file_release(&paused.hang);
        ck_assert_int_eq(streamer_op_wait(op, PATIENCE_MS, &p), 0);
        ck_assert_uint_eq(p.bytes, PAUSED_N * MIB);
        ck_assert_str_eq(p.state, "ready");
}

static bool is_op(const struct wire *w, uint64_t op)
{
        const msgpack_object *frame = &w->reply.unpacked.data;
        return object_str_eq(frame, "event", "op") && wire_number(w, "op") == op;
}

static uint64_t watch(struct wire *w, const char *source, const char *name)
{
        struct request load = {
                .verb = VERB_load, .id = 1, .u.load = {.source = source, .name = name, .watch = true, .wait = true}};
        ck_assert(wire_request(w, &load));
        wire_reply_ok(w);
        return wire_number(w, "op");
}

/* It is said once that the load waits, while another one is reported on in each round. */
TEST(a_load_that_waits_for_memory_reports_no_progress)
{
        enum { ROUNDS = 5 };
        struct wire w;
        uint64_t bytes = 60 * MIB;
        struct model *large = model_new(78);
        char *path = suite_path("root/large.safetensors");
        model_add(large, "t", "U8", &bytes, 1);
        model_write(large, path);
        paused_load_start("m");
        wire_connect(&w, &test_daemon);
        uint64_t reading = watch(&w, paused.hang.path, "m");
        uint64_t waiting = watch(&w, path, "large"); /* last: its events follow this reply */
        do
                wire_next(&w);
        while (!is_op(&w, waiting) || !object_str_eq(&w.reply.unpacked.data, "state", "queued"));
        for (unsigned rounds = 0; rounds < ROUNDS;) {
                wire_next(&w);
                ck_assert(!is_op(&w, waiting));
                rounds += is_op(&w, reading);
        }
        fuse_file_release(&paused.hang);
        do
                wire_next(&w);
        while (!is_op(&w, waiting) || !object_str_eq(&w.reply.unpacked.data, "state", "ready"));
        wire_close(&w);
        unlink(path);
}

/* More of them than a connection may have waiting, which is read on all the same. */
TEST(a_waiting_attach_is_answered_at_its_timeout)
{
        struct wire w;
        struct request attach = {.verb = VERB_attach, .u.attach = {.model = "m", .ready = true, .timeout_ms = 1}};
        struct request ping = {.verb = VERB_ping, .id = 1000};
        paused_load_start("m");
        wire_connect(&w, &test_daemon);
        for (attach.id = 1; attach.id <= 200; attach.id++)
                ck_assert(wire_request(&w, &attach));
        ck_assert(wire_request(&w, &ping));
        unsigned late = 0;
        for (int i = 0; i < 201; i++) {
                const msgpack_object *reply = wire_reply(&w);
                late += wire_number(&w, "id") != ping.id && object_str_eq(reply, "code", "timeout");
        }
        ck_assert_uint_eq(late, 200);
        fuse_file_release(&paused.hang);
}

TEST(attach_by_digest_waits_for_it)
{
        char digest[33];
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .digest = digest, .timeout_ms = 50};
        streamer_lease *lease = NULL;
        model_digest(paused.model, digest);
        paused_load_start("m");
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        fuse_file_release(&paused.hang);
        opts.timeout_ms = PATIENCE_MS;
        client_ok(client, streamer_attach(client, "m", &opts, &lease), "attach");
        streamer_detach(lease);
        digest[0] ^= 1;
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_EDIGEST);
}

/* ---- failures ---- */

TEST(early_clients_are_notified_of_a_late_failure)
{
        bool seen[PAUSED_N] = {false};
        streamer_tensor t = STREAMER_TENSOR_INIT;
        int r;
        streamer_op *op = paused_load_start("m");
        streamer_lease *lease = client_attach(client, "m");
        paused_load_take(lease, PAUSED_HALF, seen);
        paused_load_rewrite((off_t)model_data_offset(paused.model), 4096);
        fuse_file_release(&paused.hang);
        while ((r = streamer_tensor_next(lease, PATIENCE_MS, &t)) == 0)
                ;
        ck_assert_int_eq(r, STREAMER_EFAILED);
        paused_load_fails(op, "changed");
        /* Their memory stays valid. */
        client_ok(client, streamer_tensor_find(lease, "t00", &t), "find");
        ck_assert(model_check(paused.model, 0, t.data));
        ck_assert_uint_gt(client_used(client), paused.empty);
        streamer_detach(lease);
        client_wait_used(client, paused.empty);
}

/* A client that does not wait reads each tensor whole, or not at all, also after the load has failed. */
static void check_early_reads(const streamer_lease *lease, const bool seen[PAUSED_N])
{
        for (size_t i = 0; i < PAUSED_N; i++) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                int r = streamer_tensor_find(lease, paused.model->tensors[i].name, &t);
                if (seen[i])
                        ck_assert(r == 0 && model_check(paused.model, i, t.data));
                else
                        ck_assert_msg(r == STREAMER_EBUSY, "%s: %s", paused.model->tensors[i].name,
                                      streamer_strerror(r));
        }
}

TEST(tensors_of_a_load_that_fails_are_whole_or_not_there)
{
        bool seen[PAUSED_N] = {false};
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_op *op = paused_load_start("m");
        streamer_lease *lease = client_attach(client, "m");
        paused_load_take(lease, PAUSED_HALF, seen);
        check_early_reads(lease, seen);
        fuse_file_fail(&paused.hang);
        ck_assert_int_eq(streamer_tensor_next(lease, PATIENCE_MS, &t), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "Input/output error"));
        paused_load_fails(op, "Input/output error");
        check_early_reads(lease, seen);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_EFAILED);
        streamer_detach(lease);
}

TEST(a_waiting_attach_receives_the_failure)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = STREAMER_ATTACH_READY, .timeout_ms = 50};
        streamer_lease *lease = NULL;
        streamer_op *op = paused_load_start("m");
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        fuse_file_fail(&paused.hang);
        opts.timeout_ms = PATIENCE_MS;
        int r = streamer_attach(client, "m", &opts, &lease);
        ck_assert_msg(r == STREAMER_EFAILED, "%s", streamer_strerror(r));
        paused_load_fails(op, "Input/output error");
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "m.safetensors"));
        client_wait_used(client, paused.empty);
}

/* ---- concurrent changes ---- */

TEST(a_hanging_file_system_does_not_block_other_loads)
{
        streamer_op *op = paused_load_start("m");
        struct model *other = model_mixed(78, 8 << 20);
        char *path = suite_path("root/other.safetensors");
        model_place_data(other, 8, 1); /* misaligned: needs slots of the ring, too */
        model_write(other, path);
        for (int i = 0; i < 3; i++)
                client_load_equals(client, path, "other", other);
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        fuse_file_release(&paused.hang);
        client_ok(client, client_load_end(op), "load");
        client_equals(client, "m", paused.model);
}

TEST(a_load_that_joins_another_is_answered_under_its_own_name)
{
        struct wire w;
        struct request load = {.verb = VERB_load,
                               .id = 2,
                               .u.load = {.source = paused.hang.path, .name = "second", .watch = true, .attach = true}};
        streamer_op *op = paused_load_start("m");
        wire_connect(&w, &test_daemon);
        ck_assert(wire_request(&w, &load));
        const msgpack_object *frame = wire_next(&w);
        for (; object_str_eq(frame, "event", "op"); frame = wire_next(&w))
                ck_assert(object_str_eq(frame, "name", "second"));
        ck_assert(object_str_eq(frame, "model", "second"));
        struct request detach = {.verb = VERB_detach, .id = 3, .u.detach = {.lease = wire_number(&w, "lease")}};
        fuse_file_release(&paused.hang);
        ck_assert_int_eq(client_load_end(op), 0);
        ck_assert(wire_request(&w, &detach));
        client_wait_leases(client, 0);
        client_equals(client, "second", paused.model);
}

static uint64_t held_models(void)
{
        json_auto_t *whoami = client_call(client, "whoami", NULL);
        return json_number(json_at(whoami, "holds"), "models");
}

/* Further requests join the load under names of their own. */
TEST(the_names_of_a_failed_load_are_no_models_of_their_users)
{
        streamer_op *op = paused_load_start("m"), *second = client_load_begin(client, paused.hang.path, "second");
        AWAIT(held_models() == 2);
        fuse_file_fail(&paused.hang);
        paused_load_fails(op, "Input/output error");
        ck_assert_int_eq(client_load_end(second), STREAMER_EFAILED);
        ck_assert_str_eq(client_state(client, "second"), "failed");
        ck_assert_uint_eq(held_models(), 0);
}

TEST(a_loading_model_accepts_a_new_priority)
{
        streamer_op *op = client_load_begin_with(
                client, (streamer_load_opts){.source = paused.hang.path, .name = "m", .priority = 700});

        fuse_file_wait_held(&paused.hang);
        ck_assert_uint_eq(json_number(client_show(client, "m"), "priority"), 700);
        ctl_says(test_daemon.socket, 0, "", "set-priority", "m", "9000", NULL);
        ck_assert_uint_eq(json_number(client_show(client, "m"), "priority"), 9000);
        fuse_file_release(&paused.hang);
        client_ok(client, client_load_end(op), "load");
}

/* Each of the requests joins the load. */
TEST(a_connection_watches_a_limited_number_of_loads)
{
        enum { WATCHED = 256 };
        struct wire w;
        struct request load = {.verb = VERB_load, .u.load = {.source = paused.hang.path, .name = "m", .watch = true}};
        streamer_op *op = paused_load_start("m");
        wire_connect(&w, &test_daemon);
        for (load.id = 2; load.id < 2 + WATCHED; load.id++) {
                ck_assert(wire_request(&w, &load));
                wire_reply_ok(&w);
        }
        ck_assert(wire_request(&w, &load));
        wire_read_whole_error(&w, "limit", "load: this connection watches 256 loads, the most that it may");
        fuse_file_release(&paused.hang);
        ck_assert_int_eq(client_load_end(op), 0);
}
