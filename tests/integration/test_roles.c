/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of `access` and limits of users, as clients of several users meet them.
 */
#include "tests/lib/person.h"
#include "tests/lib/stage.h"
#include "tests/lib/storage.h"
#include "tests/lib/wire.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Users that no system gives out. All are in the socket's group, so that the rules alone tell them
 * apart. */
enum { VIEWER = 60101, TRAINER = 60102, OTHER = 60103, BOSS = 60104, STRANGER = 60105 };
#define SOCKET_GROUP 0

static char *team, *outside, *sneaky, *large;

static void begin(void)
{
        if (getuid() != 0)
                return;
        char *root = suite_path("root-0");
        char *text = format_text("devices:\n  - host=256MiB\nroots: [%s]\naccess:\n  roles:\n"
                                 "    - {role: attach, users: %d}\n"
                                 "    - {role: load, users: %d, roots: [%s/team], buckets: [], connections: 4,\n"
                                 "       leases: 2, loads: 1, models: 2, bytes: 8MiB}\n"
                                 "    - {role: load, users: %d}\n"
                                 "    - {role: admin, users: %d}\n",
                                 root, VIEWER, TRAINER, root, OTHER, BOSS);
        char *config = suite_path("roles.yaml");

        mkdir(root, 0755);
        must(mkdir(format_text("%s/team", root), 0755));
        file_write(config, text, strlen(text));
        must(chmod(suite_folder(), 0755));
        stage_begin((const char *const[]){"--config", config, NULL});
        team = stage_write(model_mixed(2, 1 << 18), "team/team.safetensors");
        outside = stage_write(model_mixed(3, 1 << 18), "outside.safetensors");
        large = stage_write(model_mixed(4, 16 << 20), "team/large.safetensors");
        sneaky = stage_path("team/sneaky.safetensors");
        must(symlink("../outside.safetensors", sneaky));
}

static void end(void)
{
        if (getuid() == 0)
                stage_end();
}

/* ---- what they do; the text of a failure must hold this ---- */

static const char *expected_text;

static int told(const streamer_client *c, int r)
{
        const char *text = streamer_last_error(c);

        if (r != 0 && expected_text && !strstr(text, expected_text))
                die("\"%s\" does not say \"%s\"", text, expected_text);
        return r;
}

static const char *verb, *args;

static int do_call(void)
{
        streamer_client *c = client_open(&stage);

        return told(c, client_call_code(c, verb, args));
}

static int call_as(uid_t uid, const char *the_verb, const char *the_args)
{
        verb = the_verb;
        args = the_args;
        return person_does(uid, SOCKET_GROUP, do_call);
}

static const char *source, *name;

static int do_load(void)
{
        char text[1024];
        int r = client_load_result(client_open(&stage), source, name, text);

        if (r != 0 && expected_text && !strstr(text, expected_text))
                die("\"%s\" does not say \"%s\"", text, expected_text);
        return r;
}

static int load_as(uid_t uid, const char *the_source, const char *the_name, const char *text)
{
        source = the_source;
        name = the_name;
        expected_text = text;
        int r = person_does(uid, SOCKET_GROUP, do_load);
        expected_text = NULL;
        return r;
}

static void unload(const char *model)
{
        streamer_client *c = client_open(&stage);

        client_unload(c, model);
        streamer_close(c);
}

/* ---- roles ---- */

static const struct {
        const char *verb, *args;
        bool viewer, trainer;
} verbs_of[] = {
        {"ping", NULL, true, true},
        {"list", NULL, true, true},
        {"status", NULL, true, true},
        {"ps", NULL, true, true},
        {"whoami", NULL, true, true},
        {"show", "{\"model\":\"witness\"}", true, true},
        {"wait", "{\"model\":\"witness\"}", true, true},
        {"verify", "{\"model\":\"witness\"}", false, true},
        {"unload", "{\"model\":\"witness\"}", false, false},
        {"cancel", "{\"model\":\"witness\"}", false, false},
        {"set_priority", "{\"model\":\"witness\",\"priority\":9}", false, false},
};

