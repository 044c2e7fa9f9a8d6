/* SPDX-License-Identifier: Apache-2.0
 *
 * The manual covers every verb, flag, setting and function; help has an example for each verb; and all of it is
 * installed.
 */
#include "daemon/config/flags.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/daemon.h"
#include "tests/lib/suite.h"

/* All but one are generated. */
static const char *page_path(const char *name)
{
        bool made = strcmp(name, "streamerctl.1") != 0;
        return made ? build_path(name) : format_text("docs/man/%s", name);
}

/* A page without the backslashes and font changes of its source. */
static char *page(const char *name)
{
        char *text = file_read(page_path(name), NULL), *to = text;
        for (const char *from = text; *from != '\0';) {
                if (strncmp(from, "\\f", 2) == 0 && from[2] != '\0')
                        from += 3;
                else if (*from == '\\')
                        from++;
                else
                        *to++ = *from++;
        }
        *to = '\0';
        return text;
}

static void knows(const char *text, const char *name, const char *word)
{
        size_t len = strlen(word);
        for (const char *at = text; (at = strstr(at, word)) != NULL; at++) {
                char before = at == text ? ' ' : at[-1];
                bool whole = !isalnum((unsigned char)before) && before != '_' && before != '-' &&
                             !isalnum((unsigned char)at[len]) && at[len] != '_' && at[len] != '-';
                if (whole)
                        return;
        }
        ck_abort_msg("%s does not know %s", name, word);
}

/* ---- streamerctl's help ---- */

static char *help(const char *verb)
{
        struct ctl r;
        ctl(&r, NULL, "help", verb, NULL);
        ck_assert_msg(r.code == 0, "help %s: %s", verb ? verb : "", r.err);
        free(r.err);
        return r.out;
}

/* Calls each with the first word of each line between a title and an empty line. */
static size_t each_in(char *text, const char *title, void (*each)(const char *word, void *arg), void *arg)
{
        size_t n = 0;
        char *line = strstr(text, title);
        if (line == NULL)
                return 0;
        for (line += strlen(title); *line != '\n' && *line != '\0'; line = strchr(line, '\n') + 1) {
                char word[64];
                if (strncmp(line, "   ", 3) == 0 || sscanf(line, " %63[^ ,\n]", word) != 1)
                        continue;
                each(word, arg);
                n++;
        }
        return n;
}

struct section {
        char *text; /* of the page */
        const char *verb;
};

static void flag_in_section(const char *flag, void *arg)
{
        const struct section *s = arg;
        knows(s->text, s->verb, flag);
}

/* The verb's own section of the page has its flags; its help has an example that runs the verb. */
static void verb_in_page(const char *verb, void *arg)
{
        char *start = format_text(".SS \"%s", verb), *text = help(verb), *want = format_text("streamerctl %s", verb);
        char *at = strstr(arg, start), *end;
        ck_assert_msg(at != NULL && strchr(" \"", at[strlen(start)]) != NULL, "streamerctl.1 has no section of %s",
                      verb);
        struct section section = {.text = strdup(at + 3), .verb = verb};
        if ((end = strstr(section.text, "\n.S")) != NULL)
                *end = '\0';
        each_in(text, "\nFlags:\n", flag_in_section, &section);
        char *examples = strstr(text, "\nExamples:\n");
        ck_assert_msg(examples != NULL && strstr(examples, want) != NULL, "help %s has no example", verb);
        free(section.text);
        free(start);
        free(text);
        free(want);
}

TEST(streamerctl_1_knows_every_verb_and_flag)
{
        char *text = page("streamerctl.1"), *overview = help(NULL);
        struct section whole = {.text = text, .verb = "streamerctl.1"};
        ck_assert_uint_gt(each_in(overview, "Verbs:\n", verb_in_page, text), 10);
        ck_assert_uint_gt(each_in(overview, "Flags of every verb:\n", flag_in_section, &whole), 5);
}

TEST(help_of_a_verb_is_the_same_by_its_flag)
{
        struct ctl r;
        char *text = help("load");
        ctl(&r, NULL, "load", "--help", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_str_eq(r.out, text);
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

/* ---- the other pages ---- */

TEST(streamerd_8_knows_every_flag_and_variable)
{
        char *text = page("streamerd.8"), *usage = config_usage();
        size_t n = 0;
        for (const char *at = usage; (at = strstr(at, "\n  ")) != NULL; at++) {
                char word[64];
                if (sscanf(at, " %63[-A-Z0-9_a-z]", word) != 1 || (word[0] != '-' && !isupper((unsigned char)word[0])))
                        continue;
                knows(text, "streamerd.8", word);
                n++;
        }
        ck_assert_uint_gt(n, 20);
}

TEST(streamerd_yaml_5_knows_every_setting)
{
        char *text = page("streamerd.yaml.5");
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].key != NULL && strcmp(settings[i].key, "access.roles") != 0)
                        knows(text, "streamerd.yaml.5", settings[i].key);
}

