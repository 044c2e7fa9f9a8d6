/* SPDX-License-Identifier: Apache-2.0
 *
 * The output of --help, --version, --check-config and completion.
 */
#include "tests/unit/config_fixture.h"

/* ---- printing only ---- */

/* Runs config_load with standard output in a file. */
static char *printed(char **argv, int *r)
{
        char *path = suite_path("stdout-%d", (int)getpid());
        fflush(stdout);
        int saved = must(dup(STDOUT_FILENO));
        FILE *f = fopen(path, "w");
        must(dup2(fileno(f), STDOUT_FILENO));
        *r = load(argv);
        fflush(stdout);
        must(dup2(saved, STDOUT_FILENO));
        close(saved);
        fclose(f);
        return file_read(path, NULL);
}

FIXTURE(.each = {begin, end});

TEST(help_and_version_print_and_need_nothing)
{
        int r;
        char *usage = config_usage();
        ck_assert_str_eq(printed((char *[]){"streamerd", "--help", NULL}, &r), usage);
        ck_assert_int_eq(r, 0);
        ck_assert_int_eq(action, CONFIG_EXIT);
        ck_assert_str_eq(printed((char *[]){"streamerd", "-h", NULL}, &r), usage);
        ck_assert_str_eq(printed((char *[]){"streamerd", "--socket", "/s", "--version", NULL}, &r),
                         "streamerd " STREAMERD_VERSION "\n");
        ck_assert_int_eq(action, CONFIG_EXIT);
}

TEST(check_parses_the_configuration_and_starts_no_daemon)
{
        int r;
        char *path = write_file("roots: [/]\ndevices: [host]\n");
        char *text = printed((char *[]){"streamerd", "--check-config", "--config", path, NULL}, &r);
        ck_assert_int_eq(r, 0);
        ck_assert_int_eq(action, CONFIG_EXIT);
        ck_assert_ptr_nonnull(strstr(text, "the settings are valid"));
        ck_assert_ptr_nonnull(strstr(text, path));
        write_file("roots: [/]\n");
        assert_usage(LOAD("--check-config", "--config", path), "no device");
}

TEST(usage_lists_every_variable)
{
        char *usage = config_usage();
        for (size_t i = 0; i < n_settings; i++)
                ck_assert_msg(settings[i].env == NULL || strstr(usage, settings[i].env) != NULL, "%s", settings[i].env);
}

/* ---- completion ---- */

#define ALL                                                                                                            \
        "--device --root --socket --state --exit-idle --keep-alive --config --concurrency --block-size "               \
        "--memory-limit "                                                                                              \
        "--log-level --log-format --metrics-listen --check-config --version --help "

static const struct {
        const char *words[4];
        const char *offers; /* the first words of the lines */
} completions[] = {
        {{""}, ALL},
        {{"--lo"}, "--log-level --log-format "},
        {{"--log-level"}, "--log-level "},
        {{"--log-level", ""}, "error warn info debug "},
        {{"--log-level", "--log-level", ""}, ALL}, /* a value may look like a flag */
        {{"--log-format", "j"}, "journal json "},
        {{"--log-level=d"}, "--log-level=debug "},
        {{"--device", ""}, "host cuda:0 cuda:all cuda:all? "},
        {{"--root", "/srv"}, ":files "},
        {{"--root=/srv"}, ":files "},
        {{"--check-config", "--ve"}, "--version "},
        {{"--concurrency", ""}, ""},
        {{"--nonsense="}, ""},
        {{"nonsense"}, ""},
};

/* The first word of each line. */
static char *offers(const char *const words[4])
{
        char *argv[8] = {"streamerd", "complete", "--"};
        int n = 3, r;
        for (size_t i = 0; i < 4 && words[i] != NULL; i++)
                argv[n++] = (char *)(uintptr_t)words[i];
        char *all = printed(argv, &r), *out = must_alloc(strlen(all) + 1);
        ck_assert_int_eq(r, 0);
        ck_assert_int_eq(action, CONFIG_EXIT);
        out[0] = '\0';
        for (char *line = strtok(all, "\n"); line != NULL; line = strtok(NULL, "\n"))
                strcat(strncat(out, line, strcspn(line, "\t")), " ");
        free(all);
        return out;
}

TEST(completion_offers_the_permitted_values, EACH(completions))
{
        char *said = offers(completions[_i].words);
        ck_assert_str_eq(said, completions[_i].offers);
}

/* Every offered value is accepted. */
TEST(every_offered_word_is_a_valid_value)
{
        for (size_t i = 0; i < n_settings; i++)
                for (const char *const *word = settings[i].words;
                     settings[i].flag != NULL && word != NULL && *word != NULL; word++) {
                        char *flag = format_text("--%s=%s", settings[i].flag, *word);
                        ck_assert_msg(LOAD("--root", "/", "--device", "cuda:7", flag) == 0, "%s", error.text);
                        config_deinit(&config);
                        free(flag);
                }
}
