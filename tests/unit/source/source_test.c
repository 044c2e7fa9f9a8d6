/* SPDX-License-Identifier: Apache-2.0
 *
 * Which paths lead to a file below the roots, and which are refused.
 */
#include "tests/lib/deny_syscalls.h"
#include "tests/unit/source_fixture.h"

#include "daemon/source/roots/roots.h"

#include <sys/socket.h>
#include <sys/syscall.h>

#define NOBODY 65534

/* ---- roots ---- */

/* A test that runs with openat2 and without. */
#define TEST_BOTH(name)                                                                                                \
        static void name##_by_either(void);                                                                            \
        TEST(name, .to = 2)                                                                                            \
        {                                                                                                              \
                if (_i == 1)                                                                                           \
                        deny_openat2(ENOSYS);                                                                          \
                make_stage();                                                                                          \
                name##_by_either();                                                                                    \
        }                                                                                                              \
        static void name##_by_either(void)

TEST_BOTH(a_path_under_no_root_is_refused_whether_it_exists_or_not)
{
        assert_refuses("outside/secret.safetensors", STREAMER_EFAILED, "outside the roots");
        char *there =
                format_text("%.*s", (int)(strlen(error.text) - strlen(at("outside/secret.safetensors)"))), error.text);
        assert_refuses("outside/no-such-file", STREAMER_EFAILED, "outside the roots");
        error.text[strlen(error.text) - strlen(at("outside/no-such-file)"))] = '\0';
        ck_assert_str_eq(error.text, there);
}

TEST_BOTH(a_path_outside_the_roots_of_a_rule_is_not_permitted)
{
        const char *root = at("root");
        open_roots(at("."));
        ck_assert_int_eq(source_roots_new_rule(&roots, &root, 1, "rule 2", roots, &error), 0);
        assert_refuses("outside/secret.safetensors", STREAMER_EPERM, "outside the roots of rule 2 (");
        make_file("root/m.safetensors", "x");
        make_link("root", "other-name");
        assert_opens("other-name/m.safetensors", 1);
        make_link("../outside", "root/away");
        assert_refuses("root/away/secret.safetensors", STREAMER_EPERM,
                       "outside the roots: a link leads out of the roots");
}

/* `below`: the daemon's root; `root`: the rule's. */
static const struct {
        const char *below, *root, *error;
} rules[] = {
        {"root", "root", NULL},
        {"root", "root/team", NULL},
        {"root", "root-link/team", NULL},
        {"root-link", "root/team", NULL},
        {"root", "root/team-link", NULL},
        {"root", "outside", "outside the roots: the daemon opens files below its configured roots only"},
        {"root", "root/away", "outside the roots: a link leads out of the configured roots"},
        {"root", "root/missing", "No such file or directory"},
        {"root", "root/m.safetensors", "Not a directory"},
};

static void check_rule(const char *below, const char *path, const char *what)
{
        const char *root = at(path);
        struct source_roots *opened = NULL;
        open_roots(at(below));
        int r = source_roots_new_rule(&opened, &root, 1, "rule 2", roots, &error);
        if (what != NULL) {
                ck_assert_int_lt(r, 0);
                ck_assert_msg(strstr(error.text, what) != NULL, "%s: %s", path, error.text);
                return;
        }
        ck_assert_msg(r == 0, "%s: %s", path, error.text);
        source_roots_free(roots); /* the rule's have a reference */
        roots = opened;
        assert_opens("root/team/m.safetensors", 1);
        assert_opens("root-link/team/m.safetensors", 1);
        if (strstr(path, "team") != NULL)
                assert_refuses("root/m.safetensors", STREAMER_EPERM, "outside the roots of rule 2 (");
}

TEST_BOTH(a_root_of_a_rule_is_below_one_of_the_daemons_whatever_its_path)
{
        make_folder("root/team");
        make_file("root/m.safetensors", "x");
        make_file("root/team/m.safetensors", "x");
        make_link("root", "root-link");
        make_link("team", "root/team-link");
        make_link("../outside", "root/away");
        for (size_t i = 0; i < ARRAY_SIZE(rules); i++)
                check_rule(rules[i].below, rules[i].root, rules[i].error);
}

/* A user who may write above the rule's root gains no other folder. */
TEST_BOTH(a_link_in_place_of_a_rules_root_does_not_lead_out)
{
        const char *root = at("root/team");
        make_folder("root/team");
        make_file("root/team/m.safetensors", "x");
        open_roots(at("root"));
        ck_assert_int_eq(source_roots_new_rule(&roots, &root, 1, "rule 2", roots, &error), 0);
        must(rename(at("root/team"), at("root/before")));
        make_link("../outside", "root/team");
        assert_opens("root/team/m.safetensors", 1); /* the folder of the start */
        ck_assert_int_lt(open_source("root/team/secret.safetensors"), 0);
        unlink(at("root/team"));
        make_folder("root/team");
        make_file("root/team/new.safetensors", "x");
        assert_opens("root/team/new.safetensors", 1);
}

