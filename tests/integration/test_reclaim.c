/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases outlive the daemon: they hold memory before anybody asks, and come back to the process that
 * has the token, or are lost. Each test has a service manager of its own; _i 0 is a restart, 1 a crash.
 */
#include "tests/integration/reclaim_stage.h"

/* ---- leases ---- */

/* {"leases": [...]} of `ps` for the first lease. */
static bool first_is_orphan(void)
{
        json_t *reply = client_call(kept.client, "ps", NULL);
        json_t *lease = json_array_get(json_object_get(reply, "leases"), 0);
        bool orphan = json_is_true(json_object_get(lease, "orphan"));

        ck_assert_ptr_nonnull(lease);
        json_decref(reply);
        return orphan;
}

START_TEST(a_lease_is_reclaimed_by_the_next_call)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        int fd = streamer_fd(kept.client);
        for (int runs = 0; runs < 3; runs++) {
                if (_i)
                        manager_kill(&kept.m);
                else
                        manager_stop(&kept.m);
                lease_equals(lease, kept.model); /* while there is no daemon */
                manager_start(&kept.m);
                client_ok(kept.client, streamer_call(kept.client, "ping", NULL, NULL), "ping");
                ck_assert_int_eq(streamer_fd(kept.client), fd);
                client_ok(kept.client, streamer_lease_check(lease), "check");
                ck_assert_uint_eq(client_leases(kept.client), 1);
                lease_equals(lease, kept.model);
                client_equals(kept.client, "m", kept.model); /* a new one, beside it */
        }
        ck_assert_int_eq(streamer_unload(kept.client, "m", 0), STREAMER_EBUSY);
        streamer_detach(lease);
        ck_assert_uint_eq(client_leases(kept.client), 0);
        client_unload(kept.client, "m");
        client_wait_used(kept.client, 0);
        manager_wait(&kept.m, KEPT_PROCESSES, 0);
}
END_TEST

START_TEST(a_lease_holds_memory_before_it_is_reclaimed)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        manager_kill(&kept.m);
        manager_start(&kept.m);
        streamer_client *other = client_open(&kept.m.d);
        ck_assert_uint_eq(client_leases(other), 1);
        ck_assert_int_eq(streamer_unload(other, "m", 0), STREAMER_EBUSY);
        streamer_client *before = kept.client;
        kept.client = other;
        ck_assert(!first_is_orphan()); /* it may still come */
        kept.client = before;
        streamer_detach(lease); /* reclaims, and gives back */
        client_wait_leases(other, 0);
        streamer_close(other);
}
END_TEST

START_TEST(a_drained_model_survives_for_its_leases)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        client_ok(kept.client, streamer_unload(kept.client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        kept_restart(_i);
        client_ok(kept.client, streamer_lease_check(lease), "check");
        ck_assert_uint_gt(client_used(kept.client), 0);
        streamer_lease *refused;
        ck_assert_int_eq(streamer_attach(kept.client, "m", NULL, &refused), STREAMER_ENOENT);
        lease_equals(lease, kept.model);
        streamer_detach(lease);
        client_wait_used(kept.client, 0);
        manager_wait(&kept.m, KEPT_MODELS, 0);
}
END_TEST

/* A process of its own that attaches and then waits to be killed; it may tell the token. */
static pid_t other_process(void)
{
        int ends[2];
        char byte;

        must(pipe(ends));
        pid_t pid = must(fork());
        if (pid == 0) {
                client_attach(client_open(&kept.m.d), "m");
                must(write(ends[1], "", 1));
                pause();
        }
        ck_assert_int_eq(read(ends[0], &byte, 1), 1);
        close(ends[0]);
        close(ends[1]);
        return pid;
}

START_TEST(a_client_that_died_while_there_was_no_daemon_holds_nothing)
{
        kept_load("m");
        pid_t pid = other_process();
        manager_wait(&kept.m, KEPT_PROCESSES, 1);
        manager_kill(&kept.m);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        manager_start(&kept.m);
        kept_reconnect();
        ck_assert_uint_eq(client_leases(kept.client), 0);
        manager_wait(&kept.m, KEPT_PROCESSES, 0);
        client_unload(kept.client, "m");
        client_wait_used(kept.client, 0);
}
END_TEST

START_TEST(a_client_that_dies_later_without_coming_back_holds_nothing_more)
{
        kept_load("m");
        pid_t pid = other_process();
        manager_wait(&kept.m, KEPT_PROCESSES, 1);
        manager_kill(&kept.m);
        manager_start(&kept.m);
        kept_reconnect();
        ck_assert_uint_eq(client_leases(kept.client), 1);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        client_wait_leases(kept.client, 0);
        manager_wait(&kept.m, KEPT_PROCESSES, 0);
}
END_TEST

/* Its pidfd was not stored, or lost: the row in the book is enough. */
START_TEST(a_lease_is_reclaimed_without_a_pidfd)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        manager_kill(&kept.m);
        manager_drop(&kept.m, manager_find(&kept.m, KEPT_PROCESSES, 0));
        manager_start(&kept.m);
        client_ok(kept.client, streamer_lease_check(lease), "check");
        ck_assert_uint_eq(client_leases(kept.client), 1);
        manager_wait(&kept.m, KEPT_PROCESSES, 1);
        streamer_detach(lease);
}
END_TEST

