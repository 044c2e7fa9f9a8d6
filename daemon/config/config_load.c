/* SPDX-License-Identifier: Apache-2.0
 *
 * Settings from four places, each overriding the one before: defaults, file, environment, flags. The command line is
 * parsed twice: first for its grammar and for what decides the rest (--config, --help), and at the end for its values.
 *
 * A wrong value anywhere refuses the whole configuration, with its place; but not one of a variable that other programs
 * read, too: it was not written for this one.
 */
#include "daemon/config/setting.h"

#include "daemon/base/commit.h"
#include "daemon/base/sys/listen.h"
#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <strings.h>
#include <sys/stat.h>

#define FILE_MAX MiB
#define NAME_SIZE 32
#define OWN "STREAMERD_" /* variables that this program alone reads */
/* Of a ring that variables of other programs determine. */
#define RING_SHARE 16 /* the part of the memory */
#define RING_LEAST (128 * MiB)

void config_init(struct config *config)
{
        *config = (struct config){0};
        for (size_t i = 0; i < n_settings; i++)
                setting_init(&settings[i], config);
}

void config_deinit(struct config *config)
{
        roles_deinit(&config->access);
        for (size_t i = 0; i < n_settings; i++)
                setting_deinit(&settings[i], config);
        for (size_t i = 0; i < config->n_warnings; i++)
                free(config->warnings[i]);
        free(config->warnings);
        *config = (struct config){0};
}

/* ---- the environment ---- */

__attribute__((format(printf, 3, 4))) static int warn(struct config *config, struct error *error, const char *format,
                                                      ...)
{
        va_list args;
        char *text = NULL, **warnings = array_grow(config->warnings, config->n_warnings, sizeof(*warnings));
        va_start(args, format);
        int n = warnings != NULL ? vasprintf(&text, format, args) : -1;
        va_end(args);
        if (warnings != NULL)
                config->warnings = warnings;
        if (n < 0)
                return error_no_memory(error);
        config->warnings[config->n_warnings++] = text;
        return 0;
}

/* The variable of a setting that is set. An empty one counts as unset, as shells and unit files write it. */
static const char *find_variable(const struct setting *setting, const char **value)
{
        const char *name = setting->env;
        *value = name != NULL ? filled(getenv(name)) : NULL;
        if (*value == NULL && setting->env_old != NULL)
                *value = filled(getenv(name = setting->env_old));
        return *value != NULL ? name : NULL;
}

const char *config_variable(const struct config *config, const char *key)
{
        const char *value;
        for (size_t i = 0; i < n_settings; i++)
                if (same_text(settings[i].key, key))
                        return config->origins[i] == CONFIG_ENVIRONMENT ? find_variable(&settings[i], &value) : NULL;
        return NULL;
}

/* Variables have 0 and 1 instead of words, milliseconds without their unit, and -1 for a size that is the default. */
static const char *as_word(const struct setting *setting, const char *value, char buffer[32])
{
        bool yes = strcmp(value, "1") == 0 || strcasecmp(value, "true") == 0;
        bool no = strcmp(value, "0") == 0 || strcasecmp(value, "false") == 0;
        if (setting->words == setting_bool_words && (yes || no))
                return yes ? "true" : "false";
        if (setting->words == setting_addressing_words && (yes || no))
                return yes ? "virtual" : "path";
        if (setting->kind == SETTING_SIZE && setting->min == 0 && strcmp(value, "-1") == 0)
                return "0";
        if (setting->kind == SETTING_DURATION && strlen(value) < 20 && strspn(value, "0123456789") == strlen(value)) {
                snprintf(buffer, 32, "%sms", value);
                return buffer;
        }
        return value;
}

static int apply_environment(struct config *config, struct error *error)
{
        for (size_t i = 0; i < n_settings; i++) {
                char why[SETTING_WHY] = "", buffer[32];
                const char *value, *name = find_variable(&settings[i], &value), *word;
                if (name == NULL)
                        continue;
                word = as_word(&settings[i], value, buffer);
                bool own = strncmp(name, OWN, strlen(OWN)) == 0;
                if (!own)
                        setting_set_foreign(&settings[i], config, word, why);
                else if (setting_set(&settings[i], config, CONFIG_ENVIRONMENT, word, why) < 0)
                        return error_set(error, STREAMER_EINVAL, "%s: %s", name, why);
                if (!own && why[0] != '\0' && warn(config, error, "%s: %s", name, why) < 0)
                        return error->code;
        }
        return 0;
}

