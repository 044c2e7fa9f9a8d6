/* SPDX-License-Identifier: Apache-2.0
 *
 * While a load is under way: its file changes or fails, and other loads, names and versions go on
 * beside it.
 */
#include "tests/lib/held.h"
#include "tests/lib/suite.h"

#include <string.h>
#include <unistd.h>

/* ---- files that change ---- */

static void cut_short(void)
{
        must(truncate(held.backing, (off_t)(model_data_offset(held.model) + HELD_HALF * MIB)));
}

static void grow(void)
{
        held_rewrite((off_t)file_size(held.backing), 4096);
}

static void rewrite_in_place(void)
{
        held_rewrite((off_t)model_data_offset(held.model), 4096);
}

static const struct {
        void (*change)(void);
        const char *says; /* NULL: any text */
} file_changes[] = {{cut_short, NULL}, {grow, "changed"}, {rewrite_in_place, "changed"}};

START_TEST(a_file_that_changes_while_it_loads_fails_the_load)
{
        streamer_op *op = held_load("m");

        file_changes[_i].change();
        hang_release(&held.hang);
        held_fails(op, file_changes[_i].says);
        client_wait_used(held.client, held.empty);
}
END_TEST

START_TEST(clients_that_came_early_are_told_of_a_late_failure)
{
        bool seen[HELD_N] = {false};
        streamer_tensor t;
        int r;

        streamer_op *op = held_load("m");
        streamer_lease *lease = client_attach(held.client, "m");
        held_take(lease, HELD_HALF, seen);
        held_rewrite((off_t)model_data_offset(held.model), 4096);
        hang_release(&held.hang);
        while ((r = streamer_tensor_next(lease, 20000, &t)) == 0)
                ;
        ck_assert_int_eq(r, STREAMER_EFAILED);
        held_fails(op, NULL);
        /* What they were given stays theirs. */
        client_ok(held.client, streamer_tensor_find(lease, "t00", &t), "find");
        ck_assert(model_check(held.model, 0, t.data));
        ck_assert_uint_gt(client_used(held.client), held.empty);
        streamer_detach(lease);
        client_wait_used(held.client, held.empty);
}
END_TEST

START_TEST(an_attach_that_waits_is_told_of_the_failure)
{
        streamer_attach_opts opts = {.struct_size = sizeof(opts), .flags = STREAMER_ATTACH_READY, .timeout_ms = 50};
        streamer_lease *lease = NULL;

        streamer_op *op = held_load("m");
        ck_assert_int_eq(streamer_attach(held.client, "m", &opts, &lease), STREAMER_ETIMEOUT);
        hang_fail(&held.hang);
        opts.timeout_ms = 20000;
        int r = streamer_attach(held.client, "m", &opts, &lease);
        ck_assert_msg(r == STREAMER_EFAILED, "%s", streamer_strerror(r));
        held_fails(op, NULL);
}
END_TEST

START_TEST(a_read_error_names_the_file_and_the_error)
{
        streamer_op *op = held_load("m");

        hang_fail(&held.hang);
        held_fails(op, "Input/output error");
        ck_assert_ptr_nonnull(strstr(streamer_last_error(held.client), "m.safetensors"));
        client_wait_used(held.client, held.empty);
}
END_TEST

START_TEST(after_a_failure_the_same_name_can_be_loaded)
{
        streamer_op *op = held_load("m");

        held_rewrite((off_t)model_data_offset(held.model), 1);
        hang_release(&held.hang);
        held_fails(op, NULL);
        model_write(held.model, held.backing);
        client_load(held.client, held.hang.path, "m");
        client_equals(held.client, "m", held.model);
}
END_TEST

/* ---- meanwhile ---- */

START_TEST(other_loads_go_on_while_a_file_system_hangs)
{
        streamer_op *op = held_load("m");
        struct model *other = model_mixed(78, 8 << 20);
        char *path = suite_path("root/other.safetensors");

        model_place_data(other, 8, 1); /* misaligned: needs slots of the ring, too */
        model_write(other, path);
        for (int i = 0; i < 3; i++) {
                client_load(held.client, path, "other");
                client_equals(held.client, "other", other);
                client_unload(held.client, "other");
        }
        ck_assert_int_eq(streamer_op_wait(op, 0, NULL), STREAMER_ETIMEOUT);
        hang_release(&held.hang);
        client_ok(held.client, streamer_op_wait(op, 20000, NULL), "load");
        client_equals(held.client, "m", held.model);
        streamer_op_free(op);
}
END_TEST

