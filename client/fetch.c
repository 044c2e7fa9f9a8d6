/* SPDX-License-Identifier: Apache-2.0
 *
 * Small files beside the weights of a source, read by the daemon. A file arrives in pages; the daemon keeps a larger
 * one in memory until the last page has been requested.
 */
#include "client/args.h"
#include "client/channel.h"
#include "client/source.h"
#include "client/util.h"

#include <inttypes.h>
#include <jansson.h>
#include <string.h>

#define CONTENTS_MAX (UINT64_C(1) << 30) /* more than any daemon sends */

/* ---- contents ---- */

struct contents {
        char *data; /* size + 1 bytes; NULL before the first page */
        uint64_t size, at;
        uint64_t more; /* the transfer whose next page follows; 0: none does */
};

static int take_page(const struct streamer_client *c, const struct call *call, struct contents *contents)
{
        const msgpack_object *reply = &call->reply.unpacked.data;
        const char *page;
        uint64_t size;
        size_t n;
        if (!object_u64(reply, "size", &size) || size > CONTENTS_MAX || !object_bin(reply, "data", &page, &n) ||
            (contents->data && size != contents->size) || n > size - contents->at)
                return fail(c, STREAMER_EPROTO, "fetch: the daemon's reply has no valid contents");
        if (!contents->data)
                contents->data = malloc(size + 1);
        if (!contents->data)
                return fail(c, STREAMER_ENOMEM, "fetch: no memory for %" PRIu64 " bytes", size);
        if (n > 0)
                memcpy(contents->data + contents->at, page, n);
        contents->size = size;
        contents->at += n;
        if (!object_u64(reply, "more", &contents->more))
                contents->more = 0;
        if ((contents->more != 0) != (contents->at < size) || (contents->more != 0 && n == 0))
                return fail(c, STREAMER_EPROTO, "fetch: the daemon sent %" PRIu64 " of %" PRIu64 " bytes", contents->at,
                            size);
        contents->data[contents->at] = '\0';
        return 0;
}

/* It ends when the daemon's storage answers, unless the caller set a time. */
static int64_t deadline_of(const struct streamer_client *c)
{
        return c->timeout_given ? channel_deadline(c) : NEVER;
}

int streamer_fetch(streamer_client *client, const char *source, const char *file, void **data, uint64_t *size)
{
        cleanup_free char *resolved = NULL;
        int rc = args_client(client, "fetch")
                         ?: args_text(client, "fetch", "source", source)
                         ?: args_pointer(client, "fetch", "file", file)
                         ?: args_pointer(client, "fetch", "data", data)
                         ?: args_pointer(client, "fetch", "size", size)
                         ?: source_resolve(source, &resolved, client->fault);
        if (rc != 0)
                return rc;
        struct contents contents = {.data = NULL};
        do {
                struct call call = {.slow = "fetch"};
                struct request request = {.verb = VERB_fetch,
                                          .u.fetch = {.source = resolved, .file = file, .more = contents.more}};
                rc = channel_call(client, &request, &call, deadline_of(client));
                if (rc == 0) {
                        rc = take_page(client, &call, &contents);
                        call_deinit(&call);
                }
        } while (rc == 0 && contents.more != 0);
        if (rc != 0) {
                free(contents.data);
                return rc;
        }
        *data = contents.data;
        *size = contents.size;
        return 0;
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
        int rc = args_client(client, "fetch_list")
                         ?: args_text(client, "fetch_list", "source", source)
                         ?: args_pointer(client, "fetch_list", "json", json);
        if (rc != 0)
                return rc;
        cleanup_free char *args = list_args(source);
        return args ? streamer_call(client, "fetch", args, json) : args_not_utf8(client, "fetch", source);
}