TEST(libstreamer_client_3_knows_every_function)
{
        char *text = page("libstreamer-client.3"), *header = file_read("include/streamer/client.h", NULL);
        size_t n = 0;
        for (const char *at = header; (at = strstr(at, "STREAMER_API ")) != NULL; at++) {
                char declared[128], *name;
                if (sscanf(at, "STREAMER_API %127[^(]", declared) != 1 || strstr(at, "STREAMER_API __") == at)
                        continue;
                name = strrchr(declared, ' ');
                name += 1 + (name[1] == '*');
                if (strncmp(name, "streamer_", 9) != 0)
                        continue;
                knows(text, "libstreamer-client.3", name);
                n++;
        }
        ck_assert_uint_gt(n, 25);
}

static const char *const pages[] = {"streamerctl.1", "streamerd.8", "streamerd.yaml.5", "libstreamer-client.3"};

TEST(a_page_is_formatted_without_a_warning, .to = 4)
{
        if (!command_exists("man") || !command_exists("groff"))
                SKIP("man or groff is not installed");
        char *said;
        int status = shell(&said, "LC_ALL=C.UTF-8 MANWIDTH=90 man --warnings -l %s >/dev/null", page_path(pages[_i]));
        ck_assert_msg(status == 0 && *said == '\0', "%s: %s", pages[_i], said);
}

/* ---- installed ---- */

/* Only files that are already built: a test must not build them. */
static void install(const char *variables)
{
        char *said;
        int status = shell(&said, "MAKEFLAGS= make -s install DEPS=0 BUILD=%s DESTDIR=%s %s -o all", build_path(""),
                           suite_path("root"), variables);
        ck_assert_msg(status == 0, "%s", said);
}

TEST(all_manual_pages_are_installed)
{
        static const char *const files[] = {
                "bin/streamerctl",
                "bin/streamerd",
                "include/streamer/client.h",
                "lib/libstreamer-client.so.0",
                "lib/systemd/system/streamerd.service",
                "lib/systemd/system/streamerd.socket",
                "lib/sysusers.d/streamerd.conf",
                "lib/tmpfiles.d/streamerd.conf",
                "share/man/man1/streamerctl.1",
                "share/man/man8/streamerd.8",
                "share/man/man5/streamerd.yaml.5",
                "share/man/man3/libstreamer-client.3",
                "share/bash-completion/completions/streamerctl",
                "share/zsh/site-functions/_streamerctl",
                "share/fish/vendor_completions.d/streamerctl.fish",
                "share/bash-completion/completions/streamerd",
                "share/fish/vendor_completions.d/streamerd.fish",
                "share/streamerd/streamerd.yaml",
                "share/doc/streamerd/alerts.yaml",
                "share/doc/streamerd/grafana-dashboard.json",
                "share/doc/streamerd/nginx-slice-cache.conf",
                "share/doc/streamerd/sources.md",
        };
        install("PREFIX=/usr");
        for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
                ck_assert_msg(access(suite_path("root/usr/%s", files[i]), R_OK) == 0, "%s", files[i]);
}

TEST(a_distribution_places_libraries_units_and_settings)
{
        install("PREFIX=/opt/s LIBDIR=/opt/s/lib/aarch64-linux-gnu UNITDIR=/units SYSCONFDIR=/opt/etc");
        ck_assert_int_eq(access(suite_path("root/opt/s/lib/aarch64-linux-gnu/libstreamer-client.so"), R_OK), 0);
        char *unit = file_read(suite_path("root/units/streamerd.service"), NULL);
        ck_assert_ptr_nonnull(
                strstr(unit, "ExecStart=/opt/s/bin/streamerd --config /opt/etc/streamerd/streamerd.yaml"));
        char *tmpfiles = file_read(suite_path("root/opt/s/lib/tmpfiles.d/streamerd.conf"), NULL);
        ck_assert_ptr_nonnull(strstr(tmpfiles, "/opt/etc/streamerd/streamerd.yaml"));
        ck_assert_ptr_nonnull(strstr(tmpfiles, "/opt/s/share/streamerd/streamerd.yaml"));
        ck_assert_ptr_null(strstr(tmpfiles, " /etc"));
}