/* A ring that is smaller than a block: whichever of the two a variable of another program determines gives way. */
static int fit_block(struct config *config, struct error *error)
{
        const char *of_ring = config_variable(config, "io.memory_limit");
        const char *of_block = config_variable(config, "io.block_size");
        char block[SETTING_NUMBER_TEXT], ring[SETTING_NUMBER_TEXT];
        config_size_text(config->io.block_size, block);
        config_size_text(config->io.memory_limit, ring);
        if (config->io.memory_limit == 0 || config->io.memory_limit >= config->io.block_size)
                return 0;
        if (of_ring != NULL) {
                config->io.memory_limit = config->io.block_size;
                return warn(config, error, "%s: %s is less than one block: %s is used", of_ring, ring, block);
        }
        if (of_block != NULL && config->io.memory_limit >= MiB) {
                config->io.block_size = round_down(config->io.memory_limit, MiB);
                return warn(config, error, "%s: %s is more than the staging ring of %s: %s is used", of_block, block,
                            ring, ring);
        }
        return error_set(error, STREAMER_EINVAL, "memory limit: %s is less than one block of %s", ring, block);
}

int config_fit_ring(struct config *config, uint64_t blocks, uint64_t memory, uint64_t *bytes, struct error *error)
{
        const char *of_block = config_variable(config, "io.block_size");
        const char *variable = of_block ?: config_variable(config, "io.concurrency");
        char given[SIZE_TEXT], used[SIZE_TEXT];
        uint64_t most = memory / RING_SHARE > RING_LEAST ? memory / RING_SHARE : RING_LEAST;
        uint64_t block = round_down(most / blocks, MiB) ?: MiB;
        int r = 0;
        if (config->io.memory_limit != 0)
                variable = config_variable(config, "io.memory_limit");
        *bytes = config->io.memory_limit ?: blocks * config->io.block_size;
        if (variable == NULL || *bytes <= most)
                return 0;
        if (of_block != NULL && config->io.block_size > block) {
                size_text(given, config->io.block_size);
                config->io.block_size = block;
                r = warn(config, error, "%s: %s is too much for this machine's memory: %s is used", of_block, given,
                         size_text(used, block));
                *bytes = config->io.memory_limit ?: blocks * block;
        }
        if (r == 0 && *bytes > most && config->io.block_size < *bytes) {
                size_text(given, *bytes);
                *bytes = most > config->io.block_size ? most : config->io.block_size;
                r = warn(config, error, "%s: a staging ring of %s is too much for this machine's memory: %s is used",
                         variable, given, size_text(used, *bytes));
        }
        return r;
}

static int read_file(struct config *config, const char *path, struct error *error)
{
        cleanup_with(text_deinit) struct text text = {0};
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return error_errno(error, STREAMER_EINVAL, errno, "%s", path);
        config->path = path;
        return text_read_fd(&text, fd, FILE_MAX, path, error)
                       ?: config_parse_yaml(config, path, text.data, text.size, error);
}

/* ---- flags: --flag value or --flag=value ---- */

static const struct setting *find_flag(const char *name, size_t len)
{
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].flag != NULL && strncmp(settings[i].flag, name, len) == 0 &&
                    settings[i].flag[len] == '\0')
                        return &settings[i];
        return NULL;
}

/* The flag at argv[*i], and its value where it takes one; moves past them. */
static int next_flag(int argc, char **argv, int *i, const struct setting **flag, const char **value,
                     struct error *error)
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
        if ((*flag)->argument == NULL)
                return equals == NULL ? 0 : error_set(error, STREAMER_EINVAL, "--%.*s: takes no value", len, name);
        if (*value == NULL && *i < argc)
                *value = argv[(*i)++];
        if (*value == NULL || (*value)[0] == '\0')
                return error_set(error, STREAMER_EINVAL, "--%.*s: has no value", len, name);
        return 0;
}

