/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings from four places, each over the one before: defaults, file, environment, flags. The
 * command line is walked twice: first for its grammar and for what decides the rest (--config,
 * --help), and once all else is read, for its values.
 */
#include "daemon/config/lists.h"

#include "daemon/base/fd.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <strings.h>

#define FILE_MAX MiB
#define ENV_OLD_CHUNK "RUNAI_STREAMER_BLOCK_BYTESIZE"
#define ENV_MEMORY_LIMIT "RUNAI_STREAMER_MEMORY_LIMIT"
#define ENV_TO_STDERR "RUNAI_STREAMER_LOG_TO_STDERR"

const char config_usage[] =
        "Usage: streamerd [FLAGS]\n"
        "Holds model weights in memory and hands them to processes. Runs in the foreground.\n"
        "\n"
        "  --device D          a device to hold weights on, and how much of it; repeats\n"
        "                      host, host=8GiB, host=90% (of its memory; the default),\n"
        "                      cuda:0, cuda:GPU-<uuid>, cuda:all\n"
        "  --root DIR          a folder below which models may be loaded; repeats\n"
        "  --socket PATH       where to listen (" CONFIG_DEFAULT_SOCKET ")\n"
        "  --state DIR         where it keeps what it knows over a restart ($STATE_DIRECTORY; none)\n"
        "  --config FILE       settings (" CONFIG_DEFAULT_PATH " if it is there)\n"
        "  --concurrency N     blocks read at once for one load (16)\n"
        "  --block-size S      bytes of one read, a multiple of 1MiB (8MiB)\n"
        "  --memory-limit S    bytes of the staging ring (0: concurrency x block size)\n"
        "  --log-level L       error, warn, info or debug (info)\n"
        "  --log-format F      auto, plain, prefix, journal or json (auto)\n"
        "  --metrics-listen A  serve metrics over HTTP at 127.0.0.1:PORT or unix:/path (nowhere)\n"
        "  --check-config      read the settings, say whether they are valid, and exit\n"
        "  --version, --help   print that and exit\n"
        "\n"
        "At least one device and one root are needed. Sizes are bytes or end in KiB, MiB, GiB or TiB.\n"
        "A flag may be written --flag=value. Flags go over the environment, which goes over the file;\n"
        "devices or roots given as flags replace those of the file.\n"
        "\n"
        "Environment:\n"
        "  STREAMERD_SOCKET                as --socket\n"
        "  STATE_DIRECTORY                 as --state; systemd sets it (StateDirectory=)\n"
        "  RUNAI_STREAMER_CONCURRENCY      as --concurrency\n"
        "  RUNAI_STREAMER_CHUNK_BYTESIZE   as --block-size; RUNAI_STREAMER_BLOCK_BYTESIZE is its older name\n"
        "  RUNAI_STREAMER_MEMORY_LIMIT     as --memory-limit; -1 and 0 mean the default\n"
        "  RUNAI_STREAMER_LOG_LEVEL        as --log-level\n"
        "  RUNAI_STREAMER_S3_ENDPOINT      as s3.endpoint of the file\n"
        "  RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING  as s3.addressing: 0 path, 1 virtual\n"
        "  RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS  as http.stall, in milliseconds\n"
        "  RUNAI_STREAMER_S3_UNSIGNED      as s3.unsigned: 0 or 1\n"
        "  HF_ENDPOINT, HF_TOKEN           as hf.endpoint and hf.token\n"
        "  AWS_*                           as AWS's tools know them: docs/sources.md\n"
        "  RUNAI_STREAMER_LOG_TO_STDERR    1: the log goes to standard error even where the journal could take it;\n"
        "                                  0: the default\n"
        "\n"
        "Signals: SIGTERM and SIGINT end it, SIGHUP lets it read its settings again.\n"
        "\n"
        "Exit status: 0 after SIGTERM or SIGINT, 1 on failure, 2 on wrong usage or settings.\n";

/* ---- defaults ---- */

