/* SPDX-License-Identifier: Apache-2.0
 *
 *   the caller's > $STREAMERD_SOCKET > the system's daemon > the user's own daemon
 *
 * The first two are used or fail. The system's daemon is skipped if none serves there, or if it refuses the user. Which
 * of several is used depends on their replies to hello: there a lazy connection is not.
 *
 * The user's own daemon has its socket in the user's runtime directory, else in /tmp. Both are tried, so that sessions
 * with and without $XDG_RUNTIME_DIR (ssh, cron, sudo) use one daemon; a runtime directory other than the system's is a
 * choice of the caller, and the only one then. A folder that is not the user's, or that others can enter, is not
 * used, as the Python package, which makes it, does not use it (_autostart.py): another user's daemon could listen
 * there, or another user reach a daemon that the user believes to be his own.
 */
#include "client/socket.h"

#include "client/args.h"
#include "client/util.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define SYSTEM_SOCKET "/run/streamerd/streamerd.sock"
#define CANNOT_CONNECT "cannot connect: "

struct socket_places socket_places_here(void)
{
        return (struct socket_places){
                .environment = getenv("STREAMERD_SOCKET"),
                .system = SYSTEM_SOCKET,
                .runtime_dir = getenv("XDG_RUNTIME_DIR"),
                .run_user = "/run/user",
                .tmp = "/tmp",
                .uid = geteuid(),
        };
}

static bool is_set(const char *value)
{
        return value && value[0];
}

/* ---- the user's own daemon ---- */

static bool is_folder_of(const char *path, uid_t uid)
{
        struct stat st;
        return lstat(path, &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == uid;
}

size_t socket_of_user(const struct socket_places *places, char paths[USER_SOCKETS][PATH_MAX])
{
        size_t n = 0;
        char usual[PATH_MAX / 2];
        const char *given = places->runtime_dir;
        snprintf(usual, sizeof(usual), "%s/%u", places->run_user, (unsigned)places->uid);
        bool chosen = is_set(given) && given[0] == '/' && strcmp(given, usual) != 0 && is_folder_of(given, places->uid);
        if (chosen || is_folder_of(usual, places->uid))
                snprintf(paths[n++], PATH_MAX, "%s/streamerd/streamerd.sock", chosen ? given : usual);
        if (!chosen)
                snprintf(paths[n++], PATH_MAX, "%s/streamerd-%u/streamerd.sock", places->tmp, (unsigned)places->uid);
        return n;
}

/* An error, with its text, where there may be no trusted socket. */
static int check_folder(const char *socket, uid_t uid)
{
        struct stat st;
        cleanup_free char *folder = strndup(socket, (size_t)(strrchr(socket, '/') - socket));
        if (!folder)
                return fault_set(NULL, STREAMER_ENOMEM, "no memory for a client");
        if (lstat(folder, &st) < 0)
                return fault_set(NULL, STREAMER_EUNREACHABLE, CANNOT_CONNECT "no daemon serves there (%s)", socket);
        if (S_ISDIR(st.st_mode) && st.st_uid == uid && !(st.st_mode & (S_IRWXG | S_IRWXO)))
                return 0;
        return fault_set(NULL, STREAMER_EPERM,
                         CANNOT_CONNECT "not a folder of this user alone (uid %u, mode %o): remove it (%s)",
                         (unsigned)st.st_uid, (unsigned)st.st_mode & 07777, folder);
}

/* ---- connecting ---- */

static int dial(const char *path, int rule, bool lazy, int64_t deadline, struct streamer_client **client)
{
        int rc = channel_connect(path, lazy, deadline, client);
        if (rc == 0)
                (*client)->rule = rule;
        return rc;
}

/* Whether another daemon may serve instead. */
static bool is_absent(int rc)
{
        return rc == STREAMER_EUNREACHABLE || rc == STREAMER_EPERM;
}

/* The first that serves; else the first one's failure other than that none serves there. */
static int dial_user(const struct socket_places *places, bool lazy, int64_t deadline, struct streamer_client **client)
{
        char paths[USER_SOCKETS][PATH_MAX];
        size_t n = socket_of_user(places, paths);
        int rc = STREAMER_EUNREACHABLE;
        for (size_t i = 0; rc == STREAMER_EUNREACHABLE && i < n; i++)
                rc = check_folder(paths[i], places->uid)
                             ?: dial(paths[i], STREAMER_SOCKET_USER, lazy && i + 1 == n, deadline, client);
        return rc;
}

static const char *last_text(void)
{
        const char *text = fault_text(NULL);
        size_t len = strlen(CANNOT_CONNECT);
        return strncmp(text, CANNOT_CONNECT, len) == 0 ? text + len : text;
}

static bool has_socket_of_user(const struct socket_places *places)
{
        char paths[USER_SOCKETS][PATH_MAX];
        size_t n = socket_of_user(places, paths), i = 0;
        while (i < n && access(paths[i], F_OK) < 0)
                i++;
        return i < n;
}

/* The system's, else the user's. Where neither serves, the error is the system's, and names the user's, too. */
static int dial_found(const struct socket_places *places, bool lazy, int64_t deadline, struct streamer_client **client)
{
        bool only = lazy && !has_socket_of_user(places);
        int rc = dial(places->system, STREAMER_SOCKET_SYSTEM, only, deadline, client);
        if (!is_absent(rc))
                return rc;
        bool exists = access(places->system, F_OK) == 0 || rc == STREAMER_EPERM;
        cleanup_free char *why = strdup(last_text());
        if (!why)
                return fault_set(NULL, STREAMER_ENOMEM, "no memory for a client");
        int own = dial_user(places, lazy, deadline, client);
        if (own == 0) {
                (*client)->skipped = exists ? why : NULL;
                why = exists ? NULL : why;
                return 0;
        }
        if (!is_absent(own))
                return own;
        cleanup_free char *and = strdup(last_text());
        return fault_set(NULL, rc, CANNOT_CONNECT "%s; nor does a daemon of your own serve: %s", why, and? and : "");
}

int socket_connect(const struct socket_places *places, const char *socket, unsigned flags, int timeout_ms,
                   struct streamer_client **client)
{
        int64_t deadline = deadline_in_ms(timeout_ms);
        bool lazy = (flags & STREAMER_CONNECT_LAZY) != 0;
        if (socket)
                return dial(socket, STREAMER_SOCKET_GIVEN, lazy, deadline, client);
        if (is_set(places->environment))
                return dial(places->environment, STREAMER_SOCKET_ENVIRONMENT, lazy, deadline, client);
        if (flags & STREAMER_CONNECT_OWN)
                return dial_user(places, lazy, deadline, client);
        return dial_found(places, lazy, deadline, client);
}

/* ---- the calls ---- */

int streamer_user_socket(char **path)
{
        char paths[USER_SOCKETS][PATH_MAX];
        struct socket_places places = socket_places_here();
        int rc = args_pointer(NULL, "user_socket", "path", path);
        if (rc != 0)
                return rc;
        socket_of_user(&places, paths);
        *path = strdup(paths[0]);
        return *path ? 0 : fault_set(NULL, STREAMER_ENOMEM, "user_socket: no memory");
}

int streamer_socket(const streamer_client *client, streamer_socket_info *info)
{
        int rc = args_client(client, "socket") ?: args_out(client, "socket", "info", info);
        if (rc != 0)
                return rc;
        const streamer_socket_info found = {
                .path = client->path, .rule = client->rule, .skipped = client->skipped ? client->skipped : ""};
        args_fill(info, &found, sizeof(found));
        return 0;
}