static int apply_key(const char *key, struct config *config, const char *value, char why[SETTING_WHY])
{
        size_t i = 0;
        while (settings[i].key == NULL || strcmp(settings[i].key, key) != 0)
                require(++i < n_settings);
        return setting_set(&settings[i], config, CONFIG_FLAG, value, why);
}

/* "PATH=SIZE": a path may have this character, a size has none. */
static int apply_disk_cache(struct config *config, const char *value, char why[SETTING_WHY])
{
        const char *equals = strrchr(value, '=');
        cleanup_free char *path = equals != NULL ? strndup(value, (size_t)(equals - value)) : NULL;
        if (equals == NULL)
                return setting_wrong(why, "takes PATH=SIZE");
        if (path == NULL)
                return setting_wrong(why, "no memory");
        return apply_key("disk_cache.path", config, path, why) < 0
                       ? -1
                       : apply_key("disk_cache.budget", config, equals + 1, why);
}

/* A relative root is below the working directory. */
static int apply(const struct setting *flag, struct config *config, const char *value, char why[SETTING_WHY])
{
        if (strcmp(flag->flag, SETTING_DISK_CACHE_FLAG) == 0)
                return apply_disk_cache(config, value, why);
        if (flag->list != &list_roots || value[0] == '/')
                return setting_set(flag, config, CONFIG_FLAG, value, why);
        cleanup_free char *cwd = getcwd(NULL, 0);
        cleanup_free char *absolute = cwd != NULL ? format_new("%s/%s", cwd, value) : NULL;
        return absolute != NULL ? setting_set(flag, config, CONFIG_FLAG, absolute, why)
                                : setting_wrong(why, "the working directory cannot be found");
}

/* Checks the grammar of the whole line; with a config, also writes its values into it. --device and --root repeat: the
 * first of each replaces the file's list. */
static int read_flags(struct actions *actions, struct config *config, int argc, char **argv, struct error *error)
{
        *actions = (struct actions){0};
        for (int i = 1; i < argc;) {
                char why[SETTING_WHY];
                const struct setting *flag = NULL;
                const char *value = NULL;
                int r = next_flag(argc, argv, &i, &flag, &value, error);
                if (r < 0)
                        return r;
                if (flag->kind == SETTING_ACTION)
                        *(const char **)(void *)((char *)actions + flag->offset) = value ?: "";
                else if (config != NULL && apply(flag, config, value, why) < 0)
                        return error_set(error, STREAMER_EINVAL, "--%s: %s", flag->flag, why);
        }
        return 0;
}

/* ---- help ---- */

/* In two columns: the second begins at `column`, on a line of its own after a long first one. */
static void print_row(int column, int width, const char *text)
{
        if (width >= column) {
                putchar('\n');
                width = 0;
        }
        for (const char *line = text; *line != '\0'; width = 0) {
                int len = (int)strcspn(line, "\n");
                printf("%*s%.*s\n", column - width, "", len, line);
                line += len + (line[len] == '\n');
        }
}

static void print_flag(const struct setting *s)
{
        char text[240];
        bool shows_default = s->initial != NULL;
        int width = printf("  --%s%s%s", s->flag, s->argument != NULL ? " " : "", s->argument ?: "");
        snprintf(text, sizeof(text), "%s%s%s%s", s->help, shows_default ? " (" : "", s->initial ?: "",
                 shows_default ? ")" : "");
        print_row(22, width, text);
}

static void print_variable(const struct setting *s)
{
        char text[240];
        int width = printf("  %s", s->env);
        if (s->key == NULL)
                snprintf(text, sizeof(text), "%s", s->env_note);
        else if (s->flag != NULL)
                snprintf(text, sizeof(text), "as --%s%s", s->flag, s->env_note);
        else
                snprintf(text, sizeof(text), "as %s of the file%s", s->key, s->env_note);
        print_row(34, width, text);
}

