/* SPDX-License-Identifier: Apache-2.0
 *
 * Paths are made absolute by the caller's working folder. Links are kept as they are written, since
 * a link's own name is the model's; only where ".." follows a link must it be resolved, as the
 * kernel would.
 */
#include "client/source.h"

#include "client/fault.h"
#include "client/util.h"
#include "proto/hub.h"
#include "streamer/client.h"

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

static int make_absolute(const char *source, char **out, uint64_t serial)
{
        struct path p = {.len = 0};
        if (source[0] != '/') {
                cleanup_free char *cwd = getcwd(NULL, 0);
                if (!cwd)
                        return fault_set(serial, STREAMER_EOS, "the working folder cannot be read: %s",
                                         strerror(errno));
                append_all(&p, cwd);
        }
        if (!append_all(&p, source))
                return fault_set(serial, STREAMER_EINVAL, "the path is too long (%.60s...)", source);
        *out = strdup(p.len > 0 ? p.s : "/");
        return *out ? 0 : fault_set(serial, STREAMER_ENOMEM, "no memory for a path");
}

/* The cache may be named by a relative path. */
static int in_hub_cache(const char *id, char **out, uint64_t serial)
{
        cleanup_free char *path = NULL;
        char text[PATH_MAX + 512];
        int rc = hub_resolve(id, &path, text, sizeof(text));
        return rc != 0 ? fault_set(serial, rc, "%s", text) : make_absolute(path, out, serial);
}

/* A path that exists has precedence. */
static bool is_hub_id(const char *source)
{
        return hub_is_id(source) && access(source, F_OK) < 0;
}

int source_resolve(const char *source, char **out, uint64_t serial)
{
        if (source[0] == 0)
                return fault_set(serial, STREAMER_EINVAL, "the source is empty");
        if (has_scheme(source)) {
                *out = strdup(source);
                return *out ? 0 : fault_set(serial, STREAMER_ENOMEM, "no memory for a source");
        }
        return is_hub_id(source) ? in_hub_cache(source, out, serial) : make_absolute(source, out, serial);
}

bool source_is_name(const char *s)
{
        char text[PATH_MAX + 512];
        cleanup_free char *path = NULL;
        if (has_scheme(s) || s[0] == '/' || s[0] == '.' || access(s, F_OK) == 0)
                return false;
        return !hub_is_id(s) || hub_resolve(s, &path, text, sizeof(text)) != 0;
}
