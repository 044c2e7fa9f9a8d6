/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors of a model that still loads: handed out as they arrive, whole and hashed, and with
 * SHA-256 not before their file has been found to be what was published.
 */
#include "tests/lib/held.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* ---- arrival ---- */

START_TEST(tensors_are_handed_out_as_they_arrive)
{
        bool seen[HELD_N] = {false};
        streamer_tensor t;

        streamer_op *op = held_load("m");
        streamer_lease *lease = client_attach(held.client, "m");
        held_take(lease, HELD_HALF, seen);
        for (size_t i = 0; i < HELD_N; i++)
                ck_assert_int_eq(seen[i], i < HELD_HALF);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ETIMEOUT);
        ck_assert_int_eq(streamer_tensor_find(lease, "t00", &t), 0);
        ck_assert_int_eq(streamer_tensor_find(lease, "t15", &t), STREAMER_EBUSY);
        ck_assert_str_eq(streamer_digest(lease), "");
        hang_release(&held.hang);
        held_take(lease, HELD_HALF, seen);
        ck_assert_int_eq(streamer_tensor_next(lease, 20000, &t), STREAMER_EEND);
        client_ok(held.client, streamer_op_wait(op, 20000, NULL), "load");
        lease_equals(lease, held.model);
        streamer_detach(lease);
        streamer_op_free(op);
}
END_TEST

/* _i 0: and it loads on; 1: it fails meanwhile; 2: its lease is given back. */
START_TEST(a_lease_is_kept_while_its_model_loads)
{
        bool seen[HELD_N] = {false};
        streamer_tensor t;

        streamer_op *op = held_load("m");
        streamer_lease *lease = client_attach(held.client, "m");
        held_take(lease, HELD_HALF, seen);
        must(shutdown(streamer_fd(held.client), SHUT_RDWR));
        if (_i == 1)
                client_ok(held.client, streamer_call(held.client, "cancel", "{\"model\":\"m\"}", NULL), "cancel");
        hang_release(&held.hang);
        if (_i == 0) {
                held_take(lease, HELD_HALF, seen);
                ck_assert_int_eq(streamer_tensor_next(lease, 20000, &t), STREAMER_EEND);
                lease_equals(lease, held.model);
        } else if (_i == 1) {
                ck_assert_int_eq(streamer_tensor_next(lease, 20000, &t), STREAMER_ECANCELED);
        }
        streamer_detach(lease);
        ck_assert_uint_eq(client_leases(held.client), 0);
        streamer_op_free(op);
}
END_TEST

START_TEST(a_model_that_is_taken_by_force_is_handed_out_to_its_end)
{
        bool seen[HELD_N] = {false};
        streamer_tensor t;

        streamer_op *op = held_load("m");
        streamer_client *other = client_open(&held.d);
        streamer_lease *lease = client_attach(other, "m");
        held_take(lease, 1, seen);
        hang_release(&held.hang);
        client_ok(held.client, streamer_op_wait(op, 20000, NULL), "load");
        client_ok(held.client, streamer_unload(held.client, "m", STREAMER_UNLOAD_FORCE), "unload");
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        held_take(lease, HELD_N - 1, seen);
        ck_assert_int_eq(streamer_tensor_next(lease, 20000, &t), STREAMER_EEND);
        ck_assert_str_ne(streamer_digest(lease), "");
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        streamer_detach(lease);
        streamer_close(other);
        streamer_op_free(op);
}
END_TEST

/* More answers than the daemon keeps for it; the requests in one piece, since it will stop reading them. */
static void do_not_read(struct wire *w)
{
        static const char metrics[] = "\0\0\0\x12\x82\xa4verb\xa7metrics\xa2id\x64";
        enum { N = 1000, SIZE = sizeof(metrics) - 1 };
        char *all = must_alloc(N * SIZE);
        for (size_t i = 0; i < N; i++)
                memcpy(all + i * SIZE, metrics, SIZE);
        ck_assert(wire_send(w, all, N * SIZE));
        free(all);
        for (int i = 0; i < 50; i++) /* turns of the daemon's loop, in which it reads on until it has enough */
                json_decref(client_call(held.client, "ping", NULL));
}

static const msgpack_object *next_lease_event(struct wire *w)
{
        do
                ck_assert(wire_read(w));
        while (!object_str_eq(&w->reply.unpacked.data, "event", "lease"));
        return &w->reply.unpacked.data;
}

/* And all that comes before it: the daemon reads no more requests while too much of that is left. */
static void read_answer(struct wire *w, uint64_t id)
{
        uint64_t of = 0;
        do
                ck_assert(wire_read(w));
        while (!object_u64(&w->reply.unpacked.data, "id", &of) || of != id);
}

