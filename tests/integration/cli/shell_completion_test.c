/* SPDX-License-Identifier: Apache-2.0
 *
 * The candidates that `streamerctl complete` and `streamerd --complete` print, and how bash, zsh and fish use them.
 */
#include "tests/lib/streamerctl.h"
#include "tests/lib/fixture.h"
#include "tests/lib/suite.h"
#include "tests/lib/terminal.h"

#define AWKWARD "org/it's a \"model\":1"

static void begin(void)
{
        fixture_begin(NULL);
        streamer_client *c = client_open(&test_daemon);
        client_load(c, fixture_write(model_mixed(3, 1 << 18), "awkward.safetensors"), AWKWARD);
        client_load(c, fixture_path("awkward.safetensors"), "two\nlines");
        client_load(c, fixture_path("awkward.safetensors"), "turned\xe2\x80\xae");
        streamer_close(c);
}

/* The candidates, each with a line break; the daemon is named by --socket among the words. */
static char *offered(const char *const *words)
{
        const char *args[16] = {"complete", "--", "--socket", test_daemon.socket};
        struct ctl r;
        size_t n = 4;
        while (*words)
                args[n++] = *words++;
        ctl_v(&r, NULL, args);
        ck_assert_int_eq(r.code, 0);
        ck_assert_str_eq(r.err, "");
        char *out = must_alloc(r.out_size + 1), *to = out;
        for (const char *line = r.out; *line;) {
                size_t len = strcspn(line, "\n"), word = strcspn(line, "\t\n");
                memcpy(to, line, word);
                to += word;
                *to++ = '\n';
                line += len + 1;
        }
        return out;
}
#define OFFERED(...) offered((const char *const[]){__VA_ARGS__, NULL})

/* The first output that is as expected, or the last one: a daemon that does not answer soon is not waited for. */
#define REPEATED(is_expected, ...)                                                                                     \
        __extension__({                                                                                                \
                uint64_t deadline = clock_ns() + PATIENCE_MS * UINT64_C(1000000);                                      \
                const char *got = (__VA_ARGS__);                                                                       \
                while (!(is_expected) && clock_ns() < deadline)                                                        \
                        got = (__VA_ARGS__);                                                                           \
                got;                                                                                                   \
        })
#define PRINTS(expected, ...) ck_assert_str_eq(REPEATED(strcmp(got, (expected)) == 0, __VA_ARGS__), (expected))
#define PRINTS_LINE(line, ...) ck_assert_ptr_nonnull(strstr(REPEATED(strstr(got, (line)) != NULL, __VA_ARGS__), (line)))

FIXTURE(.all = {begin, fixture_end});

TEST(verbs_are_offered_by_their_beginning)
{
        ck_assert_str_eq(OFFERED("sta"), "status\n");
        ck_assert_str_eq(OFFERED("no-such"), "");
        const char *all = OFFERED("");
        ck_assert_ptr_nonnull(strstr(all, "load\n"));
        ck_assert_ptr_nonnull(strstr(all, "top\n"));
        ck_assert_ptr_null(strstr(all, "complete\n")); /* not for people */
}

TEST(models_are_offered_where_a_model_is_expected)
{
        PRINTS("witness\n", OFFERED("show", "wit"));
        PRINTS(AWKWARD "\nwitness\n", OFFERED("unload", "--drain", ""));
        PRINTS(AWKWARD "\nwitness\n", OFFERED("unload", "--", ""));
        PRINTS(AWKWARD "\n", OFFERED("show", "witness", "")); /* several, each once */
        ck_assert_str_eq(OFFERED("show", "witness", "w"), "");
        ck_assert_str_eq(OFFERED("cancel", "witness", ""), "");
        PRINTS("witness\n", OFFERED("rm", "wit")); /* an alias */
        PRINTS("witness\n", OFFERED("run", "wit"));
        ck_assert_str_eq(OFFERED("run", "witness", "--", ""), ":files\n");
        ck_assert_str_eq(OFFERED("status", ""), "");
}

TEST(tensors_of_the_named_model_are_offered)
{
        const char *name = fixture_witness->tensors[0].name;
        char *want = format_text("%s\n", name);
        PRINTS_LINE(want, OFFERED("cat", "witness", ""));
        ck_assert_str_eq(OFFERED("cat", "nobody", ""), "");
}

TEST(flags_of_the_verb_and_of_all_are_offered)
{
        ck_assert_str_eq(OFFERED("unload", "--dr"), "--dry-run\n--drain\n--drain-timeout\n");
        ck_assert_str_eq(OFFERED("list", "--dr"), "");
        ck_assert_str_eq(OFFERED("list", "--js"), "--json\n");
        ck_assert_str_eq(OFFERED("list", "--", "--js"), "");
}

TEST(values_of_flags_are_offered)
{
        ck_assert_str_eq(OFFERED("list", "-o", ""), "table\nwide\njson\n");
        ck_assert_str_eq(OFFERED("list", "--output", "w"), "wide\n");
        ck_assert_str_eq(OFFERED("load", "--verify", "s"), "sha256\n");
        PRINTS("host\n", OFFERED("load", "--device", ""));
        ck_assert_str_eq(OFFERED("load", "--name", ""), "");
        ck_assert_str_eq(OFFERED("help", "sta"), "status\n");
}

TEST(paths_are_left_to_the_shell)
{
        ck_assert_str_eq(OFFERED("load", ""), ":files\n");
        ck_assert_str_eq(OFFERED("--socket", ""), ":files\n");
}

