/* SPDX-License-Identifier: Apache-2.0
 *
 * What a user reads who has mistyped something, or whose daemon does not answer.
 */
#include "tests/integration/cli_fixture.h"

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(a_failed_model_is_not_the_nearest)
{
        char *path = fixture_path("solitary.safetensors");
        file_write(path, "no model", 8);
        RUN(1, "load", path);
        SAYS(3, "solitari: no such model\n", "show", "solitari");
}

TEST(a_source_that_is_not_found_is_no_failed_model)
{
        RUN(3, "load", fixture_path("nothing-there.safetensors"), "--name", "mistyped");
        struct ctl r = RUN(0, "list");
        ck_assert_ptr_null(strstr(r.out, "mistyped"));
        SAYS(3, "mistyped: no such model (failed: ", "wait", "mistyped");
        RUN(3, "unload", "mistyped");
        SAYS(0, "nothing-there.safetensors", "explain", "mistyped");
}

/* The daemon's roots are elsewhere, and have nothing to do with it. */
TEST(a_word_that_is_no_file_is_not_loaded)
{
        SAYS(3, "witness: no file ./witness; a resident model has this name (a path begins with /, ./ or ~/)", "load",
             "witness");
        SAYS(3,
             "nope: no file ./nope, no resident model of that name (a path begins with /, ./ or ~/; hf://nope is of "
             "the Hub)",
             "load", "nope");
        SAYS(1, "outside the roots", "load", "./nope");
}

TEST(a_file_of_another_kind_is_no_safetensors_file)
{
        static const char *const contents[] = {"{\"architectures\": [\"LlamaForCausalLM\"], \"vocab\": 1}", "short", "",
                                               "\x02\0\0\0\0\0\0\0no"};
        static const size_t sizes[] = {47, 5, 0, 10};
        char *path = fixture_path("config.json");
        for (size_t i = 0; i < 4; i++) {
                file_write(path, contents[i], sizes[i]);
                SAYS(1, "config.json: not a safetensors file: ", "load", path);
        }
}

TEST(cpu_is_the_host)
{
        if (daemon_on_gpu())
                SKIP("tests host memory");
        RUN(0, "load", fixture_path("witness.safetensors"), "--device", "cpu");
        SAYS(2, "gpu: no such device; the daemon has host", "load", fixture_path("witness.safetensors"), "--device",
             "gpu");
}

TEST(the_wide_list_has_the_reason_of_a_failure)
{
        char *path = fixture_path("broken.safetensors");
        file_write(path, "no model", 8);
        RUN(1, "load", path);
        struct ctl r = RUN(0, "list", "-o", "wide");
        ck_assert_ptr_nonnull(strstr(r.out, "ERROR"));
        ck_assert_ptr_nonnull(strstr(r.out, "not a safetensors file"));
        const char *error;
        UNPACK(JSON("show", "broken", "--json"), "{s:[{s:s}]}", "models", "error", &error);
        ck_assert_ptr_nonnull(strstr(error, "not a safetensors file"));
        RUN(0, "unload", "broken");
        SAYS(0, "draining", "help", "list");
}

TEST(a_reader_that_closes_the_pipe_ends_it_silently)
{
        char *said, *ctl = format_text("%s --socket %s", build_path("streamerctl"), test_daemon.socket);
        ck_assert_int_eq(shell(&said,
                               "%s cat witness \"$(%s show witness --tensors -q | head -1)\" 2>%s | head -c 1 "
                               ">/dev/null; cat %s",
                               ctl, ctl, suite_path("err"), suite_path("err")),
                         0);
        ck_assert_str_eq(said, "");
}

/* It would look like another one. */
TEST(a_name_that_turns_the_direction_of_text_is_escaped)
{
        char *path = fixture_write(model_mixed(7, 1 << 16), "turned.safetensors");
        RUN(0, "load", path, "--name",
            "prod\xe2\x80\xae"
            "flow");
        SAYS(0, "prod\\xe2\\x80\\xaeflow", "list");
        SAYS(0,
             "\"prod\xe2\x80\xae"
             "flow\"",
             "list", "--json");
}

