/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases survive the daemon: they hold memory before they are claimed, and are claimed by the process with the token,
 * or lost; what they are charged, and models that were unloaded by force. Each test has its own service manager; _i 0
 * is a restart, 1 a crash.
 */
#include "tests/integration/users_fixture.h"
#include "tests/lib/managed_daemon.h"
#include "tests/lib/wire.h"

/* ---- leases ---- */

FIXTURE(.each = {managed_begin, managed_end});

TEST(a_lease_is_reclaimed_by_the_next_call, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        int fd = streamer_fd(client);
        for (int runs = 0; runs < 3; runs++) {
                if (_i)
                        manager_kill(&managed.m);
                else
                        manager_stop(&managed.m);
                /* While no daemon runs. */
                ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EUNREACHABLE);
                lease_equals(lease, managed.model);
                manager_start(&managed.m);
                client_ok(client, streamer_call(client, "ping", NULL, NULL), "ping");
                ck_assert_int_eq(streamer_fd(client), fd);
                client_ok(client, streamer_lease_check(lease), "check");
                ck_assert_uint_eq(client_leases(client), 1);
                lease_equals(lease, managed.model);
                client_equals(client, "m", managed.model); /* a new one, beside it */
        }
        ck_assert_int_eq(streamer_unload(client, "m", 0), STREAMER_EBUSY);
        streamer_detach(lease);
        ck_assert_uint_eq(client_leases(client), 0);
        client_unload(client, "m");
        client_wait_used(client, 0);
        manager_wait(&managed.m, MANAGED_PROCESSES, 0);
}

TEST(a_drained_model_survives_for_its_leases, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        managed_restart(_i);
        client_ok(client, streamer_lease_check(lease), "check");
        ck_assert_uint_gt(client_used(client), 0);
        streamer_lease *refused;
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &refused), STREAMER_ENOENT);
        lease_equals(lease, managed.model);
        streamer_detach(lease);
        client_wait_used(client, 0);
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

static void attach_in_child(void)
{
        client_attach(client_open(&managed.m.d), "m");
}

/* While no daemon runs, or (_i 1) before it has claimed its leases. */
TEST(the_leases_of_a_client_that_dies_before_it_reclaims_end, .to = 2)
{
        managed_load("m");
        pid_t pid = child_start(attach_in_child);
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        manager_kill(&managed.m);
        if (_i == 0)
                child_kill(pid);
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert_uint_eq(client_leases(client), (unsigned)_i);
        if (_i == 1)
                child_kill(pid);
        client_wait_leases(client, 0);
        manager_wait(&managed.m, MANAGED_PROCESSES, 0);
        client_unload(client, "m");
        client_wait_used(client, 0);
}

/* Its pidfd was not stored, or was lost: the snapshot suffices. */
TEST(a_lease_is_reclaimed_without_a_pidfd)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        manager_kill(&managed.m);
        manager_drop(&managed.m, manager_find(&managed.m, MANAGED_PROCESSES, 0));
        manager_start(&managed.m);
        client_ok(client, streamer_lease_check(lease), "check");
        ck_assert_uint_eq(client_leases(client), 1);
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        streamer_detach(lease);
}

/* The daemon was killed before it stored the pidfd: nothing but the lease leads to the model. */
TEST(a_lease_that_is_not_stored_yet_holds_its_model_after_a_crash)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        manager_kill(&managed.m);
        manager_drop(&managed.m, manager_find(&managed.m, MANAGED_PROCESSES, 0));
        manager_start(&managed.m);
        streamer_client *other = client_open(&managed.m.d);
        ck_assert_uint_gt(client_used(other), 0);
        ck_assert_uint_eq(client_leases(other), 1);
        client_ok(client, streamer_lease_check(lease), "check");
        lease_equals(lease, managed.model);
        streamer_detach(lease);
        client_wait_used(other, 0);
        streamer_close(other);
}

TEST(a_lease_that_is_not_stored_ends_with_its_process)
{
        managed_load("m");
        pid_t pid = child_start(attach_in_child);
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        manager_kill(&managed.m);
        manager_drop(&managed.m, manager_find(&managed.m, MANAGED_PROCESSES, 0));
        child_kill(pid);
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert_uint_eq(client_leases(client), 0);
        client_unload(client, "m");
        client_wait_used(client, 0);
}

static void check_lost(streamer_lease *lease)
{
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_ELOST);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_ELOST);
        lease_equals(lease, managed.model); /* the map is ours */
        ck_assert_uint_eq(client_leases(client), 0);
        streamer_detach(lease);
}