TEST_BOTH(a_root_is_a_prefix_of_whole_components)
{
        make_file("root-2/m.safetensors", "x");
        assert_refuses("root-2/m.safetensors", STREAMER_EFAILED, "outside the roots");
}

TEST_BOTH(a_link_may_lead_from_one_root_to_another)
{
        /* Out of the inner root, to a file that is below the outer one. */
        make_folder("root/inner");
        make_file("root/m.safetensors", "x");
        make_link("../m.safetensors", "root/inner/link");
        assert_opens("root/inner/link", 1);
        const char *const both[] = {at("root"), at("root/inner")};
        ck_assert_int_eq(source_roots_new(&roots, both, 2, &error), 0);
        assert_opens("root/inner/link", 1);
        assert_object(0, "root/inner/link");
        open_roots(at("root/inner"));
        assert_refuses("root/inner/link", STREAMER_EFAILED, "outside the roots");
}

TEST_BOTH(a_trailing_slash_of_a_root_is_ignored)
{
        make_file("root/m.safetensors", "x");
        open_roots(at("root/"));
        assert_opens("root/m.safetensors", 1);
}

TEST_BOTH(the_whole_system_may_be_a_root)
{
        make_file("root/m.safetensors", "x");
        open_roots("/");
        assert_opens("root/m.safetensors", 1);
}

TEST_BOTH(a_root_itself_may_be_the_model)
{
        make_file("root/model.safetensors", "x");
        assert_opens("root", 1);
        assert_object(0, "root/model.safetensors");
}

TEST_BOTH(a_root_that_is_no_folder_is_named)
{
        const char *missing = at("missing"), *file = at("outside/secret.safetensors"), *relative = "x";
        struct source_roots *none = NULL;
        FAILS_WITH(error, source_roots_new(&none, &missing, 1, &error), STREAMER_EFAILED, missing);
        FAILS_WITH(error, source_roots_new(&none, &file, 1, &error), STREAMER_EFAILED, "Not a directory");
        ck_assert_int_eq(source_roots_new(&none, &relative, 1, &error), STREAMER_EINVAL);
        ck_assert_ptr_null(none);
}

/* ---- links ---- */

TEST_BOTH(a_link_within_the_root_is_followed)
{
        make_file("root/data/model.safetensors", "x");
        make_link("data", "root/link");
        assert_opens("root/link", 1);
        assert_object(0, "root/link/model.safetensors");
        assert_opens("root/link/model.safetensors", 1);
}

static const struct {
        const char *target; /* of the link root/a */
        const char *name;
        int code;
        const char *what;
} refused[] = {
        {"../outside/secret.safetensors", "root/a", STREAMER_EFAILED, "outside the roots"},
        {"../outside", "root/a/secret.safetensors", STREAMER_EFAILED, "outside the roots"},
        {"/proc/version", "root/a", STREAMER_EFAILED, "a link leads out of the configured roots"},
        {"a", "root/a", STREAMER_EFAILED, "loop of links"},
        {"missing", "root/a", STREAMER_ENOENT, "No such file or directory ("},
        {"file", "root/a/below", STREAMER_ENOENT, "Not a directory"},
};

TEST_BOTH(a_link_that_leads_to_no_file_is_refused)
{
        make_file("root/file", "x");
        for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
                make_link(refused[i].target, "root/a");
                assert_refuses(refused[i].name, refused[i].code, refused[i].what);
                must(unlink(at("root/a")));
        }
}

TEST_BOTH(an_absolute_link_is_followed_where_it_leads_below_a_root)
{
        make_file("root/hub/model.safetensors", "x");
        make_link(at("root/hub"), "root/link");
        make_link(at("root/hub/model.safetensors"), "root/hub/file.safetensors");
        make_link(at("root/link"), "root/chain");
        make_link("../root/hub", "root/back");
        assert_opens("root/link", 1);
        assert_object(0, "root/link/model.safetensors");
        assert_opens("root/link/file.safetensors", 1);
        assert_opens("root/chain/model.safetensors", 1);
        assert_opens("root/back/model.safetensors", 1);
}

/* As a home directory that is a link, or the cache below one. */
TEST_BOTH(a_link_above_the_root_is_followed_to_it)
{
        make_file("root/m/model.safetensors", "x");
        make_link("root", "home");
        make_link(at("outside"), "elsewhere");
        make_link("/proc/self/root", "magic");
        assert_opens("home/m", 1);
        assert_object(0, "home/m/model.safetensors");
        assert_opens("home/m/model.safetensors", 1);
        assert_refuses("home/gone", STREAMER_ENOENT, "No such file");
        assert_refuses("elsewhere/secret.safetensors", STREAMER_EFAILED, "outside the roots");
        char *magic = format_text("%s%s", at("magic"), at("root/m"));
        ck_assert_int_eq(source_open(&(struct sources){.roots = roots}, magic, false, &set, &error), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(error.text, "outside the roots"));
}

