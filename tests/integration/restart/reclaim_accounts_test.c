/* SPDX-License-Identifier: Apache-2.0
 *
 * What a reclaimed lease is charged, models that were unloaded by force, and who may claim a lease.
 */
#include "tests/integration/reclaim_fixture.h"

/* ---- accounts ---- */

static uint64_t holds(const char *what)
{
        json_t *reply = client_call(managed.client, "whoami", NULL);
        uint64_t n = json_number(json_object_get(reply, "holds"), what);

        json_decref(reply);
        return n;
}

FIXTURE(.each = {managed_begin, managed_end});

/* Before a lease is claimed, too: limits are no looser after a restart. */
TEST(the_owners_of_models_and_leases_are_restored, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        uint64_t bytes = holds("bytes");
        ck_assert_uint_ge(bytes, 4 << 20);
        ck_assert_uint_eq(holds("leases"), 1);
        managed_restart(_i);
        streamer_client *before = managed.client;
        managed.client = client_open(&managed.m.d);
        ck_assert_uint_eq(holds("bytes"), bytes);
        ck_assert_uint_eq(holds("leases"), 1);
        client_ok(before, streamer_lease_check(lease), "check");
        ck_assert_uint_eq(holds("leases"), 1);
        streamer_detach(lease);
        client_ok(before, streamer_call(before, "ping", NULL, NULL), "ping"); /* the daemon has processed the detach */
        client_unload(managed.client, "m");
        client_wait_used(managed.client, 0);
        ck_assert_uint_eq(holds("bytes"), 0);
        ck_assert_uint_eq(holds("leases"), 0);
        streamer_close(before);
}

/* Of the group of the socket, and nothing of the model is its but a further name. */
#define PERSON 60102

static int name_it_n(void)
{
        char text[1024];
        return client_load_result(client_open(&managed.m.d), managed_file(), "n", text);
}

static int unload_n(void)
{
        return streamer_unload(client_open(&managed.m.d), "n", 0);
}

static int holds_one_name(void)
{
        managed.client = client_open(&managed.m.d);
        return holds("models") == 1 && holds("bytes") == 0 ? 0 : STREAMER_EFAILED;
}

static int holds_none(void)
{
        managed.client = client_open(&managed.m.d);
        return holds("models") == 0 ? 0 : STREAMER_EFAILED;
}

/* Each alias keeps its owner over any number of restarts. */
TEST(the_owner_of_an_alias_is_restored, .to = 2)
{
        ROOT_ONLY();
        must(chmod(suite_folder(), 0755));
        managed_load("m");
        ck_assert_int_eq(run_as(PERSON, 0, name_it_n), 0);
        for (int i = 0; i < 3; i++) {
                if (i > 0)
                        managed_restart_and_reconnect(_i);
                ck_assert_int_eq(run_as(PERSON, 0, holds_one_name), 0);
                ck_assert_uint_eq(holds("models"), 1);
        }
        ck_assert_int_eq(run_as(PERSON, 0, unload_n), 0);
        ck_assert_int_eq(run_as(PERSON, 0, holds_none), 0);
        ck_assert_uint_eq(holds("models"), 1);
}

/* The name under which it was stored is removed; only the alias is left. */
TEST(an_unchanged_alias_is_charged_as_before, .to = 2)
{
        ROOT_ONLY();
        must(chmod(suite_folder(), 0755));
        managed_load("m");
        ck_assert_int_eq(run_as(PERSON, 0, name_it_n), 0);
        client_unload(managed.client, "m");
        managed_restart_and_reconnect(_i);
        ck_assert_str_eq(client_state(managed.client, "m"), "");
        ck_assert_int_eq(run_as(PERSON, 0, holds_one_name), 0);
        ck_assert_int_eq(run_as(PERSON, 0, unload_n), 0);
        ck_assert_int_eq(run_as(PERSON, 0, holds_none), 0);
}

/* ---- forced unloads ---- */

static void detach_lease(streamer_lease *lease)
{
        lease_equals(lease, managed.model);
        streamer_detach(lease);
        client_wait_used(managed.client, 0);
        ck_assert_uint_eq(client_device_number(managed.client, "quarantined"), 0);
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

TEST(revoked_memory_stays_quarantined, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        client_ok(managed.client, streamer_unload(managed.client, "m", STREAMER_UNLOAD_FORCE), "unload");
        managed_restart(_i);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        ck_assert_uint_ge(client_device_number(managed.client, "quarantined"), 4 << 20);
        detach_lease(lease);
}

/* The restoring daemon could not know the owner; the claim tells it. */
TEST(a_client_that_was_disconnected_is_notified_of_revocation, .to = 2)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        streamer_client *other = client_open(&managed.m.d);
        must(shutdown(client_socket(managed.client), SHUT_RDWR));
        client_ok(other, streamer_unload(other, "m", STREAMER_UNLOAD_FORCE), "unload");
        if (_i)
                managed_restart(1);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        detach_lease(lease);
        streamer_close(other);
}

