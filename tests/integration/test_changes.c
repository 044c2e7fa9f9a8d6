/* SPDX-License-Identifier: Apache-2.0
 *
 * While a load is under way: tensors are handed out as they arrive, files change or fail, other
 * loads go on. Reads are held at a fixed byte, so that each of these is a moment, not a race.
 */
#include "tests/lib/hang.h"
#include "tests/lib/stage.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <openssl/sha.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N 16
#define HALF (N / 2)
#define MIB (UINT64_C(1) << 20)

static struct hang hang;
static struct daemon d;
static struct model *model;
static streamer_client *client;
static char *backing;
static uint64_t empty; /* bytes of the device in use without the model */

/* 16 tensors of 1 MiB, read in blocks of 1 MiB; the second half of them is held. */
static void begin_named(const char *name)
{
        uint64_t bytes = MIB;

        model = model_new(77);
        for (int i = 0; i < N; i++)
                model_add(model, format_text("t%02d", i), "U8", &bytes, 1);
        backing = suite_path("backing");
        model_write(model, backing);
        mkdir(suite_path("root"), 0755);
        hang_start(&hang, suite_path("root/mnt"), name ? name : "m.safetensors", backing);
        daemon_init(&d, suite_path("d"));
        daemon_start(&d, (const char *const[]){"--device", "host=64MiB", "--root", suite_path("root"), "--block-size",
                                               "1MiB", NULL});
        /* Direct reads are made of whole pages: the last block of the first half may touch one more. */
        hang_hold(&hang, model_data_offset(model) + HALF * MIB + 4096);
        client = client_open(&d);
        empty = client_used(client);
}

static void begin(void)
{
        begin_named(NULL);
}

static void end(void)
{
        client_wait_leases(client, 0);
        streamer_close(client);
        ck_assert_int_eq(daemon_stop(&d), 0);
        hang_stop(&hang);
        folder_remove(suite_path("d"));
        unlink(backing);
        model_free(model);
}

static streamer_op *load_until_held(const char *name)
{
        streamer_op *op = client_load_begin(client, hang.path, name);

        hang_wait_held(&hang);
        return op;
}

static void fails(streamer_op *op, const char *text)
{
        int r = streamer_op_wait(op, 20000, NULL);

        ck_assert_msg(r == STREAMER_EFAILED, "%s", streamer_strerror(r));
        ck_assert_msg(!text || strstr(streamer_last_error(client), text), "\"%s\" does not say \"%s\"",
                      streamer_last_error(client), text);
        ck_assert_str_eq(client_state(client, "m"), "failed");
        streamer_op_free(op);
}

static void rewrite(off_t at, size_t size)
{
        int fd = must(open(backing, O_WRONLY | O_CLOEXEC));
        unsigned char *data = must_alloc(size);

        ck_assert_int_eq(pwrite(fd, data, size, at), (ssize_t)size);
        close(fd);
        free(data);
}

/* ---- arrival ---- */

/* Takes `n` tensors in order of arrival, each whole and never seen before. */
static void take(streamer_lease *lease, size_t n, bool *seen)
{
        for (size_t k = 0; k < n; k++) {
                streamer_tensor t;
                int r = streamer_tensor_next(lease, 20000, &t);
                ck_assert_msg(r == 0, "tensor %zu: %s", k, streamer_strerror(r));
                size_t i = model_index(model, t.name);
                unsigned char digest[16];
                ck_assert_uint_lt(i, N);
                ck_assert(!seen[i]);
                seen[i] = true;
                ck_assert(model_check(model, i, t.data));
                model_tensor_digest(model, i, digest);
                ck_assert_mem_eq(t.digest, digest, 16);
        }
}

START_TEST(tensors_are_handed_out_as_they_arrive)
{
        bool seen[N] = {false};
        streamer_tensor t;

        streamer_op *op = load_until_held("m");
        streamer_lease *lease = client_attach(client, "m");
        take(lease, HALF, seen);
        for (size_t i = 0; i < N; i++)
                ck_assert_int_eq(seen[i], i < HALF);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_ETIMEOUT);
        ck_assert_int_eq(streamer_tensor_find(lease, "t00", &t), 0);
        ck_assert_int_eq(streamer_tensor_find(lease, "t15", &t), STREAMER_EBUSY);
        ck_assert_str_eq(streamer_digest(lease), "");
        hang_release(&hang);
        take(lease, HALF, seen);
        ck_assert_int_eq(streamer_tensor_next(lease, 20000, &t), STREAMER_EEND);
        client_ok(client, streamer_op_wait(op, 20000, NULL), "load");
        lease_equals(lease, model);
        streamer_detach(lease);
        streamer_op_free(op);
}
END_TEST