void config_init(struct config *config)
{
        *config = (struct config){
                .io = {.concurrency = 16, .block_size = 8 * MiB, .stall_ns = 30 * UINT64_C(1000000000)},
                .http = {.connect_timeout_ns = 10 * UINT64_C(1000000000),
                         .stall_ns = 20 * UINT64_C(1000000000),
                         .backoff_ns = 200 * UINT64_C(1000000),
                         .retry_after_ns = 30 * UINT64_C(1000000000),
                         .tries = 6,
                         .redirects = 5,
                         .threads = 4},
                .cuda = {.segment_size = 4 * GiB, .trust_detach = true},
                .limits =
                        {
                                .connections = 8192,
                                .connections_per_uid = 4096,
                                .leases_per_uid = 16384,
                                .loads_per_uid = 32,
                                .leases_per_client = 4096,
                                .loads = 64,
                                .queued = 16,
                                .requests_per_client = 64,
                                .output_per_client = 4 * MiB,
                                .fds_in_flight = 4096,
                                .fds_per_client = 256,
                                .frame_timeout_ns = 10 * UINT64_C(1000000000),
                                .preload_loads = 2,
                                .preload_retry_ns = UINT64_C(1000000000),
                                .failed_kept = 64,
                        },
                .log = {.level = LOG_LEVEL_INFO},
        };
}

void config_deinit(struct config *config)
{
        setting_clear_roots(config);
        setting_clear_devices(config);
        roles_deinit(&config->access);
        setting_clear_http(config);
        preload_list_deinit(&config->preload);
        free(config->socket);
        setting_clear_s3(config);
        free(config->state);
        free(config->cuda.library);
        free(config->metrics.listen);
        free(config->path);
        *config = (struct config){0};
}

/* ---- the command line ---- */

struct flag {
        const char *name; /* without "--" */
        const char *value;
};

struct args {
        const char *config;
        bool help, version, check;
};

static const struct setting *find_flag(const char *name)
{
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].flag != NULL && strcmp(settings[i].flag, name) == 0)
                        return &settings[i];
        return NULL;
}

static bool takes_value(const char *name)
{
        return strcmp(name, "device") == 0 || strcmp(name, "root") == 0 || strcmp(name, "config") == 0 ||
               find_flag(name) != NULL;
}

static bool takes_none(const char *name)
{
        return strcmp(name, "check-config") == 0 || strcmp(name, "version") == 0 || strcmp(name, "help") == 0;
}

/* The flag at argv[*i], moving past it; `buffer` holds its name. */
static int next_flag(int argc, char **argv, int *i, char buffer[32], struct flag *flag, struct error *error)
{
        const char *arg = argv[(*i)++];
        const char *equals = strchr(arg, '=');
        if (strcmp(arg, "-h") == 0)
                arg = "--help";
        if (strncmp(arg, "--", 2) != 0)
                return error_set(error, STREAMER_EINVAL, "'%s': not a flag (--help lists them)", arg);
        int len = equals != NULL ? (int)(equals - arg - 2) : (int)strlen(arg + 2);
        *flag = (struct flag){.name = buffer, .value = equals != NULL ? equals + 1 : NULL};
        if (len >= 32)
                return error_set(error, STREAMER_EINVAL, "%s: unknown flag (--help lists them)", arg);
        snprintf(buffer, 32, "%.*s", len, arg + 2);
        if (takes_none(buffer))
                return equals == NULL ? 0 : error_set(error, STREAMER_EINVAL, "--%s: takes no value", buffer);
        if (!takes_value(buffer))
                return error_set(error, STREAMER_EINVAL, "--%s: unknown flag (--help lists them)", buffer);
        if (flag->value == NULL && *i < argc)
                flag->value = argv[(*i)++];
        if (flag->value == NULL || flag->value[0] == '\0')
                return error_set(error, STREAMER_EINVAL, "--%s: has no value", buffer);
        return 0;
}

static int scan_args(struct args *args, int argc, char **argv, struct error *error)
{
        *args = (struct args){0};
        for (int i = 1; i < argc;) {
                char name[32];
                struct flag flag;
                int r = next_flag(argc, argv, &i, name, &flag, error);
                if (r < 0)
                        return r;
                if (strcmp(name, "config") == 0)
                        args->config = flag.value;
                args->help |= strcmp(name, "help") == 0;
                args->version |= strcmp(name, "version") == 0;
                args->check |= strcmp(name, "check-config") == 0;
        }
        return 0;
}

