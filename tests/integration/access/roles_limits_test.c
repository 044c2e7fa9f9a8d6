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
