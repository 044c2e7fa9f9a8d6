/* SPDX-License-Identifier: Apache-2.0
 *
 * Flags are written --flag value or --flag=value. --device and --root repeat: the first of each replaces the file's
 * list. Completion fails by printing nothing.
 */
#include "daemon/config/setting.h"

#include "daemon/base/util.h"

#define NAME_SIZE 32

/* ---- parsing ---- */

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
        *flag = setting_find_flag(name, (size_t)len);
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

/* A relative root is below the working directory. */
static int apply(const struct setting *flag, struct config *config, const char *value, char why[SETTING_WHY])
{
        if (flag->list != &list_roots || value[0] == '/')
                return setting_set(flag, config, CONFIG_FLAG, value, why);
        cleanup_free char *cwd = getcwd(NULL, 0);
        cleanup_free char *absolute = cwd != NULL ? format_new("%s/%s", cwd, value) : NULL;
        return absolute != NULL ? setting_set(flag, config, CONFIG_FLAG, absolute, why)
                                : setting_wrong(why, "the working directory cannot be found");
}

int flags_read(struct flags_first *first, struct config *config, int argc, char **argv, struct error *error)
{
        *first = (struct flags_first){0};
        for (int i = 1; i < argc;) {
                char why[SETTING_WHY];
                const struct setting *flag = NULL;
                const char *value = NULL;
                int r = next_flag(argc, argv, &i, &flag, &value, error);
                if (r < 0)
                        return r;
                if (flag->kind == SETTING_ACTION)
                        *(const char **)(void *)((char *)first + flag->offset) = value ?: "";
                else if (config != NULL && apply(flag, config, value, why) < 0)
                        return error_set(error, STREAMER_EINVAL, "--%s: %s", flag->flag, why);
        }
        return 0;
}

/* ---- help ---- */

static const char usage_head[] =
        "Usage: streamerd [FLAGS]\n"
        "Keeps model weights in memory and shares them with processes. Runs in the foreground.\n"
        "\n";

static const char usage_middle[] =
        "\n"
        "At least one device and one root are required. Sizes are bytes or end in KiB, MiB, GiB or TiB.\n"
        "A flag may be written --flag=value. Flags override the environment, which overrides the file;\n"
        "devices or roots given as flags replace those of the file.\n"
        "\n"
        "Environment:\n";

static const char usage_tail[] =
        "  STREAMERD_CUDART_PATH           directories to search for libcudart after the system's\n"
        "  AWS_*                           as for AWS tools: docs/sources.md\n"
        "\n"
        "Signals: SIGTERM and SIGINT exit, SIGHUP reloads the configuration.\n"
        "\n"
        "Exit status: 0 after SIGTERM, SIGINT or --exit-idle, 1 on failure, 2 on a usage or configuration error, 6 if "
        "another\n"
        "daemon serves the socket.\n";

/* In two columns: the second begins at `column`, on a line of its own after a long first one. */
static void print_row(FILE *out, int column, int width, const char *text)
{
        if (width >= column) {
                fputc('\n', out);
                width = 0;
        }
        for (const char *line = text; *line != '\0'; width = 0) {
                int len = (int)strcspn(line, "\n");
                fprintf(out, "%*s%.*s\n", column - width, "", len, line);
                line += len + (line[len] == '\n');
        }
}

static void print_flag(FILE *out, const struct setting *s)
{
        char text[240];
        bool shows_default = s->initial != NULL;
        int width = fprintf(out, "  --%s%s%s", s->flag, s->argument != NULL ? " " : "", s->argument ?: "");
        snprintf(text, sizeof(text), "%s%s%s%s", s->help, shows_default ? " (" : "", s->initial ?: "",
                 shows_default ? ")" : "");
        print_row(out, 22, width, text);
}

static void print_variable(FILE *out, const struct setting *s)
{
        char text[240];
        int width = fprintf(out, "  %s", s->env);
        if (s->key == NULL)
                snprintf(text, sizeof(text), "%s", s->env_note);
        else if (s->flag != NULL)
                snprintf(text, sizeof(text), "as --%s%s", s->flag, s->env_note);
        else
                snprintf(text, sizeof(text), "as %s of the file%s", s->key, s->env_note);
        print_row(out, 34, width, text);
}

char *config_usage(void)
{
        char *text = NULL;
        size_t size;
        FILE *out = open_memstream(&text, &size);
        if (out == NULL)
                return NULL;
        fputs(usage_head, out);
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].flag != NULL)
                        print_flag(out, &settings[i]);
        fputs(usage_middle, out);
        for (size_t i = 0; i < n_settings; i++)
                if (settings[i].env != NULL)
                        print_variable(out, &settings[i]);
        fputs(usage_tail, out);
        fclose(out);
        return text;
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
        const struct setting *flag =
                len > 2 && strncmp(word, "--", 2) == 0 ? setting_find_flag(word + 2, len - 2) : NULL;
        return flag != NULL && flag->argument != NULL ? flag : NULL;
}

bool flags_complete(int argc, char **argv)
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
