/* SPDX-License-Identifier: Apache-2.0
 *
 * `access` in the configuration: every key of a rule, and every error.
 */
#include "daemon/config/config.h"
#include "daemon/config/settings/setting.h"

#include "daemon/base/util.h"
#include "tests/lib/suite.h"

static struct config config;
static struct error error;

static void begin(void)
{
        config_init(&config);
        error = (struct error){0};
}

static void end(void)
{
        config_deinit(&config);
}

static int parse(const char *yaml)
{
        return config_parse_yaml(&config, "f.yaml", yaml, strlen(yaml), &error);
}

static const struct role_rule *parse_one(const char *yaml)
{
        ck_assert_msg(parse(yaml) == 0, "%s", error.text);
        ck_assert_uint_ge(config.access.n, 1);
        return &config.access.rules[0];
}

FIXTURE(.each = {begin, end});

TEST(without_access_rules_the_default_applies)
{
        ck_assert_int_eq(parse("roots: [/a]"), 0);
        ck_assert(!config.access.given);
        ck_assert_int_eq(parse("access: {}"), 0);
        ck_assert(!config.access.given);
}

TEST(an_empty_list_of_rules_is_no_default)
{
        ck_assert_int_eq(parse("access: {roles: []}"), 0);
        ck_assert(config.access.given);
        ck_assert_uint_eq(config.access.n, 0);
}

TEST(every_key_of_a_rule_is_read)
{
        const struct role_rule *rule =
                parse_one("access:\n  roles:\n    - role: load\n      users: [root, 7]\n      groups: [root, '8']\n"
                          "      roots: [/srv/a/, /srv//b]\n      buckets: ['s3://b/']\n      connections: 1\n"
                          "      leases: 2\n      loads: 3\n      models: 5\n      bytes: 4GiB\n");
        ck_assert_int_eq(rule->role, ROLE_LOAD);
        ck_assert_uint_eq(rule->line, 3);
        ck_assert_uint_eq(rule->users.n, 2);
        ck_assert_uint_eq(rule->users.v[0], 0);
        ck_assert_uint_eq(rule->users.v[1], 7);
        ck_assert_uint_eq(rule->groups.v[1], 8);
        ck_assert_str_eq(rule->roots.v[0], "/srv/a");
        ck_assert_str_eq(rule->roots.v[1], "/srv/b");
        ck_assert_str_eq(rule->buckets.v[0], "s3://b/");
        ck_assert_uint_eq(rule->max[QUOTA_CONNECTIONS], 1);
        ck_assert_uint_eq(rule->max[QUOTA_LEASES], 2);
        ck_assert_uint_eq(rule->max[QUOTA_LOADS], 3);
        ck_assert_uint_eq(rule->max[QUOTA_MODELS], 5);
        ck_assert_uint_eq(rule->max[QUOTA_BYTES], 4 * GiB);
        ck_assert_str_eq(config.access.file, "f.yaml");
}

TEST(a_single_value_is_a_list_of_one)
{
        const struct role_rule *rule = parse_one("access: {roles: [{role: attach, users: '*'}]}");
        ck_assert(rule->users.all);
        ck_assert(!rule->roots.given);
        ck_assert(!rule->buckets.given);
}

TEST(an_empty_list_is_returned)
{
        const struct role_rule *rule = parse_one("access: {roles: [{role: load, users: 1, buckets: []}]}");
        ck_assert(rule->buckets.given);
        ck_assert_uint_eq(rule->buckets.n, 0);
}

#define RULE(text) "access: {roles: [{" text "}]}"
#define AT(key) "f.yaml:1: access.roles[0]" key ": "

static const struct {
        const char *yaml, *what;
} wrong[] = {
        {"access: 1", "f.yaml:1: access: takes keys of its own"},
        {"access: {rules: []}", "f.yaml:1: access.rules: unknown key"},
        {"access: {roles: 1}", "f.yaml:1: access.roles: takes a list"},
        {"access: {roles: [load]}", AT("") "takes keys of its own"},
        {RULE("users: 1"), AT("") "has no 'role'"},
        {RULE("role: load"), AT("") "names no user: it requires 'users' or 'groups'"},
        {RULE("role: load, users: []"), AT("") "names no user"},
        {RULE("role: boss, users: 1"), AT(".role") "'boss' is not attach, load or admin"},
        {RULE("role: none, users: 1"), AT(".role") "'none' is not attach, load or admin"},
        {RULE("role: [load], users: 1"), AT(".role") "takes a single value"},
        {RULE("role: load, role: load, users: 1"), AT(".role") "given twice"},
        {RULE("role: load, user: 1"), AT(".user") "unknown key"},
        {RULE("role: load, users: no-such-user-here"), AT(".users") "there is no user 'no-such-user-here'"},
        {RULE("role: load, groups: no-such-group-here"), AT(".groups") "there is no group 'no-such-group-here'"},
        {RULE("role: load, users: -1"), AT(".users") "there is no user '-1'"},
        {RULE("role: load, users: 4294967295"), AT(".users") "'4294967295' is no user's number"},
        {RULE("role: load, users: [[1]]"), AT(".users") "takes a list of single values"},
        {RULE("role: load, users: {a: 1}"), AT(".users") "takes a list of single values"},
        {RULE("role: load, users: 1, roots: [srv]"), AT(".roots") "'srv' is not an absolute path"},
        {RULE("role: load, users: 1, roots: [/srv/../etc]"), AT(".roots") "/srv/../etc: '..' is not allowed"},
        {RULE("role: load, users: 1, buckets: [bucket]"), AT(".buckets") "'bucket' is not the beginning of a URI"},
        {RULE("role: load, users: 1, buckets: ['://x']"), AT(".buckets") "'://x' is not the beginning of a URI"},
        {RULE("role: load, users: 1, loads: 0"), AT(".loads") "0 is less than 1"},
        {RULE("role: load, users: 1, bytes: 1GB"), AT(".bytes") "'1GB' is not a size"},
};

TEST(an_error_in_a_rule_names_line_and_key, EACH(wrong))
{
        ck_assert_int_eq(parse(wrong[_i].yaml), STREAMER_EINVAL);
        ck_assert_msg(strstr(error.text, wrong[_i].what) != NULL, "%s", error.text);
}

TEST(a_rules_root_must_be_below_a_root_of_the_daemon)
{
        char *path = suite_path("rules.yaml");
        const char *yaml = "access: {roles: [{role: load, users: 1, roots: [/srv/a, /elsewhere]}]}";
        char *argv[] = {(char[]){"streamerd"}, (char[]){"--config"}, path, (char[]){"--device=host"},
                        (char[]){"--root=/srv/"}};
        enum config_action action;
        file_write(path, yaml, strlen(yaml));
        ck_assert_int_eq(config_load(&config, ARRAY_SIZE(argv), argv, &action, &error), STREAMER_EINVAL);
        ck_assert_msg(
                strstr(error.text, ":1: access.roles[0].roots: /elsewhere is below none of the daemon's own roots"),
                "%s", error.text);
}
