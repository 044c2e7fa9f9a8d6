/* SPDX-License-Identifier: Apache-2.0
 *
 * Lines of "[section]", "key = value" and, indented below a key without a value, the keys nested in it. Section names
 * lose quotes and superfluous blanks; keys are lower case; the last of duplicates counts. Comments are lines that begin
 * with '#' or ';', and what follows a blank and one of these in a value.
 *
 * Not libinih's parser: as distributions build it, it truncates lines at 200 bytes, which session tokens exceed, and
 * names of sections at 50; and unlike AWS's tools it separates keys by ':' and retains comments that begin with '#'.
 */
#include "daemon/source/aws/aws_config.h"

#include "daemon/base/log/log.h"
#include "daemon/base/util.h"

#include <ctype.h>
#include <errno.h>
#include <fcntl.h>

#define FILE_MAX MiB
#define BLANK " \t"

struct parser {
        struct aws_config *config;
        enum aws_file file;
        const char *name; /* for messages */
        unsigned line;
        const char *section; /* NULL before the first */
        const char *parent;  /* a key that had no value: what is indented below belongs to it */
};

/* ---- lines ---- */

static int bad_line(const struct parser *p, const char *why, struct error *error)
{
        return error_set(error, STREAMER_EFAILED, "%s (%s:%u)", why, p->name, p->line);
}

static char *trim(char *text)
{
        text += strspn(text, BLANK);
        for (size_t len = strlen(text); len > 0 && strchr(BLANK "\r", text[len - 1]) != NULL;)
                text[--len] = '\0';
        return text;
}

static void cut_comment(char *value)
{
        for (char *at = value; *at != '\0'; at++)
                if ((*at == '#' || *at == ';') && at > value && strchr(BLANK, at[-1]) != NULL) {
                        *at = '\0';
                        return;
                }
}

static int add_entry(struct parser *p, const char *key, const char *value, const char *parent, struct error *error)
{
        struct aws_config *config = p->config;
        struct aws_entry *entries = array_grow(config->entries, config->n, sizeof(*entries));
        if (entries == NULL)
                return error_no_memory(error);
        config->entries = entries;
        entries[config->n++] = (struct aws_entry){p->file, p->section, key, value, parent};
        return 0;
}

static int parse_section(struct parser *p, char *line, struct error *error)
{
        char *end = strchr(line, ']');
        if (end == NULL)
                return bad_line(p, "a section without its ']'", error);
        *end = '\0';
        char *name = trim(line + 1);
        /* In place: one blank between words, no quotes. */
        char *to = name;
        for (const char *from = name; *from != '\0'; from++) {
                bool blank = strchr(BLANK, *from) != NULL;
                if (*from != '"' && *from != '\'' && !(blank && (to == name || to[-1] == ' ')))
                        *to++ = blank ? ' ' : *from;
        }
        *to = '\0';
        p->section = name;
        p->parent = NULL;
        return add_entry(p, "", "", NULL, error); /* a section exists without settings, too */
}

/* An indented line below no open key is an ordinary one: some people indent whole sections. */
static int parse_entry(struct parser *p, char *line, bool indented, struct error *error)
{
        char *equals = strchr(line, '=');
        if (p->section == NULL)
                return bad_line(p, "a setting before the first section", error);
        if (equals == NULL)
                return bad_line(p, "neither a section nor 'key = value'", error);
        *equals = '\0';
        cut_comment(equals + 1);
        char *key = trim(line), *value = trim(equals + 1);
        if (key[0] == '\0')
                return bad_line(p, "a value without a key", error);
        for (char *c = key; *c != '\0'; c++)
                *c = (char)tolower((unsigned char)*c);
        const char *parent = indented ? p->parent : NULL;
        if (parent == NULL)
                p->parent = value[0] == '\0' ? key : NULL;
        return add_entry(p, key, value, parent, error);
}

/* ---- files ---- */

int aws_config_parse_consume(struct aws_config *config, enum aws_file file, struct text text, const char *name,
                             struct error *error)
{
        static const char bom[] = "\xef\xbb\xbf";
        struct parser p = {.config = config, .file = file, .name = name};
        config->texts[file] = text;
        int r = strlen(text.data) == text.size ? 0 : error_set(error, STREAMER_EFAILED, "a NUL byte (%s)", name);
        char *line = strncmp(text.data, bom, 3) == 0 ? text.data + 3 : text.data;
        while (r == 0 && line != NULL) {
                char *end = strchr(line, '\n');
                if (end != NULL)
                        *end++ = '\0';
                p.line++;
                size_t indent = strspn(line, BLANK);
                if (line[indent] == '[' && indent == 0)
                        r = parse_section(&p, line, error);
                else if (line[indent] != '\0' && strchr("\r#;", line[indent]) == NULL)
                        r = parse_entry(&p, line, indent > 0, error);
                line = end;
        }
        return r;
}