START_TEST(a_model_that_is_ready_is_handed_out_whole)
{
        bool seen[N] = {false};
        streamer_tensor t;

        hang_release(&hang);
        client_load(client, hang.path, "m");
        streamer_lease *lease = client_attach(client, "m");
        take(lease, N, seen);
        ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), STREAMER_EEND);
        streamer_detach(lease);
}
END_TEST

START_TEST(progress_counts_what_has_landed)
{
        streamer_progress p = {.struct_size = sizeof(p)};
        bool seen[N] = {false};

        streamer_op *op = load_until_held("m");
        streamer_lease *lease = client_attach(client, "m");
        take(lease, HALF, seen);
        do
                ck_assert_int_eq(streamer_op_wait(op, 10, &p), STREAMER_ETIMEOUT);
        while (p.tensors < HALF);
        ck_assert_uint_eq(p.bytes, HALF * MIB);
        ck_assert_uint_eq(p.total, N * MIB);
        ck_assert_uint_eq(p.tensors, HALF);
        ck_assert_uint_eq(p.tensors_total, N);
        ck_assert_str_eq(p.state, "loading");
        streamer_detach(lease);
        hang_release(&hang);
        ck_assert_int_eq(streamer_op_wait(op, 20000, &p), 0);
        ck_assert_uint_eq(p.bytes, N * MIB);
        ck_assert_str_eq(p.state, "ready");
        streamer_op_free(op);
}
END_TEST

START_TEST(attach_can_wait_until_all_is_there)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = STREAMER_ATTACH_READY, .timeout_ms = 50};
        streamer_lease *lease = NULL;

        streamer_op *op = load_until_held("m");
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        hang_release(&hang);
        opts.timeout_ms = 20000;
        client_ok(client, streamer_attach(client, "m", &opts, &lease), "attach");
        lease_equals(lease, model);
        streamer_detach(lease);
        streamer_op_free(op);
}
END_TEST

START_TEST(attach_by_digest_waits_for_it)
{
        char digest[33];
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .digest = digest, .timeout_ms = 50};
        streamer_lease *lease = NULL;

        model_digest(model, digest);
        streamer_op *op = load_until_held("m");
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        hang_release(&hang);
        opts.timeout_ms = 20000;
        client_ok(client, streamer_attach(client, "m", &opts, &lease), "attach");
        streamer_detach(lease);
        digest[0] ^= 1;
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_EDIGEST);
        streamer_op_free(op);
}
END_TEST

/* ---- files that change ---- */

START_TEST(a_file_cut_short_while_it_loads)
{
        streamer_op *op = load_until_held("m");

        must(truncate(backing, (off_t)(model_data_offset(model) + HALF * MIB)));
        hang_release(&hang);
        fails(op, NULL);
        client_wait_used(client, empty);
}
END_TEST

START_TEST(a_file_that_grows_while_it_loads)
{
        streamer_op *op = load_until_held("m");

        rewrite((off_t)file_size(backing), 4096);
        hang_release(&hang);
        fails(op, "changed");
        client_wait_used(client, empty);
}
END_TEST

START_TEST(a_file_rewritten_in_place_while_it_loads)
{
        streamer_op *op = load_until_held("m");

        rewrite((off_t)model_data_offset(model), 4096);
        hang_release(&hang);
        fails(op, "changed");
        client_wait_used(client, empty);
}
END_TEST

START_TEST(clients_that_came_early_are_told_of_a_late_failure)
{
        bool seen[N] = {false};
        streamer_tensor t;
        int r;

        streamer_op *op = load_until_held("m");
        streamer_lease *lease = client_attach(client, "m");
        take(lease, HALF, seen);
        rewrite((off_t)model_data_offset(model), 4096);
        hang_release(&hang);
        while ((r = streamer_tensor_next(lease, 20000, &t)) == 0)
                ;
        ck_assert_int_eq(r, STREAMER_EFAILED);
        fails(op, NULL);
        /* What they were given stays theirs. */
        client_ok(client, streamer_tensor_find(lease, "t00", &t), "find");
        ck_assert(model_check(model, 0, t.data));
        ck_assert_uint_gt(client_used(client), empty);
        streamer_detach(lease);
        client_wait_used(client, empty);
}
END_TEST

START_TEST(an_attach_that_waits_is_told_of_the_failure)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = STREAMER_ATTACH_READY, .timeout_ms = 50};
        streamer_lease *lease = NULL;

        streamer_op *op = load_until_held("m");
        ck_assert_int_eq(streamer_attach(client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        hang_fail(&hang);
        opts.timeout_ms = 20000;
        int r = streamer_attach(client, "m", &opts, &lease);
        ck_assert_msg(r == STREAMER_EFAILED, "%s", streamer_strerror(r));
        fails(op, NULL);
}
END_TEST

START_TEST(a_read_error_names_the_file_and_the_error)
{
        streamer_op *op = load_until_held("m");

        hang_fail(&hang);
        fails(op, "Input/output error");
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "m.safetensors"));
        client_wait_used(client, empty);
}
END_TEST

