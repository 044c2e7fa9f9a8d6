/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/text/secret.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>

#define SECRET_MAX (16 * KiB)
#define FILE_PREFIX "file:"
#define CREDENTIAL_PREFIX "credential:"

void secret_free(char *secret)
{
        if (secret != NULL)
                explicit_bzero(secret, strlen(secret));
        free(secret);
}

void secret_free_p(char **secret)
{
        secret_free(*secret);
}

int secret_read_file(const char *path, char **secret, struct error *error)
{
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "a secret in %s", path);
        char *text = calloc(1, SECRET_MAX + 1);
        if (text == NULL)
                return error_no_memory(error);
        ssize_t n = read(fd, text, SECRET_MAX);
        int why = errno;
        /* Other lines may be secrets, too, and secret_free() wipes the first only. */
        size_t len = strcspn(text, "\r\n");
        explicit_bzero(text + len, SECRET_MAX - len);
        if (len > 0) {
                *secret = text;
                return 0;
        }
        free(text);
        return n < 0 ? error_errno(error, STREAMER_EFAILED, why, "a secret in %s", path)
                     : error_set(error, STREAMER_EFAILED, "no secret in its first line (%s)", path);
}

static bool begins(const char *setting, const char *prefix)
{
        return strncmp(setting, prefix, strlen(prefix)) == 0;
}

bool secret_is_reference(const char *setting)
{
        return begins(setting, FILE_PREFIX) || begins(setting, CREDENTIAL_PREFIX);
}

static int read_credential(const char *name, char **secret, struct error *error)
{
        const char *folder = filled(getenv("CREDENTIALS_DIRECTORY"));
        if (folder == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "credential '%s': the service manager has passed none "
                                 "($CREDENTIALS_DIRECTORY)",
                                 name);
        if (name[0] == '\0' || strchr(name, '/') != NULL)
                return error_set(error, STREAMER_EFAILED, "credential '%s': not a plain name", name);
        cleanup_free char *path = format_new("%s/%s", folder, name);
        return path != NULL ? secret_read_file(path, secret, error) : error_no_memory(error);
}

int secret_read(const char *setting, char **secret, struct error *error)
{
        if (begins(setting, FILE_PREFIX))
                return secret_read_file(setting + strlen(FILE_PREFIX), secret, error);
        if (begins(setting, CREDENTIAL_PREFIX))
                return read_credential(setting + strlen(CREDENTIAL_PREFIX), secret, error);
        *secret = strdup(setting);
        return *secret != NULL ? 0 : error_no_memory(error);
}

static void redact(char *out, size_t size, const char *source)
{
        const char *authority = strstr(source, "://");
        if (source[0] == '/' || authority == NULL) {
                snprintf(out, size, "%s", source);
                return;
        }
        authority += strlen("://");
        int scheme = (int)(authority - source);
        const char *at = memrchr(authority, '@', strcspn(authority, "/?#"));
        /* The user and password of http://user:password@host/; the revision of hf://org/name@rev stays. */
        const char *rest = at != NULL ? at + 1 : authority;
        snprintf(out, size, "%.*s%.*s", scheme, source, (int)strcspn(rest, "?#"), rest);
}

void redact_source(char out[REDACTED_SOURCE], const char *source)
{
        redact(out, REDACTED_SOURCE, source);
}

char *redact_source_new(const char *source)
{
        size_t size = strlen(source) + 1;
        char *out = malloc(size);
        if (out != NULL)
                redact(out, size, source);
        return out;
}
