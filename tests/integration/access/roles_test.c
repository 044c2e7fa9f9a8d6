/* SPDX-License-Identifier: Apache-2.0
 *
 * Access rules: the rights of clients of several users, to which models, and from which sources they may load.
 */
#include "tests/integration/roles_fixture.h"

/* ---- uses of a model ---- */

static void expect_permitted(uid_t uid, const char *what, const char *model)
{
        ck_assert_int_eq(model_call_as(uid, what, model, NULL), 0);
}

static void expect_denied(uid_t uid, const char *what, const char *model, const char *why)
{
        ck_assert_int_eq(model_call_as(uid, what, model, why), STREAMER_EPERM);
}

/* ---- roles ---- */

static const struct {
        const char *verb, *args;
        bool viewer, trainer;
} verbs_of[] = {
        {"whoami", NULL, true, true},
        {"show", "{\"model\":\"witness\"}", true, true},
        {"verify", "{\"model\":\"witness\"}", false, true},
        {"unload", "{\"model\":\"witness\"}", false, false},
        {"set_priority", "{\"model\":\"witness\",\"priority\":9}", false, false},
        {"shutdown", NULL, false, false},
};

FIXTURE(.all = {begin, fixture_end}, .unavailable = root_unavailable);

TEST(each_user_has_the_rights_of_its_rule, EACH(verbs_of))
{
        ck_assert_int_eq(call_as(VIEWER, verbs_of[_i].verb, verbs_of[_i].args, "(access.roles[0], "),
                         verbs_of[_i].viewer ? 0 : STREAMER_EPERM);
        ck_assert_int_eq(call_as(TRAINER, verbs_of[_i].verb, verbs_of[_i].args, "(access.roles[1], "),
                         verbs_of[_i].trainer ? 0 : STREAMER_EPERM);
}

TEST(the_role_attach_attaches)
{
        ck_assert_int_eq(run_as(VIEWER, SOCKET_GROUP, do_attach), 0);
        ck_assert_int_eq(load_as(VIEWER, team, "team", "requires role 'load'; uid 60101 has role 'attach'"),
                         STREAMER_EPERM);
}

TEST(a_model_is_unloaded_by_its_owner_or_an_admin)
{
        loads(OTHER, team, "theirs");
        expect_denied(TRAINER, "unload", "theirs", "uid 60103 loaded it");
        expect_permitted(OTHER, "unload", "theirs");
        loads(OTHER, team, "theirs");
        expect_permitted(BOSS, "unload", "theirs");
}

TEST(what_another_user_left_draining_is_not_revoked)
{
        static const char drain[] = "{\"model\":\"theirs\",\"drain\":true}",
                          force[] = "{\"model\":\"theirs\",\"force\":true}";
        loads(OTHER, team, "theirs");
        fixture_connect();
        streamer_lease *lease = client_attach(client, "theirs");
        ck_assert_int_eq(call_as(OTHER, "unload", drain, NULL), 0);
        ck_assert_int_eq(call_as(TRAINER, "unload", force, "no such model"), STREAMER_ENOENT);
        client_ok(client, streamer_lease_check(lease), "lease_check");
        ck_assert_int_eq(call_as(OTHER, "unload", force, NULL), 0);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EREVOKED);
        streamer_detach(lease);
        fixture_disconnect();
}

TEST(another_users_name_is_refused)
{
        loads(OTHER, outside, "theirs");
        ck_assert_int_eq(load_as(TRAINER, team, "theirs", "uid 60103 loaded another source under this name"),
                         STREAMER_EPERM);
        ck_assert_int_eq(load_as(TRAINER, team, "theirs", "choose another name (--name)"), STREAMER_EPERM);
        loads(BOSS, team, "theirs");
        unload("theirs");
}

TEST(another_users_default_name_blocks_nobody)
{
        must(mkdir(fixture_path("other"), 0755));
        char *other = fixture_write(model_mixed(6, 1 << 18), "other/team.safetensors");
        loads(OTHER, other, NULL);
        expect_permitted(OTHER, "pin", "team");
        loads(TRAINER, team, NULL);
        expect_permitted(TRAINER, "pin", "team/team");
        expect_permitted(OTHER, "unpin", "team");
        expect_permitted(OTHER, "unload", "team");
        expect_permitted(TRAINER, "unload", "team/team");
}

static void write_team(uint64_t seed)
{
        fixture_write(model_mixed(seed, 1 << 18), "team/team.safetensors");
}

TEST(a_name_keeps_its_owner_across_generations)
{
        loads(OTHER, team, "theirs");
        write_team(5);
        loads(TRAINER, team, "theirs");
        expect_denied(TRAINER, "pin", "theirs", "uid 60103 loaded it");
        expect_denied(TRAINER, "unload", "theirs", "uid 60103 loaded it");
        expect_permitted(OTHER, "pin", "theirs");
        expect_permitted(OTHER, "unload", "theirs");
        write_team(2);
}

TEST(a_failed_load_of_another_user_blocks_no_name)
{
        loads(OTHER, team, "theirs");
        file_write(team, "no model", 8);
        ck_assert_int_eq(load_as(TRAINER, team, "theirs", "not a safetensors file"), STREAMER_EFAILED);
        ck_assert_int_eq(call_as(OTHER, "set_priority", "{\"model\":\"theirs\",\"priority\":9}", NULL), 0);
        expect_permitted(OTHER, "unload", "theirs");
        write_team(2);
}