START_TEST(after_a_failure_the_same_name_can_be_loaded)
{
        streamer_op *op = load_until_held("m");

        rewrite((off_t)model_data_offset(model), 1);
        hang_release(&hang);
        fails(op, NULL);
        model_write(model, backing);
        client_load(client, hang.path, "m");
        client_equals(client, "m", model);
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

        begin();
        char *data = file_read(backing, &size);
        SHA256((unsigned char *)data, size, digest);
        digest[0] ^= good ? 0 : 1;
        for (int i = 0; i < 32; i++)
                snprintf(hex + i * 2, 3, "%02x", digest[i]);
        end();
        begin_named(hex);
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = hang.path, .name = "m", .verify = "sha256"};
        client_ok(client, streamer_load(client, &opts, &op), "load");
        hang_wait_held(&hang);
        free(data);
        return op;
}

/* Attach may wait until there is something; nothing must be handed out in any case. */
static streamer_lease *attach_and_get_nothing(void)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .timeout_ms = 200};
        streamer_lease *lease = NULL;
        streamer_tensor t;

        if (streamer_attach(client, "m", &opts, &lease))
                return NULL;
        ck_assert_int_eq(streamer_tensor_next(lease, 200, &t), STREAMER_ETIMEOUT);
        ck_assert_int_eq(streamer_tensor_find(lease, "t00", &t), STREAMER_EBUSY);
        return lease;
}

START_TEST(with_sha256_nothing_of_a_file_is_handed_out_before_it_matches)
{
        bool seen[N] = {false};

        streamer_op *op = load_blob(true);
        streamer_lease *lease = attach_and_get_nothing();
        hang_release(&hang);
        client_ok(client, streamer_op_wait(op, 20000, NULL), "load");
        if (!lease)
                lease = client_attach(client, "m");
        take(lease, N, seen);
        streamer_detach(lease);
        end();
}
END_TEST

START_TEST(with_sha256_nothing_of_a_file_that_does_not_match_is_handed_out)
{
        streamer_tensor t;

        streamer_op *op = load_blob(false);
        streamer_lease *lease = attach_and_get_nothing();
        hang_release(&hang);
        fails(op, NULL);
        if (lease)
                ck_assert_int_eq(streamer_tensor_next(lease, 20000, &t), STREAMER_EFAILED);
        streamer_detach(lease);
        client_wait_used(client, empty);
        end();
}
END_TEST

/* ---- meanwhile ---- */

START_TEST(other_loads_go_on_while_a_file_system_hangs)
{
        streamer_op *op = load_until_held("m");
        struct model *other = model_mixed(78, 8 << 20);
        char *path = suite_path("root/other.safetensors");

        model_place_data(other, 8, 1); /* misaligned: needs slots of the ring, too */
        model_write(other, path);
        for (int i = 0; i < 3; i++) {
                client_load(client, path, "other");
                client_equals(client, "other", other);
                client_unload(client, "other");
        }
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        hang_release(&hang);
        client_ok(client, streamer_op_wait(op, 20000, NULL), "load");
        client_equals(client, "m", model);
        streamer_op_free(op);
}
END_TEST

START_TEST(a_second_load_of_the_same_joins_the_first)
{
        streamer_progress first = {.struct_size = sizeof(first)}, second = first;
        streamer_client *c = client_open(&d);

        streamer_op *op = load_until_held("m"), *joined = client_load_begin(c, hang.path, "m");
        ck_assert_int_eq(streamer_op_wait(joined, 50, NULL), STREAMER_ETIMEOUT);
        hang_release(&hang);
        client_ok(client, streamer_op_wait(op, 20000, &first), "load");
        client_ok(c, streamer_op_wait(joined, 20000, &second), "joined load");
        ck_assert_uint_gt(first.generation, 0);
        ck_assert_uint_eq(first.generation, second.generation);
        client_equals(client, "m", model);
        streamer_op_free(op);
        streamer_op_free(joined);
        streamer_close(c);
}
END_TEST

START_TEST(cancel_ends_a_load_that_hangs_and_its_memory_goes_when_the_read_comes_home)
{
        streamer_op *op = load_until_held("m");

        client_ok(client, client_call_code(client, "cancel", "{\"model\":\"m\"}"), "cancel");
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_ECANCELED);
        ck_assert_uint_gt(client_used(client), empty);
        hang_release(&hang);
        client_wait_used(client, empty);
        streamer_op_free(op);
}
END_TEST