START_TEST(a_second_load_of_the_same_joins_the_first)
{
        streamer_progress first = {.struct_size = sizeof(first)}, second = first;
        streamer_client *c = client_open(&held.d);

        streamer_op *op = held_load("m"), *joined = client_load_begin(c, held.hang.path, "m");
        ck_assert_int_eq(streamer_op_wait(joined, 50, NULL), STREAMER_ETIMEOUT);
        hang_release(&held.hang);
        client_ok(held.client, streamer_op_wait(op, 20000, &first), "load");
        client_ok(c, streamer_op_wait(joined, 20000, &second), "joined load");
        ck_assert_uint_gt(first.generation, 0);
        ck_assert_uint_eq(first.generation, second.generation);
        client_equals(held.client, "m", held.model);
        streamer_op_free(op);
        streamer_op_free(joined);
        streamer_close(c);
}
END_TEST

START_TEST(cancel_ends_a_load_that_hangs_and_its_memory_goes_when_the_read_comes_home)
{
        streamer_op *op = held_load("m");

        client_ok(held.client, client_call_code(held.client, "cancel", "{\"model\":\"m\"}"), "cancel");
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_ECANCELED);
        ck_assert_uint_gt(client_used(held.client), held.empty);
        hang_release(&held.hang);
        client_wait_used(held.client, held.empty);
        streamer_op_free(op);
}
END_TEST

START_TEST(the_old_generation_serves_until_the_new_one_is_ready)
{
        struct model *old = model_mixed(79, 2 << 20);
        char *path = suite_path("root/old.safetensors");

        model_write(old, path);
        client_load(held.client, path, "m");
        streamer_lease *lease = client_attach(held.client, "m");
        streamer_op *op = held_load("m");
        client_equals(held.client, "m", old);
        hang_release(&held.hang);
        client_ok(held.client, streamer_op_wait(op, 20000, NULL), "load");
        client_equals(held.client, "m", held.model);
        lease_equals(lease, old);
        streamer_detach(lease);
}
END_TEST

START_TEST(a_new_generation_that_fails_leaves_the_old_one)
{
        struct model *old = model_mixed(80, 2 << 20);
        char *path = suite_path("root/old.safetensors");

        model_write(old, path);
        client_load(held.client, path, "m");
        streamer_op *op = held_load("m");
        hang_fail(&held.hang);
        ck_assert_int_eq(streamer_op_wait(op, 20000, NULL), STREAMER_EFAILED);
        client_equals(held.client, "m", old);
        streamer_op_free(op);
}
END_TEST

START_TEST(what_has_not_landed_reads_as_nothing_else_than_busy_from_many_leases)
{
        enum { LEASES = 20 };
        streamer_lease *leases[LEASES];
        streamer_op *op = held_load("m");

        for (int i = 0; i < LEASES; i++) {
                bool seen[HELD_N] = {false};
                leases[i] = client_attach(held.client, "m");
                held_take(leases[i], HELD_HALF, seen);
        }
        hang_release(&held.hang);
        client_ok(held.client, streamer_op_wait(op, 20000, NULL), "load");
        for (int i = 0; i < LEASES; i++) {
                streamer_tensor t;
                for (int k = 0; k < HELD_HALF; k++)
                        client_ok(held.client, streamer_tensor_next(leases[i], 20000, &t), "next");
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
        TCase *changes = suite_group("files that change", NULL, NULL, 60);
        tcase_add_checked_fixture(changes, held_begin, held_end);
        LOOP(changes, a_file_that_changes_while_it_loads_fails_the_load, file_changes);
        tcase_add_test(changes, clients_that_came_early_are_told_of_a_late_failure);
        tcase_add_test(changes, an_attach_that_waits_is_told_of_the_failure);
        tcase_add_test(changes, a_read_error_names_the_file_and_the_error);
        tcase_add_test(changes, after_a_failure_the_same_name_can_be_loaded);
        TCase *meanwhile = suite_group("meanwhile", NULL, NULL, 60);
        tcase_add_checked_fixture(meanwhile, held_begin, held_end);
        tcase_add_test(meanwhile, other_loads_go_on_while_a_file_system_hangs);
        tcase_add_test(meanwhile, a_second_load_of_the_same_joins_the_first);
        tcase_add_test(meanwhile, cancel_ends_a_load_that_hangs_and_its_memory_goes_when_the_read_comes_home);
        tcase_add_test(meanwhile, the_old_generation_serves_until_the_new_one_is_ready);
        tcase_add_test(meanwhile, a_new_generation_that_fails_leaves_the_old_one);
        tcase_add_test(meanwhile, what_has_not_landed_reads_as_nothing_else_than_busy_from_many_leases);
        return suite_run();
}