static int attach_while_denied(void)
{
        struct wire w;
        struct request load = {.verb = VERB_load, .id = 2, .u.load = {.source = team, .name = "mine", .priority = 9}};
        struct request attach = {.verb = VERB_attach, .id = 3, .u.attach = {.model = "mine"}};
        wire_connect(&w, &test_daemon);
        if (!wire_request(&w, &load) || !wire_request(&w, &attach))
                die("the connection was closed");
        wire_reply_ok(&w); /* the load begins: it is denied when its files are found to be resident */
        wire_read_error(&w, "not-found", "mine: no such model");
        return 0;
}

TEST(an_attach_that_waits_for_a_load_that_is_denied_is_answered)
{
        loads(OTHER, team, "theirs");
        ck_assert_int_eq(do_as(TRAINER, attach_while_denied, NULL), 0);
        unload("theirs");
}

TEST(an_alias_is_unloaded_by_its_owner_and_gives_no_more_rights)
{
        loads(OTHER, team, "theirs");
        loads(TRAINER, team, "mine");
        expect_denied(TRAINER, "pin", "mine", "mine: pin: uid 60103 loaded it");
        expect_denied(OTHER, "unload", "mine", "mine: unload: uid 60102 loaded it");
        expect_permitted(TRAINER, "unload", "mine");
        expect_permitted(OTHER, "unload", "theirs");
}

static streamer_load_opts opts;

static int do_load_with_settings(void)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_op *op;
        int r = streamer_load(c, &opts, &op);
        return expect_error(c, r == 0 ? streamer_op_wait(op, -1, NULL) : r);
}

static const streamer_load_opts changes[] = {
        {.name = "theirs", .flags = STREAMER_LOAD_PIN},
        {.name = "mine", .flags = STREAMER_LOAD_PIN},
        {.name = "theirs", .priority = 7},
        {.name = "mine", .priority = 7},
        {.name = "theirs", .keep_alive_ms = 1},
        {.name = "mine", .keep_alive_ms = 1},
        {.name = "theirs", .drain_timeout_ms = 1},
        {.name = "mine", .drain_timeout_ms = 1},
};

TEST(only_the_owner_changes_a_models_settings, EACH(changes))
{
        loads(OTHER, team, "theirs");
        opts = changes[_i];
        opts.struct_size = sizeof(opts);
        opts.source = team;
        ck_assert_int_eq(do_as(TRAINER, do_load_with_settings, "uid 60103 loaded it"), STREAMER_EPERM);
        ck_assert_int_eq(do_as(TRAINER, do_load_with_settings, "(access.roles[1], "), STREAMER_EPERM);
        loads(TRAINER, team, opts.name); /* asks for nothing */
        expect_permitted(BOSS, "unload", "theirs");
        model_call_as(BOSS, "unload", "mine", NULL);
}

/* ---- roots and buckets ---- */

TEST(a_source_elsewhere_is_denied_by_the_rule)
{
        ck_assert_int_eq(load_as(TRAINER, outside, "outside", "outside the roots of access.roles[1], "),
                         STREAMER_EPERM);
        loads(OTHER, outside, "outside");
        unload("outside");
}

/* Every user may read the file: only the rule's root denies it. */
TEST(a_link_cannot_escape_the_rules_roots)
{
        ck_assert_int_eq(load_as(TRAINER, sneaky, "sneaky", "a link leads out of the roots of "), STREAMER_EPERM);
        loads(OTHER, sneaky, "sneaky");
        unload("sneaky");
}

/* ---- files beside the weights ---- */

static const char *file;

static int do_fetch(void)
{
        streamer_client *c = client_open(&test_daemon);
        void *data;
        uint64_t size;
        return expect_error(c, streamer_fetch(c, as_source, file, &data, &size));
}

static int fetch_as(uid_t uid, const char *the_source, const char *the_file, const char *text)
{
        as_source = the_source;
        file = the_file;
        return do_as(uid, do_fetch, text);
}

TEST(a_file_is_fetched_if_its_weights_could_be_loaded)
{
        file_write(fixture_path("config.json"), "{}", 2);
        file_write(fixture_path("team/config.json"), "{}", 2);
        must(symlink("../config.json", fixture_path("team/linked.json")));
        ck_assert_int_eq(fetch_as(TRAINER, team, "config.json", NULL), 0);
        ck_assert_int_eq(fetch_as(OTHER, outside, "config.json", NULL), 0);
        ck_assert_int_eq(fetch_as(OTHER, team, "linked.json", NULL), 0);
        ck_assert_int_eq(fetch_as(VIEWER, team, "config.json", "requires role 'load'"), STREAMER_EPERM);
        ck_assert_int_eq(fetch_as(TRAINER, outside, "config.json", "outside the roots of access.roles[1], "),
                         STREAMER_EPERM);
        ck_assert_int_eq(fetch_as(TRAINER, team, "linked.json", "a link leads out of the roots of "), STREAMER_EPERM);
        ck_assert_int_eq(fetch_as(TRAINER, "s3://b/p/", "config.json", "below none of its buckets"), STREAMER_EPERM);
}

TEST(a_daemon_of_root_reads_a_file_as_the_caller)
{
        file_write(fixture_path("team/private.json"), "{}", 2);
        must(chmod(fixture_path("team/private.json"), 0600));
        ck_assert_int_eq(fetch_as(TRAINER, team, "private.json", "Permission denied"), STREAMER_EPERM);
        must(chown(fixture_path("team/private.json"), TRAINER, (gid_t)-1));
        ck_assert_int_eq(fetch_as(TRAINER, team, "private.json", NULL), 0);
}