TEST(a_lease_of_a_model_that_did_not_survive_is_lost)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        manager_kill(&managed.m);
        manager_drop(&managed.m, managed_segment());
        manager_start(&managed.m);
        client_ok(client, streamer_call(client, "ping", NULL, NULL), "other calls go on");
        check_lost(lease);
}

/* ---- accounts ---- */

static uint64_t holds(const char *what)
{
        return json_number(json_at(client_call(client, "whoami", NULL), "holds"), what);
}

/* Before a lease is claimed, too: it holds the memory, and limits are no looser after a restart. */
TEST(the_owners_of_models_and_leases_are_restored, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        uint64_t bytes = holds("bytes");
        ck_assert_uint_ge(bytes, 4 << 20);
        ck_assert_uint_eq(holds("leases"), 1);
        managed_restart(_i);
        streamer_client *before = client;
        client = client_open(&managed.m.d);
        ck_assert_uint_eq(holds("bytes"), bytes);
        ck_assert_uint_eq(holds("leases"), 1);
        ck_assert_int_eq(streamer_unload(client, "m", 0), STREAMER_EBUSY);
        json_t *ps = client_call(client, "ps", NULL);
        ck_assert(json_is_false(json_at(ps, "leases.0.orphan"))); /* it may still reclaim */
        if (_i == 0) {
                client_ok(before, streamer_lease_check(lease), "check");
                ck_assert_uint_eq(holds("leases"), 1);
        }
        streamer_detach(
                lease); /* waits for no daemon: the next call reclaims the lease, if it has to, and detaches it */
        client_ok(before, streamer_call(before, "ping", NULL, NULL), "ping");
        client_wait_leases(client, 0);
        client_unload(client, "m");
        client_wait_used(client, 0);
        ck_assert_uint_eq(holds("bytes"), 0);
        ck_assert_uint_eq(holds("leases"), 0);
}

/* Of the group of the socket, and the model has a further name that it gave. */
#define PERSON 60102

static uint64_t bytes_of_m;

static int is_charged(void)
{
        client = client_open(&managed.m.d);
        return holds("models") == 1 && holds("bytes") == bytes_of_m ? 0 : STREAMER_EFAILED;
}

static int holds_none(void)
{
        client = client_open(&managed.m.d);
        return holds("models") == 0 && holds("bytes") == 0 ? 0 : STREAMER_EFAILED;
}

/* Each of the two has a name. */
static void load_for_two(void)
{
        must(chmod(suite_folder(), 0755));
        test_daemon = managed.m.d;
        managed_load("m");
        bytes_of_m = holds("bytes");
        ck_assert_int_eq(load_as(PERSON, managed_file(), "n", NULL), 0);
}

/* Over any number of restarts. */
TEST(each_user_who_gave_a_name_is_charged_again, .to = 2)
{
        ROOT_ONLY();
        load_for_two();
        for (int i = 0; i < 3; i++) {
                if (i > 0)
                        managed_restart_and_reconnect(_i);
                ck_assert_int_eq(run_as(PERSON, 0, is_charged), 0);
                ck_assert(holds("models") == 1 && holds("bytes") == bytes_of_m);
        }
        ck_assert_int_eq(model_call_as(PERSON, "unload", "n", NULL), 0);
        ck_assert_int_eq(run_as(PERSON, 0, holds_none), 0);
        ck_assert_uint_eq(holds("models"), 1);
}

TEST(a_model_without_a_name_of_its_loader_stays_charged_to_another_user, .to = 2)
{
        ROOT_ONLY();
        load_for_two();
        client_unload(client, "m");
        for (int i = 0; i < 3; i++) {
                if (i > 0)
                        managed_restart_and_reconnect(_i);
                ck_assert_int_eq(run_as(PERSON, 0, is_charged), 0);
                ck_assert(holds("models") == 0 && holds("bytes") == 0);
        }
        ck_assert_int_eq(model_call_as(PERSON, "unload", "n", NULL), 0);
        ck_assert_int_eq(run_as(PERSON, 0, holds_none), 0);
        client_wait_used(client, 0);
}

/* ---- forced unloads ---- */