START_TEST(each_user_may_what_its_rule_says)
{
        ROOT_ONLY();
        expected_text = "(access.roles[0], ";
        ck_assert_int_eq(call_as(VIEWER, verbs_of[_i].verb, verbs_of[_i].args),
                         verbs_of[_i].viewer ? 0 : STREAMER_EPERM);
        expected_text = "(access.roles[1], ";
        ck_assert_int_eq(call_as(TRAINER, verbs_of[_i].verb, verbs_of[_i].args),
                         verbs_of[_i].trainer ? 0 : STREAMER_EPERM);
}
END_TEST

START_TEST(whom_no_rule_names_may_nothing)
{
        ROOT_ONLY();
        ck_assert_int_ne(call_as(STRANGER, "ping", NULL), 0);
}
END_TEST

static int do_attach(void)
{
        client_equals(client_open(&stage), "witness", stage_witness);
        return 0;
}

START_TEST(the_role_attach_attaches)
{
        ROOT_ONLY();
        ck_assert_int_eq(person_does(VIEWER, SOCKET_GROUP, do_attach), 0);
        ck_assert_int_eq(load_as(VIEWER, team, "team", "takes the role load, and uid 60101 has attach"),
                         STREAMER_EPERM);
}
END_TEST

START_TEST(a_model_is_dropped_by_who_loaded_it_or_by_an_admin)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(OTHER, team, "theirs", NULL), 0);
        expected_text = "uid 60103 loaded it";
        ck_assert_int_eq(call_as(TRAINER, "unload", "{\"model\":\"theirs\"}"), STREAMER_EPERM);
        ck_assert_int_eq(call_as(OTHER, "unload", "{\"model\":\"theirs\"}"), 0);
        ck_assert_int_eq(load_as(OTHER, team, "theirs", NULL), 0);
        ck_assert_int_eq(call_as(BOSS, "unload", "{\"model\":\"theirs\"}"), 0);
}
END_TEST

START_TEST(a_name_is_not_taken_from_somebody_else)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(OTHER, outside, "theirs", NULL), 0);
        ck_assert_int_eq(load_as(TRAINER, team, "theirs", "uid 60103 loaded another source under this name"),
                         STREAMER_EPERM);
        ck_assert_int_eq(load_as(BOSS, team, "theirs", NULL), 0);
        unload("theirs");
}
END_TEST

static void write_team(uint64_t seed)
{
        stage_write(model_mixed(seed, 1 << 18), "team/team.safetensors");
}

START_TEST(a_name_stays_whose_it_was_whoever_brings_its_next_generation)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(OTHER, team, "theirs", NULL), 0);
        write_team(5);
        ck_assert_int_eq(load_as(TRAINER, team, "theirs", NULL), 0);
        expected_text = "uid 60103 loaded it";
        ck_assert_int_eq(call_as(TRAINER, "pin", "{\"model\":\"theirs\"}"), STREAMER_EPERM);
        ck_assert_int_eq(call_as(TRAINER, "unload", "{\"model\":\"theirs\"}"), STREAMER_EPERM);
        ck_assert_int_eq(call_as(OTHER, "pin", "{\"model\":\"theirs\"}"), 0);
        ck_assert_int_eq(call_as(OTHER, "unload", "{\"model\":\"theirs\"}"), 0);
        write_team(2);
}
END_TEST

START_TEST(a_load_of_somebody_else_that_fails_keeps_nobody_out)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(OTHER, team, "theirs", NULL), 0);
        file_write(team, "no model", 8);
        ck_assert_int_ne(load_as(TRAINER, team, "theirs", NULL), 0);
        ck_assert_int_eq(call_as(OTHER, "set_priority", "{\"model\":\"theirs\",\"priority\":9}"), 0);
        ck_assert_int_eq(call_as(OTHER, "unload", "{\"model\":\"theirs\"}"), 0);
        write_team(2);
}
END_TEST

