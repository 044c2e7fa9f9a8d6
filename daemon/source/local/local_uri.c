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

/* ---- canonical form ---- */

/* In place: no empty or "." components, no slash at the end. -1 on "..", which would mean another
 * folder than its text says if the path has a link. */
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
        bool is_uri = strncmp(source, FILE_SCHEME, strlen(FILE_SCHEME)) == 0;
        const char *rest = is_uri ? source + strlen(FILE_SCHEME) : source;
        if (is_uri && strncmp(rest, "localhost/", strlen("localhost/")) == 0)
                rest += strlen("localhost");
        if (rest[0] != '/')
                return error_set(error, STREAMER_EINVAL, "'%s': not an absolute path", source);
        cleanup_free char *path = strdup(rest);
        if (path == NULL)
                return error_set(error, STREAMER_ENOMEM, "no memory");
        if (is_uri && !percent_decode(path, '+'))
                return error_set(error, STREAMER_EINVAL, "%s: a bad %%-escape", source);
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

/* Of a path in a snapshot of the HF cache, ".../models--org--name/snapshots/REV/rest": "org/name/rest". *name NULL: the
 * path is another one. False: no memory. */
static bool snapshot_name(const char *path, char **name)
{
        static const char prefix[] = "/models--", snapshots[] = "/snapshots/";
        const char *repository = NULL, *rest;
        size_t len = 0;
        *name = NULL;
        for (const char *at = path; repository == NULL; at++) {
                at = strstr(at, prefix);
                if (at == NULL)
                        return true;
                len = strcspn(at + strlen(prefix), "/");
                if (len > 0 && strncmp(at + strlen(prefix) + len, snapshots, strlen(snapshots)) == 0)
                        repository = at + strlen(prefix);
        }
        rest = repository + len + strlen(snapshots);
        rest += strcspn(rest, "/");
        cleanup_free char *text = strndup(repository, len);
        if (text == NULL)
                return false;
        /* "org--name" is "org/name": the Hub allows no "--" in either part. In place. */
        for (char *at; (at = strstr(text, "--")) != NULL;) {
                at[0] = '/';
                memmove(at + 1, at + 2, strlen(at + 2) + 1);
        }
        *name = format_new("%s%s", text, rest);
        return *name != NULL;
}

char *local_default_name(const char *canonical)
{
        char *name;
        if (!snapshot_name(canonical, &name))
                return NULL;
        if (name == NULL)
                return source_last_component(canonical, strlen(canonical));
        name[source_stem_len(name, strlen(name))] = '\0';
        return name;
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
