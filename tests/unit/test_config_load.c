/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings from file, environment and flags: which goes over which, and what is only printed.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/config/flags.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct config config;
static struct error error;

static void begin(void)
{
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].env != NULL)
                        unsetenv(settings[i].env);
        unsetenv("RUNAI_STREAMER_BLOCK_BYTESIZE");
        unsetenv("RUNAI_STREAMER_LOG_TO_STDERR");
}

static void end(void)
{
        config_deinit(&config);
}

static enum config_action action;
static char notes[4096];

#define LOAD(...) load((char *[]){"streamerd", __VA_ARGS__, NULL})
#define NEEDED "--device=host=1GiB", "--root", "/"

static int load(char **argv)
{
        int argc = 0;
        while (argv[argc] != NULL)
                argc++;
        config_deinit(&config);
        return config_load(&config, argc, argv, &action, notes, sizeof(notes), &error);
}

static char *write_file(const char *yaml)
{
        char *path = suite_path("config-%d.yaml", (int)getpid());
        file_write(path, yaml, strlen(yaml));
        return path;
}

static void assert_usage(int r, const char *what)
{
        ck_assert_int_eq(r, STREAMER_EINVAL);
        ck_assert_msg(strstr(error.text, what) != NULL, "%s", error.text);
}

START_TEST(a_device_and_a_root_suffice)
{
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_int_eq(action, CONFIG_RUN);
        ck_assert_str_eq(config.socket, CONFIG_DEFAULT_SOCKET);
        ck_assert_str_eq(config.roots[0], "/");
        ck_assert_uint_eq(config.devices[0].budget, GiB);
        ck_assert_uint_eq(config.io.concurrency, 16);
        ck_assert_uint_eq(config.io.block_size, 8 * MiB);
        ck_assert_str_eq(notes, "");
}
END_TEST

START_TEST(neither_flags_nor_a_file_is_wrong_usage)
{
        if (access(CONFIG_DEFAULT_PATH, F_OK) == 0)
                SKIP(CONFIG_DEFAULT_PATH " is there");
        assert_usage(load((char *[]){"streamerd", NULL}), "no device: give --device host=8GiB");
        assert_usage(LOAD("--device", "host"), "no root: give --root DIR");
}
END_TEST

START_TEST(flags_are_read_in_both_forms)
{
        ck_assert_int_eq(LOAD("--device", "host=2GiB", "--root=/", "--root", "/tmp", "--socket=/s", "--concurrency",
                              "2", "--block-size=1MiB", "--memory-limit", "4MiB", "--log-level=warn"),
                         0);
        ck_assert_uint_eq(config.n_roots, 2);
        ck_assert_str_eq(config.roots[1], "/tmp");
        ck_assert_str_eq(config.socket, "/s");
        ck_assert_uint_eq(config.io.concurrency, 2);
        ck_assert_uint_eq(config.io.block_size, MiB);
        ck_assert_uint_eq(config.io.memory_limit, 4 * MiB);
        ck_assert_int_eq(config.log.level, LOG_LEVEL_WARN);
}
END_TEST

START_TEST(a_relative_root_is_relative_to_where_it_was_typed)
{
        char *cwd = getcwd(NULL, 0), *want = format_text("%s/x", cwd);
        ck_assert_int_eq(LOAD("--device=host", "--root=x"), 0);
        ck_assert_str_eq(config.roots[0], want);
        free(want);
        free(cwd);
}
END_TEST

START_TEST(wrong_flags_are_named)
{
        assert_usage(LOAD(NEEDED, "--frob"), "--frob: unknown flag");
        assert_usage(LOAD(NEEDED, "--frob=1"), "--frob: unknown flag");
        assert_usage(LOAD(NEEDED, "-x"), "'-x': not a flag");
        assert_usage(LOAD(NEEDED, "model"), "'model': not a flag");
        assert_usage(LOAD(NEEDED, "--"), "--: unknown flag");
        assert_usage(LOAD(NEEDED, "--a-flag-that-is-longer-than-any-other-flag"), "unknown flag");
        assert_usage(LOAD(NEEDED, "--socket"), "--socket: has no value");
        assert_usage(LOAD(NEEDED, "--socket="), "--socket: has no value");
        assert_usage(LOAD(NEEDED, "--version=1"), "--version: takes no value");
        assert_usage(LOAD(NEEDED, "--concurrency", "many"), "--concurrency: 'many' is not a number");
        assert_usage(LOAD(NEEDED, "--device", "cuda:x"),
                     "--device: 'cuda:x' is no device (host, cuda:N, cuda:GPU-UUID, cuda:all)");
        assert_usage(LOAD(NEEDED, "--device", "host"), "--device: host is listed twice");
        assert_usage(LOAD(NEEDED, "--config", "/no/such/file"), "/no/such/file: No such file");
}
END_TEST

START_TEST(a_socket_path_fits_its_address)
{
        char path[110] = "/";
        memset(path + 1, 's', 106);
        ck_assert_int_eq(LOAD(NEEDED, "--socket", path), 0);
        path[107] = 's';
        assert_usage(LOAD(NEEDED, "--socket", path), "--socket: longer than a socket's path may be");
}
END_TEST