static void print_usage(void)
{
        printf("Usage: streamerd [FLAGS]\n"
               "Keeps model weights in memory and shares them with processes. Runs in the foreground.\n"
               "\n");
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].flag != NULL)
                        print_flag(&settings[i]);
        printf("\n"
               "At least one device and one root are required. Sizes are bytes or end in KiB, MiB, GiB or TiB.\n"
               "A flag may be written --flag=value. Flags override the environment, which overrides the file;\n"
               "devices or roots given as flags replace those of the file.\n"
               "\n"
               "Environment:\n");
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].env != NULL)
                        print_variable(&settings[i]);
        printf("  STREAMERD_CUDART_PATH           directories to search for libcudart after the system's\n"
               "  AWS_*, GOOGLE_*, AZURE_*        as for the tools of these stores: docs/sources.md\n"
               "\n"
               "Signals: SIGTERM and SIGINT exit, SIGHUP reloads the configuration.\n"
               "\n"
               "Exit status: 0 after SIGTERM, SIGINT or --exit-idle, 1 on failure, 2 on a usage or "
               "configuration error, 6 if another\n"
               "daemon serves the socket.\n");
}

/* ---- completion ---- */

/* Of the word that is typed, the first `kept` bytes stay, and the rest begins what is looked for. */
static void offer(const char *typed, size_t kept, const char *word, const char *what)
{
        if (strncmp(word, typed + kept, strlen(typed + kept)) == 0)
                printf("%.*s%s\t%.*s\n", (int)kept, typed, word, (int)strcspn(what, "\n"), what);
}

static void offer_values(const struct setting *flag, const char *typed, size_t kept)
{
        static const char *const paths[] = {"DIR", "FILE", "PATH"};
        for (size_t i = 0; i < ARRAY_SIZE(paths); i++)
                if (strcmp(flag->argument, paths[i]) == 0)
                        puts(":files");
        for (const char *const *word = flag->words; word != NULL && *word != NULL; word++)
                offer(typed, kept, *word, flag->help);
}

/* The flag "--NAME", if it takes a value. */
static const struct setting *find_valued(const char *word, size_t len)
{
        const struct setting *flag = len > 2 && strncmp(word, "--", 2) == 0 ? find_flag(word + 2, len - 2) : NULL;
        return flag != NULL && flag->argument != NULL ? flag : NULL;
}

/* Of `streamerd complete -- WORDS...`: prints the candidates for the last word, one a line with a tab and a
 * description, or ":files" where a path is expected. False: this is another command line. */
static bool complete(int argc, char **argv)
{
        const struct setting *flag = NULL; /* whose value is typed */
        if (argc < 4 || strcmp(argv[1], "complete") != 0 || strcmp(argv[2], "--") != 0)
                return false;
        for (int i = 3; i + 1 < argc; i++)
                flag = flag == NULL ? find_valued(argv[i], strlen(argv[i])) : NULL;
        const char *typed = argv[argc - 1], *equals = flag == NULL ? strchr(typed, '=') : NULL;
        size_t kept = equals != NULL ? (size_t)(equals + 1 - typed) : 0;
        if (equals != NULL)
                flag = find_valued(typed, kept - 1);
        if (flag != NULL)
                offer_values(flag, typed, kept);
        for (size_t i = 0; flag == NULL && equals == NULL && i < n_settings; i++) {
                char name[NAME_SIZE];
                snprintf(name, sizeof(name), "--%s", settings[i].flag ?: "");
                if (settings[i].flag != NULL)
                        offer(typed, 0, name, settings[i].help);
        }
        return true;
}

/* ---- the whole ---- */

/* What is served to other machines is encrypted, and only to those who may read it. */
static int check_metrics(const struct config *config, struct error *error)
{
        const char *address = filled(config->metrics.listen), *ca = filled(config->metrics.client_ca);
        bool has_certificate = filled(config->metrics.certificate) != NULL;
        bool is_guarded = has_certificate && (ca != NULL || filled(config->metrics.token_file) != NULL);
        struct listen_address where = {0};
        if (has_certificate != (filled(config->metrics.key) != NULL))
                return error_set(error, STREAMER_EINVAL, "metrics.certificate and metrics.key require each other");
        if (ca != NULL && !has_certificate)
                return error_set(error, STREAMER_EINVAL, "metrics.client_ca: requires metrics.certificate");
        if (address == NULL || is_guarded)
                return 0;
        int r = listen_parse(address, &where, error);
        if (r < 0 || listen_is_local(&where))
                return r;
        return error_set(error, STREAMER_EINVAL,
                         "metrics.listen: '%.80s' can be reached from outside: it requires metrics.certificate, and "
                         "metrics.client_ca or metrics.token_file",
                         address);
}

