/* SPDX-License-Identifier: Apache-2.0
 *
 * Flags are written --flag value or --flag=value. Flags with a single value use the table of settings. --device and
 * --root repeat: the first of each replaces the file's list.
 *
 * Completion fails by printing nothing.
 */
#include "daemon/config/flags.h"

#include "daemon/base/util.h"

#include <string.h>

#define NAME_SIZE 32
#define FILES ":files"

static const char *const devices[] = {"host", "cuda:0", "cuda:all", "cuda:all?", NULL};

const struct flag flags[] = {
        {"device", "D",
         "a device that holds weights, and its budget; repeatable\n"
         "host, host=8GiB, host=90% (of its memory; the default),\n"
         "cuda:0, cuda:GPU-<uuid>, cuda:all; cuda:all?: if they work",
         devices, false},
        {"root", "DIR", "a directory that models may be loaded from; repeatable", NULL, true},
        {"socket", "PATH", "the socket to listen on (" CONFIG_DEFAULT_SOCKET ")", NULL, true},
        {"state", "DIR", "the directory of the state file ($STATE_DIRECTORY; none)", NULL, true},
        {"exit-idle", "D", "exit after this time without a connection, a lease or a load (0s: never)", NULL, false},
        {"keep-alive", "D", "unload a model that had no lease for this time (0s: never)", NULL, false},
        {"config", "FILE", "the configuration file (" CONFIG_DEFAULT_PATH " if it exists)", NULL, true},
        {"concurrency", "N", "blocks in flight for one load (16)", NULL, false},
        {"block-size", "S", "bytes of one read, a multiple of 1MiB (8MiB)", NULL, false},
        {"memory-limit", "S", "bytes of the staging ring (0: concurrency x block size)", NULL, false},
        {"log-level", "L", "error, warn, info or debug (info)", log_levels, false},
        {"log-format", "F", "auto, plain, prefix, journal or json (auto)", log_formats, false},
        {"metrics-listen", "A", "serve metrics over HTTP at 127.0.0.1:PORT or unix:/path (off)", NULL, false},
        {"check-config", NULL, "check the configuration and exit", NULL, false},
        {"version", NULL, "print the version and exit", NULL, false},
        {"help", NULL, "print this and exit", NULL, false},
};
const size_t n_flags = ARRAY_SIZE(flags);

static const struct flag *find_flag(const char *name, size_t len)
{
        for (size_t i = 0; i < n_flags; i++)
                if (strncmp(flags[i].name, name, len) == 0 && flags[i].name[len] == '\0')
                        return &flags[i];
        return NULL;
}

static const struct setting *find_setting(const char *name)
{
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].flag != NULL && strcmp(settings[i].flag, name) == 0)
                        return &settings[i];
        return NULL;
}

/* ---- parsing ---- */

/* The flag at argv[*i], and its value where it takes one; moves past them. */
static int next_flag(int argc, char **argv, int *i, const struct flag **flag, const char **value, struct error *error)
{
        const char *arg = argv[(*i)++];
        if (strcmp(arg, "-h") == 0)
                arg = "--help";
        if (strncmp(arg, "--", 2) != 0)
                return error_set(error, STREAMER_EINVAL, "'%s': not a flag (--help lists them)", arg);
        const char *name = arg + 2, *equals = strchr(name, '=');
        int len = equals != NULL ? (int)(equals - name) : (int)strlen(name);
        *flag = find_flag(name, (size_t)len);
        *value = equals != NULL ? equals + 1 : NULL;
        if (*flag == NULL)
                return error_set(error, STREAMER_EINVAL, "--%.*s: unknown flag (--help lists them)", len, name);
        if ((*flag)->value == NULL)
                return equals == NULL ? 0 : error_set(error, STREAMER_EINVAL, "--%.*s: takes no value", len, name);
        if (*value == NULL && *i < argc)
                *value = argv[(*i)++];
        if (*value == NULL || (*value)[0] == '\0')
                return error_set(error, STREAMER_EINVAL, "--%.*s: has no value", len, name);
        return 0;
}

int flags_scan(struct flags_first *first, int argc, char **argv, struct error *error)
{
        *first = (struct flags_first){0};
        for (int i = 1; i < argc;) {
                const struct flag *flag;
                const char *value;
                int r = next_flag(argc, argv, &i, &flag, &value, error);
                if (r < 0)
                        return r;
                if (strcmp(flag->name, "config") == 0)
                        first->config = value;
                first->help |= strcmp(flag->name, "help") == 0;
                first->version |= strcmp(flag->name, "version") == 0;
                first->check |= strcmp(flag->name, "check-config") == 0;
        }
        return 0;
}

/* A relative folder is below the working directory. */
static int add_root(struct config *config, const char *path, char why[SETTING_WHY])
{
        if (path[0] == '/')
                return setting_add_root(config, path, why);
        cleanup_free char *cwd = getcwd(NULL, 0);
        cleanup_free char *absolute = cwd != NULL ? format_new("%s/%s", cwd, path) : NULL;
        return absolute != NULL ? setting_add_root(config, absolute, why)
                                : setting_wrong(why, "the working directory cannot be found");
}

static int apply(struct config *config, const char *name, const char *value, bool *first_device, bool *first_root,
                 char why[SETTING_WHY])
{
        const struct setting *setting = find_setting(name);
        if (setting != NULL)
                return setting_set(setting, config, value, why);
        if (strcmp(name, "device") == 0) {
                if (*first_device)
                        setting_clear_devices(config);
                *first_device = false;
                return setting_add_device(config, value, why);
        }
        if (strcmp(name, "root") == 0) {
                if (*first_root)
                        setting_clear_texts(&config->roots, &config->n_roots);
                *first_root = false;
                return add_root(config, value, why);
        }
        return 0;
}

