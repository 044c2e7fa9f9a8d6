/* SPDX-License-Identifier: Apache-2.0
 *
 * Precedence of file, environment and flags.
 */
#include "tests/unit/config_fixture.h"

/* ---- flags ---- */

FIXTURE(.each = {begin, end});

TEST(a_device_and_a_root_suffice)
{
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_int_eq(action, CONFIG_RUN);
        ck_assert_str_eq(config.socket, CONFIG_DEFAULT_SOCKET);
        ck_assert_str_eq(config.roots[0], "/");
        ck_assert_uint_eq(config.devices[0].budget, GiB);
        ck_assert_uint_eq(config.io.concurrency, 16);
        ck_assert_uint_eq(config.io.block_size, 8 * MiB);
        ck_assert_str_eq(config.notes, "");
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
        assert_usage(LOAD(NEEDED, "--memory-limit=7MiB"), "less than one block");
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

TEST(a_percentage_is_of_this_machines_memory)
{
        uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        ck_assert_int_eq(LOAD("--device=host=50%", "--root=/"), 0);
        ck_assert_uint_eq(config.devices[0].budget, memory / 100 * 50);
        ck_assert_str_eq(config.notes, "");
        ck_assert_int_eq(LOAD("--device=host=4096TiB", "--root=/"), 0);
        ck_assert_ptr_nonnull(strstr(config.notes, "more than this machine's memory"));
}

static const struct {
        const char *name, *value, *what; /* the error; NULL: none */
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
        {"RUNAI_STREAMER_S3_UNSIGNED", "maybe", "RUNAI_STREAMER_S3_UNSIGNED: "},
        {"RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "2", "RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING: "},
        {"RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS", "99", "RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS: "},
        {"RUNAI_STREAMER_LOG_TO_STDERR", "1", NULL},
        {"RUNAI_STREAMER_LOG_TO_STDERR", "maybe", "RUNAI_STREAMER_LOG_TO_STDERR: 'maybe' is not true or false"},
};

TEST(a_wrong_variable_is_named, EACH(variables))
{
        setenv(variables[_i].name, variables[_i].value, 1);
        int r = LOAD(NEEDED);
        if (variables[_i].what == NULL)
                ck_assert_int_eq(r, 0);
        else
                assert_usage(r, variables[_i].what);
}

TEST(the_newer_name_of_a_variable_takes_precedence)
{
        setenv("RUNAI_STREAMER_BLOCK_BYTESIZE", "4194304", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.block_size, 4 * MiB);
        setenv("RUNAI_STREAMER_CHUNK_BYTESIZE", "2097152", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.block_size, 2 * MiB);
}

TEST(an_unlimited_memory_limit_is_the_default_ring_and_is_noted)
{
        setenv("RUNAI_STREAMER_MEMORY_LIMIT", "-1", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.memory_limit, 0);
        ck_assert_str_eq(config.notes, "RUNAI_STREAMER_MEMORY_LIMIT=-1: the staging ring has its default size\n");
        setenv("RUNAI_STREAMER_MEMORY_LIMIT", "0", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_str_eq(config.notes, "RUNAI_STREAMER_MEMORY_LIMIT=0: the staging ring has its default size\n");
        setenv("RUNAI_STREAMER_MEMORY_LIMIT", "67108864", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_uint_eq(config.io.memory_limit, 64 * MiB);
        ck_assert_str_eq(config.notes, "");
}

TEST(the_log_can_stay_on_standard_error)
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

TEST(a_store_by_the_streamers_variables)
{
        setenv("RUNAI_STREAMER_S3_ENDPOINT", "https://store", 1);
        setenv("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "1", 1);
        setenv("RUNAI_STREAMER_S3_UNSIGNED", "1", 1);
        setenv("RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS", "1500", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_str_eq(config.s3.endpoint, "https://store");
        ck_assert_int_eq(config.s3.addressing, S3_VIRTUAL);
        ck_assert(config.s3.is_unsigned);
        ck_assert_uint_eq(config.http.opts.stall_ns, UINT64_C(1500000000));
        config_deinit(&config);
        setenv("RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING", "0", 1);
        setenv("RUNAI_STREAMER_S3_UNSIGNED", "false", 1);
        ck_assert_int_eq(LOAD(NEEDED), 0);
        ck_assert_int_eq(config.s3.addressing, S3_PATH);
        ck_assert(!config.s3.is_unsigned);
}
