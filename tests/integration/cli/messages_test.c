/* SPDX-License-Identifier: Apache-2.0
 *
 * What a user reads who has mistyped something, or whose daemon does not answer.
 */
#include "tests/integration/cli_fixture.h"

#define SAYS(r, text) ck_assert_msg(strstr((r).err, (text)) != NULL, "%s", (r).err)

static const struct {
        const char *word, *meant; /* NULL: nothing is suggested */
} words[] = {{"stop", "shutdown' or 'unload"},
             {"lod", "load"},
             {"unlaod", "unload"},
             {"lits", "list"},
             {"zzz", NULL},
             {"remove", "unload"}};

FIXTURE(.all = {fixture_begin_default, fixture_end});

TEST(an_unknown_verb_has_the_one_that_was_meant, EACH(words))
{
        struct ctl r = RUN(2, words[_i].word);
        if (words[_i].meant)
                SAYS(r, format_text("did you mean '%s'?", words[_i].meant));
        else
                ck_assert_msg(strstr(r.err, "did you mean") == NULL, "%s", r.err);
}

TEST(a_mistyped_model_has_the_nearest_name)
{
        static const char *const verbs[] = {"show", "unload", "pin", "wait", "run"};
        for (size_t i = 0; i < 4; i++) {
                struct ctl r = RUN(3, verbs[i], "witnes");
                SAYS(r, "witnes: no such model; the nearest is 'witness'");
        }
        struct ctl r = RUN(3, "cat", "witnes", "x");
        SAYS(r, "the nearest is 'witness'");
        r = RUN(3, "show", "nothing-like-it");
        SAYS(r, "nothing-like-it: no such model\n");
}

TEST(a_failed_model_is_not_the_nearest)
{
        char *path = fixture_path("solitary.safetensors");
        file_write(path, "no model", 8);
        RUN(1, "load", path);
        struct ctl r = RUN(3, "show", "solitari");
        SAYS(r, "solitari: no such model\n");
        RUN(0, "unload", "solitary");
        r = RUN(3, "show", "witnes.safetensors");
        SAYS(r, "the nearest is 'witness'");
}

TEST(a_source_that_is_not_found_is_no_failed_model)
{
        RUN(3, "load", fixture_path("nothing-there.safetensors"), "--name", "mistyped");
        struct ctl r = RUN(0, "list");
        ck_assert_ptr_null(strstr(r.out, "mistyped"));
        r = RUN(3, "wait", "mistyped");
        SAYS(r, "mistyped: no such model (failed: ");
        SAYS(r, "nothing-there.safetensors");
        RUN(3, "unload", "mistyped");
        r = RUN(0, "explain", "mistyped");
        ck_assert_ptr_nonnull(strstr(r.out, "nothing-there.safetensors"));
}

TEST(a_file_of_another_kind_is_no_safetensors_file)
{
        static const char *const contents[] = {"{\"architectures\": [\"LlamaForCausalLM\"], \"vocab\": 1}", "short", "",
                                               "\x02\0\0\0\0\0\0\0no"};
        static const size_t sizes[] = {47, 5, 0, 10};
        char *path = fixture_path("config.json");
        for (size_t i = 0; i < 4; i++) {
                file_write(path, contents[i], sizes[i]);
                struct ctl r = RUN(1, "load", path);
                SAYS(r, "config.json: not a safetensors file: ");
        }
}

TEST(cpu_is_the_host)
{
        if (daemon_on_gpu())
                SKIP("tests host memory");
        struct ctl r = RUN(0, "load", fixture_path("witness.safetensors"), "--device", "cpu");
        r = RUN(2, "load", fixture_path("witness.safetensors"), "--device", "gpu");
        SAYS(r, "gpu: no such device; the daemon has host");
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
        r = RUN(0, "help", "list");
        ck_assert_ptr_nonnull(strstr(r.out, "draining"));
}

/* ---- sources that are not found ---- */

static void open_fails(const char *source, int code, const char *text)
{
        streamer_client *c = client_open(&test_daemon);
        streamer_lease *lease;
        ck_assert_int_eq(streamer_open(c, source, NULL, &lease), code);
        ck_assert_msg(strstr(streamer_last_error(c), text) != NULL, "%s", streamer_last_error(c));
        streamer_close(c);
}

TEST(an_open_says_what_was_looked_for)
{
        must(chdir(fixture_path(".")));
        must(setenv("HF_HUB_CACHE", "/nowhere/hub", 1));
        open_fails("witnes", STREAMER_ENOENT, "no such model; the nearest is 'witness'");
        open_fails("witnes.safetensors", STREAMER_ENOENT,
                   "nor is there a file ./witnes.safetensors: the nearest is ./witness.safetensors");
        open_fails("unlike", STREAMER_ENOENT, "nor is there a file ./unlike (a path begins with /, ./ or ~/)");
        open_fails("Qwen/Qwen3", STREAMER_ENOENT, "/nowhere/hub/models--Qwen--Qwen3");
        open_fails("Qwen/Qwen3", STREAMER_ENOENT, "a path in this folder is written ./Qwen/Qwen3");
        open_fails("Qwen/Qwen3", STREAMER_ENOENT, "hf://Qwen/Qwen3 is read from the Hub");
        open_fails("./witnes.safetensors", STREAMER_ENOENT, "the nearest is witness.safetensors");
}

TEST(a_mistyped_path_has_the_nearest_file)
{
        struct ctl r = RUN(3, "load", fixture_path("witnes.safetensors"));
        SAYS(r, "the nearest is witness.safetensors");
}

TEST(a_tilde_is_the_home_directory)
{
        struct ctl r;
        must(setenv("HOME", fixture_path("."), 1));
        r = RUN(0, "load", "-q", "~/witness.safetensors");
        ck_assert_str_eq(r.out, "witness\n");
        must(unsetenv("HOME"));
        r = RUN(2, "load", "~/witness.safetensors");
        SAYS(r, "HOME is not set");
}

/* ---- no daemon ---- */

FIXTURE();

TEST(version_without_a_daemon_is_the_programs)
{
        struct ctl r;
        ctl(&r, "/nowhere/sock", "version", NULL);
        ck_assert_int_eq(r.code, 4);
        ck_assert_str_eq(r.out, "streamerctl " STREAMERD_VERSION "\n");
        SAYS(r, "no daemon serves there");
        ctl(&r, "/nowhere/sock", "version", "--json", NULL);
        ck_assert_int_eq(r.code, 4);
        ck_assert_str_eq(r.out, "{\"schema\":1,\"streamerctl\":\"" STREAMERD_VERSION "\"}\n");
}

FIXTURE(.all = {fixture_begin_default, fixture_end});

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

FIXTURE();

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