TEST(a_drain_timeout_continues_over_a_restart)
{
        managed_load("m");
        streamer_lease *lease = managed_attach();
        ck_assert_int_eq(client_call_code(managed.client, "unload",
                                          "{\"model\":\"m\",\"drain\":true,\"drain_timeout_ms\":1000}"),
                         0);
        managed_restart(1);
        ck_assert(eventually(lease_is_revoked, lease, 20000));
        detach_lease(lease);
}

/* ---- rights to reclaim ---- */

/* "token", "generation" and "digest" of an attach. */
static void attach_by_hand(struct wire *w, char token[33], char digest[33])
{
        const char *s;
        size_t len;

        wire_open(w, &managed.m.d);
        wire_hello(w);
        wire_verb(w, "attach", 2, "model", "m");
        ck_assert(wire_read(w));
        ck_assert(object_str(&w->reply.unpacked.data, "token", &s, &len) && len == 32);
        snprintf(token, 33, "%.*s", (int)len, s);
        ck_assert(object_str(&w->reply.unpacked.data, "digest", &s, &len) && len == 32);
        snprintf(digest, 33, "%.*s", (int)len, s);
}

static bool reclaim_fails_with(struct wire *w, const char *token, uint64_t generation, const char *digest,
                               const char *code)
{
        struct request request = {.verb = VERB_reclaim,
                                  .id = 9,
                                  .u.reclaim = {.token = token, .generation = generation, .digest = digest}};

        wire_request(w, &request);
        return wire_read_code(w, code);
}

TEST(only_the_right_token_generation_and_digest_are_accepted)
{
        struct wire w;
        char token[33], digest[33];

        managed_load("m");
        attach_by_hand(&w, token, digest);
        ck_assert(reclaim_fails_with(&w, "0123", 1, digest, "invalid"));
        ck_assert(reclaim_fails_with(&w, "00000000000000000000000000000000", 1, digest, "lost"));
        ck_assert(reclaim_fails_with(&w, token, 2, digest, "lost"));
        ck_assert(reclaim_fails_with(&w, token, 1, "00000000000000000000000000000000", "lost"));
        ck_assert_uint_eq(client_leases(managed.client), 1);
        wire_close(&w);
}

/* In a child, with the right token: of another process, and of another user. */
static void reclaim_in_child(const char *token, const char *digest, uid_t uid, const char *code)
{
        int status;
        pid_t pid = must(fork());

        if (pid == 0) {
                struct wire w;
                wire_open(&w, &managed.m.d);
                if (uid)
                        must(setuid(uid));
                wire_hello(&w);
                _exit(!reclaim_fails_with(&w, token, 1, digest, code));
        }
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(status, 0);
}

TEST(a_token_is_of_no_use_to_another_process)
{
        struct wire w;
        char token[33], digest[33];

        managed_load("m");
        attach_by_hand(&w, token, digest);
        manager_wait(&managed.m, MANAGED_PROCESSES, 1);
        reclaim_in_child(token, digest, 0, "denied");
        manager_kill(&managed.m);
        manager_start(&managed.m);
        managed_reconnect();
        reclaim_in_child(token, digest, 0, "denied");
        manager_kill(&managed.m);
        manager_drop(&managed.m, manager_find(&managed.m, MANAGED_PROCESSES, 0)); /* only the journal has it */
        manager_start(&managed.m);
        managed_reconnect();
        reclaim_in_child(token, digest, 0, "denied");
        ck_assert_uint_eq(client_leases(managed.client), 0);
        wire_close(&w);
}

TEST(a_token_is_of_no_use_to_another_user)
{
        struct wire w;
        char token[33], digest[33];

        if (geteuid() != 0)
                SKIP("needs root, to become another user");
        managed_load("m");
        attach_by_hand(&w, token, digest);
        must(chmod(suite_folder(), 0755));
        must(chown(managed.m.d.socket, 0, NOBODY)); /* its group may attach; which one is asked at the start */
        reclaim_in_child(token, digest, NOBODY, "denied");
        ck_assert_uint_eq(client_leases(managed.client), 1);
        wire_close(&w);
}
