/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases survive the daemon: they hold memory before they are claimed, and are claimed by the process with the token,
 * or lost. Each test has its own service manager; _i 0 is a restart, 1 a crash.
 */
#include "tests/integration/reclaim_fixture.h"

/* ---- leases ---- */

/* {"leases": [...]} of `ps` for the first lease. */
static bool first_is_orphan(void)
{
        json_t *reply = client_call(managed.client, "ps", NULL);
        json_t *lease = json_array_get(json_object_get(reply, "leases"), 0);
        bool orphan = json_is_true(json_object_get(lease, "orphan"));

        ck_assert_ptr_nonnull(lease);
        json_decref(reply);
        return orphan;
}

FIXTURE(.each = {managed_begin, managed_end});

TEST(a_lease_is_reclaimed_by_the_next_call, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        int fd = streamer_fd(managed.client);
        for (int runs = 0; runs < 3; runs++) {
                if (_i)
                        manager_kill(&managed.m);
                else
                        manager_stop(&managed.m);
                lease_equals(lease, managed.model); /* while no daemon runs */
                manager_start(&managed.m);
                client_ok(managed.client, streamer_call(managed.client, "ping", NULL, NULL), "ping");
                ck_assert_int_eq(streamer_fd(managed.client), fd);
                client_ok(managed.client, streamer_lease_check(lease), "check");
                ck_assert_uint_eq(client_leases(managed.client), 1);
                lease_equals(lease, managed.model);
                client_equals(managed.client, "m", managed.model); /* a new one, beside it */
        }
        ck_assert_int_eq(streamer_unload(managed.client, "m", 0), STREAMER_EBUSY);
        streamer_detach(lease);
        ck_assert_uint_eq(client_leases(managed.client), 0);
        client_unload(managed.client, "m");
        client_wait_used(managed.client, 0);
        manager_wait(&managed.m, MANAGED_PROCESSES, 0);
}

TEST(a_lease_holds_memory_before_it_is_reclaimed)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        manager_kill(&managed.m);
        manager_start(&managed.m);
        streamer_client *other = client_open(&managed.m.d);
        ck_assert_uint_eq(client_leases(other), 1);
        ck_assert_int_eq(streamer_unload(other, "m", 0), STREAMER_EBUSY);
        streamer_client *before = managed.client;
        managed.client = other;
        ck_assert(!first_is_orphan()); /* it may still reclaim */
        managed.client = before;
        streamer_detach(lease); /* waits for no daemon: the next call reclaims the lease and detaches it */
        client_ok(before, streamer_call(before, "ping", NULL, NULL), "ping");
        client_wait_leases(other, 0);
        streamer_close(other);
}

TEST(a_drained_model_survives_for_its_leases, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        client_ok(managed.client, streamer_unload(managed.client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        managed_restart(_i);
        client_ok(managed.client, streamer_lease_check(lease), "check");
        ck_assert_uint_gt(client_used(managed.client), 0);
        streamer_lease *refused;
        ck_assert_int_eq(streamer_attach(managed.client, "m", NULL, &refused), STREAMER_ENOENT);
        lease_equals(lease, managed.model);
        streamer_detach(lease);
        client_wait_used(managed.client, 0);
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

/* A child process that attaches and then waits to be killed; it may report its token. */
static pid_t other_process(void)
{
        int ends[2];
        char byte;

        must(pipe(ends));
        pid_t pid = must(fork());
        if (pid == 0) {
                client_attach(client_open(&managed.m.d), "m");
                must(write(ends[1], "", 1));
                pause();
        }
        ck_assert_int_eq(read(ends[0], &byte, 1), 1);
        close(ends[0]);
        close(ends[1]);
        return pid;
}

TEST(the_leases_of_a_client_that_died_without_a_daemon_end)
{
        managed_load("m");
        pid_t pid = other_process();
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        manager_kill(&managed.m);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert_uint_eq(client_leases(managed.client), 0);
        manager_wait(&managed.m, MANAGED_PROCESSES, 0);
        client_unload(managed.client, "m");
        client_wait_used(managed.client, 0);
}

TEST(the_leases_of_a_client_that_dies_before_it_reclaims_end)
{
        managed_load("m");
        pid_t pid = other_process();
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        manager_kill(&managed.m);
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert_uint_eq(client_leases(managed.client), 1);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        client_wait_leases(managed.client, 0);
        manager_wait(&managed.m, MANAGED_PROCESSES, 0);
}

/* Its pidfd was not stored, or was lost: the row in the journal suffices. */
TEST(a_lease_is_reclaimed_without_a_pidfd)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        manager_kill(&managed.m);
        manager_drop(&managed.m, manager_find(&managed.m, MANAGED_PROCESSES, 0));
        manager_start(&managed.m);
        client_ok(managed.client, streamer_lease_check(lease), "check");
        ck_assert_uint_eq(client_leases(managed.client), 1);
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        streamer_detach(lease);
}

static void check_lost(streamer_lease *lease)
{
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_ELOST);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_ELOST);
        lease_equals(lease, managed.model); /* the map is ours */
        ck_assert_uint_eq(client_leases(managed.client), 0);
        streamer_detach(lease);
}

TEST(a_lease_of_a_model_that_did_not_survive_is_lost)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        manager_kill(&managed.m);
        manager_drop(&managed.m, managed_segment());
        manager_start(&managed.m);
        client_ok(managed.client, streamer_call(managed.client, "ping", NULL, NULL), "other calls go on");
        check_lost(lease);
}

FIXTURE();

/* Loop test: nothing has its name then, or another model. */
TEST(a_lease_is_lost_without_a_store, .to = 2)
{
        managed_begin_sized(0);
        client_load(managed.client, managed_file(), "m");
        streamer_lease *lease = client_attach(managed.client, "m");
        managed_restart(1);
        if (_i == 1)
                client_load(managed.client, managed_file(), "m"); /* the same bytes, generation 1 again */
        check_lost(lease);
        managed_end();
}

TEST(a_lost_lease_can_be_detached_before_the_client_knows)
{
        managed_begin_sized(0);
        client_load(managed.client, managed_file(), "m");
        streamer_lease *lease = client_attach(managed.client, "m");
        managed_restart(1);
        streamer_detach(lease);
        ck_assert_uint_eq(client_leases(managed.client), 0);
        managed_end();
}

FIXTURE(.each = {managed_begin, managed_end});

TEST(without_a_daemon_a_call_fails_and_the_lease_stays_valid)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        manager_kill(&managed.m);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EUNREACHABLE);
        lease_equals(lease, managed.model);
        manager_start(&managed.m);
        client_ok(managed.client, streamer_lease_check(lease), "check");
        streamer_detach(lease);
}

TEST(a_subscription_to_one_model_replaces_the_earlier_one, .to = 2)
{
        char *event;
        client_ok(managed.client, streamer_subscribe(managed.client, "b"), "subscribe");
        managed_restart(_i);
        client_ok(managed.client, streamer_call(managed.client, "ping", NULL, NULL), "ping");
        do {
                client_ok(managed.client, streamer_event_next(managed.client, 10000, &event), "event");
        } while (!strstr(event, "\"lost\""));
        client_load(managed.client, managed_file(), "a");
        client_load(managed.client, managed_file(), "b");
        client_ok(managed.client, streamer_event_next(managed.client, 10000, &event), "event");
        ck_assert_msg(strstr(event, "\"model\":\"b\""), "%s", event);
        client_unload(managed.client, "b");
        client_unload(managed.client, "a");
}
