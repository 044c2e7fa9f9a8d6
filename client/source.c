/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths are made absolute by the caller's working folder. Links are kept as they are written, since
 * a link's own name is the model's; only where ".." follows a link must it be resolved, as the
 * kernel would.
 */
#include "client/source.h"

#include "client/fault.h"
#include "client/util.h"
#include "proto/distance.h"
#include "proto/hub.h"
#include "streamer/client.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

static bool has_scheme(const char *s)
{
        size_t n = strspn(s, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789+.-");
        return n > 0 && strncmp(s + n, "://", 3) == 0;
}

struct path {
        char s[PATH_MAX];
        size_t len; /* no slash at the end; 0 is the root */
};

static bool append(struct path *p, const char *name, size_t len)
{
        if (p->len + 1 + len >= sizeof(p->s))
                return false;
        p->s[p->len] = '/';
        memcpy(p->s + p->len + 1, name, len);
        p->len += 1 + len;
        p->s[p->len] = 0;
        return true;
}

static void go_up(struct path *p)
{
        cleanup_free char *real = realpath(p->len > 0 ? p->s : "/", NULL);
        if (real && strlen(real) < sizeof(p->s)) {
                p->len = strlen(real);
                memcpy(p->s, real, p->len + 1);
        }
        while (p->len > 0 && p->s[--p->len] != '/')
                ;
        p->s[p->len] = 0;
}

static bool append_all(struct path *p, const char *rest)
{
        while (*rest) {
                size_t len = strcspn(rest, "/");
                if (len == 2 && memcmp(rest, "..", 2) == 0)
                        go_up(p);
                else if (len > 0 && !(len == 1 && rest[0] == '.') && !append(p, rest, len))
                        return false;
                rest += len + (rest[len] == '/');
        }
        return true;
}

static int make_absolute(const char *source, char **out, struct fault *fault)
{
        struct path p = {.len = 0};
        if (source[0] != '/') {
                cleanup_free char *cwd = getcwd(NULL, 0);
                if (!cwd)
                        return fault_set(fault, STREAMER_EOS, "the working folder cannot be read: %s", strerror(errno));
                append_all(&p, cwd);
        }
        if (!append_all(&p, source))
                return fault_set(fault, STREAMER_EINVAL, "the path is too long (%.60s...)", source);
        *out = strdup(p.len > 0 ? p.s : "/");
        return *out ? 0 : fault_set(fault, STREAMER_ENOMEM, "no memory for a path");
}

/* "~/x" below $HOME, as a shell writes it. */
static bool is_in_home(const char *source)
{
        return source[0] == '~' && (source[1] == '/' || source[1] == 0);
}

static int in_home(const char *source, char **out, struct fault *fault)
{
        char path[PATH_MAX];
        const char *home = getenv("HOME");
        if (!home || home[0] != '/')
                return fault_set(fault, STREAMER_EINVAL, "%.100s: HOME is not set", source);
        if ((size_t)snprintf(path, sizeof(path), "%s%s", home, source + 1) >= sizeof(path))
                return fault_set(fault, STREAMER_EINVAL, "the path is too long (%.60s...)", source);
        return make_absolute(path, out, fault);
}

#define WRITE_PATH "a path in this folder is written ./%s"

/* The cache may be named by a relative path. */
static int in_hub_cache(const char *id, char **out, struct fault *fault)
{
        cleanup_free char *path = NULL;
        char text[PATH_MAX + 512];
        int rc = hub_resolve(id, &path, text, sizeof(text));
        if (rc == STREAMER_ENOENT)
                return fault_set(fault, rc, "%s; " WRITE_PATH, text, id);
        return rc != 0 ? fault_set(fault, rc, "%s", text) : make_absolute(path, out, fault);
}

/* A path that exists has precedence. */
static bool is_hub_id(const char *source)
{
        return hub_is_id(source) && access(source, F_OK) < 0;
}

int source_resolve(const char *source, char **out, struct fault *fault)
{
        if (source[0] == 0)
                return fault_set(fault, STREAMER_EINVAL, "the source is empty");
        if (has_scheme(source)) {
                *out = strdup(source);
                return *out ? 0 : fault_set(fault, STREAMER_ENOMEM, "no memory for a source");
        }
        if (is_in_home(source))
                return in_home(source, out, fault);
        return is_hub_id(source) ? in_hub_cache(source, out, fault) : make_absolute(source, out, fault);
}

bool source_is_name(const char *s)
{
        char text[PATH_MAX + 512];
        cleanup_free char *path = NULL;
        if (has_scheme(s) || s[0] == '/' || s[0] == '.' || is_in_home(s) || access(s, F_OK) == 0)
                return false;
        return !hub_is_id(s) || hub_resolve(s, &path, text, sizeof(text)) != 0;
}

/* ---- what was not found ---- */

#define ENTRIES_MAX 10000 /* of a folder, that are compared */

/* The entry of the path's folder that differs least from its last component, in `nearest`; false: none is similar, or
 * the path exists. */
static bool find_nearest(const char *path, char nearest[NAME_MAX + 1])
{
        const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
        cleanup_free char *folder = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
        size_t best = name_distance_limit(name), n = 0;
        bool found = false;
        DIR *dir = folder && access(path, F_OK) < 0 ? opendir(folder) : NULL;
        if (!dir)
                return false;
        for (const struct dirent *e; n < ENTRIES_MAX && (e = readdir(dir)); n++) {
                size_t distance = name_distance(name, e->d_name);
                if (e->d_name[0] == '.' || distance >= best)
                        continue;
                best = distance;
                found = true;
                snprintf(nearest, NAME_MAX + 1, "%s", e->d_name);
        }
        closedir(dir);
        return found;
}

static int explain_name(const char *name, char **out)
{
        char text[PATH_MAX + 512], nearest[NAME_MAX + 1];
        cleanup_free char *path = NULL;
        if (hub_is_id(name) && hub_resolve(name, &path, text, sizeof(text)) != 0)
                return asprintf(out, "; as a source, %s; " WRITE_PATH ", and hf://%s is read from the Hub", text, name,
                                name);
        const char *slash = strrchr(name, '/');
        if (find_nearest(name, nearest))
                return asprintf(out, "; nor is there a file ./%s: the nearest is ./%.*s%s", name,
                                slash ? (int)(slash - name) + 1 : 0, name, nearest);
        return asprintf(out, "; nor is there a file ./%s (a path begins with /, ./ or ~/; hf://%s is of the Hub)", name,
                        name);
}

char *source_explain_missing(const char *name, const char *path)
{
        char *out = NULL, nearest[NAME_MAX + 1];
        int n = -1;
        if (name)
                n = explain_name(name, &out);
        else if (path[0] == '/' && find_nearest(path, nearest))
                n = asprintf(&out, "; the nearest is %s", nearest);
        return n < 0 ? NULL : out;
}