START_TEST(an_alias_is_unloaded_by_who_gave_it_and_is_nothing_more)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(OTHER, team, "theirs", NULL), 0);
        ck_assert_int_eq(load_as(TRAINER, team, "mine", NULL), 0);
        expected_text = "mine: pin: uid 60103 loaded it";
        ck_assert_int_eq(call_as(TRAINER, "pin", "{\"model\":\"mine\"}"), STREAMER_EPERM);
        expected_text = "mine: unload: uid 60102 loaded it";
        ck_assert_int_eq(call_as(OTHER, "unload", "{\"model\":\"mine\"}"), STREAMER_EPERM);
        ck_assert_int_eq(call_as(TRAINER, "unload", "{\"model\":\"mine\"}"), 0);
        ck_assert_int_eq(call_as(OTHER, "unload", "{\"model\":\"theirs\"}"), 0);
}
END_TEST

static unsigned flags;
static uint64_t keep_alive_ms, drain_timeout_ms, priority;

static int do_keep(void)
{
        streamer_client *c = client_open(&stage);
        streamer_op *op;
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = source,
                                   .name = name,
                                   .flags = flags,
                                   .keep_alive_ms = keep_alive_ms,
                                   .drain_timeout_ms = drain_timeout_ms,
                                   .priority = (unsigned)priority};
        int r = streamer_load(c, &opts, &op);
        return told(c, r == 0 ? streamer_op_wait(op, -1, NULL) : r);
}

static const struct {
        const char *name;
        unsigned flags, priority;
        uint64_t keep_alive_ms, drain_timeout_ms;
} ways_to_keep[] = {
        {"theirs", STREAMER_LOAD_PIN, 0, 0, 0},
        {"mine", STREAMER_LOAD_PIN, 0, 0, 0},
        {"theirs", 0, 7, 0, 0},
        {"mine", 0, 7, 0, 0},
        {"theirs", 0, 0, 1, 0},
        {"mine", 0, 0, 1, 0},
        {"theirs", 0, 0, 0, 1},
        {"mine", 0, 0, 0, 1},
};

START_TEST(how_a_model_is_kept_is_decided_by_whose_it_is)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(OTHER, team, "theirs", NULL), 0);
        source = team;
        name = ways_to_keep[_i].name;
        flags = ways_to_keep[_i].flags;
        priority = ways_to_keep[_i].priority;
        keep_alive_ms = ways_to_keep[_i].keep_alive_ms;
        drain_timeout_ms = ways_to_keep[_i].drain_timeout_ms;
        expected_text = "uid 60103 loaded it";
        ck_assert_int_eq(person_does(TRAINER, SOCKET_GROUP, do_keep), STREAMER_EPERM);
        expected_text = "(access.roles[1], ";
        ck_assert_int_eq(person_does(TRAINER, SOCKET_GROUP, do_keep), STREAMER_EPERM);
        ck_assert_int_eq(load_as(TRAINER, team, name, NULL), 0); /* asks for nothing */
        ck_assert_int_eq(call_as(BOSS, "unload", "{\"model\":\"theirs\"}"), 0);
        call_as(BOSS, "unload", "{\"model\":\"mine\"}");
}
END_TEST

/* ---- roots and buckets ---- */

START_TEST(a_source_below_the_rules_roots_is_loaded)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(TRAINER, team, "team", NULL), 0);
        unload("team");
}
END_TEST

START_TEST(a_source_elsewhere_is_denied_by_the_rule)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(TRAINER, outside, "outside", "below none of its roots (access.roles[1], "),
                         STREAMER_EPERM);
        ck_assert_int_eq(load_as(OTHER, outside, "outside", NULL), 0);
        unload("outside");
}
END_TEST

/* The file itself may be read by anybody: the rule's root is what keeps it. */
START_TEST(a_link_does_not_lead_out_of_the_rules_roots)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(TRAINER, sneaky, "sneaky", "a root of access.roles[1], "), STREAMER_EPERM);
        ck_assert_int_eq(load_as(OTHER, sneaky, "sneaky", NULL), 0);
        unload("sneaky");
}
END_TEST

