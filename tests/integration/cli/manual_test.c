/* SPDX-License-Identifier: Apache-2.0
 *
 * The manual covers every verb, flag, setting and function; help has an example for each verb.
 */
#include "daemon/config/setting.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/suite.h"

/* All but one are generated. */
static const char *page_path(const char *name)
{
        bool made = strcmp(name, "streamerctl.1") != 0;
        return made ? build_path(name) : format_text("docs/man/%s", name);
}

TEST(the_manual_knows_every_verb_flag_setting_and_function)
{
        char *said, *keys = "";
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].key != NULL && strcmp(settings[i].key, "access.roles") != 0)
                        keys = format_text("%s %s", keys, settings[i].key);
        int status = shell(&said, "python3 tests/lib/manual_pages.py %s%s", build_path(""), keys);
        ck_assert_msg(status == 0 && *said == '\0', "%s", said);
}

TEST(help_of_a_verb_is_the_same_by_its_flag)
{
        ck_assert_str_eq(ctl_says(NULL, 0, "", "load", "--help", NULL), ctl_says(NULL, 0, "", "help", "load", NULL));
}

TEST(the_help_of_every_verb_fits_into_100_columns)
{
        char *said;
        int status =
                shell(&said,
                      "ctl=%s; for verb in $($ctl --help | awk '/^  [a-z]/ {print $1}'); do $ctl $verb --help; done |"
                      " awk 'length > 100; END {exit NR < 500}'",
                      build_path("streamerctl"));
        ck_assert_msg(status == 0 && *said == '\0', "%s", said);
}

/* ---- the README ---- */

/* Against the header and the library of this build. */
TEST(the_example_of_the_readme_compiles, .slow = true)
{
        char *text = file_read("README.md", NULL), *start = strstr(text, "```c\n");
        ck_assert_ptr_nonnull(start);
        char *end = strstr(start + 5, "```");
        ck_assert_ptr_nonnull(end);
        file_write(suite_path("example.c"), start + 5, (size_t)(end - start - 5));
        char *said;
        int status = shell(&said, "cc -Wall -Wextra -Werror -Iinclude -o '%s' '%s' %s", suite_path("example"),
                           suite_path("example.c"), build_path("libstreamer-client.so"));
        ck_assert_msg(status == 0, "%s", said);
}

static const char *const pages[] = {"streamerctl.1", "streamerd.8", "streamerd.yaml.5", "libstreamer-client.3"};

TEST(a_page_is_formatted_without_a_warning, EACH(pages))
{
        if (!command_exists("man") || !command_exists("groff"))
                SKIP("man or groff is not installed");
        char *said;
        int status = shell(&said, "LC_ALL=C.UTF-8 MANWIDTH=90 man --warnings -l %s >/dev/null", page_path(pages[_i]));
        ck_assert_msg(status == 0 && *said == '\0', "%s: %s", pages[_i], said);
}
