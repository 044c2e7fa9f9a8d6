/* SPDX-License-Identifier: Apache-2.0
 *
 * Small files beside the weights of a source, read by the daemon. A file arrives as a sealed memfd, which is copied and
 * closed at once: its memory counts as the daemon's while it is open.
 */
#include "client/args.h"
#include "client/channel.h"
#include "client/source.h"
#include "client/util.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <unistd.h>

#define CONTENTS_MAX (UINT64_C(1) << 30) /* more than any daemon sends */

/* ---- contents ---- */

static int read_all(const struct streamer_client *c, int fd, char *to, uint64_t size)
{
        for (uint64_t at = 0; at < size;) {
                ssize_t n = pread(fd, to + at, size - at, (off_t)at);
                if (n < 0 && errno == EINTR)
                        continue;
                if (n <= 0)
                        return fail(c, STREAMER_EPROTO,
                                    "fetch: the daemon sent less than the %" PRIu64 " bytes it named", size);
                at += (uint64_t)n;
        }
        to[size] = '\0';
        return 0;
}

static int take_contents(const struct streamer_client *c, const struct call *call, void **data, uint64_t *size)
{
        uint64_t fd, bytes;
        const msgpack_object *contents = object_get(&call->reply.unpacked.data, "contents");
        if (!contents || !object_u64(contents, "fd", &fd) || !object_u64(contents, "size", &bytes) ||
            fd >= call->n_fds || bytes > CONTENTS_MAX)
                return fail(c, STREAMER_EPROTO, "fetch: the daemon's reply has no valid contents");
        cleanup_free char *copy = malloc(bytes + 1);
        if (!copy)
                return fail(c, STREAMER_ENOMEM, "fetch: no memory for %" PRIu64 " bytes", bytes);
        int rc = read_all(c, call->fds[fd], copy, bytes);
        if (rc != 0)
                return rc;
        *data = copy;
        *size = bytes;
        copy = NULL;
        return 0;
}

/* It ends when the daemon's storage answers, unless the caller set a time. */
static int64_t deadline_of(const struct streamer_client *c)
{
        return c->timeout_given ? channel_deadline(c) : NEVER;
}

int streamer_fetch(streamer_client *client, const char *source, const char *file, void **data, uint64_t *size)
{
        struct call call = {0};
        cleanup_free char *resolved = NULL;
        int rc = args_client(client, "fetch");
        if (rc == 0)
                rc = args_text(client, "fetch", "source", source);
        if (rc == 0)
                rc = args_pointer(client, "fetch", "file", file);
        if (rc == 0)
                rc = args_pointer(client, "fetch", "data", data);
        if (rc == 0)
                rc = args_pointer(client, "fetch", "size", size);
        if (rc == 0)
                rc = source_resolve(source, &resolved, client->serial);
        if (rc != 0)
                return rc;
        struct request request = {.verb = VERB_fetch, .u.fetch = {.source = resolved, .file = file}};
        rc = channel_call(client, &request, &call, deadline_of(client));
        if (rc != 0)
                return rc;
        rc = take_contents(client, &call, data, size);
        call_deinit(&call);
        return rc;
}

/* ---- list ---- */

static char *list_args(const char *source)
{
        json_t *args = json_pack("{s:s}", "source", source);
        char *text = args ? json_dumps(args, JSON_COMPACT) : NULL;
        json_decref(args);
        return text;
}

int streamer_fetch_list(streamer_client *client, const char *source, char **json)
{
        int rc = args_client(client, "fetch_list");
        if (rc == 0)
                rc = args_text(client, "fetch_list", "source", source);
        if (rc == 0)
                rc = args_pointer(client, "fetch_list", "json", json);
        if (rc != 0)
                return rc;
        cleanup_free char *args = list_args(source);
        return args ? streamer_call(client, "fetch", args, json)
                    : fail(client, STREAMER_EINVAL, "fetch: the source is not valid UTF-8");
}
