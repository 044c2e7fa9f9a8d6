/* SPDX-License-Identifier: Apache-2.0
 *
 * The URI of a local source: its canonical form, the model's default name, and the file system it is on. Does not
 * access the path.
 */
#include "daemon/source/local/local.h"

#include "daemon/base/text/percent.h"
#include "daemon/base/util.h"
#include "proto/codec.h"

#include <limits.h>
#include <string.h>

#define FILE_SCHEME "file://"
#define SUFFIX ".safetensors"

/* ---- canonical form ---- */

/* The path that a source names, as written. */
static int local_path(const char *source, char **path, struct error *error)
{
        bool is_uri = strncmp(source, FILE_SCHEME, strlen(FILE_SCHEME)) == 0;
        const char *rest = is_uri ? source + strlen(FILE_SCHEME) : source;
        if (is_uri && strncmp(rest, "localhost/", strlen("localhost/")) == 0)
                rest += strlen("localhost");
        if (rest[0] != '/')
                return error_set(error, STREAMER_EINVAL, "'%s': not an absolute path", source);
        char *copy = strdup(rest);
        if (copy == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        if (is_uri && !percent_decode(copy, '+')) {
                free(copy);
                return error_set(error, STREAMER_EINVAL, "%s: a bad %%-escape", source);
        }
        *path = copy;
        return 0;
}

/* In place: no empty or "." components, no slash at the end. -1 on "..", which would mean another
 * folder than its text says wherever a link is on the way. */
static int collapse(char *path)
{
        char *to = path;
        for (const char *from = path; *from != '\0';) {
                size_t slashes = strspn(from, "/");
                const char *name = from + slashes;
                size_t len = strcspn(name, "/");
                from = name + len;
                if (len == 0 || (len == 1 && name[0] == '.'))
                        continue;
                if (len == 2 && name[0] == '.' && name[1] == '.')
                        return -1;
                *to++ = '/';
                memmove(to, name, len);
                to += len;
        }
        if (to == path)
                *to++ = '/';
        *to = '\0';
        return 0;
}

int local_canonical(const char *source, char **out, struct error *error)
{
        cleanup_free char *path = NULL;
        int r = local_path(source, &path, error);
        if (r < 0)
                return r;
        if (strlen(path) >= PATH_MAX)
                return error_set(error, STREAMER_EINVAL, "%s: longer than a path can be", source);
        if (!codec_utf8(path, strlen(path)))
                return error_set(error, STREAMER_EINVAL, "%s: not UTF-8", source);
        if (collapse(path) < 0)
                return error_set(error, STREAMER_EINVAL, "%s: '..' is not allowed", source);
        *out = path;
        path = NULL;
        return 0;
}

/* ---- names ---- */

/* In ".../models--org--name/snapshots/REV/rest": *repo is "org--name/...", *rest what follows REV. */
static bool in_snapshot(const char *path, const char **repo, size_t *repo_len, const char **rest)
{
        static const char prefix[] = "/models--", snapshots[] = "/snapshots/";
        for (const char *at = path; (at = strstr(at, prefix)) != NULL; at++) {
                const char *name = at + strlen(prefix);
                size_t len = strcspn(name, "/");
                if (len == 0 || strncmp(name + len, snapshots, strlen(snapshots)) != 0)
                        continue;
                const char *revision = name + len + strlen(snapshots);
                *repo = name;
                *repo_len = len;
                *rest = revision + strcspn(revision, "/");
                return true;
        }
        return false;
}

static char *snapshot_name(const char *repo, size_t repo_len, const char *rest)
{
        cleanup_free char *name = strndup(repo, repo_len);
        if (name == NULL)
                return NULL;
        /* "org--name" is "org/name": the Hub allows no "--" in either part. In place. */
        for (char *at; (at = strstr(name, "--")) != NULL;) {
                at[0] = '/';
                memmove(at + 1, at + 2, strlen(at + 2) + 1);
        }
        return format_new("%s%s", name, rest);
}

char *local_default_name(const char *canonical)
{
        const char *repo, *rest, *last = strrchr(canonical, '/');
        size_t repo_len;
        char *name = in_snapshot(canonical, &repo, &repo_len, &rest) ? snapshot_name(repo, repo_len, rest)
                                                                     : strdup(last != NULL ? last + 1 : canonical);
        size_t len = name != NULL ? strlen(name) : 0, cut = strlen(SUFFIX);
        if (len > cut && strcmp(name + len - cut, SUFFIX) == 0)
                name[len - cut] = '\0';
        if (name == NULL || name[0] != '\0')
                return name;
        free(name); /* "/" has no last component */
        return strdup("model");
}

/* ---- lanes ---- */

/* In place: \NNN of a mount point. */
static void octal_decode(char *text)
{
        char *to = text;
        for (const char *from = text; *from != '\0'; to++) {
                unsigned c;
                int n = 0;
                if (*from == '\\' && sscanf(from, "\\%3o%n", &c, &n) == 1 && n == 4) {
                        *to = (char)c;
                        from += n;
                } else {
                        *to = *from++;
                }
        }
        *to = '\0';
}

/* Bytes of the path that the mount point covers; 0 if it does not hold the path. */
static size_t covers(const char *mount, const char *path)
{
        size_t len = strlen(mount);
        if (strcmp(mount, "/") == 0)
                return 1;
        return strncmp(path, mount, len) == 0 && (path[len] == '/' || path[len] == '\0') ? len : 0;
}

uint64_t local_lane(const char *canonical)
{
        uint64_t lane = 0;
        size_t best = 0, size = 0;
        cleanup_free char *line = NULL;
        FILE *f = fopen("/proc/self/mountinfo", "re");
        while (f != NULL && getline(&line, &size, f) > 0) {
                unsigned major, minor;
                int start = 0, end = 0;
                if (sscanf(line, "%*u %*u %u:%u %*s %n%*s%n", &major, &minor, &start, &end) < 2 || end == 0)
                        continue;
                line[end] = '\0';
                octal_decode(line + start);
                size_t len = covers(line + start, canonical);
                /* Of several on one point the last is on top. */
                if (len > 0 && len >= best) {
                        best = len;
                        lane = (uint64_t)major << 32 | minor;
                }
        }
        if (f != NULL)
                fclose(f);
        return lane + 1; /* 0 is the lane of work that reads nothing */
}