/* Folders given on the command line are relative to where it was typed. */
static int add_root(struct config *config, const char *path, char why[SETTING_WHY])
{
        if (path[0] == '/')
                return setting_add_root(config, path, why);
        cleanup_free char *cwd = getcwd(NULL, 0);
        cleanup_free char *absolute = NULL;
        if (cwd == NULL || asprintf(&absolute, "%s/%s", cwd, path) < 0) {
                absolute = NULL;
                snprintf(why, SETTING_WHY, "the working directory cannot be found");
                return -1;
        }
        return setting_add_root(config, absolute, why);
}

static int apply_flag(struct config *config, const struct flag *flag, bool *first_device, bool *first_root,
                      char why[SETTING_WHY])
{
        const struct setting *setting = find_flag(flag->name);
        if (setting != NULL)
                return setting_set(setting, config, flag->value, why);
        if (strcmp(flag->name, "device") == 0) {
                if (*first_device)
                        setting_clear_devices(config);
                *first_device = false;
                return setting_add_device(config, flag->value, why);
        }
        if (strcmp(flag->name, "root") == 0) {
                if (*first_root)
                        setting_clear_roots(config);
                *first_root = false;
                return add_root(config, flag->value, why);
        }
        return 0;
}

static int apply_args(struct config *config, int argc, char **argv, struct error *error)
{
        bool first_device = true, first_root = true;
        for (int i = 1; i < argc;) {
                char name[32], why[SETTING_WHY];
                struct flag flag;
                int r = next_flag(argc, argv, &i, name, &flag, error);
                if (r < 0)
                        return r;
                if (apply_flag(config, &flag, &first_device, &first_root, why) < 0)
                        return error_set(error, STREAMER_EINVAL, "--%s: %s", name, why);
        }
        return 0;
}

/* ---- the environment ---- */

__attribute__((format(printf, 3, 4))) static void note(char *notes, size_t size, const char *format, ...)
{
        size_t len = strlen(notes);
        va_list args;
        va_start(args, format);
        vsnprintf(notes + len, size - len, format, args);
        va_end(args);
}

/* Variables say 0 and 1 where the file has words, and milliseconds without their unit. */
static const char *as_word(const struct setting *setting, const char *value, char buffer[32])
{
        bool yes = strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0;
        bool no = strcmp(value, "0") == 0 || strcasecmp(value, "false") == 0;
        if (setting->kind == SETTING_BOOL && (yes || no))
                return yes ? "true" : "false";
        if (setting->kind == SETTING_ADDRESSING && (yes || no))
                return yes ? "virtual" : "path";
        if (setting->kind == SETTING_DURATION && strlen(value) < 20 && strspn(value, "0123456789") == strlen(value)) {
                snprintf(buffer, 32, "%sms", value);
                return buffer;
        }
        return value;
}

static int apply_variable(struct config *config, const struct setting *setting, const char *name, const char *value,
                          struct error *error)
{
        char why[SETTING_WHY], buffer[32];
        if (setting_set(setting, config, as_word(setting, value, buffer), why) < 0)
                return error_set(error, STREAMER_EINVAL, "%s: %s", name, why);
        return 0;
}

/* Empty is as good as unset, as shells and unit files write it. */
static const char *variable(const char *name)
{
        const char *value = name != NULL ? getenv(name) : NULL;
        return value != NULL && value[0] != '\0' ? value : NULL;
}

static int apply_to_stderr(struct config *config, struct error *error)
{
        const char *value = variable(ENV_TO_STDERR);
        if (value == NULL)
                return 0;
        config->log.to_stderr = strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0;
        if (!config->log.to_stderr && strcmp(value, "0") != 0 && strcasecmp(value, "false") != 0)
                return error_set(error, STREAMER_EINVAL, ENV_TO_STDERR ": '%s' is not 0 or 1", value);
        return 0;
}

