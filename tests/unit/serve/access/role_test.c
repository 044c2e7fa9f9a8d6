/* SPDX-License-Identifier: Apache-2.0
 *
 * Access rules: the role of each user, the verbs of each role, and the sources that it covers.
 */
#include "daemon/serve/access/role.h"

#include "daemon/base/util.h"
#include "daemon/source/source.h"
#include "tests/lib/suite.h"

#define SOCKET_GROUP 900

static struct error error;

static struct role_grant ask(const struct roles *roles, uid_t uid, gid_t gid, gid_t other)
{
        const struct caller caller = {.uid = uid, .gid = gid, .groups = {other}, .n_groups = 1};
        return role_find(roles, &caller, SOCKET_GROUP);
}

static int permits(const struct role_grant *grant, enum verb verb)
{
        error = (struct error){0};
        return role_check(grant, 7, verb, &error);
}

/* ---- the default ---- */

static const struct roles no_rules = {.given = false};

TEST(by_default_only_members_of_the_sockets_group_may_load)
{
        ck_assert_int_eq(ask(&no_rules, 7, SOCKET_GROUP, 1).role, ROLE_LOAD);
        ck_assert_int_eq(ask(&no_rules, 7, 1, SOCKET_GROUP).role, ROLE_LOAD);
        ck_assert_int_eq(ask(&no_rules, 7, 1, 2).role, ROLE_NONE);
        ck_assert_int_eq(ask(&no_rules, 0, 1, 2).role, ROLE_ADMIN);
}

TEST(a_denial_by_the_default_names_it)
{
        struct role_grant grant = ask(&no_rules, 7, 1, 2);
        FAILS_SAYING(error, permits(&grant, VERB_list), STREAMER_EPERM,
                     "list: uid 7 has no role (the default: the socket's group 900 may load)");
}

/* ---- rules ---- */

static uint32_t seven[] = {7}, eight_nine[] = {8, 9};
static char *some_roots[] = {(char[]){"/"}};
static char *some_buckets[] = {(char[]){"s3://ml"}, (char[]){"https://h/x/"}};
static struct role_rule rule_rows[] = {
        {.role = ROLE_ATTACH, .users = {.v = seven, .n = 1}, .line = 3},
        {.role = ROLE_LOAD,
         .users = {.v = seven, .n = 1},
         .groups = {.v = eight_nine, .n = 2},
         .roots = {.v = some_roots, .n = 1, .given = true},
         .buckets = {.v = some_buckets, .n = 2, .given = true},
         .line = 5},
        {.role = ROLE_LOAD, .groups = {.v = seven, .n = 1}, .roots = {.given = true}, .line = 8},
};
static struct roles rules = {.rules = rule_rows, .n = ARRAY_SIZE(rule_rows), .given = true, .file = "f.yaml"};

static void open_rules(void)
{
        static const char *const all = "/";
        struct source_roots *roots;
        ck_assert_int_eq(source_roots_new(&roots, &all, 1, &error), 0);
        ck_assert_int_eq(roles_open(&rules, roots, &error), 0);
        source_roots_free(roots);
}

FIXTURE(.each = {open_rules, NULL});

static const struct {
        uid_t uid;
        gid_t gid, other;
        int rule; /* -1: none */
} callers[] = {
        {7, 8, 9, 0},
        {100, 9, 1, 1},
        {100, 1, 8, 1},
        {100, 7, 1, 2},
        {8, 1, 2, -1}, /* a user is not a group of the same number */
        {100, SOCKET_GROUP, SOCKET_GROUP, -1},
};

TEST(the_first_rule_that_lists_the_user_or_a_group_decides, EACH(callers))
{
        struct role_grant grant = ask(&rules, callers[_i].uid, callers[_i].gid, callers[_i].other);
        const struct role_rule *rule = callers[_i].rule < 0 ? NULL : &rule_rows[callers[_i].rule];
        ck_assert_ptr_eq(grant.rule, rule);
        ck_assert_int_eq(grant.role, rule != NULL ? rule->role : ROLE_NONE);
}

TEST(a_user_without_a_rule_has_no_role_despite_the_default)
{
        struct role_grant grant = ask(&rules, 100, SOCKET_GROUP, SOCKET_GROUP);
        ck_assert_int_eq(grant.role, ROLE_NONE);
        FAILS_SAYING(error, permits(&grant, VERB_ping), STREAMER_EPERM,
                     "ping: uid 7 has no role (access.roles, f.yaml)");
}

TEST(root_always_has_access)
{
        uint32_t anyone = ROLE_ANYONE;
        struct role_rule row = {.role = ROLE_ATTACH, .users = {.v = &anyone, .n = 1}};
        const struct roles all = {.rules = &row, .n = 1, .given = true};
        ck_assert_int_eq(ask(&all, 0, 1, 1).role, ROLE_ADMIN);
        ck_assert_int_eq(ask(&all, 1, 1, 1).role, ROLE_ATTACH);
}

/* ---- verbs ---- */

