/* SPDX-License-Identifier: Apache-2.0
 *
 * Limits of an access rule per user: models, bytes, leases and connections; and how `whoami` reports them.
 */
#include "tests/integration/roles_fixture.h"

FIXTURE(.all = {begin, fixture_end}, .unavailable = root_unavailable);

TEST(bytes_of_a_user_are_limited)
{
        ck_assert_int_eq(load_as(TRAINER, large, "large", "of 8.0 MiB of models it loaded"), STREAMER_ELIMIT);
        loads(OTHER, large, "large");
        unload("large");
}

TEST(models_and_aliases_of_a_user_are_limited_until_unloaded)
{
        static const char says[] = "uid 60102 has 2 of 2 models and further names (access.roles[1], ";
        char *broken = fixture_path("team/broken.safetensors");
        file_write(broken, "broken", 6);
        ck_assert_int_eq(load_as(TRAINER, broken, "broken", "file-too-small"),
                         STREAMER_EFAILED); /* one that failed is no model */
        loads(TRAINER, team, "one");
        loads(TRAINER, team, "two");
        ck_assert_int_eq(load_as(TRAINER, team, "three", says), STREAMER_ELIMIT);
        loads(TRAINER, team, "two"); /* it is resident */
        unload("two");
        char *other = fixture_write(model_mixed(5, 1 << 18), "team/other.safetensors");
        loads(TRAINER, other, "other");
        ck_assert_int_eq(load_as(TRAINER, team, "three", says), STREAMER_ELIMIT);
        unload("one");
        unload("other");
        loads(TRAINER, team, "three");
        unload("three");
}

/* ---- names that several users gave ---- */

static struct {
        uint64_t models, bytes;
} held;

static int do_hold(void)
{
        streamer_client *c = client_open(&test_daemon);
        json_t *reply = client_call(c, "whoami", NULL);
        uint64_t models = json_number(reply, "holds.models"), bytes = json_number(reply, "holds.bytes");
        if (models != held.models || bytes != held.bytes)
                die("%d models of %d bytes", (int)models, (int)bytes);
        return 0;
}

static void holds(uid_t uid, uint64_t models, uint64_t bytes)
{
        held.models = models;
        held.bytes = bytes;
        ck_assert_int_eq(run_as(uid, SOCKET_GROUP, do_hold), 0);
}

/* What a model of `team` takes of its device, with its manifest. */
static uint64_t size_of_team(void)
{
        streamer_client *c = client_open(&test_daemon);
        uint64_t before = client_used(c);
        loads(OTHER, team, "measured");
        uint64_t size = client_used(c) - before;
        unload("measured");
        streamer_close(c);
        return size;
}

/* Who loads first, and who unloads first. */
TEST(a_model_is_charged_to_each_user_who_gave_it_a_name, .to = 4)
{
        uid_t first = _i % 2 ? TRAINER : OTHER, second = _i % 2 ? OTHER : TRAINER;
        uid_t leaves = _i < 2 ? first : second, stays = _i < 2 ? second : first;
        const char *left = leaves == first ? "one" : "two", *other = leaves == first ? "two" : "one";
        uint64_t size = size_of_team();
        loads(first, team, "one");
        holds(second, 0, 0);
        loads(second, team, "two");
        holds(first, 1, size);
        holds(second, 1, size);
        ck_assert_int_eq(model_call_as(leaves, "unload", left, NULL), 0);
        holds(leaves, 0, 0);
        holds(stays, 1, size);
        ck_assert_int_eq(model_call_as(leaves, "unload", other, "loaded it"), STREAMER_EPERM);
        ck_assert_int_eq(model_call_as(stays, "unload", other, NULL), 0);
        holds(stays, 0, 0);
}

TEST(a_further_name_of_a_model_that_is_too_large_is_refused)
{
        loads(OTHER, large, "large");
        ck_assert_int_eq(load_as(TRAINER, large, "mine", "of 8.0 MiB of models it loaded"), STREAMER_ELIMIT);
        holds(TRAINER, 0, 0);
        loads(TRAINER, large, "large"); /* no further name: it stays the other user's alone */
        holds(TRAINER, 0, 0);
        unload("large");
}

/* The one with the bytes ends first, or last. */
TEST(a_user_of_several_names_is_charged_for_the_bytes_once, .to = 2)
{
        uint64_t size = size_of_team();
        loads(OTHER, team, "one");
        loads(TRAINER, team, "two");
        loads(TRAINER, team, "three");
        holds(TRAINER, 2, size);
        ck_assert_int_eq(model_call_as(TRAINER, "unload", _i ? "two" : "three", NULL), 0);
        holds(TRAINER, 1, size);
        ck_assert_int_eq(model_call_as(OTHER, "unload", "one", NULL), 0);
        holds(OTHER, 0, 0);
        holds(TRAINER, 1, size);
        loads(TRAINER, team, "four");
        loads(OTHER, team, "one");
        holds(TRAINER, 2, size);
        ck_assert_int_eq(model_call_as(TRAINER, "unload", _i ? "three" : "two", NULL), 0);
        holds(TRAINER, 1, size);
        holds(OTHER, 1, size);
        ck_assert_int_eq(model_call_as(TRAINER, "unload", "four", NULL), 0);
        holds(TRAINER, 0, 0);
        holds(OTHER, 1, size);
        unload("one");
        holds(OTHER, 0, 0);
}

