/* SPDX-License-Identifier: Apache-2.0
 *
 * What a lease that is claimed again is charged with, what was taken by force meanwhile, and who may claim it.
 */
#include "tests/integration/reclaim_stage.h"

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

/* Of the group of the socket, and nothing of the model is its but a further name. */
#define PERSON 60102

static int name_it_n(void)
{
        char text[1024];
        return client_load_result(client_open(&kept.m.d), kept_file(), "n", text);
}

static int unload_n(void)
{
        return streamer_unload(client_open(&kept.m.d), "n", 0);
}

static int holds_one_name(void)
{
        kept.client = client_open(&kept.m.d);
        return holds("models") == 1 && holds("bytes") == 0 ? 0 : STREAMER_EFAILED;
}

static int holds_none(void)
{
        kept.client = client_open(&kept.m.d);
        return holds("models") == 0 ? 0 : STREAMER_EFAILED;
}

/* Each to who gave it, however often the daemon is started anew. */
START_TEST(whose_further_name_it_is_is_remembered)
{
        ROOT_ONLY();
        must(chmod(suite_folder(), 0755));
        kept_load("m");
        ck_assert_int_eq(person_does(PERSON, 0, name_it_n), 0);
        for (int i = 0; i < 3; i++) {
                if (i > 0)
                        kept_restart_and_reconnect(_i);
                ck_assert_int_eq(person_does(PERSON, 0, holds_one_name), 0);
                ck_assert_uint_eq(holds("models"), 1);
        }
        ck_assert_int_eq(person_does(PERSON, 0, unload_n), 0);
        ck_assert_int_eq(person_does(PERSON, 0, holds_none), 0);
        ck_assert_uint_eq(holds("models"), 1);
}
END_TEST

/* The name that it was stored by is gone, and the further one is all that is left. */
START_TEST(a_further_name_that_is_left_alone_is_charged_as_before)
{
        ROOT_ONLY();
        must(chmod(suite_folder(), 0755));
        kept_load("m");
        ck_assert_int_eq(person_does(PERSON, 0, name_it_n), 0);
        client_unload(kept.client, "m");
        kept_restart_and_reconnect(_i);
        ck_assert_str_eq(client_state(kept.client, "m"), "");
        ck_assert_int_eq(person_does(PERSON, 0, holds_one_name), 0);
        ck_assert_int_eq(person_does(PERSON, 0, unload_n), 0);
        ck_assert_int_eq(person_does(PERSON, 0, holds_none), 0);
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
        suite_begin("reclaim: accounts");
        TCase *leases = suite_group("leases", NULL, NULL, 60);
        tcase_add_checked_fixture(leases, kept_begin, kept_end);
        tcase_add_test(leases, only_the_right_token_generation_and_digest_are_taken);
        tcase_add_test(leases, a_token_is_of_no_use_to_another_process);
        tcase_add_test(leases, a_token_is_of_no_use_to_another_user);
        TCase *accounts = suite_group("accounts", NULL, NULL, 60);
        tcase_add_checked_fixture(accounts, kept_begin, kept_end);
        tcase_add_loop_test(accounts, whose_model_and_whose_lease_it_is_is_remembered, 0, 2);
        tcase_add_loop_test(accounts, whose_further_name_it_is_is_remembered, 0, 2);
        tcase_add_loop_test(accounts, a_further_name_that_is_left_alone_is_charged_as_before, 0, 2);
        tcase_add_loop_test(accounts, what_was_taken_stays_in_quarantine, 0, 2);
        tcase_add_loop_test(accounts, who_was_away_when_it_was_taken_hears_of_it, 0, 2);
        tcase_add_test(accounts, a_time_to_drain_goes_on);
        return suite_run();
}