/* A character of CJK takes two columns, and a combining one none, in each locale. */
TEST(columns_are_aligned_behind_wide_names)
{
        char *path = fixture_write(model_mixed(8, 1 << 16), "wide.safetensors");
        RUN(0, "load", path, "--name", "\xe6\xa8\xa1\xe5\x9e\x8b-e\xcc\x81");
        RUN(0, "load", path, "--name", "abcd-e");
        const char *list = RUN(0, "list").out;
        const char *narrow = strstr(list, "\nabcd-e "), *wide = strstr(list, "\n\xe6\xa8\xa1");
        ck_assert_msg(narrow != NULL && wide != NULL, "%s", list);
        narrow += strlen("\nabcd-e");
        wide += strlen("\n\xe6\xa8\xa1\xe5\x9e\x8b-e\xcc\x81");
        ck_assert_msg(strcspn(narrow, "r") == strcspn(wide, "r"), "%s", list);
}

/* ---- sources that are not found ---- */

static void open_fails(const char *source, const char *text)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        client_fails(c, streamer_open(c, source, NULL, &lease), STREAMER_ENOENT, text);
}

TEST(an_open_says_what_was_looked_for)
{
        must(chdir(fixture_path(".")));
        must(setenv("HF_HUB_CACHE", "/nowhere/hub", 1));
        open_fails("witnes", "no such model; the nearest is 'witness'");
        open_fails("witnes.safetensors",
                   "nor is there a file ./witnes.safetensors: the nearest is ./witness.safetensors");
        open_fails("unlike",
                   "nor is there a file ./unlike (a path begins with /, ./ or ~/; hf://unlike is of the Hub)");
        open_fails("Qwen/Qwen3", "/nowhere/hub/models--Qwen--Qwen3");
        open_fails("Qwen/Qwen3", "a path in this folder is written ./Qwen/Qwen3");
        open_fails("Qwen/Qwen3", "hf://Qwen/Qwen3 is read from the Hub");
        open_fails("./witnes.safetensors", "the nearest is witness.safetensors");
}

TEST(a_mistyped_path_has_the_nearest_file)
{
        SAYS(3, "the nearest is witness.safetensors", "load", fixture_path("witnes.safetensors"));
}

TEST(a_tilde_is_the_home_directory)
{
        must(setenv("HOME", fixture_path("."), 1));
        PRINTS("witness\n", "load", "-q", "~/witness.safetensors");
        must(unsetenv("HOME"));
        SAYS(2, "HOME is not set", "load", "~/witness.safetensors");
}

/* ---- no daemon ---- */

FIXTURE();

TEST(version_without_a_daemon_is_the_programs)
{
        struct ctl r;
        ctl(&r, "/nowhere/sock", "version", NULL);
        ck_assert_int_eq(r.code, 4);
        ck_assert_ptr_eq(strstr(r.out, "streamerctl " STREAMERD_VERSION " (commit "), r.out);
        ck_assert_ptr_nonnull(strstr(r.err, "no daemon serves there"));
        ctl(&r, "/nowhere/sock", "version", "--json", NULL);
        ck_assert_int_eq(r.code, 4);
        static const char begins[] =
                "{\"schema\":1,\"streamerctl\":\"" STREAMERD_VERSION "\",\"streamerctl_commit\":\"";
        ck_assert_ptr_eq(strstr(r.out, begins), r.out);
}

TEST(a_stopped_daemon_is_named_within_the_timeout)
{
        static const char *const verbs[][3] = {{"list"}, {"load", "/nowhere"}, {"doctor"}, {"wait", "m"}};
        struct daemon d;
        daemon_start_simple(&d, suite_path("stopped"), suite_folder(), "64MiB");
        must(kill(d.pid, SIGSTOP));
        for (size_t i = 0; i < 4; i++) {
                struct ctl r;
                const char *args[] = {verbs[i][0], verbs[i][1] ? verbs[i][1] : "--timeout",
                                      verbs[i][1] ? "--timeout" : "1", verbs[i][1] ? "1" : NULL, NULL};
                ctl_v(&r, d.socket, args);
                ck_assert_msg(r.code == 5, "%d: %s", r.code, r.err);
                const char *text = i == 2 ? r.out : r.err;
                ck_assert_msg(strstr(text, format_text("(pid %d, %s)", (int)d.pid, d.socket)) != NULL, "%s", text);
        }
        must(kill(d.pid, SIGCONT));
        ck_assert_int_eq(daemon_stop(&d), 0);
}