/* It hears of both late, and in the order in which they were. */
START_TEST(who_does_not_read_hears_of_the_end_of_the_load_before_it_hears_of_force)
{
        struct wire w;
        struct request attach = {.verb = VERB_attach, .id = 1, .u.attach = {.model = "m"}};
        struct request detach = {.verb = VERB_detach, .id = 2};
        const msgpack_object *event;
        streamer_op *op = held_load("m");
        wire_open(&w, &held.d);
        wire_hello(&w);
        ck_assert(wire_request(&w, &attach) && wire_read(&w));
        ck_assert(object_u64(&w.reply.unpacked.data, "lease", &detach.u.detach.lease));
        do_not_read(&w);
        hang_release(&held.hang);
        client_ok(held.client, streamer_op_wait(op, 20000, NULL), "load");
        client_ok(held.client, streamer_unload(held.client, "m", STREAMER_UNLOAD_FORCE), "unload");
        do
                event = next_lease_event(&w);
        while (object_str_eq(event, "state", "loading"));
        ck_assert(object_str_eq(event, "state", "ready"));
        ck_assert_ptr_nonnull(object_get(event, "digest"));
        ck_assert(object_str_eq(next_lease_event(&w), "state", "revoked"));
        ck_assert(wire_request(&w, &detach));
        read_answer(&w, detach.id);
        client_wait_leases(held.client, 0);
        wire_close(&w);
        streamer_op_free(op);
}
END_TEST

START_TEST(a_model_that_is_ready_is_handed_out_whole)
{
        bool seen[HELD_N] = {false};
        streamer_tensor t;

        hang_release(&held.hang);
        client_load(held.client, held.hang.path, "m");
        streamer_lease *lease = client_attach(held.client, "m");
        held_take(lease, HELD_N, seen);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_EEND);
        streamer_detach(lease);
}
END_TEST

START_TEST(progress_counts_what_has_landed)
{
        streamer_progress p = {.struct_size = sizeof(p)};
        bool seen[HELD_N] = {false};

        streamer_op *op = held_load("m");
        streamer_lease *lease = client_attach(held.client, "m");
        held_take(lease, HELD_HALF, seen);
        do
                ck_assert_int_eq(streamer_op_wait(op, 10, &p), STREAMER_ETIMEOUT);
        while (p.tensors < HELD_HALF);
        ck_assert_uint_eq(p.bytes, HELD_HALF * MIB);
        ck_assert_uint_eq(p.total, HELD_N * MIB);
        ck_assert_uint_eq(p.tensors, HELD_HALF);
        ck_assert_uint_eq(p.tensors_total, HELD_N);
        ck_assert_str_eq(p.state, "loading");
        streamer_detach(lease);
        hang_release(&held.hang);
        ck_assert_int_eq(streamer_op_wait(op, 20000, &p), 0);
        ck_assert_uint_eq(p.bytes, HELD_N * MIB);
        ck_assert_str_eq(p.state, "ready");
        streamer_op_free(op);
}
END_TEST

