/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases outlive the daemon: they hold memory before anybody asks, and come back to the process that
 * has the token, or are lost. Each test has a service manager of its own; _i 0 is a restart, 1 a crash.
 */
#include "tests/lib/kept.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define NOBODY 65534

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

/* ---- what is accounted ---- */

static uint64_t holds(const char *what)
{
        json_t *reply = client_call(kept.client, "whoami", NULL);
        uint64_t n = json_number(json_object_get(reply, "holds"), what);

        json_decref(reply);
        return n;
}

/* Before a lease is claimed, too: limits are no looser after a restart. */
START_TEST(whose_model_and_whose_lease_it_is_is_remembered)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        uint64_t bytes = holds("bytes");
        ck_assert_uint_ge(bytes, 4 << 20);
        ck_assert_uint_eq(holds("leases"), 1);
        kept_restart(_i);
        streamer_client *before = kept.client;
        kept.client = client_open(&kept.m.d);
        ck_assert_uint_eq(holds("bytes"), bytes);
        ck_assert_uint_eq(holds("leases"), 1);
        client_ok(before, streamer_lease_check(lease), "check");
        ck_assert_uint_eq(holds("leases"), 1);
        streamer_detach(lease);
        client_unload(kept.client, "m");
        client_wait_used(kept.client, 0);
        ck_assert_uint_eq(holds("bytes"), 0);
        ck_assert_uint_eq(holds("leases"), 0);
        streamer_close(before);
}
END_TEST

/* ---- what was taken by force ---- */

static bool is_revoked(void *lease)
{
        return streamer_lease_check(lease) == STREAMER_EREVOKED;
}

static uint64_t quarantined(void)
{
        json_t *status = client_call(kept.client, "status", NULL);
        json_t *device = json_array_get(json_object_get(status, "devices"), 0);
        uint64_t bytes = json_number(device, "quarantined");

        json_decref(status);
        return bytes;
}

static void give_back(streamer_lease *lease)
{
        lease_equals(lease, kept.model);
        streamer_detach(lease);
        client_wait_used(kept.client, 0);
        ck_assert_uint_eq(quarantined(), 0);
        manager_wait(&kept.m, KEPT_MODELS, 0);
}

START_TEST(what_was_taken_stays_in_quarantine)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        client_ok(kept.client, streamer_unload(kept.client, "m", STREAMER_UNLOAD_FORCE), "unload");
        kept_restart(_i);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        ck_assert_uint_ge(quarantined(), 4 << 20);
        give_back(lease);
}
END_TEST

/* The daemon that took it could not tell; the one that takes the claim does. */
START_TEST(who_was_away_when_it_was_taken_hears_of_it)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        streamer_client *other = client_open(&kept.m.d);
        must(shutdown(streamer_fd(kept.client), SHUT_RDWR));
        client_ok(other, streamer_unload(other, "m", STREAMER_UNLOAD_FORCE), "unload");
        if (_i)
                kept_restart(1);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        give_back(lease);
        streamer_close(other);
}
END_TEST

START_TEST(a_time_to_drain_goes_on)
{
        kept_load("m");
        streamer_lease *lease = kept_attach();
        ck_assert_int_eq(
                client_call_code(kept.client, "unload", "{\"model\":\"m\",\"drain\":true,\"drain_timeout_ms\":1000}"),
                0);
        kept_restart(1);
        ck_assert(eventually(is_revoked, lease, 20000));
        give_back(lease);
}
END_TEST

/* ---- who may reclaim ---- */

/* "token", "generation" and "digest" of an attach. */
static void attach_by_hand(struct wire *w, char token[33], char digest[33])
{
        const char *s;
        size_t len;

        wire_open(w, &kept.m.d);
        wire_hello(w);
        wire_verb(w, "attach", 2, "model", "m");
        ck_assert(wire_read(w));
        ck_assert(object_str(&w->reply.unpacked.data, "token", &s, &len) && len == 32);
        snprintf(token, 33, "%.*s", (int)len, s);
        ck_assert(object_str(&w->reply.unpacked.data, "digest", &s, &len) && len == 32);
        snprintf(digest, 33, "%.*s", (int)len, s);
}

