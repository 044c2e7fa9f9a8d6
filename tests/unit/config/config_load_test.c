/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line: the precedence of file, environment and flags, and what is printed instead of a start.
 */
#include "tests/lib/suite.h"

#include "daemon/base/util.h"
#include "daemon/config/reload.h"
#include "daemon/config/setting.h"

static struct config config;
static struct error error;

static void begin(void)
{
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].env != NULL)
                        unsetenv(settings[i].env);
        unsetenv("RUNAI_STREAMER_BLOCK_BYTESIZE");
}

#define LOAD(...) load((char *[]){"streamerd", __VA_ARGS__, NULL})
#define NEEDED "--device=host=1GiB", "--root", "/"

static int load(char **argv)
{
        int argc = 0;
        while (argv[argc] != NULL)
                argc++;
        config_deinit(&config);
        return config_load(&config, argc, argv, &error);
}

static char *write_file(const char *yaml)
{
        char *path = suite_path("config-%d.yaml", (int)getpid());
        file_write(path, yaml, strlen(yaml));
        return path;
}

static void assert_usage(int r, const char *what)
{
        FAILS_WITH(error, r, STREAMER_EINVAL, what);
}

/* ---- flags ---- */

FIXTURE(.each = {begin, NULL});

TEST(a_device_and_a_root_suffice)
{
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_str_eq(config.socket, CONFIG_DEFAULT_SOCKET);
        ck_assert_str_eq(config.roots[0], "/");
        ck_assert_uint_eq(config.devices[0].budget, GiB);
        ck_assert_uint_eq(config.io.concurrency, 16);
        ck_assert_uint_eq(config.io.block_size, 8 * MiB);
}

TEST(neither_flags_nor_a_file_is_wrong_usage)
{
        if (access(CONFIG_DEFAULT_PATH, F_OK) == 0)
                SKIP(CONFIG_DEFAULT_PATH " exists");
        assert_usage(load((char *[]){"streamerd", NULL}), "no device: give --device host=8GiB");
        assert_usage(LOAD("--device", "host"), "no root: give --root DIR");
}

TEST(flags_are_read_in_both_forms)
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

TEST(a_relative_root_of_a_flag_is_relative_to_the_working_directory)
{
        char *cwd = getcwd(NULL, 0), *want = format_text("%s/x", cwd);
        ck_assert_int_eq(LOAD("--device=host", "--root=x"), 0);
        ck_assert_str_eq(config.roots[0], want);
}

TEST(wrong_flags_are_named)
{
        assert_usage(LOAD(NEEDED, "--frob"), "--frob: unknown flag");
        assert_usage(LOAD(NEEDED, "--frob=1"), "--frob: unknown flag");
        assert_usage(LOAD(NEEDED, "-x"), "'-x': not a flag (--help lists them)");
        assert_usage(LOAD(NEEDED, "model"), "'model': not a flag (--help lists them)");
        assert_usage(LOAD(NEEDED, "--"), "--: unknown flag");
        assert_usage(LOAD(NEEDED, "--a-flag-that-is-longer-than-any-other-flag"), "unknown flag");
        assert_usage(LOAD(NEEDED, "--socket"), "--socket: has no value");
        assert_usage(LOAD(NEEDED, "--socket="), "--socket: has no value");
        assert_usage(LOAD(NEEDED, "--version=1"), "--version: takes no value");
        assert_usage(LOAD(NEEDED, "--concurrency", "many"), "--concurrency: 'many' is not a number");
        assert_usage(LOAD(NEEDED, "--device", "cuda:x"),
                     "--device: 'cuda:x' is not a device (host, cuda:N, cuda:GPU-UUID, cuda:all, or cuda:all?)");
        assert_usage(LOAD(NEEDED, "--device", "host?"), "--device: 'host?' is not a device");
        assert_usage(LOAD(NEEDED, "--device", "cuda:?"), "--device: 'cuda:?' is not a device");
        assert_usage(LOAD(NEEDED, "--device", "cuda:0", "--device", "cuda:0?"), "--device: cuda:0 is listed twice");
        assert_usage(LOAD(NEEDED, "--device", "host"), "--device: host is listed twice");
        assert_usage(LOAD(NEEDED, "--config", "/no/such/file"), "/no/such/file: No such file");
}

