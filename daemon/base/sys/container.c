/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/base/sys/container.h"

#include "daemon/base/sys/sysfile.h"

#include <limits.h>
#include <stdbool.h>
#include <string.h>

#define HEX "0123456789abcdef"
#define ID_LEN 64
#define UID_LEN 36        /* with its dashes, which systemd's slices have as underscores */
#define STATIC_UID_LEN 32 /* of a pod that the kubelet reads from a file: without dashes */

/* systemd writes a dash within a name as "\x2d". */
static void set_name(struct container *container, const char *name, size_t len)
{
        size_t n = 0;
        for (size_t i = 0; i < len && n < sizeof(container->id) - 1; i++) {
                bool dash = len - i >= 4 && strncmp(name + i, "\\x2d", 4) == 0;
                container->id[n++] = dash ? '-' : name[i] < ' ' || name[i] > '~' ? '?' : name[i];
                i += dash ? 3 : 0;
        }
        container->id[n] = '\0';
}

/* Where the last n characters of a name begin, if these are all of the set, and nothing or a dash and `before` precede
 * them; else NULL. */
static const char *find_tail(const char *name, size_t len, const char *before, const char *set, size_t n)
{
        size_t more = strlen(before);
        if (len < n + more || strspn(name + len - n, set) < n || strncmp(name + len - n - more, before, more) != 0)
                return NULL;
        bool begins = len == n + more || name[len - n - more - 1] == '-';
        return begins ? name + len - n : NULL;
}

static void take_pod(struct container *container, const char *name, size_t len)
{
        static const size_t lens[] = {UID_LEN, STATIC_UID_LEN};
        for (size_t i = 0; i < 2; i++) {
                const char *uid = find_tail(name, len, "pod", HEX "-_", lens[i]);
                if (uid == NULL)
                        continue;
                for (size_t k = 0; k < lens[i]; k++)
                        container->pod[k] = uid[k] == '_' ? '-' : uid[k];
                container->pod[lens[i]] = '\0';
        }
}

static bool has_prefix(const char *name, size_t len, const char *prefix)
{
        return len > strlen(prefix) && strncmp(name, prefix, strlen(prefix)) == 0;
}

/* One component of the path. */
static void take_component(struct container *container, const char *name, size_t len)
{
        static const char *const suffixes[] = {".scope", ".slice"}, *const prefixes[] = {"machine-", "lxc.payload."};
        for (size_t i = 0; i < 2; i++) {
                size_t n = strlen(suffixes[i]);
                if (len > n && strncmp(name + len - n, suffixes[i], n) == 0)
                        len -= n;
        }
        take_pod(container, name, len);
        const char *id = find_tail(name, len, "", HEX, ID_LEN);
        if (id != NULL)
                set_name(container, id, ID_LEN);
        for (size_t i = 0; i < 2; i++)
                if (has_prefix(name, len, prefixes[i]))
                        set_name(container, name + strlen(prefixes[i]), len - strlen(prefixes[i]));
}

/* "0::/path", or in version 1 "4:memory:/path", of which any hierarchy may have the container's group. */
void container_of_process(struct container *container, pid_t pid)
{
        char line[PATH_MAX];
        FILE *f = pid > 0 ? sysfile_open("/proc/%d/cgroup", (int)pid) : NULL;
        *container = (struct container){.id = ""};
        while (f != NULL && container->id[0] == '\0' && fgets(line, sizeof(line), f) != NULL) {
                line[strcspn(line, "\n")] = '\0';
                const char *at = strchr(line, '/');
                for (; at != NULL && *at != '\0'; at += strcspn(at, "/")) {
                        at += strspn(at, "/");
                        take_component(container, at, strcspn(at, "/"));
                }
        }
        if (f != NULL)
                fclose(f);
}