START_TEST(a_ring_holds_a_block)
{
        ck_assert_int_eq(LOAD(NEEDED, "--memory-limit=8MiB"), 0);
        ck_assert_int_eq(LOAD(NEEDED, "--memory-limit=0"), 0);
        assert_usage(LOAD(NEEDED, "--memory-limit=7MiB"), "less than one block");
}
END_TEST

START_TEST(flags_go_over_the_environment_which_goes_over_the_file)
{
        char *path = write_file("socket: /file\nio: {concurrency: 1, block_size: 1MiB}\nlog: {level: error}\n");
        setenv("STREAMERD_SOCKET", "/env", 1);
        setenv("RUNAI_STREAMER_CONCURRENCY", "2", 1);
        ck_assert_int_eq(LOAD(NEEDED, "--config", path, "--socket", "/flag"), 0);
        ck_assert_str_eq(config.socket, "/flag");
        ck_assert_uint_eq(config.io.concurrency, 2);
        ck_assert_uint_eq(config.io.block_size, MiB);
        ck_assert_int_eq(config.log.level, LOG_LEVEL_ERROR);
        ck_assert_str_eq(config.path, path);
}
END_TEST

START_TEST(a_list_given_as_flags_replaces_the_files)
{
        char *path = write_file("roots: [/a, /b]\ndevices: [host=1GiB]\n");
        ck_assert_int_eq(LOAD("--config", path), 0);
        ck_assert_uint_eq(config.n_roots, 2);
        ck_assert_int_eq(LOAD("--config", path, "--root", "/c", "--device", "host=2GiB"), 0);
        ck_assert_uint_eq(config.n_roots, 1);
        ck_assert_str_eq(config.roots[0], "/c");
        ck_assert_uint_eq(config.n_devices, 1);
        ck_assert_uint_eq(config.devices[0].budget, 2 * GiB);
}
END_TEST

START_TEST(a_wrong_file_is_no_start)
{
        char *path = write_file("colour: red"), *what = format_text("%s:1: colour: unknown key", path);
        assert_usage(LOAD(NEEDED, "--config", path), what);
        ck_assert_int_lt(LOAD(NEEDED, "--config", "/dev"), 0);
        ck_assert_str_eq(error.text, "not a regular file (/dev)");
        free(what);
}
END_TEST

START_TEST(a_percentage_is_of_this_machines_memory)
{
        uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        ck_assert_int_eq(LOAD("--device=host=50%", "--root=/"), 0);
        ck_assert_uint_eq(config.devices[0].budget, memory / 100 * 50);
        ck_assert_str_eq(notes, "");
        ck_assert_int_eq(LOAD("--device=host=4096TiB", "--root=/"), 0);
        ck_assert_ptr_nonnull(strstr(notes, "more than this machine's memory"));
}
END_TEST

static const struct {
        const char *name, *value, *what; /* what is wrong with it; NULL: nothing */
} variables[] = {
        {"STREAMERD_SOCKET", "relative", "STREAMERD_SOCKET: 'relative' is not an absolute path"},
        {"STREAMERD_SOCKET", "", NULL},
        {"RUNAI_STREAMER_CONCURRENCY", "0", "RUNAI_STREAMER_CONCURRENCY: 0 is not within 1 to 1024"},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "2097152", NULL},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "2000000",
         "RUNAI_STREAMER_CHUNK_BYTESIZE: 2000000 is not a multiple of 1MiB"},
        {"RUNAI_STREAMER_BLOCK_BYTESIZE", "x", "RUNAI_STREAMER_BLOCK_BYTESIZE: 'x' is not a size"},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "-2", "RUNAI_STREAMER_MEMORY_LIMIT: '-2' is not a size"},
        {"RUNAI_STREAMER_LOG_LEVEL", "WARNING", NULL},
        {"RUNAI_STREAMER_LOG_LEVEL", "9", "RUNAI_STREAMER_LOG_LEVEL: '9' is not error, warn, info or debug"},
        {"RUNAI_STREAMER_LOG_TO_STDERR", "1", NULL},
        {"RUNAI_STREAMER_LOG_TO_STDERR", "maybe", "RUNAI_STREAMER_LOG_TO_STDERR: 'maybe' is not 0 or 1"},
};

START_TEST(a_wrong_variable_is_named)
{
        setenv(variables[_i].name, variables[_i].value, 1);
        int r = LOAD(NEEDED);
        if (variables[_i].what == NULL)
                ck_assert_int_eq(r, 0);
        else
                assert_usage(r, variables[_i].what);
}
END_TEST

START_TEST(the_newer_name_of_a_variable_goes_first)
{
        setenv("RUNAI_STREAMER_BLOCK_BYTESIZE", "4194304", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.block_size, 4 * MiB);
        setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "2097152", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.block_size, 2 * MiB);
}
END_TEST