static void detach_lease(streamer_lease *lease)
{
        lease_equals(lease, managed.model);
        streamer_detach(lease);
        client_wait_used(client, 0);
        ck_assert_uint_eq(client_device_number(client, "quarantined"), 0);
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

TEST(revoked_memory_stays_quarantined, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_FORCE), "unload");
        managed_restart(_i);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        ck_assert_uint_ge(client_device_number(client, "quarantined"), 4 << 20);
        detach_lease(lease);
}

TEST(a_drain_timeout_continues_over_a_restart)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        ck_assert_int_eq(
                client_call_code(client, "unload", "{\"model\":\"m\",\"drain\":true,\"drain_timeout_ms\":1000}"), 0);
        managed_restart(1);
        AWAIT(streamer_lease_check(lease) == STREAMER_EREVOKED);
        detach_lease(lease);
}

TEST(a_drain_timeout_that_was_set_last_survives_a_crash)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        ck_assert_int_eq(client_call_code(client, "unload", "{\"model\":\"m\",\"drain_timeout_ms\":1000}"), 0);
        managed_restart(1);
        AWAIT(streamer_lease_check(lease) == STREAMER_EREVOKED);
        detach_lease(lease);
}

/* ---- rights to reclaim ---- */

/* The token and the digest of an attach. */
static struct wire holder;
static char token[33], digest[33];

static void attach_by_hand(void)
{
        const char *s;
        size_t len;
        wire_connect(&holder, &managed.m.d);
        wire_verb(&holder, "attach", 2, "model", "m");
        ck_assert(object_str(wire_next(&holder), "token", &s, &len) && len == 32);
        snprintf(token, sizeof(token), "%.*s", (int)len, s);
        ck_assert(object_str(&holder.reply.unpacked.data, "digest", &s, &len) && len == 32);
        snprintf(digest, sizeof(digest), "%.*s", (int)len, s);
}

static bool reclaim_fails_with(struct wire *w, const char *by, uint64_t generation, const char *of, const char *code)
{
        struct request request = {
                .verb = VERB_reclaim, .id = 9, .u.reclaim = {.token = by, .generation = generation, .digest = of}};

        wire_request(w, &request);
        return wire_read_code(w, code);
}

static int is_denied(void)
{
        struct wire w;
        wire_connect(&w, &managed.m.d);
        return reclaim_fails_with(&w, token, 1, digest, "denied") ? 0 : STREAMER_EFAILED;
}

static void is_denied_in_child(void)
{
        pid_t pid = must(fork());
        if (pid == 0)
                _exit(is_denied() != 0);
        ck_assert_int_eq(child_wait(pid), 0);
}

TEST(only_the_right_token_generation_and_digest_of_the_same_process_are_accepted)
{
        static const char zero[] = "00000000000000000000000000000000";
        managed_load("m");
        attach_by_hand();
        ck_assert(reclaim_fails_with(&holder, "0123", 1, digest, "invalid"));
        ck_assert(reclaim_fails_with(&holder, zero, 1, digest, "lost"));
        ck_assert(reclaim_fails_with(&holder, token, 2, digest, "lost"));
        ck_assert(reclaim_fails_with(&holder, token, 1, zero, "lost"));
        ck_assert_uint_eq(client_leases(client), 1);
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        is_denied_in_child();
        managed_restart(1);
        is_denied_in_child();
        manager_kill(&managed.m);
        manager_drop(&managed.m, manager_find(&managed.m, MANAGED_PROCESSES, 0)); /* only the snapshot has it */
        manager_start(&managed.m);
        managed_reconnect();
        is_denied_in_child();
        ck_assert_uint_eq(client_leases(client), 1); /* of the process that attached, which lives */
}

TEST(a_token_is_of_no_use_to_another_user)
{
        ROOT_ONLY();
        managed_load("m");
        attach_by_hand();
        must(chmod(suite_folder(), 0755));
        ck_assert_int_eq(run_as(PERSON, 0, is_denied), 0); /* of the socket's group */
        ck_assert_uint_eq(client_leases(client), 1);
}

/* ---- no store ---- */

FIXTURE();

/* Loop test: nothing has its name then, or another model. */
TEST(a_lease_is_lost_without_a_store, .to = 2)
{
        managed_begin_sized(0);
        ck_assert(log_wait_for(managed.m.d.log, "fd store: none"));
        client_load(client, managed_file(), "m");
        streamer_lease *lease = client_attach(client, "m");
        managed_restart(1);
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert_uint_eq(managed.m.dropped, 0);
        if (_i == 1)
                client_load(client, managed_file(), "m"); /* the same bytes, generation 1 again */
        check_lost(lease);
        managed_end();
}