TEST(without_a_daemon_no_names_and_no_errors_are_printed)
{
        struct ctl r;
        ctl(&r, suite_path("nobody"), "complete", "--", "show", "", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_str_eq(r.out, "");
        ck_assert_str_eq(r.err, "");
}

/* ---- the shells ---- */

/* The output of a script, with the programs on its PATH. */
static char *output(const char *command)
{
        char *out;
        int status =
                shell(&out, "PATH=\"%s:$PATH\" STREAMERD_SOCKET=%s %s", build_path(""), test_daemon.socket, command);
        ck_assert_msg(status == 0, "%s: %s", command, out);
        return out;
}

/* Bash, as readline calls it: the line, its words, and which of them is meant. */
static char *bash(const char *line, const char *words, unsigned which)
{
        char *script = format_text(". config/completion/streamerctl.bash\nCOMP_LINE=%s\nCOMP_POINT=${#COMP_LINE}\n"
                                   "COMP_WORDS=(%s)\nCOMP_CWORD=%u\n_streamerctl\n"
                                   "for word in \"${COMPREPLY[@]}\"; do printf '%%s\\n' \"$word\"; done\n",
                                   line, words, which);
        return output(format_text("bash %s", suite_file(format_text("bash-%d", (int)getpid()), script)));
}

TEST(bash_completes_verbs_flags_and_names)
{
        ck_assert_str_eq(bash("'streamerctl sta'", "streamerctl sta", 1), "status\n");
        ck_assert_str_eq(bash("'streamerctl unload --fo'", "streamerctl unload --fo", 2), "--force\n");
        PRINTS("witness\n", bash("'streamerctl show wit'", "streamerctl show wit", 2));
        PRINTS_LINE("witness\n", bash("'streamerctl show '", "streamerctl show ''", 2));
}

TEST(bash_gets_names_quoted_for_reuse)
{
        const char *all = REPEATED(got[0] != '\0', bash("'streamerctl show org'", "streamerctl show org", 2));
        char *script = format_text("printf %%s %.*s", (int)strcspn(all, "\n"), all);
        ck_assert_str_eq(output(format_text("bash %s", suite_file("quoted", script))), AWKWARD);
}

/* Bash takes "1" of "model:1" for a separate word, and replaces only that. */
TEST(bash_completes_after_a_colon)
{
        PRINTS("1\n", bash("\"streamerctl show org/it\\\\'s\\\\ a\\\\ \\\\\\\"model\\\\\\\":\"",
                           "streamerctl show \"org/it\\\\'s\\\\ a\\\\ \\\\\\\"model\\\\\\\"\" :", 3));
}

TEST(bash_completes_the_daemons_flags)
{
        ck_assert_str_eq(bash("'streamerd --log-f'", "streamerd --log-f", 1), "--log-format\n");
        ck_assert_str_eq(bash("'streamerd --log-level d'", "streamerd --log-level d", 2), "debug\n");
        ck_assert_str_eq(bash("'streamerd --log-level=d'", "streamerd --log-level = d", 3), "debug\n");
}

/* The line of a zsh on a terminal after TAB. */
static char *zsh(const char *line)
{
        char *out = output(format_text("zsh -f tests/lib/complete.zsh %s", line));
        out[strcspn(out, "\n")] = '\0';
        return out;
}

static const struct {
        const char *typed, *becomes;
} zsh_lines[] = {
        {"'streamerctl sta'", "streamerctl status "},
        {"'streamerctl unload --fo'", "streamerctl unload --force "},
        {"'streamerctl show wit'", "streamerctl show witness "},
        {"'streamerctl show org'", "streamerctl show org/it\\'s\\ a\\ \\\"model\\\":1 "},
        {"'streamerctl load /us'", "streamerctl load /usr/"},
        {"'streamerd --log-f'", "streamerd --log-format "},
        {"'streamerd --log-level d'", "streamerd --log-level debug "},
        {"'streamerd --log-level=d'", "streamerd --log-level=debug "},
        {"'streamerd --root /us'", "streamerd --root /usr/"},
        {"'streamerd --root=/us'", "streamerd --root=/usr/"},
};

TEST(zsh_completes, EACH(zsh_lines))
{
        if (!command_exists("zsh"))
                SKIP("zsh is not installed");
        if (terminal_unavailable())
                SKIP(terminal_unavailable());
        PRINTS(zsh_lines[_i].becomes, zsh(zsh_lines[_i].typed));
}

static const struct {
        const char *typed, *offers;
} fish_lines[] = {
        {"streamerctl sta", "status\t"},        {"streamerctl show wit", "witness\tready"},
        {"streamerctl load /us", "/usr/"},      {"streamerd --log-f", "--log-format\tauto, plain"},
        {"streamerd --log-level d", "debug\t"}, {"streamerd --log-level=d", "--log-level=debug\t"},
        {"streamerd --root /us", "/usr/"},      {"streamerd --root=/us", "--root=/usr/"},
};

TEST(fish_completes, EACH(fish_lines))
{
        if (!command_exists("fish"))
                SKIP("fish is not installed");
        char *command =
                format_text("fish --no-config -c 'source config/completion/streamerctl.fish; complete -C \"%s\"'",
                            fish_lines[_i].typed);
        const char *out = REPEATED(strstr(got, fish_lines[_i].offers) == got, output(command));
        ck_assert_msg(strstr(out, fish_lines[_i].offers) == out, "%s", out);
        ck_assert_msg(strchr(out, '\n') == out + strlen(out) - 1, "more than one line: %s", out);
}