START_TEST(an_unlimited_memory_limit_is_the_default_ring_and_is_noted)
{
        setenv("RUNAI_STREAMER_MEMORY_LIMIT", "-1", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.memory_limit, 0);
        ck_assert_str_eq(notes, "RUNAI_STREAMER_MEMORY_LIMIT=-1: the staging ring has its default size\n");
        setenv("RUNAI_STREAMER_MEMORY_LIMIT", "0", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_str_eq(notes, "RUNAI_STREAMER_MEMORY_LIMIT=0: the staging ring has its default size\n");
        setenv("RUNAI_STREAMER_MEMORY_LIMIT", "67108864", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.memory_limit, 64 * MiB);
        ck_assert_str_eq(notes, "");
}
END_TEST

START_TEST(the_log_can_be_kept_on_standard_error)
{
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert(!config.log.to_stderr);
        config_deinit(&config);
        setenv("RUNAI_STREAMER_LOG_TO_STDERR", "true", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert(config.log.to_stderr);
        config_deinit(&config);
        setenv("RUNAI_STREAMER_LOG_TO_STDERR", "0", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert(!config.log.to_stderr);
}
END_TEST

/* ---- what only prints ---- */

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

START_TEST(help_and_version_print_and_need_nothing)
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
END_TEST

START_TEST(a_check_reads_all_and_does_not_run)
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
END_TEST

START_TEST(usage_tells_every_variable)
{
        char *usage = config_usage();
        for (size_t i = 0; i < n_settings; i++)
                ck_assert_msg(settings[i].env == NULL || strstr(usage, settings[i].env) != NULL, "%s", settings[i].env);
}
END_TEST

START_TEST(every_setting_with_a_flag_is_in_the_table_of_flags)
{
        for (size_t i = 0; i < n_settings; i++) {
                size_t k = 0;
                while (settings[i].flag != NULL && k < n_flags && strcmp(flags[k].name, settings[i].flag) != 0)
                        k++;
                ck_assert_msg(k < n_flags && (settings[i].flag == NULL || flags[k].value != NULL), "%s",
                              settings[i].flag);
        }
}
END_TEST

/* ---- completion ---- */

#define ALL                                                                                                            \
        "--device --root --socket --state --config --concurrency --block-size --memory-limit --log-level "             \
        "--log-format --metrics-listen --check-config --version --help "

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
        {{"--device", ""}, "host cuda:0 cuda:all "},
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

START_TEST(what_may_stand_next_is_offered)
{
        char *said = offers(completions[_i].words);
        ck_assert_str_eq(said, completions[_i].offers);
        free(said);
}
END_TEST

/* What is offered is what is taken. */
START_TEST(every_offered_word_is_a_valid_value)
{
        for (size_t i = 0; i < n_flags; i++)
                for (const char *const *word = flags[i].words; word != NULL && *word != NULL; word++) {
                        char *flag = format_text("--%s=%s", flags[i].name, *word);
                        ck_assert_msg(LOAD("--root", "/", "--device", "cuda:7", flag) == 0, "%s", error.text);
                        config_deinit(&config);
                        free(flag);
                }
}
END_TEST

static TCase *group_of(const char *name)
{
        TCase *group = suite_group(name, NULL, NULL, 10);
        tcase_add_checked_fixture(group, begin, end);
        return group;
}

static void add_flags(void)
{
        TCase *flag = group_of("flags");
        tcase_add_test(flag, a_device_and_a_root_suffice);
        tcase_add_test(flag, neither_flags_nor_a_file_is_wrong_usage);
        tcase_add_test(flag, flags_are_read_in_both_forms);
        tcase_add_test(flag, a_relative_root_is_relative_to_where_it_was_typed);
        tcase_add_test(flag, wrong_flags_are_named);
        tcase_add_test(flag, a_socket_path_fits_its_address);
        tcase_add_test(flag, a_ring_holds_a_block);
        tcase_add_test(flag, flags_go_over_the_environment_which_goes_over_the_file);
        tcase_add_test(flag, a_list_given_as_flags_replaces_the_files);
        tcase_add_test(flag, a_wrong_file_is_no_start);
        tcase_add_test(flag, a_percentage_is_of_this_machines_memory);
}

int main(void)
{
        suite_begin("config-load");
        add_flags();
        TCase *variable = group_of("environment");
        LOOP(variable, a_wrong_variable_is_named, variables);
        tcase_add_test(variable, the_newer_name_of_a_variable_goes_first);
        tcase_add_test(variable, an_unlimited_memory_limit_is_the_default_ring_and_is_noted);
        tcase_add_test(variable, the_log_can_be_kept_on_standard_error);
        TCase *print = group_of("print");
        tcase_add_test(print, help_and_version_print_and_need_nothing);
        tcase_add_test(print, a_check_reads_all_and_does_not_run);
        tcase_add_test(print, usage_tells_every_variable);
        tcase_add_test(print, every_setting_with_a_flag_is_in_the_table_of_flags);
        TCase *complete = group_of("completion");
        LOOP(complete, what_may_stand_next_is_offered, completions);
        tcase_add_test(complete, every_offered_word_is_a_valid_value);
        return suite_run();
}
