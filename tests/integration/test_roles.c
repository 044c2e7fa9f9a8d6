/* SPDX-License-Identifier: Apache-2.0
 *
 * Rules of `access`, as clients of several users meet them: what each may do, with whose models, and from where it
 * may load.
 */
#include "tests/integration/roles_stage.h"

/* ---- what they do with a model ---- */

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

static void may(uid_t uid, const char *what, const char *model)
{
        ck_assert_int_eq(call_as(uid, what, format_text("{\"model\":\"%s\"}", model)), 0);
}

static void may_not(uid_t uid, const char *what, const char *model, const char *why)
{
        expected_text = why;
        ck_assert_int_eq(call_as(uid, what, format_text("{\"model\":\"%s\"}", model)), STREAMER_EPERM);
        expected_text = NULL;
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
        loads(OTHER, team, "theirs");
        may_not(TRAINER, "unload", "theirs", "uid 60103 loaded it");
        may(OTHER, "unload", "theirs");
        loads(OTHER, team, "theirs");
        may(BOSS, "unload", "theirs");
}
END_TEST

START_TEST(a_name_is_not_taken_from_somebody_else)
{
        ROOT_ONLY();
        loads(OTHER, outside, "theirs");
        ck_assert_int_eq(load_as(TRAINER, team, "theirs", "uid 60103 loaded another source under this name"),
                         STREAMER_EPERM);
        loads(BOSS, team, "theirs");
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
        loads(OTHER, team, "theirs");
        write_team(5);
        loads(TRAINER, team, "theirs");
        may_not(TRAINER, "pin", "theirs", "uid 60103 loaded it");
        may_not(TRAINER, "unload", "theirs", "uid 60103 loaded it");
        may(OTHER, "pin", "theirs");
        may(OTHER, "unload", "theirs");
        write_team(2);
}
END_TEST

START_TEST(a_load_of_somebody_else_that_fails_keeps_nobody_out)
{
        ROOT_ONLY();
        loads(OTHER, team, "theirs");
        file_write(team, "no model", 8);
        ck_assert_int_ne(load_as(TRAINER, team, "theirs", NULL), 0);
        ck_assert_int_eq(call_as(OTHER, "set_priority", "{\"model\":\"theirs\",\"priority\":9}"), 0);
        may(OTHER, "unload", "theirs");
        write_team(2);
}
END_TEST

START_TEST(an_alias_is_unloaded_by_who_gave_it_and_is_nothing_more)
{
        ROOT_ONLY();
        loads(OTHER, team, "theirs");
        loads(TRAINER, team, "mine");
        may_not(TRAINER, "pin", "mine", "mine: pin: uid 60103 loaded it");
        may_not(OTHER, "unload", "mine", "mine: unload: uid 60102 loaded it");
        may(TRAINER, "unload", "mine");
        may(OTHER, "unload", "theirs");
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
        loads(OTHER, team, "theirs");
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
        loads(TRAINER, team, name); /* asks for nothing */
        may(BOSS, "unload", "theirs");
        call_as(BOSS, "unload", "{\"model\":\"mine\"}");
}
END_TEST

/* ---- roots and buckets ---- */

START_TEST(a_source_below_the_rules_roots_is_loaded)
{
        ROOT_ONLY();
        loads(TRAINER, team, "team");
        unload("team");
}
END_TEST

START_TEST(a_source_elsewhere_is_denied_by_the_rule)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(TRAINER, outside, "outside", "below none of its roots (access.roles[1], "),
                         STREAMER_EPERM);
        loads(OTHER, outside, "outside");
        unload("outside");
}
END_TEST

/* The file itself may be read by anybody: the rule's root is what keeps it. */
START_TEST(a_link_does_not_lead_out_of_the_rules_roots)
{
        ROOT_ONLY();
        ck_assert_int_eq(load_as(TRAINER, sneaky, "sneaky", "a root of access.roles[1], "), STREAMER_EPERM);
        loads(OTHER, sneaky, "sneaky");
        unload("sneaky");
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
        return suite_run();
}