static void check_lost(streamer_lease *lease)
{
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_ELOST);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_ELOST);
        lease_equals(lease, kept.model); /* the map is ours */
        ck_assert_uint_eq(client_leases(kept.client), 0);
        streamer_detach(lease);
}

START_TEST(a_lease_of_a_model_that_did_not_survive_is_lost)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        manager_kill(&kept.m);
        manager_drop(&kept.m, kept_segment());
        manager_start(&kept.m);
        client_ok(kept.client, streamer_call(kept.client, "ping", NULL, NULL), "other calls go on");
        check_lost(lease);
}
END_TEST

START_TEST(a_lease_is_lost_without_a_store)
{
        kept_begin_sized(0);
        client_load(kept.client, kept_file(), "m");
        streamer_lease *lease = client_attach(kept.client, "m");
        kept_restart(1);
        check_lost(lease);
        kept_end();
}
END_TEST

START_TEST(a_lease_that_is_lost_is_detached_before_anybody_knows)
{
        kept_begin_sized(0);
        client_load(kept.client, kept_file(), "m");
        streamer_lease *lease = client_attach(kept.client, "m");
        kept_restart(1);
        streamer_detach(lease);
        ck_assert_uint_eq(client_leases(kept.client), 0);
        kept_end();
}
END_TEST

START_TEST(a_lease_of_the_same_name_and_another_model_is_lost)
{
        kept_begin_sized(0);
        client_load(kept.client, kept_file(), "m");
        streamer_lease *lease = client_attach(kept.client, "m");
        kept_restart(1);
        client_load(kept.client, kept_file(), "m"); /* the same bytes, generation 1 again */
        check_lost(lease);
        kept_end();
}
END_TEST

START_TEST(without_a_daemon_a_call_says_so_and_the_lease_is_kept)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        manager_kill(&kept.m);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EUNREACHABLE);
        lease_equals(lease, kept.model);
        manager_start(&kept.m);
        client_ok(kept.client, streamer_lease_check(lease), "check");
        streamer_detach(lease);
}
END_TEST

START_TEST(who_subscribed_to_one_model_hears_of_it_alone_afterwards)
{
        char *event;
        client_ok(kept.client, streamer_subscribe(kept.client, "b"), "subscribe");
        kept_restart(_i);
        client_ok(kept.client, streamer_call(kept.client, "ping", NULL, NULL), "ping");
        do {
                client_ok(kept.client, streamer_event_next(kept.client, 10000, &event), "event");
        } while (!strstr(event, "\"lost\""));
        client_load(kept.client, kept_file(), "a");
        client_load(kept.client, kept_file(), "b");
        client_ok(kept.client, streamer_event_next(kept.client, 10000, &event), "event");
        ck_assert_msg(strstr(event, "\"model\":\"b\""), "%s", event);
        client_unload(kept.client, "b");
        client_unload(kept.client, "a");
}
END_TEST

int main(void)
{
        suite_begin("reclaim");
        TCase *leases = suite_group("leases", NULL, NULL, 60);
        tcase_add_checked_fixture(leases, kept_begin, kept_end);
        tcase_add_loop_test(leases, a_lease_is_reclaimed_by_the_next_call, 0, 2);
        tcase_add_test(leases, a_lease_holds_memory_before_it_is_reclaimed);
        tcase_add_loop_test(leases, a_drained_model_survives_for_its_leases, 0, 2);
        tcase_add_test(leases, a_client_that_died_while_there_was_no_daemon_holds_nothing);
        tcase_add_test(leases, a_client_that_dies_later_without_coming_back_holds_nothing_more);
        tcase_add_test(leases, a_lease_is_reclaimed_without_a_pidfd);
        tcase_add_test(leases, a_lease_of_a_model_that_did_not_survive_is_lost);
        tcase_add_loop_test(leases, who_subscribed_to_one_model_hears_of_it_alone_afterwards, 0, 2);
        tcase_add_test(leases, without_a_daemon_a_call_says_so_and_the_lease_is_kept);
        TCase *none = suite_group("without a store", NULL, NULL, 60);
        tcase_add_test(none, a_lease_is_lost_without_a_store);
        tcase_add_test(none, a_lease_that_is_lost_is_detached_before_anybody_knows);
        tcase_add_test(none, a_lease_of_the_same_name_and_another_model_is_lost);
        return suite_run();
}