const char *aws_env(const char *name)
{
        return filled(getenv(name));
}

/* "~/" is $HOME; if neither it nor the file's name is set, no file is read. An unnamed file that may not be read counts
 * as absent: in many containers HOME is root's, whatever user the daemon runs as. */
static int read_file(struct aws_config *config, enum aws_file file, const char *variable, const char *below_home,
                     struct error *error)
{
        const char *named = aws_env(variable), *home = aws_env("HOME");
        struct text text;
        bool tilde = named == NULL || strncmp(named, "~/", 2) == 0;
        if (tilde && home == NULL)
                return 0;
        const char *below = named == NULL ? below_home : tilde ? named + 2 : named;
        cleanup_free char *path = format_new("%s%s%s", tilde ? home : "", tilde ? "/" : "", below);
        if (path == NULL)
                return error_no_memory(error);
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0 && errno == EACCES && named == NULL)
                log_debug("%s: %s: treated as absent", path, strerror(errno));
        else if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
                return error_errno(error, errno == EACCES ? STREAMER_EPERM : STREAMER_EFAILED, errno, "%s", path);
        if (fd < 0)
                return 0;
        return text_read_fd(&text, fd, FILE_MAX, path, error)
                       ?: aws_config_parse_consume(config, file, text, path, error);
}

int aws_config_init(struct aws_config *config, const char *profile, struct error *error)
{
        const char *name = profile ?: aws_env("AWS_PROFILE");
        *config = (struct aws_config){.named = name != NULL, .profile = strdup(name ?: "default")};
        if (config->profile == NULL)
                return error_no_memory(error);
        int r = read_file(config, AWS_CONFIG, "AWS_CONFIG_FILE", ".aws/config", error)
                        ?: read_file(config, AWS_CREDENTIALS, "AWS_SHARED_CREDENTIALS_FILE", ".aws/credentials", error);
        if (r < 0)
                aws_config_deinit(config);
        return r;
}

void aws_config_deinit(struct aws_config *config)
{
        text_deinit(&config->texts[AWS_CONFIG]);
        text_deinit(&config->texts[AWS_CREDENTIALS]);
        free(config->entries);
        free(config->profile);
        *config = (struct aws_config){.profile = NULL};
}

/* ---- settings ---- */

static bool is_section(const char *section, const char *kind, const char *name)
{
        size_t len = strlen(kind);
        if (len > 0 && (strncmp(section, kind, len) != 0 || section[len++] != ' '))
                return false;
        return strcmp(section + len, name) == 0;
}

/* Of [KIND NAME], or of [NAME] if the kind is "". A key of a nested section is "s3.endpoint_url"; NULL: any. */
static const char *find(const struct aws_config *config, enum aws_file file, const char *kind, const char *name,
                        const char *key)
{
        const char *dot = key != NULL ? strchr(key, '.') : NULL, *last = dot != NULL ? dot + 1 : key;
        size_t parent_len = dot != NULL ? (size_t)(dot - key) : 0;
        for (size_t i = config->n; i-- > 0;) {
                const struct aws_entry *entry = &config->entries[i];
                const char *parent = entry->parent ?: "";
                if (entry->file == file && is_section(entry->section, kind, name) &&
                    (key == NULL || (strcmp(entry->key, last) == 0 && strlen(parent) == parent_len &&
                                     strncmp(parent, key, parent_len) == 0)))
                        return entry->value;
        }
        return NULL;
}

/* In the config file the default profile has two names, the longer of which counts. */
static const char *find_profile(const struct aws_config *config, const char *key)
{
        const char *value = find(config, AWS_CONFIG, "profile", config->profile, key);
        bool is_default = strcmp(config->profile, "default") == 0;
        return value == NULL && is_default ? find(config, AWS_CONFIG, "", "default", key) : value;
}

const char *aws_config_get(const struct aws_config *config, const char *key)
{
        return filled(find(config, AWS_CREDENTIALS, "", config->profile, key)) ?: filled(find_profile(config, key));
}

const char *aws_config_endpoint(const struct aws_config *config, const char *service)
{
        char key[64];
        const char *services = aws_config_get(config, "services"), *value = NULL;
        snprintf(key, sizeof(key), "%s.endpoint_url", service);
        if (services != NULL)
                value = filled(find(config, AWS_CONFIG, "services", services, key));
        return value ?: aws_config_get(config, "endpoint_url");
}

bool aws_config_has_profile(const struct aws_config *config)
{
        return find(config, AWS_CREDENTIALS, "", config->profile, NULL) != NULL || find_profile(config, NULL) != NULL;
}
