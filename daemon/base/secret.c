/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/secret.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>

#define SECRET_MAX (16 * KiB)

void secret_free(char *secret)
{
        if (secret != NULL)
                explicit_bzero(secret, strlen(secret));
        free(secret);
}

static int read_file(const char *path, char **secret, struct error *error)
{
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "a secret in %s", path);
        char *text = malloc(SECRET_MAX + 1);
        if (text == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        ssize_t n = read(fd, text, SECRET_MAX);
        int why = errno;
        text[n > 0 ? n : 0] = '\0';
        text[strcspn(text, "\r\n")] = '\0';
        if (text[0] != '\0') {
                *secret = text;
                return 0;
        }
        free(text);
        return n < 0 ? error_errno(error, STREAMER_EFAILED, why, "a secret in %s", path)
                     : error_set(error, STREAMER_EFAILED, "no secret in its first line (%s)", path);
}

static int read_credential(const char *name, char **secret, struct error *error)
{
        const char *folder = getenv("CREDENTIALS_DIRECTORY");
        cleanup_free char *path = NULL;
        if (folder == NULL || folder[0] == '\0')
                return error_set(error, STREAMER_EFAILED,
                                 "credential '%s': the service manager has passed none "
                                 "($CREDENTIALS_DIRECTORY)",
                                 name);
        if (name[0] == '\0' || strchr(name, '/') != NULL)
                return error_set(error, STREAMER_EFAILED, "credential '%s': not a plain name", name);
        if (asprintf(&path, "%s/%s", folder, name) < 0) {
                path = NULL;
                return error_set(error, STREAMER_ENOMEM, "no memory");
        }
        return read_file(path, secret, error);
}

int secret_read(const char *setting, char **secret, struct error *error)
{
        static const char file[] = "file:", credential[] = "credential:";
        if (strncmp(setting, file, strlen(file)) == 0)
                return read_file(setting + strlen(file), secret, error);
        if (strncmp(setting, credential, strlen(credential)) == 0)
                return read_credential(setting + strlen(credential), secret, error);
        *secret = strdup(setting);
        return *secret != NULL ? 0 : error_set(error, STREAMER_ENOMEM, "no memory");
}