static int check_whole(struct config *config, struct error *error)
{
        const char *from = config->path != NULL ? config->path : CONFIG_DEFAULT_PATH;
        if (config->n_devices == 0)
                return error_set(error, STREAMER_EINVAL,
                                 "no device: give --device host=8GiB, or 'devices' in %s (see --help)", from);
        if (config->n_roots == 0)
                return error_set(error, STREAMER_EINVAL, "no root: give --root DIR, or 'roots' in %s (see --help)",
                                 from);
        bool has_cache = filled(config->disk_cache.path) != NULL;
        if (has_cache && config->disk_cache.budget == 0)
                return error_set(error, STREAMER_EINVAL, "disk_cache.path: needs disk_cache.budget, above 0");
        if (!has_cache && config->disk_cache.budget > 0)
                return error_set(error, STREAMER_EINVAL, "disk_cache.budget: needs disk_cache.path");
        if (!has_cache && config->disk_cache.n_also > 0)
                return error_set(error, STREAMER_EINVAL, "disk_cache.also: needs disk_cache.path");
        if (config->socket == NULL && (config->socket = strdup(CONFIG_DEFAULT_SOCKET)) == NULL)
                return error_no_memory(error);
        return fit_block(config, error) ?: access_check_roots(config, error) ?: check_metrics(config, error);
}

/* The user who checks may lack permission to look: only folders that do not exist are reported. */
static bool is_missing(const char *folder)
{
        struct stat st;
        return stat(folder, &st) < 0 ? errno == ENOENT || errno == ENOTDIR : !S_ISDIR(st.st_mode);
}

/* Where the file is checked on another machine than its own, they need not exist. */
static int check_folders(struct config *config, struct error *error)
{
        const char *state = filled(config->state);
        int r = 0;
        for (size_t i = 0; r == 0 && i < config->n_roots; i++)
                if (is_missing(config->roots[i]))
                        r = warn(config, error, "root %s: no such directory: the daemon does not start without it",
                                 config->roots[i]);
        if (r == 0 && state != NULL && is_missing(state))
                r = warn(config, error, "state: %s: no such directory: pins will not survive the daemon", state);
        return r;
}

int config_load(struct config *config, int argc, char **argv, struct error *error)
{
        struct actions actions;
        config_init(config);
        if (complete(argc, argv))
                return CONFIG_PRINTED;
        int r = read_flags(&actions, NULL, argc, argv, error);
        if (r < 0)
                return r;
        if (actions.help != NULL) {
                print_usage();
                return CONFIG_PRINTED;
        }
        if (actions.version != NULL) {
                printf("streamerd %s (commit %s)\n", STREAMERD_VERSION, build_commit);
                return CONFIG_PRINTED;
        }
        /* The default file may be absent; one that cannot be read is an error. */
        bool absent = actions.config == NULL && access(CONFIG_DEFAULT_PATH, F_OK) < 0 && errno == ENOENT;
        r = absent ? 0 : read_file(config, actions.config ?: CONFIG_DEFAULT_PATH, error);
        r = r ?: apply_environment(config, error)
                ?: read_flags(&actions, config, argc, argv, error) ?: check_whole(config, error);
        if (r == 0 && actions.check != NULL)
                r = check_folders(config, error);
        if (r < 0) {
                config_deinit(config);
                return r;
        }
        if (actions.check == NULL)
                return 0;
        for (size_t i = 0; i < config->n_warnings; i++)
                fprintf(stderr, "streamerd: warning: %s\n", config->warnings[i]);
        printf("streamerd: the settings are valid (%s)\n", config->path ?: "no file");
        return CONFIG_PRINTED;
}

int config_keyring(const struct config *config, struct keyring **out, struct error *error)
{
        const struct keyring_opts opts = {.files = config->encryption.keys,
                                          .n_files = config->encryption.n_keys,
                                          .plaintext_tensors = config->encryption.plaintext_tensors,
                                          .require_encrypted = config->encryption.require};
        return keyring_new(out, &opts, error);
}