TEST(a_name_that_gets_another_model_leaves_the_charge_to_the_others)
{
        uint64_t size = size_of_team();
        char *other = fixture_write(model_mixed(9, 1 << 18), "team/other.safetensors");
        loads(TRAINER, team, "one");
        loads(OTHER, team, "two");
        loads(TRAINER, other, "one");
        holds(TRAINER, 1, size); /* of the other one, which is as large */
        holds(OTHER, 1, size);
        unload("two");
        unload("one");
        holds(TRAINER, 0, 0);
        holds(OTHER, 0, 0);
}

/* ---- limits ---- */

/* One for each connection, until the third; each is resident. */
static int do_probe(void)
{
        streamer_client *c = NULL;
        char *json;
        int r = 0;
        for (int i = 0; i < 3 && r == 0; i++) {
                c = client_open(&test_daemon);
                r = streamer_call(c, "probe", NULL, &json);
        }
        return expect_error(c, r);
}

TEST(probes_are_models_of_their_user)
{
        streamer_client *c = client_open(&test_daemon);
        uint64_t before = client_used(c);
        ck_assert_int_eq(do_as(TRAINER, do_probe, "uid 60102 has 2 of 2 models"), STREAMER_ELIMIT);
        client_wait_used(c, before);
        loads(TRAINER, team, "one");
        unload("one");
}

static char *changing;

static void change_source(unsigned seed)
{
        changing = fixture_write(model_mixed(seed, 1 << 18), "team/changing.safetensors");
}

/* A leased model counts until it is freed, and a second one beside it is not above the limit. */
TEST(the_next_generation_of_a_users_own_model_is_no_further_one)
{
        streamer_lease *lease;
        char *other = fixture_write(model_mixed(7, 1 << 18), "team/other.safetensors");
        streamer_client *c = client_open(&test_daemon);
        change_source(21);
        loads(TRAINER, other, "other");
        uint64_t one = client_used(c);
        loads(TRAINER, changing, "changing");
        uint64_t two = client_used(c);
        for (unsigned seed = 22; seed < 24; seed++) {
                change_source(seed);
                loads(TRAINER, changing, "changing");
                client_wait_used(c, two); /* the replaced model is freed */
        }
        client_ok(c, streamer_attach(c, "changing", NULL, &lease), "attach");
        change_source(24);
        loads(TRAINER, changing, "changing");
        change_source(25);
        ck_assert_int_eq(load_as(TRAINER, changing, "changing", "uid 60102 has 3 of 2 models"), STREAMER_ELIMIT);
        ck_assert_int_eq(load_as(TRAINER, team, "third", "uid 60102 has 3 of 2 models"), STREAMER_ELIMIT);
        streamer_detach(lease);
        client_wait_used(c, two);
        loads(TRAINER, other, "changing"); /* a further name takes its place */
        client_wait_used(c, one);
        streamer_close(c);
        ck_assert_int_eq(load_as(TRAINER, team, "third", "uid 60102 has 2 of 2 models"), STREAMER_ELIMIT);
        unload("changing");
        unload("other");
}

static int do_lease_three(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        for (int i = 0; i < 2; i++)
                client_ok(c, streamer_attach(c, "witness", NULL, &lease), "attach");
        /* Another connection does not help. */
        c = client_open(&test_daemon);
        return expect_error(c, streamer_attach(c, "witness", NULL, &lease));
}

TEST(leases_of_a_user_are_limited_until_they_end)
{
        for (int i = 0; i < 2; i++) {
                streamer_client *c = client_open(&test_daemon);
                ck_assert_int_eq(do_as(TRAINER, do_lease_three, "uid 60102 has 2 of 2 leases (access.roles[1], "),
                                 STREAMER_ELIMIT);
                client_wait_leases(c, 0);
                streamer_close(c);
        }
}

static int do_connect_five(void)
{
        struct wire wires[5];
        for (int i = 0; i < 4; i++)
                wire_connect(&wires[i], &test_daemon);
        wire_open(&wires[4], &test_daemon);
        return wire_read_code(&wires[4], "limit") ? STREAMER_ELIMIT : 0;
}

TEST(connections_are_limited_per_user)
{
        ck_assert_int_eq(run_as(TRAINER, SOCKET_GROUP, do_connect_five), STREAMER_ELIMIT);
        ck_assert_int_eq(run_as(OTHER, SOCKET_GROUP, do_attach), 0);
}

/* ---- whoami ---- */

static int do_whoami(void)
{
        streamer_client *c = client_open(&test_daemon);
        json_t *reply = client_call(c, "whoami", NULL);
        bool right = json_number(reply, "uid") == TRAINER && strcmp(json_text(reply, "role"), "load") == 0 &&
                     strncmp(json_text(reply, "rule"), "access.roles[1], ", 17) == 0 &&
                     json_number(reply, "limits.bytes") == 8 << 20 && json_number(reply, "holds.connections") == 1 &&
                     json_number(reply, "shares.limits.claims") == 1024 &&
                     json_number(reply, "shares.holds.claims") == 0 && json_array_size(json_at(reply, "roots")) == 1 &&
                     json_array_size(json_at(reply, "buckets")) == 0;
        return right ? 0 : STREAMER_EFAILED;
}

TEST(whoami_shows_rule_limits_and_holdings)
{
        ck_assert_int_eq(run_as(TRAINER, SOCKET_GROUP, do_whoami), 0);
}