/* ---- limits ---- */

START_TEST(bytes_of_a_user_are_limited)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(TRAINER, large, "large", "of 8388608 bytes of models it loaded"), STREAMER_ELIMIT);
        ck_assert_int_eq(load_as(OTHER, large, "large", NULL), 0);
        unload("large");
}
END_TEST

START_TEST(models_and_further_names_of_a_user_are_limited_and_come_back)
{
        ROOT_ONLY();
        static const char says[] = "uid 60102 has 2 of 2 models and further names (access.roles[1], ";
        char *broken = stage_path("team/broken.safetensors");
        file_write(broken, "broken", 6);
        ck_assert_int_ne(load_as(TRAINER, broken, "broken", NULL), 0); /* one that failed is no model */
        ck_assert_int_eq(load_as(TRAINER, team, "one", NULL), 0);
        ck_assert_int_eq(load_as(TRAINER, team, "two", NULL), 0);
        ck_assert_int_eq(load_as(TRAINER, team, "three", says), STREAMER_ELIMIT);
        ck_assert_int_eq(load_as(TRAINER, team, "two", NULL), 0); /* it is there */
        unload("two");
        char *other = stage_write(model_mixed(5, 1 << 18), "team/other.safetensors");
        ck_assert_int_eq(load_as(TRAINER, other, "other", NULL), 0);
        ck_assert_int_eq(load_as(TRAINER, team, "three", says), STREAMER_ELIMIT);
        unload("one");
        unload("other");
        ck_assert_int_eq(load_as(TRAINER, team, "three", NULL), 0);
        unload("three");
}
END_TEST

static char *changing;

static void change_source(unsigned seed)
{
        changing = stage_write(model_mixed(seed, 1 << 18), "team/changing.safetensors");
}

/* One that is held keeps its place until it is gone, and no second one beside it is above the limit. */
START_TEST(the_next_generation_of_a_users_own_model_is_no_further_one)
{
        ROOT_ONLY();
        streamer_lease *lease;
        char *other = stage_write(model_mixed(7, 1 << 18), "team/other.safetensors");
        change_source(21);
        ck_assert_int_eq(load_as(TRAINER, other, "other", NULL), 0);
        ck_assert_int_eq(load_as(TRAINER, changing, "changing", NULL), 0);
        change_source(22);
        ck_assert_int_eq(load_as(TRAINER, changing, "changing", NULL), 0);
        change_source(23);
        ck_assert_int_eq(load_as(TRAINER, changing, "changing", NULL), 0);
        streamer_client *c = client_open(&stage);
        client_ok(c, streamer_attach(c, "changing", NULL, &lease), "attach");
        change_source(24);
        ck_assert_int_eq(load_as(TRAINER, changing, "changing", NULL), 0);
        change_source(25);
        ck_assert_int_eq(load_as(TRAINER, changing, "changing", "uid 60102 has 3 of 2 models"), STREAMER_ELIMIT);
        ck_assert_int_eq(load_as(TRAINER, team, "third", "uid 60102 has 3 of 2 models"), STREAMER_ELIMIT);
        streamer_detach(lease);
        streamer_close(c);
        ck_assert_int_eq(load_as(TRAINER, other, "changing", NULL), 0); /* a further name takes its place */
        ck_assert_int_eq(load_as(TRAINER, team, "third", "uid 60102 has 2 of 2 models"), STREAMER_ELIMIT);
        unload("changing");
        unload("other");
}
END_TEST

static int do_lease_three(void)
{
        streamer_client *c = client_open(&stage);
        streamer_lease *lease;

        for (int i = 0; i < 2; i++)
                client_ok(c, streamer_attach(c, "witness", NULL, &lease), "attach");
        expected_text = "uid 60102 has 2 of 2 leases (access.roles[1], ";
        /* Another connection does not help. */
        c = client_open(&stage);
        return told(c, streamer_attach(c, "witness", NULL, &lease));
}