TEST(a_socket_path_fits_its_address)
{
        char path[110] = "/";
        memset(path + 1, 's', 106);
        ck_assert_int_eq(LOAD(NEEDED, "--socket", path), 0);
        path[107] = 's';
        assert_usage(LOAD(NEEDED, "--socket", path), "--socket: longer than a socket's path may be");
}

TEST(a_ring_holds_a_block)
{
        ck_assert_int_eq(LOAD(NEEDED, "--memory-limit=8MiB"), 0);
        ck_assert_int_eq(LOAD(NEEDED, "--memory-limit=0"), 0);
        assert_usage(LOAD(NEEDED, "--memory-limit=7MiB"), "memory limit: 7MiB is less than one block of 8MiB");
}

TEST(flags_precede_the_environment_precedes_the_file)
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

TEST(a_list_given_as_flags_replaces_the_files)
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

TEST(a_wrong_file_prevents_the_start)
{
        char *path = write_file("colour: red"), *what = format_text("%s:1: colour: unknown key", path);
        assert_usage(LOAD(NEEDED, "--config", path), what);
        ck_assert_int_lt(LOAD(NEEDED, "--config", "/dev"), 0);
        ck_assert_str_eq(error.text, "not a regular file (/dev)");
}

TEST(an_own_variable_that_is_wrong_prevents_the_start)
{
        setenv("STREAMERD_SOCKET", "relative", 1);
        assert_usage(LOAD(NEEDED), "STREAMERD_SOCKET: 'relative' is not an absolute path");
}

/* `text`: the setting, as the file has it; `what`: the warning. */
static const struct {
        const char *name, *value, *text, *what;
} variables[] = {
        {"STREAMERD_SOCKET", "/env", "/env", NULL},
        {"STREAMERD_SOCKET", "", CONFIG_DEFAULT_SOCKET, NULL},
        {"STATE_DIRECTORY", "/var/lib/streamerd", "/var/lib/streamerd", NULL},
        {"STATE_DIRECTORY", "lib", "", "STATE_DIRECTORY: 'lib' is not an absolute path: ignored"},
        {"RUNAI_STREAMER_CONCURRENCY", "2", "2", NULL},
        {"RUNAI_STREAMER_CONCURRENCY", "0", "16", "RUNAI_STREAMER_CONCURRENCY: 0 is not within 1 to 1024: ignored"},
        {"RUNAI_STREAMER_CONCURRENCY", "2000", "1024",
         "RUNAI_STREAMER_CONCURRENCY: 2000 is not within 1 to 1024: 1024 is used"},
        {"RUNAI_STREAMER_CONCURRENCY", "99999999999999999999", "1024",
         "RUNAI_STREAMER_CONCURRENCY: '99999999999999999999' is not a number: 1024 is used"},
        {"RUNAI_STREAMER_CONCURRENCY", "many", "16", "RUNAI_STREAMER_CONCURRENCY: 'many' is not a number: ignored"},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "-1", "0", NULL},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "0", "0", NULL},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "-2", "0",
         "RUNAI_STREAMER_MEMORY_LIMIT: '-2' is not a size (bytes, or with KiB, MiB, GiB, TiB): ignored"},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "1000", "8MiB",
         "RUNAI_STREAMER_MEMORY_LIMIT: 1000 is less than one block: 8MiB is used"},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "2097152", "2MiB", NULL},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "-1", "8MiB",
         "RUNAI_STREAMER_CHUNK_BYTESIZE: '-1' is not a size (bytes, or with KiB, MiB, GiB, TiB): ignored"},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "100", "1MiB",
         "RUNAI_STREAMER_CHUNK_BYTESIZE: 100 is not within 1MiB to 1GiB: 1MiB is used"},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "10000000", "9MiB",
         "RUNAI_STREAMER_CHUNK_BYTESIZE: 10000000 is not a multiple of 1MiB: 9MiB is used"},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "4294967296", "1GiB",
         "RUNAI_STREAMER_CHUNK_BYTESIZE: 4294967296 is not within 1MiB to 1GiB: 1GiB is used"},
        {"RUNAI_STREAMER_BLOCK_BYTESIZE", "4194304", "4MiB", NULL},
        {"RUNAI_STREAMER_BLOCK_BYTESIZE", "x", "8MiB",
         "RUNAI_STREAMER_BLOCK_BYTESIZE: 'x' is not a size (bytes, or with KiB, MiB, GiB, TiB): ignored"},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "67108864", "64MiB", NULL},
        {"RUNAI_STREAMER_LOG_LEVEL", "WARNING", "warn", NULL},
        {"RUNAI_STREAMER_LOG_LEVEL", "SPAM", "info",
         "RUNAI_STREAMER_LOG_LEVEL: 'SPAM' is not error, warn, info or debug: ignored"},
        {"RUNAI_STREAMER_S3_ENDPOINT", "https://store", "https://store", NULL},
        {"RUNAI_STREAMER_S3_UNSIGNED", "1", "true", NULL},
        {"RUNAI_STREAMER_S3_UNSIGNED", "false", "false", NULL},
        {"RUNAI_STREAMER_S3_UNSIGNED", "maybe", "false",
         "RUNAI_STREAMER_S3_UNSIGNED: 'maybe' is not true or false: ignored"},
        {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "1", "virtual", NULL},
        {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0", "path", NULL},
        {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "True", "virtual", NULL},
        {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "2", "auto",
         "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING: '2' is not auto, path or virtual: ignored"},
        {"RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS", "1500", "1500ms", NULL},
        {"RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS", "0", "20s",
         "RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS: 0ms is not within 100ms to 1h: ignored"},
        {"RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS", "99", "100ms",
         "RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS: 99ms is not within 100ms to 1h: 100ms is used"},
        {"RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS", "86400000", "1h",
         "RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS: 86400000ms is not within 100ms to 1h: 1h is used"},
        {"RUNAI_STREAMER_LOG_TO_STDERR", "true", "true", NULL},
        {"RUNAI_STREAMER_LOG_TO_STDERR", "0", "false", NULL},
        {"RUNAI_STREAMER_LOG_TO_STDERR", "maybe", "false",
         "RUNAI_STREAMER_LOG_TO_STDERR: 'maybe' is not true or false: ignored"},
};