TEST(each_role_has_its_verbs_and_no_others)
{
        for (int role = ROLE_NONE; role <= ROLE_ADMIN; role++) {
                struct role_grant grant = {.role = (enum role)role, .roles = &no_rules};
                for (int v = 0; v < VERB_COUNT; v++)
                        ck_assert_int_eq(permits(&grant, (enum verb)v),
                                         (int)role_needed((enum verb)v) <= role ? 0 : STREAMER_EPERM);
        }
}

TEST(a_denied_verb_names_roles_and_rule)
{
        struct role_grant grant = ask(&rules, 7, 1, 1);
        ck_assert_int_eq(permits(&grant, VERB_attach), 0);
        ck_assert_int_eq(permits(&grant, VERB_load), STREAMER_EPERM);
        ck_assert_str_eq(error.text, "load: requires role 'load'; uid 7 has role 'attach' (access.roles[0], f.yaml:3)");
}

/* The role in the row of the page that holds `verb` in backquotes. */
static enum role documented(const char *page, const char *verb)
{
        char *quoted = format_text("`%s`", verb), line[512];
        enum role role = ROLE_ADMIN;
        for (const char *at = page; *at != '\0'; at += strcspn(at, "\n"), at += *at == '\n') {
                snprintf(line, sizeof(line), "%.*s", (int)strcspn(at, "\n"), at);
                char *last = strstr(line, " | ");
                if (strncmp(line, "| `", 3) != 0 || last == NULL || strstr(line, quoted) == NULL)
                        continue;
                last[3 + strcspn(last + 3, ", ")] = '\0';
                if (role_parse(last + 3) != ROLE_NONE)
                        role = role_parse(last + 3);
        }
        return role;
}

TEST(the_page_shows_the_role_of_every_verb)
{
        char *page = file_read("docs/access.md", NULL);
        for (int v = 0; v < VERB_COUNT; v++)
                ck_assert_msg(documented(page, verb_desc((enum verb)v)->name) == role_needed((enum verb)v),
                              "%s: docs/access.md shows another role", verb_desc((enum verb)v)->name);
}

/* ---- sources ---- */

static const struct {
        const char *source;
        bool allowed;
} sources[] = {
        {"/etc/passwd", true}, /* where it is opened that is decided */
        {"s3://ml/x", true},
        {"s3://ml", true},
        {"s3://ml/../other", true}, /* a key, literally */
        {"s3://ml-private/x", false},
        {"s3://m", false},
        {"https://h/x/m.safetensors", true},
        {"https://h/x/.hidden/m", true},
        {"https://h/x/..m", true},
        {"https://h/xy", false},
        {"https://h/x/../y", false},
        {"https://h/x/..", false},
        {"https://h/x/./m", false},
        {"https://h/x/..?q", false},
        {"https://h/x/%2e%2E/y", false},
        {"https://h/x/a%2Fb", false},
        {"https://h/x/\\..\\y", false},
        {"https://h.evil/x/m", false},
        {"http://h/x/m", false},
        {"hf://org/name", false},
};

TEST(a_rule_with_roots_and_buckets_lets_load_below_them, EACH(sources))
{
        struct role_grant grant = ask(&rules, 100, 8, 1);
        error = (struct error){0};
        int r = role_check_source(&grant, sources[_i].source, &error);
        ck_assert_msg((r == 0) == sources[_i].allowed, "%s", sources[_i].source);
        if (r != 0)
                ck_assert(r == STREAMER_EPERM && strstr(error.text, "(access.roles[1], f.yaml:5)") != NULL);
}

TEST(an_empty_list_permits_nothing_and_a_missing_one_everything)
{
        struct role_grant grant = ask(&rules, 100, 7, 1);
        ck_assert_ptr_nonnull(grant.roots); /* below which no path is */
        ck_assert_int_eq(role_check_source(&grant, "s3://anything/x", &error), 0);
}

TEST(the_roots_of_a_rule_that_cannot_be_opened_are_named_with_the_rule)
{
        char *missing[] = {(char[]){"/no/such/folder"}};
        static const char *const all = "/";
        struct role_rule row = {.role = ROLE_LOAD, .roots = {.v = missing, .n = 1, .given = true}, .line = 4};
        struct roles wrong = {.rules = &row, .n = 1, .given = true, .file = "f.yaml"};
        struct source_roots *roots;
        ck_assert_int_eq(source_roots_new(&roots, &all, 1, &error), 0);
        FAILS_SAYING(error, roles_open(&wrong, roots, &error), STREAMER_ENOENT,
                     "access.roles[0], f.yaml:4: roots: No such file or directory (/no/such/folder)");
}

TEST(without_a_rule_every_source_is_permitted)
{
        struct role_grant grant = ask(&no_rules, 7, SOCKET_GROUP, 1);
        ck_assert_int_eq(role_check_source(&grant, "/etc/passwd", &error), 0);
        ck_assert_int_eq(role_check_source(&grant, "s3://x/y", &error), 0);
}
