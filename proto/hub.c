/* SPDX-License-Identifier: Apache-2.0
 *
 * A Hub id in the Hugging Face cache of this process's environment:
 *
 *   CACHE/models--org--name/refs/REV            holds a commit
 *   CACHE/models--org--name/snapshots/COMMIT    the folder that is asked for
 *
 * A revision is a ref's name (default: main), a commit, or the beginning of one that only one
 * snapshot has.
 */
#include "proto/hub.h"

#include "streamer/client.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <pwd.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX_MIN 4 /* shorter beginnings of a commit are no commit */

struct hub {
        const char *id;
        char *text; /* why not */
        size_t text_size;
        char repo[PATH_MAX]; /* CACHE/models--org--name */
        char rev[256];
};

bool hub_is_id(const char *s)
{
        static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
        if (s[0] == '.')
                return false;
        size_t org = strspn(s, plain);
        if (org == 0 || s[org] != '/')
                return false;
        size_t name = strspn(s + org + 1, plain);
        char end = s[org + 1 + name];
        return name > 0 && (end == 0 || end == '@');
}

__attribute__((format(printf, 3, 4))) static int fail(const struct hub *hub, int code, const char *format, ...)
{
        va_list ap;
        va_start(ap, format);
        vsnprintf(hub->text, hub->text_size, format, ap);
        va_end(ap);
        return code;
}

/* ---- where the cache is ---- */

static const char *env(const char *name)
{
        const char *value = getenv(name);
        return value && value[0] ? value : NULL;
}

static bool join(char *out, size_t size, const char *a, const char *b)
{
        int n = snprintf(out, size, "%s/%s", a, b);
        return n >= 0 && (size_t)n < size;
}

static bool home_cache(char *out, size_t size)
{
        char buf[4096];
        struct passwd pw, *found = NULL;
        const char *home = env("HOME");
        if (!home && getpwuid_r(getuid(), &pw, buf, sizeof(buf), &found) == 0 && found)
                home = found->pw_dir;
        return home && join(out, size, home, ".cache/huggingface/hub");
}

static bool find_cache(char *out, size_t size)
{
        const char *dir = env("HF_HUB_CACHE");
        if (!dir)
                dir = env("HUGGINGFACE_HUB_CACHE");
        if (dir)
                return join(out, size, dir, "");
        if ((dir = env("HF_HOME")))
                return join(out, size, dir, "hub");
        if ((dir = env("XDG_CACHE_HOME")))
                return join(out, size, dir, "huggingface/hub");
        return home_cache(out, size);
}

/* ---- which snapshot ---- */

/* A revision is pasted into paths: no component of it may lead elsewhere. */
static bool safe_rev(const char *rev)
{
        for (const char *p = rev;; p++) {
                size_t len = strcspn(p, "/");
                if (len == 0 || (p[0] == '.' && (len == 1 || (len == 2 && p[1] == '.'))))
                        return false;
                p += len;
                if (*p == 0)
                        return true;
        }
}

static bool read_ref(const struct hub *hub, char *commit, size_t size)
{
        char path[PATH_MAX + 300];
        snprintf(path, sizeof(path), "%s/refs/%s", hub->repo, hub->rev);
        FILE *f = fopen(path, "re");
        if (!f)
                return false;
        size_t n = fread(commit, 1, size - 1, f);
        fclose(f);
        commit[n] = 0;
        commit[strcspn(commit, " \t\r\n")] = 0;
        return safe_rev(commit) && !strchr(commit, '/');
}

static int no_such(const struct hub *hub, const char *what)
{
        return fail(hub, STREAMER_ENOENT, "%s: %s (%s)", hub->id, what, hub->repo);
}

/* The one snapshot that begins so. */
static int match_prefix(const struct hub *hub, char *commit, size_t size)
{
        char path[PATH_MAX + 16];
        size_t len = strlen(hub->rev);
        unsigned matches = 0;
        snprintf(path, sizeof(path), "%s/snapshots", hub->repo);
        DIR *dir = opendir(path);
        if (!dir)
                return no_such(hub, "not in the Hugging Face cache");
        for (const struct dirent *e; (e = readdir(dir));) {
                if (e->d_name[0] == '.' || strncmp(e->d_name, hub->rev, len) != 0)
                        continue;
                if (strlen(e->d_name) == len) { /* a whole commit is never ambiguous */
                        matches = 1;
                        snprintf(commit, size, "%s", e->d_name);
                        break;
                }
                if (len >= PREFIX_MIN) {
                        matches++;
                        snprintf(commit, size, "%s", e->d_name);
                }
        }
        closedir(dir);
        if (matches > 1)
                return no_such(hub, "more than one snapshot begins with this revision");
        return matches == 1 ? 0 : no_such(hub, "no such revision in the Hugging Face cache");
}

static int find_snapshot(const struct hub *hub, char **out)
{
        char commit[NAME_MAX + 1], path[PATH_MAX + NAME_MAX + 32];
        struct stat st;
        if (!read_ref(hub, commit, sizeof(commit))) {
                int rc = match_prefix(hub, commit, sizeof(commit));
                if (rc != 0)
                        return rc;
        }
        snprintf(path, sizeof(path), "%s/snapshots/%s", hub->repo, commit);
        if (stat(path, &st) < 0 || !S_ISDIR(st.st_mode))
                return no_such(hub, "the revision's snapshot is not in the Hugging Face cache");
        *out = strdup(path);
        return *out ? 0 : fail(hub, STREAMER_ENOMEM, "no memory for a path");
}

/* Cuts the id into the repository's folder and the revision; false if either is too long. */
static bool split(struct hub *hub, const char *cache)
{
        const char *slash = strchr(hub->id, '/'), *at = strchr(slash, '@');
        size_t name_len = at ? (size_t)(at - slash - 1) : strlen(slash + 1);
        int n = snprintf(hub->repo, sizeof(hub->repo), "%s%smodels--%.*s--%.*s", cache,
                         cache[strlen(cache) - 1] == '/' ? "" : "/", (int)(slash - hub->id), hub->id, (int)name_len,
                         slash + 1);
        int m = snprintf(hub->rev, sizeof(hub->rev), "%s", at ? at + 1 : "main");
        return n >= 0 && (size_t)n < sizeof(hub->repo) && m >= 0 && (size_t)m < sizeof(hub->rev);
}

int hub_resolve(const char *id, char **out, char *text, size_t text_size)
{
        char cache[PATH_MAX];
        struct hub hub = {.id = id, .text = text, .text_size = text_size};
        if (!find_cache(cache, sizeof(cache)))
                return fail(&hub, STREAMER_ENOENT, "%s: neither HF_HOME nor HOME says where the cache is", id);
        if (!split(&hub, cache) || !safe_rev(hub.rev))
                return fail(&hub, STREAMER_EINVAL, "%.100s: the id's revision or the cache's path is not valid", id);
        return find_snapshot(&hub, out);
}