START_TEST(the_old_generation_serves_until_the_new_one_is_ready)
{
        struct model *old = model_mixed(79, 2 << 20);
        char *path = suite_path("root/old.safetensors");

        model_write(old, path);
        client_load(client, path, "m");
        streamer_lease *lease = client_attach(client, "m");
        streamer_op *op = load_until_held("m");
        client_equals(client, "m", old);
        hang_release(&hang);
        client_ok(client, streamer_op_wait(op, 20000, NULL), "load");
        client_equals(client, "m", model);
        lease_equals(lease, old);
        streamer_detach(lease);
}
END_TEST

START_TEST(a_new_generation_that_fails_leaves_the_old_one)
{
        struct model *old = model_mixed(80, 2 << 20);
        char *path = suite_path("root/old.safetensors");

        model_write(old, path);
        client_load(client, path, "m");
        streamer_op *op = load_until_held("m");
        hang_fail(&hang);
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_EFAILED);
        client_equals(client, "m", old);
        streamer_op_free(op);
}
END_TEST

START_TEST(what_has_not_landed_reads_as_nothing_else_than_busy_from_many_leases)
{
        enum { LEASES = 20 };
        streamer_lease *leases[LEASES];
        streamer_op *op = load_until_held("m");

        for (int i = 0; i < LEASES; i++) {
                bool seen[N] = {false};
                leases[i] = client_attach(client, "m");
                take(leases[i], HALF, seen);
        }
        hang_release(&hang);
        client_ok(client, streamer_op_wait(op, 20000, NULL), "load");
        for (int i = 0; i < LEASES; i++) {
                streamer_tensor t;
                for (int k = 0; k < HALF; k++)
                        client_ok(client, streamer_tensor_next(leases[i], 20000, &t), "next");
                ck_assert_int_eq(streamer_tensor_next(leases[i], 20000, &t), STREAMER_EEND);
                streamer_detach(leases[i]);
        }
}
END_TEST

START_TEST(files_that_change_while_they_load)
{
        SKIP(hang_unavailable());
}
END_TEST

int main(void)
{
        suite_begin("changes");
        if (hang_unavailable()) {
                tcase_add_test(suite_group("skipped", NULL, NULL, 60), files_that_change_while_they_load);
                return suite_run();
        }
        TCase *arrival = suite_group("arrival", NULL, NULL, 60);
        tcase_add_checked_fixture(arrival, begin, end);
        tcase_add_test(arrival, tensors_are_handed_out_as_they_arrive);
        tcase_add_test(arrival, a_model_that_is_ready_is_handed_out_whole);
        tcase_add_test(arrival, progress_counts_what_has_landed);
        tcase_add_test(arrival, attach_can_wait_until_all_is_there);
        tcase_add_test(arrival, attach_by_digest_waits_for_it);
        TCase *changes = suite_group("files that change", NULL, NULL, 60);
        tcase_add_checked_fixture(changes, begin, end);
        tcase_add_test(changes, a_file_cut_short_while_it_loads);
        tcase_add_test(changes, a_file_that_grows_while_it_loads);
        tcase_add_test(changes, a_file_rewritten_in_place_while_it_loads);
        tcase_add_test(changes, clients_that_came_early_are_told_of_a_late_failure);
        tcase_add_test(changes, an_attach_that_waits_is_told_of_the_failure);
        tcase_add_test(changes, a_read_error_names_the_file_and_the_error);
        tcase_add_test(changes, after_a_failure_the_same_name_can_be_loaded);
        TCase *sha256 = suite_group("SHA-256", NULL, NULL, 60);
        tcase_add_test(sha256, with_sha256_nothing_of_a_file_is_handed_out_before_it_matches);
        tcase_add_test(sha256, with_sha256_nothing_of_a_file_that_does_not_match_is_handed_out);
        TCase *meanwhile = suite_group("meanwhile", NULL, NULL, 60);
        tcase_add_checked_fixture(meanwhile, begin, end);
        tcase_add_test(meanwhile, other_loads_go_on_while_a_file_system_hangs);
        tcase_add_test(meanwhile, a_second_load_of_the_same_joins_the_first);
        tcase_add_test(meanwhile, cancel_ends_a_load_that_hangs_and_its_memory_goes_when_the_read_comes_home);
        tcase_add_test(meanwhile, the_old_generation_serves_until_the_new_one_is_ready);
        tcase_add_test(meanwhile, a_new_generation_that_fails_leaves_the_old_one);
        tcase_add_test(meanwhile, what_has_not_landed_reads_as_nothing_else_than_busy_from_many_leases);
        return suite_run();
}