static bool reclaim_says(struct wire *w, const char *token, uint64_t generation, const char *digest, const char *code)
{
        struct request request = {.verb = VERB_reclaim,
                                  .id = 9,
                                  .u.reclaim = {.token = token, .generation = generation, .digest = digest}};

        wire_request(w, &request);
        return wire_read_code(w, code);
}

START_TEST(only_the_right_token_generation_and_digest_are_taken)
{
        struct wire w;
        char token[33], digest[33];

        kept_load("m");
        attach_by_hand(&w, token, digest);
        ck_assert(reclaim_says(&w, "0123", 1, digest, "invalid"));
        ck_assert(reclaim_says(&w, "00000000000000000000000000000000", 1, digest, "lost"));
        ck_assert(reclaim_says(&w, token, 2, digest, "lost"));
        ck_assert(reclaim_says(&w, token, 1, "00000000000000000000000000000000", "lost"));
        ck_assert_uint_eq(client_leases(kept.client), 1);
        wire_close(&w);
}
END_TEST

/* In a child, with the right token: of another process, and of another user. */
static void reclaim_in_child(const char *token, const char *digest, uid_t uid, const char *code)
{
        int status;
        pid_t pid = must(fork());

        if (pid == 0) {
                struct wire w;
                wire_open(&w, &kept.m.d);
                if (uid)
                        must(setuid(uid));
                wire_hello(&w);
                _exit(!reclaim_says(&w, token, 1, digest, code));
        }
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(status, 0);
}

START_TEST(a_token_is_of_no_use_to_another_process)
{
        struct wire w;
        char token[33], digest[33];

        kept_load("m");
        attach_by_hand(&w, token, digest);
        manager_wait(&kept.m, KEPT_PROCESSES, 1);
        reclaim_in_child(token, digest, 0, "denied");
        manager_kill(&kept.m);
        manager_start(&kept.m);
        kept_reconnect();
        reclaim_in_child(token, digest, 0, "denied");
        manager_kill(&kept.m);
        manager_drop(&kept.m, manager_find(&kept.m, KEPT_PROCESSES, 0)); /* the book alone knows it */
        manager_start(&kept.m);
        kept_reconnect();
        reclaim_in_child(token, digest, 0, "denied");
        ck_assert_uint_eq(client_leases(kept.client), 0);
        wire_close(&w);
}
END_TEST

START_TEST(a_token_is_of_no_use_to_another_user)
{
        struct wire w;
        char token[33], digest[33];

        if (geteuid() != 0)
                SKIP("needs root, to become another user");
        kept_load("m");
        attach_by_hand(&w, token, digest);
        must(chmod(suite_folder(), 0755));
        must(chown(kept.m.d.socket, 0, NOBODY)); /* its group may attach; which one is asked at the start */
        reclaim_in_child(token, digest, NOBODY, "denied");
        ck_assert_uint_eq(client_leases(kept.client), 1);
        wire_close(&w);
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
        tcase_add_test(leases, without_a_daemon_a_call_says_so_and_the_lease_is_kept);
        tcase_add_test(leases, only_the_right_token_generation_and_digest_are_taken);
        tcase_add_test(leases, a_token_is_of_no_use_to_another_process);
        tcase_add_test(leases, a_token_is_of_no_use_to_another_user);
        TCase *accounts = suite_group("accounts", NULL, NULL, 60);
        tcase_add_checked_fixture(accounts, kept_begin, kept_end);
        tcase_add_loop_test(accounts, whose_model_and_whose_lease_it_is_is_remembered, 0, 2);
        tcase_add_loop_test(accounts, what_was_taken_stays_in_quarantine, 0, 2);
        tcase_add_loop_test(accounts, who_was_away_when_it_was_taken_hears_of_it, 0, 2);
        tcase_add_test(accounts, a_time_to_drain_goes_on);
        TCase *none = suite_group("without a store", NULL, NULL, 60);
        tcase_add_test(none, a_lease_is_lost_without_a_store);
        tcase_add_test(none, a_lease_of_the_same_name_and_another_model_is_lost);
        return suite_run();
}