static void assert_warning(const char *what)
{
        ck_assert_uint_eq(config.n_warnings, what != NULL);
        if (what != NULL)
                ck_assert_str_eq(config.warnings[0], what);
}

TEST(a_variable_of_another_program_is_read_or_fitted_with_a_warning, EACH(variables))
{
        setenv(variables[_i].name, variables[_i].value, 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        assert_warning(variables[_i].what);
        for (size_t i = 0; i < n_settings; i++)
                if (same_text(settings[i].env, variables[_i].name) ||
                    same_text(settings[i].env_old, variables[_i].name))
                        ck_assert_str_eq(setting_text(&settings[i], &config), variables[_i].text);
}

TEST(a_value_that_is_ignored_leaves_that_of_the_file)
{
        char *path = write_file("io: {concurrency: 3}\n");
        setenv("RUNAI_STREAMER_CONCURRENCY", "many", 1);
        ck_assert_int_eq(LOAD(NEEDED, "--config", path), 0);
        ck_assert_uint_eq(config.io.concurrency, 3);
        ck_assert_ptr_null(config_variable(&config, "io.concurrency"));
        setenv("RUNAI_STREAMER_CONCURRENCY", "5", 1);
        ck_assert_int_eq(LOAD(NEEDED, "--config", path), 0);
        ck_assert_str_eq(config_variable(&config, "io.concurrency"), "RUNAI_STREAMER_CONCURRENCY");
}

TEST(a_block_of_a_variable_fits_the_ring_of_the_file)
{
        setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "67108864", 1);
        ck_assert_int_eq(LOAD(NEEDED, "--memory-limit=16MiB"), 0);
        ck_assert_uint_eq(config.io.block_size, 16 * MiB);
        assert_warning("RUNAI_STREAMER_CHUNK_BYTESIZE: 64MiB is more than the staging ring of 16MiB: 16MiB is used");
        assert_usage(LOAD(NEEDED, "--memory-limit=1000"), "memory limit: 1000 is less than one block of 64MiB");
}

