/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/text/secret.h"

#include "daemon/base/text/text.h"
#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>

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

/* The path of a credential that the service manager has passed. malloc'd. */
static int credential_path(const char *name, char **path, struct error *error)
{
        const char *folder = filled(getenv("CREDENTIALS_DIRECTORY"));
        if (folder == NULL)
                return error_set(error, STREAMER_EFAILED,
                                 "credential '%s': the service manager has passed none "
                                 "($CREDENTIALS_DIRECTORY)",
                                 name);
        if (name[0] == '\0' || strchr(name, '/') != NULL)
                return error_set(error, STREAMER_EFAILED, "credential '%s': not a plain name", name);
        *path = format_new("%s/%s", folder, name);
        return *path != NULL ? 0 : error_no_memory(error);
}

int secret_location(const char *setting, char **path, struct error *error)
{
        require(secret_is_reference(setting));
        if (begins(setting, CREDENTIAL_PREFIX))
                return credential_path(setting + strlen(CREDENTIAL_PREFIX), path, error);
        *path = strdup(setting + strlen(FILE_PREFIX));
        return *path != NULL ? 0 : error_no_memory(error);
}

int secret_read(const char *setting, char **secret, struct error *error)
{
        cleanup_free char *path = NULL;
        if (secret_is_reference(setting))
                return secret_location(setting, &path, error) ?: secret_read_file(path, secret, error);
        *secret = strdup(setting);
        return *secret != NULL ? 0 : error_no_memory(error);
}

static int read_whole_file(const char *path, uint64_t max, struct text *text, struct error *error)
{
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "a secret in %s", path);
        return text_read_fd(text, fd, max, path, error);
}

int secret_read_text(const char *setting, uint64_t max, struct text *text, struct error *error)
{
        cleanup_free char *path = NULL;
        if (secret_is_reference(setting))
                return secret_location(setting, &path, error) ?: read_whole_file(path, max, text, error);
        int r = text_new(text, strlen(setting), "a secret", error);
        if (r == 0)
                memcpy(text->data, setting, text->size);
        return r;
}

void secret_text_deinit(struct text *text)
{
        if (text->data != NULL)
                explicit_bzero(text->data, text->size);
        text_deinit(text);
}

/* ---- files of keys ---- */

static int check_keys(const struct stat *st, const char *setting, const char *path, uint64_t max, struct error *error)
{
        char size[SIZE_TEXT];
        if (!S_ISREG(st->st_mode))
                return error_set(error, STREAMER_EFAILED, "%s: not a regular file (%s)", setting, path);
        if (st->st_uid != 0 && st->st_uid != geteuid())
                return error_set(error, STREAMER_EFAILED,
                                 "%s: the file belongs to uid %u, and neither to root nor to the daemon's user (%s)",
                                 setting, (unsigned)st->st_uid, path);
        if ((st->st_mode & (S_IRWXO | S_IWGRP)) != 0)
                return error_set(error, STREAMER_EFAILED,
                                 "%s: other users can read or write the file (mode %04o; chmod 400) (%s)", setting,
                                 (unsigned)st->st_mode & 07777, path);
        if (st->st_size <= 0 || (uint64_t)st->st_size > max)
                return error_set(error, STREAMER_EFAILED, "%s: the file is empty, or larger than %s (%s)", setting,
                                 size_text(size, max), path);
        return 0;
}

int secret_read_keys(const char *setting, const char *path, uint64_t max, struct text *text, struct error *error)
{
        struct stat st;
        cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
        if (fd < 0 || fstat(fd, &st) < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "%s: %s", setting, path);
        int r = check_keys(&st, setting, path, max, error);
        if (r < 0)
                return r;
        struct text read = {.data = secret_map((size_t)st.st_size), .size = (size_t)st.st_size};
        if (read.data == NULL)
                return error_no_memory(error);
        ssize_t n = 1;
        for (size_t done = 0; done < read.size && n > 0; done += n > 0 ? (size_t)n : 0)
                n = TEMP_FAILURE_RETRY(pread(fd, read.data + done, read.size - done, (off_t)done));
        if (n < 0) { /* what became shorter ends in zeros, and is no key */
                r = error_errno(error, STREAMER_EFAILED, errno, "%s: %s", setting, path);
                secret_keys_deinit(&read);
                return r;
        }
        *text = read;
        return 0;
}

void secret_keys_deinit(struct text *text)
{
        secret_unmap(text->data, text->size);
        *text = (struct text){0};
}

/* ---- memory ---- */

void *secret_map(size_t size)
{
        void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED)
                return NULL;
        mlock(memory, size); /* the limit of locked memory may be lower */
        madvise(memory, size, MADV_DONTDUMP);
        madvise(memory, size, MADV_DONTFORK);
        return memory;
}

void secret_unmap(void *memory, size_t size)
{
        if (memory == NULL)
                return;
        explicit_bzero(memory, size);
        munmap(memory, size);
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
        /* Of az:// the container is named there. */
        bool has_user = strncasecmp(source, "az", 2) != 0 && strncasecmp(source, "abfs", 4) != 0;
        const char *at = has_user ? memrchr(authority, '@', strcspn(authority, "/?#")) : NULL;
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