static int apply_environment(struct config *config, char *notes, size_t notes_size, struct error *error)
{
        for (size_t i = 0; i < n_settings; i++) {
                const struct setting *setting = &settings[i];
                const char *name = setting->env, *value = variable(name);
                if (value == NULL && setting->offset == offsetof(struct config, io.block_size)) {
                        name = ENV_OLD_CHUNK;
                        value = variable(name);
                }
                if (value != NULL && strcmp(name, ENV_MEMORY_LIMIT) == 0 &&
                    (strcmp(value, "-1") == 0 || strcmp(value, "0") == 0)) {
                        note(notes, notes_size, ENV_MEMORY_LIMIT "=%s: the staging ring has its default size\n", value);
                        value = "0";
                }
                int r = value != NULL ? apply_variable(config, setting, name, value, error) : 0;
                if (r < 0)
                        return r;
        }
        return apply_to_stderr(config, error);
}

/* ---- the file ---- */

static int read_file(struct config *config, const char *path, struct error *error)
{
        struct text text;
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return error_errno(error, STREAMER_EINVAL, errno, "%s", path);
        config->path = strdup(path);
        if (config->path == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        int r = text_read_fd(&text, fd, FILE_MAX, path, error);
        if (r == 0)
                r = config_parse_yaml(config, path, text.data, text.size, error);
        text_deinit(&text);
        return r;
}

static int apply_file(struct config *config, const char *named, struct error *error)
{
        if (named != NULL)
                return read_file(config, named, error);
        /* Only its absence is fine: one that cannot be read was meant to be. */
        if (access(CONFIG_DEFAULT_PATH, F_OK) < 0 && errno == ENOENT)
                return 0;
        return read_file(config, CONFIG_DEFAULT_PATH, error);
}

/* ---- the whole ---- */

static void resolve_budgets(struct config *config, char *notes, size_t notes_size)
{
        uint64_t memory = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
        for (size_t i = 0; i < config->n_devices; i++) {
                struct config_device *device = &config->devices[i];
                if (strcmp(device->name, "host") != 0)
                        continue;
                if (device->budget_percent != 0)
                        device->budget = memory / 100 * device->budget_percent;
                if (device->budget > memory)
                        note(notes, notes_size,
                             "host: the budget of %" PRIu64 " bytes is more than this machine's memory of %" PRIu64
                             "\n",
                             device->budget, memory);
        }
}

static int check_whole(struct config *config, struct error *error)
{
        const char *from = config->path != NULL ? config->path : CONFIG_DEFAULT_PATH;
        if (config->n_devices == 0)
                return error_set(error, STREAMER_EINVAL,
                                 "no device: give --device host=8GiB, or 'devices' in %s (--help tells more)", from);
        if (config->n_roots == 0)
                return error_set(error, STREAMER_EINVAL,
                                 "no root: give --root DIR, or 'roots' in %s (--help tells more)", from);
        if (config->io.memory_limit != 0 && config->io.memory_limit < config->io.block_size)
                return error_set(error, STREAMER_EINVAL,
                                 "memory limit: %" PRIu64 " bytes are less than one block of %" PRIu64,
                                 config->io.memory_limit, config->io.block_size);
        if (config->socket == NULL && (config->socket = strdup(CONFIG_DEFAULT_SOCKET)) == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        return access_check_roots(config, error);
}

static int load_all(struct config *config, const struct args *args, int argc, char **argv, char *notes,
                    size_t notes_size, struct error *error)
{
        int r = apply_file(config, args->config, error);
        if (r == 0)
                r = apply_environment(config, notes, notes_size, error);
        if (r == 0)
                r = apply_args(config, argc, argv, error);
        if (r == 0)
                r = check_whole(config, error);
        if (r == 0)
                resolve_budgets(config, notes, notes_size);
        return r;
}

int config_load(struct config *config, int argc, char **argv, enum config_action *action, char *notes,
                size_t notes_size, struct error *error)
{
        struct args args;
        config_init(config);
        notes[0] = '\0';
        *action = CONFIG_EXIT;
        int r = scan_args(&args, argc, argv, error);
        if (r < 0)
                return r;
        if (args.help || args.version) {
                fputs(args.help ? config_usage : "streamerd " STREAMERD_VERSION "\n", stdout);
                return 0;
        }
        r = load_all(config, &args, argc, argv, notes, notes_size, error);
        if (r < 0) {
                config_deinit(config);
                return r;
        }
        if (args.check)
                printf("%sstreamerd: the settings are valid (%s)\n", notes, config->path ?: "no file");
        else
                *action = CONFIG_RUN;
        return 0;
}
