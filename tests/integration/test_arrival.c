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
        tcase_add_test(arrival, progress_counts_what_has_landed);
        tcase_add_test(arrival, attach_can_wait_until_all_is_there);
        tcase_add_test(arrival, an_attach_that_has_waited_as_long_as_it_said_is_answered);
        tcase_add_test(arrival, attach_by_digest_waits_for_it);
        TCase *sha256 = suite_group("SHA-256", NULL, NULL, 60);
        tcase_add_test(sha256, with_sha256_nothing_of_a_file_is_handed_out_before_it_matches);
        tcase_add_test(sha256, with_sha256_nothing_of_a_file_that_does_not_match_is_handed_out);
        return suite_run();
}