/* Of a machine with 4 GiB of memory. `file`: settings that no variable changes. */
static const struct {
        const char *name, *value, *file;
        uint64_t ring, block;
        const char *what;
} rings[] = {
        {NULL, NULL, "", 128 * MiB, 8 * MiB, NULL},
        {NULL, NULL, "io: {memory_limit: 40GiB}", 40 * GiB, 8 * MiB, NULL},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "201326592", "", 192 * MiB, 8 * MiB, NULL},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "42949672960", "", 256 * MiB, 8 * MiB,
         "RUNAI_STREAMER_MEMORY_LIMIT: a staging ring of 40.0 GiB is too much for this machine's memory: 256.0 MiB is "
         "used"},
        {"RUNAI_STREAMER_MEMORY_LIMIT", "42949672960", "io: {block_size: 1GiB}", GiB, GiB,
         "RUNAI_STREAMER_MEMORY_LIMIT: a staging ring of 40.0 GiB is too much for this machine's memory: 1.0 GiB is "
         "used"},
        {"RUNAI_STREAMER_CONCURRENCY", "1024", "", 256 * MiB, 8 * MiB,
         "RUNAI_STREAMER_CONCURRENCY: a staging ring of 8.0 GiB is too much for this machine's memory: 256.0 MiB is "
         "used"},
        {"RUNAI_STREAMER_CONCURRENCY", "1024", "io: {memory_limit: 512MiB}", 512 * MiB, 8 * MiB, NULL},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "1073741824", "", 256 * MiB, 16 * MiB,
         "RUNAI_STREAMER_CHUNK_BYTESIZE: 1.0 GiB is too much for this machine's memory: 16.0 MiB is used"},
        {"RUNAI_STREAMER_CHUNK_BYTESIZE", "1073741824", "io: {memory_limit: 2GiB}", 2 * GiB, GiB, NULL},
};

TEST(a_ring_of_a_variable_fits_the_memory, EACH(rings))
{
        uint64_t ring;
        char *path = write_file(rings[_i].file);
        if (rings[_i].name != NULL)
                setenv(rings[_i].name, rings[_i].value, 1);
        ck_assert_int_eq(LOAD(NEEDED, "--config", path), 0);
        ck_assert_int_eq(config_fit_ring(&config, config.io.concurrency, 4 * GiB, &ring, &error), 0);
        ck_assert_uint_eq(ring, rings[_i].ring);
        ck_assert_uint_eq(config.io.block_size, rings[_i].block);
        assert_warning(rings[_i].what);
}

TEST(a_value_that_was_fitted_to_the_memory_is_no_change)
{
        uint64_t ring;
        char keys[256];
        setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "1073741824", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_int_eq(config_fit_ring(&config, 16, 4 * GiB, &ring, &error), 0);
        struct config running = config;
        config = (struct config){0};
        ck_assert_int_eq(LOAD(NEEDED), 0);
        reload_restart_keys(&running, &config, keys, sizeof(keys));
        ck_assert_str_eq(keys, "");
        ck_assert_int_eq(LOAD(NEEDED, "--block-size=4MiB"), 0);
        reload_restart_keys(&running, &config, keys, sizeof(keys));
        ck_assert_str_eq(keys, "io.block_size");
}

TEST(the_newer_name_of_a_variable_takes_precedence)
{
        setenv("RUNAI_STREAMER_BLOCK_BYTESIZE", "4194304", 1);
        setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "2097152", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.block_size, 2 * MiB);
}

/* ---- printing only ---- */

static char *warned; /* on standard error, by printed() */