START_TEST(attach_can_wait_until_all_is_there)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = STREAMER_ATTACH_READY, .timeout_ms = 50};
        streamer_lease *lease = NULL;

        streamer_op *op = held_load("m");
        ck_assert_int_eq(streamer_attach(held.client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        hang_release(&held.hang);
        opts.timeout_ms = 20000;
        client_ok(held.client, streamer_attach(held.client, "m", &opts, &lease), "attach");
        lease_equals(lease, held.model);
        streamer_detach(lease);
        streamer_op_free(op);
}
END_TEST

/* More of them than a connection may have waiting, which is read on all the same. */
START_TEST(an_attach_that_has_waited_as_long_as_it_said_is_answered)
{
        struct wire w;
        struct request attach = {.verb = VERB_attach, .u.attach = {.model = "m", .ready = true, .timeout_ms = 1}};
        struct request ping = {.verb = VERB_ping, .id = 1000};
        streamer_op *op = held_load("m");
        wire_open(&w, &held.d);
        wire_hello(&w);
        for (attach.id = 1; attach.id <= 200; attach.id++)
                ck_assert(wire_request(&w, &attach));
        ck_assert(wire_request(&w, &ping));
        unsigned late = 0;
        for (int i = 0; i < 201; i++) {
                uint64_t id;
                ck_assert(wire_read(&w) && object_u64(&w.reply.unpacked.data, "id", &id));
                late += id != ping.id && object_str_eq(&w.reply.unpacked.data, "code", "timeout");
        }
        ck_assert_uint_eq(late, 200);
        wire_close(&w);
        hang_release(&held.hang);
        streamer_op_free(op);
}
END_TEST

START_TEST(attach_by_digest_waits_for_it)
{
        char digest[33];
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .digest = digest, .timeout_ms = 50};
        streamer_lease *lease = NULL;

        model_digest(held.model, digest);
        streamer_op *op = held_load("m");
        ck_assert_int_eq(streamer_attach(held.client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        hang_release(&held.hang);
        opts.timeout_ms = 20000;
        client_ok(held.client, streamer_attach(held.client, "m", &opts, &lease), "attach");
        streamer_detach(lease);
        digest[0] ^= 1;
        ck_assert_int_eq(streamer_attach(held.client, "m", &opts, &lease), STREAMER_EDIGEST);
        streamer_op_free(op);
}
END_TEST

/* ---- SHA-256 ---- */

/* A blob whose name is its digest, or is not. */
static streamer_op *load_blob(bool good)
{
        unsigned char digest[32];
        char hex[65];
        size_t size;
        streamer_op *op;

        held_begin();
        char *data = file_read(held.backing, &size);
        SHA256((unsigned char *)data, size, digest);
        digest[0] ^= good ? 0 : 1;
        for (int i = 0; i < 32; i++)
                snprintf(hex + i * 2, 3, "%02x", digest[i]);
        held_end();
        held_begin_named(hex);
        streamer_load_opts opts = {
                .struct_size = sizeof(opts), .source = held.hang.path, .name = "m", .verify = "sha256"};
        client_ok(held.client, streamer_load(held.client, &opts, &op), "load");
        hang_wait_held(&held.hang);
        free(data);
        return op;
}

/* Attach may wait until there is something; nothing must be handed out in any case. */
static streamer_lease *attach_and_get_nothing(void)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .timeout_ms = 200};
        streamer_lease *lease = NULL;
        streamer_tensor t;

        if (streamer_attach(held.client, "m", &opts, &lease))
                return NULL;
        ck_assert_int_eq(streamer_tensor_next(lease, 200, &t), STREAMER_ETIMEOUT);
        ck_assert_int_eq(streamer_tensor_find(lease, "t00", &t), STREAMER_EBUSY);
        return lease;
}

START_TEST(with_sha256_nothing_of_a_file_is_handed_out_before_it_matches)
{
        bool seen[HELD_N] = {false};

        streamer_op *op = load_blob(true);
        streamer_lease *lease = attach_and_get_nothing();
        hang_release(&held.hang);
        client_ok(held.client, streamer_op_wait(op, 20000, NULL), "load");
        if (!lease)
                lease = client_attach(held.client, "m");
        held_take(lease, HELD_N, seen);
        streamer_detach(lease);
        held_end();
}
END_TEST

START_TEST(with_sha256_nothing_of_a_file_that_does_not_match_is_handed_out)
{
        streamer_tensor t;

        streamer_op *op = load_blob(false);
        streamer_lease *lease = attach_and_get_nothing();
        hang_release(&held.hang);
        held_fails(op, NULL);
        if (lease)
                ck_assert_int_eq(streamer_tensor_next(lease, 20000, &t), STREAMER_EFAILED);
        streamer_detach(lease);
        client_wait_used(held.client, held.empty);
        held_end();
}
END_TEST

START_TEST(tensors_of_a_model_that_still_loads)
{
        SKIP(hang_unavailable());
}
END_TEST

int main(void)
{
        suite_begin("arrival");
        if (hang_unavailable()) {
                tcase_add_test(suite_group("skipped", NULL, NULL, 60), tensors_of_a_model_that_still_loads);
                return suite_run();
        }
        TCase *arrival = suite_group("arrival", NULL, NULL, 60);
        tcase_add_checked_fixture(arrival, held_begin, held_end);
        tcase_add_test(arrival, tensors_are_handed_out_as_they_arrive);
        tcase_add_loop_test(arrival, a_lease_is_kept_while_its_model_loads, 0, 3);
        tcase_add_test(arrival, a_model_that_is_ready_is_handed_out_whole);
        tcase_add_test(arrival, a_model_that_is_taken_by_force_is_handed_out_to_its_end);
        tcase_add_test(arrival, who_does_not_read_hears_of_the_end_of_the_load_before_it_hears_of_force);
        tcase_add_test(arrival, progress_counts_what_has_landed);
        tcase_add_test(arrival, attach_can_wait_until_all_is_there);
        tcase_add_test(arrival, an_attach_that_has_waited_as_long_as_it_said_is_answered);
        tcase_add_test(arrival, attach_by_digest_waits_for_it);
        TCase *sha256 = suite_group("SHA-256", NULL, NULL, 60);
        tcase_add_test(sha256, with_sha256_nothing_of_a_file_is_handed_out_before_it_matches);
        tcase_add_test(sha256, with_sha256_nothing_of_a_file_that_does_not_match_is_handed_out);
        return suite_run();
}