TEST_BOTH(a_root_that_is_a_link_holds_both_of_its_paths)
{
        make_file("root/m/model.safetensors", "x");
        make_link("m", "root/alias");
        make_link("root", "link");
        open_roots(at("link"));
        assert_opens("link/m", 1);
        assert_opens("root/m", 1);
        assert_object(0, "root/m/model.safetensors");
        assert_opens("root/alias", 1);
        make_link("../outside", "root/out");
        assert_refuses("link/out/secret.safetensors", STREAMER_EFAILED, "outside the roots");
        assert_refuses("root/out/secret.safetensors", STREAMER_EFAILED, "outside the roots");
}

/* As where a file system is mounted there after the start. */
TEST_BOTH(a_root_is_the_folder_that_its_path_leads_to_now)
{
        make_folder("root/now");
        open_roots(at("root/now"));
        ck_assert(!source_root_changed(roots, at("root/now")));
        assert_refuses("root/now/m.safetensors", STREAMER_ENOENT, "No such file");
        must(rename(at("root/now"), at("root/before")));
        make_file("root/now/m.safetensors", "x");
        ck_assert(source_root_changed(roots, at("root/now")));
        assert_opens("root/now/m.safetensors", 1);
}

/* Every rename on the machine may restart a lookup of "..". */
static atomic_bool stop_renaming;
static atomic_uint renames;

static void *rename_repeatedly(void *name)
{
        char *one = at(name), *two = format_text("%s-2", one);
        while (!stop_renaming) {
                must(rename(one, two));
                must(rename(two, one));
                renames++;
        }
        return NULL;
}

TEST_BOTH(concurrent_renames_do_not_fail_an_open)
{
        pthread_t thread;
        static char name[] = "outside";
        make_folder("root/snapshot");
        make_file("root/blobs/x", "x");
        make_link("../blobs/x", "root/snapshot/model.safetensors");
        pthread_create(&thread, NULL, rename_repeatedly, name);
        while (renames < 3000) {
                assert_opens("root/snapshot", 1);
                source_set_deinit(&set);
        }
        stop_renaming = true;
        pthread_join(thread, NULL);
}

/* ---- paths that are no files ---- */

/* Opening it for reading would wait for a writer until the test's time limit. */
TEST_BOTH(a_fifo_is_refused_without_waiting)
{
        must(mkfifo(at("root/fifo.safetensors"), 0644));
        assert_refuses("root/fifo.safetensors", STREAMER_EFAILED, "a FIFO, not a regular file");
        assert_refuses("root", STREAMER_ENOENT, "no safetensors files in this folder");
}

/* As another user, if the tests run as root. */
static int open_as_nobody(const char *name)
{
        syscall(SYS_setfsuid, NOBODY);
        int r = open_source(name);
        syscall(SYS_setfsuid, geteuid());
        return r;
}

TEST_BOTH(an_unreadable_file_is_denied)
{
        make_file("root/m.safetensors", "x");
        must(chmod(at("root/m.safetensors"), geteuid() == 0 ? 0600 : 0));
        FAILS_WITH(error, open_as_nobody("root/m.safetensors"), STREAMER_EPERM, "Permission denied");
}

TEST_BOTH(an_unreadable_folder_is_denied)
{
        must(chmod(at("root"), geteuid() == 0 ? 0711 : 0111));
        ck_assert_int_eq(open_as_nobody("root"), STREAMER_EPERM);
        must(chmod(at("root"), 0755));
}

TEST_BOTH(a_readable_file_opens_for_another_user_too)
{
        make_file("root/m.safetensors", "x");
        ck_assert_msg(open_as_nobody("root/m.safetensors") == 0, "%s", error.text);
}

/* ---- nothing leaks ---- */

TEST_BOTH(every_outcome_closes_its_descriptors)
{
        static const char *const sources[] = {"root", "root/good", "root/missing", "root/half", "root/fifo"};
        make_file("root/good/a.safetensors", "x");
        make_file("root/good/b.safetensors", "x");
        make_file("root/half/a.safetensors", "x");
        make_link("gone", "root/half/b.safetensors");
        must(mkfifo(at("root/fifo"), 0644));
        unsigned before = count_open_fds();
        for (size_t i = 0; i < sizeof(sources) / sizeof(sources[0]); i++) {
                open_source(sources[i]);
                source_set_deinit(&set);
                ck_assert_uint_eq(count_open_fds(), before);
        }
}