/* Runs config_load with standard output and error in files. */
static char *printed(char **argv, int *r)
{
        static const int streams[] = {STDOUT_FILENO, STDERR_FILENO};
        char *paths[2];
        int saved[2];
        fflush(stdout);
        for (int i = 0; i < 2; i++) {
                paths[i] = suite_path("stream-%d-%d", i, (int)getpid());
                saved[i] = must(dup(streams[i]));
                int fd = must(open(paths[i], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
                must(dup2(fd, streams[i]));
                close(fd);
        }
        *r = load(argv);
        fflush(stdout);
        for (int i = 0; i < 2; i++) {
                must(dup2(saved[i], streams[i]));
                close(saved[i]);
        }
        warned = file_read(paths[1], NULL);
        return file_read(paths[0], NULL);
}

TEST(help_and_version_print_and_need_nothing)
{
        int r;
        char *usage = printed((char *[]){"streamerd", "--help", NULL}, &r);
        ck_assert_ptr_nonnull(strstr(usage, "Usage: streamerd [FLAGS]\n"));
        ck_assert_int_eq(r, CONFIG_PRINTED);
        ck_assert_str_eq(printed((char *[]){"streamerd", "-h", NULL}, &r), usage);
        ck_assert_str_eq(printed((char *[]){"streamerd", "--socket", "/s", "--version", NULL}, &r),
                         "streamerd " STREAMERD_VERSION " (commit tests)\n");
        ck_assert_int_eq(r, CONFIG_PRINTED);
}

TEST(check_parses_the_configuration_and_starts_no_daemon)
{
        int r;
        char *path = write_file("roots: [/]\ndevices: [host]\n");
        char *text = printed((char *[]){"streamerd", "--check-config", "--config", path, NULL}, &r);
        ck_assert_int_eq(r, CONFIG_PRINTED);
        ck_assert_ptr_nonnull(strstr(text, "the settings are valid"));
        ck_assert_ptr_nonnull(strstr(text, path));
        write_file("roots: [/]\n");
        assert_usage(LOAD("--check-config", "--config", path), "no device");
}

TEST(check_names_folders_that_a_start_would_not_find)
{
        int r;
        printed((char *[]){"streamerd", "--check-config", "--device=host", "--root=/dev/null", NULL}, &r);
        ck_assert_int_eq(r, CONFIG_PRINTED);
        assert_warning("root /dev/null: no such directory: the daemon does not start without it");
        ck_assert_str_eq(warned, "streamerd: warning: root /dev/null: no such directory: the daemon does not start "
                                 "without it\n");
        printed((char *[]){"streamerd", "--check-config", NEEDED, "--state=/no/such/state", NULL}, &r);
        ck_assert_int_eq(r, CONFIG_PRINTED);
        assert_warning("state: /no/such/state: no such directory: pins will not survive the daemon");
        printed((char *[]){"streamerd", "--check-config", NEEDED, "--state=/", NULL}, &r);
        ck_assert_int_eq(r, CONFIG_PRINTED);
        assert_warning(NULL);
        ck_assert_str_eq(warned, "");
}

TEST(usage_lists_every_variable)
{
        int r;
        char *usage = printed((char *[]){"streamerd", "--help", NULL}, &r);
        for (size_t i = 0; i < n_settings; i++)
                ck_assert_msg(settings[i].env == NULL || strstr(usage, settings[i].env) != NULL, "%s", settings[i].env);
}

/* ---- completion ---- */

#define ALL                                                                                                            \
        "--device --root --socket --state --exit-idle --keep-alive --config --concurrency --block-size "               \
        "--memory-limit --disk-cache "                                                                                 \
        "--log-level --log-format --metrics-listen --health-listen --check-config --version --help "

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
        ck_assert_int_eq(r, CONFIG_PRINTED);
        out[0] = '\0';
        for (char *line = strtok(all, "\n"); line != NULL; line = strtok(NULL, "\n"))
                strcat(strncat(out, line, strcspn(line, "\t")), " ");
        return out;
}

TEST(the_flag_of_the_disk_cache_sets_its_folder_and_budget)
{
        ck_assert_int_eq(LOAD(NEEDED, "--disk-cache", "/var/cache/a=b=2GiB"), 0);
        ck_assert_str_eq(config.disk_cache.path, "/var/cache/a=b");
        ck_assert_uint_eq(config.disk_cache.budget, UINT64_C(2) << 30);
        ck_assert_uint_eq(config.disk_cache.min_free.percent, 10);
        assert_usage(LOAD(NEEDED, "--disk-cache=/var/cache"), "--disk-cache: takes PATH=SIZE");
        assert_usage(LOAD(NEEDED, "--disk-cache=cache=1GiB"), "--disk-cache: 'cache' is not an absolute path");
        assert_usage(LOAD(NEEDED, "--disk-cache=/var/cache=much"), "--disk-cache: 'much' is not a size");
        assert_usage(LOAD(NEEDED, "--disk-cache=/var/cache=0"), "disk_cache.path: needs disk_cache.budget, above 0");
        assert_usage(LOAD(NEEDED, "--disk-cache==1GiB"), "disk_cache.budget: needs disk_cache.path");
        char *path = write_file("disk_cache: {also: [/mnt/nfs]}\n");
        assert_usage(LOAD(NEEDED, "--config", path), "disk_cache.also: needs disk_cache.path");
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
                }
}