START_TEST(leases_of_a_user_are_limited_and_come_back)
{
        ROOT_ONLY();
        for (int i = 0; i < 2; i++) {
                streamer_client *c = client_open(&stage);
                ck_assert_int_eq(person_does(TRAINER, SOCKET_GROUP, do_lease_three), STREAMER_ELIMIT);
                client_wait_leases(c, 0);
                streamer_close(c);
        }
}
END_TEST

static int do_connect_five(void)
{
        struct wire wires[5];

        for (int i = 0; i < 4; i++) {
                wire_open(&wires[i], &stage);
                wire_hello(&wires[i]);
        }
        wire_open(&wires[4], &stage);
        return wire_read_code(&wires[4], "limit") ? STREAMER_ELIMIT : 0;
}

START_TEST(connections_of_a_user_are_limited_and_nobody_elses)
{
        ROOT_ONLY();
        ck_assert_int_eq(person_does(TRAINER, SOCKET_GROUP, do_connect_five), STREAMER_ELIMIT);
        ck_assert_int_eq(person_does(OTHER, SOCKET_GROUP, do_attach), 0);
}
END_TEST

/* ---- whoami ---- */

static int do_whoami(void)
{
        streamer_client *c = client_open(&stage);
        json_t *reply = client_call(c, "whoami", NULL), *limits = json_object_get(reply, "limits");

        if (json_integer_value(json_object_get(reply, "uid")) != TRAINER ||
            strcmp(json_string_value(json_object_get(reply, "role")), "load") != 0 ||
            strncmp(json_string_value(json_object_get(reply, "rule")), "access.roles[1], ", 17) != 0 ||
            json_integer_value(json_object_get(limits, "bytes")) != 8 << 20 ||
            json_integer_value(json_object_get(json_object_get(reply, "holds"), "connections")) != 1 ||
            json_array_size(json_object_get(reply, "roots")) != 1 ||
            json_array_size(json_object_get(reply, "buckets")) != 0)
                return STREAMER_EFAILED;
        return 0;
}

START_TEST(whoami_shows_rule_limits_and_holdings)
{
        ROOT_ONLY();
        ck_assert_int_eq(person_does(TRAINER, SOCKET_GROUP, do_whoami), 0);
}
END_TEST

int main(void)
{
        suite_begin("roles");
        TCase *roles = suite_group("roles", begin, end, 60);
        LOOP(roles, each_user_may_what_its_rule_says, verbs_of);
        tcase_add_test(roles, whom_no_rule_names_may_nothing);
        tcase_add_test(roles, the_role_attach_attaches);
        tcase_add_test(roles, a_model_is_dropped_by_who_loaded_it_or_by_an_admin);
        tcase_add_test(roles, a_name_is_not_taken_from_somebody_else);
        tcase_add_test(roles, a_name_stays_whose_it_was_whoever_brings_its_next_generation);
        tcase_add_test(roles, a_load_of_somebody_else_that_fails_keeps_nobody_out);
        tcase_add_test(roles, an_alias_is_unloaded_by_who_gave_it_and_is_nothing_more);
        LOOP(roles, how_a_model_is_kept_is_decided_by_whose_it_is, ways_to_keep);
        tcase_add_test(roles, a_source_below_the_rules_roots_is_loaded);
        tcase_add_test(roles, a_source_elsewhere_is_denied_by_the_rule);
        tcase_add_test(roles, a_link_does_not_lead_out_of_the_rules_roots);
        tcase_add_test(roles, bytes_of_a_user_are_limited);
        tcase_add_test(roles, models_and_further_names_of_a_user_are_limited_and_come_back);
        tcase_add_test(roles, the_next_generation_of_a_users_own_model_is_no_further_one);
        tcase_add_test(roles, leases_of_a_user_are_limited_and_come_back);
        tcase_add_test(roles, connections_of_a_user_are_limited_and_nobody_elses);
        tcase_add_test(roles, whoami_shows_rule_limits_and_holdings);
        return suite_run();
}