int flags_apply(struct config *config, int argc, char **argv, struct error *error)
{
        bool first_device = true, first_root = true;
        for (int i = 1; i < argc;) {
                char why[SETTING_WHY];
                const struct flag *flag;
                const char *value;
                int r = next_flag(argc, argv, &i, &flag, &value, error);
                if (r < 0)
                        return r;
                if (apply(config, flag->name, value, &first_device, &first_root, why) < 0)
                        return error_set(error, STREAMER_EINVAL, "--%s: %s", flag->name, why);
        }
        return 0;
}

/* ---- help ---- */

static const char usage_head[] =
        "Usage: streamerd [FLAGS]\n"
        "Keeps model weights in memory and shares them with processes. Runs in the foreground.\n"
        "\n";

static const char usage_tail[] =
        "\n"
        "At least one device and one root are required. Sizes are bytes or end in KiB, MiB, GiB or TiB.\n"
        "A flag may be written --flag=value. Flags override the environment, which overrides the file;\n"
        "devices or roots given as flags replace those of the file.\n"
        "\n"
        "Environment:\n"
        "  STREAMERD_SOCKET                as --socket\n"
        "  STATE_DIRECTORY                 as --state; systemd sets it (StateDirectory=)\n"
        "  STREAMERD_CUDART_PATH           directories to search for libcudart after the system's\n"
        "  RUNAI_STREAMER_CONCURRENCY      as --concurrency\n"
        "  RUNAI_STREAMER_CHUNK_BYTESIZE   as --block-size; RUNAI_STREAMER_BLOCK_BYTESIZE is its older name\n"
        "  RUNAI_STREAMER_MEMORY_LIMIT     as --memory-limit; -1 and 0 mean the default\n"
        "  RUNAI_STREAMER_LOG_LEVEL        as --log-level\n"
        "  RUNAI_STREAMER_LOG_TO_STDERR    1: log to standard error even if the journal is available;\n"
        "                                  0: the default\n"
        "  RUNAI_STREAMER_S3_ENDPOINT      as s3.endpoint of the file\n"
        "  RUNAI_STREAMER_S3_USE_VIRTUAL_ADDRESSING\n"
        "                                  as s3.addressing: 0 path, 1 virtual\n"
        "  RUNAI_STREAMER_S3_REQUEST_TIMEOUT_MS\n"
        "                                  as http.stall, in milliseconds\n"
        "  RUNAI_STREAMER_S3_UNSIGNED      as s3.unsigned: 0 or 1\n"
        "  HF_ENDPOINT, HF_TOKEN           as hf.endpoint and hf.token\n"
        "  AWS_*                           as for AWS tools: docs/sources.md\n"
        "\n"
        "Signals: SIGTERM and SIGINT exit, SIGHUP reloads the configuration.\n"
        "\n"
        "Exit status: 0 after SIGTERM, SIGINT or --exit-idle, 1 on failure, 2 on a usage or configuration error, 6 if "
        "another\n"
        "daemon serves the socket.\n";

char *config_usage(void)
{
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        if (out == NULL)
                return NULL;
        fputs(usage_head, out);
        for (size_t i = 0; i < n_flags; i++) {
                int width = fprintf(out, "  --%s%s%s", flags[i].name, flags[i].value != NULL ? " " : "",
                                    flags[i].value ?: "");
                for (const char *line = flags[i].help; *line != '\0';) {
                        int len = (int)strcspn(line, "\n");
                        fprintf(out, "%*s%.*s\n", 22 - width, "", len, line);
                        width = 0;
                        line += len + (line[len] == '\n');
                }
        }
        fputs(usage_tail, out);
        fclose(out);
        return text;
}

/* ---- completion ---- */

/* The word that is typed so far is `before`, which stays, and the beginning of what is looked for. */
static void offer(const char *before, const char *begun, const char *word, const char *what)
{
        if (strncmp(word, begun, strlen(begun)) == 0)
                printf("%s%s\t%.*s\n", before, word, (int)strcspn(what, "\n"), what);
}

static void offer_values(const struct flag *flag, const char *before, const char *begun)
{
        if (flag->path)
                puts(FILES);
        for (const char *const *word = flag->words; word != NULL && *word != NULL; word++)
                offer(before, begun, *word, flag->help);
}

bool flags_complete(int argc, char **argv)
{
        const struct flag *pending = NULL; /* the flag whose value the next word is */
        if (argc < 4 || strcmp(argv[1], "complete") != 0 || strcmp(argv[2], "--") != 0)
                return false;
        for (int i = 3; i + 1 < argc; i++) {
                const struct flag *flag =
                        strncmp(argv[i], "--", 2) == 0 ? find_flag(argv[i] + 2, strlen(argv[i] + 2)) : NULL;
                pending = pending == NULL && flag != NULL && flag->value != NULL ? flag : NULL;
        }
        const char *word = argv[argc - 1], *equals = strchr(word, '=');
        if (pending != NULL) {
                offer_values(pending, "", word);
                return true;
        }
        if (strncmp(word, "--", 2) != 0 || equals == NULL) {
                for (size_t i = 0; i < n_flags; i++) {
                        char name[NAME_SIZE];
                        snprintf(name, sizeof(name), "--%s", flags[i].name);
                        offer("", word, name, flags[i].help);
                }
                return true;
        }
        const struct flag *flag = find_flag(word + 2, (size_t)(equals - word - 2));
        cleanup_free char *before = strndup(word, (size_t)(equals + 1 - word));
        if (flag != NULL && before != NULL)
                offer_values(flag, before, equals + 1);
        return true;
}
