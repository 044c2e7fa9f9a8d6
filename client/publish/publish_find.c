/* SPDX-License-Identifier: Apache-2.0
 *
 * Searching for a published model, and claiming its name.
 */
#include "client/args.h"
#include "client/json.h"
#include "client/missing.h"
#include "client/publish/publication.h"
#include "client/source.h"
#include "client/util.h"

#include <stdio.h>

#define FLAGS (STREAMER_PUBLISH_REPLACE | STREAMER_PUBLISH_NO_WAIT | STREAMER_PUBLISH_TENSORS)

static int take_reply(const streamer_client *c, const msgpack_object *reply, streamer_found *found)
{
        static const char *const states[] = {"hit", "absent", "mismatch", "stale", "claimed", NULL};
        const msgpack_object *differs = object_get(reply, "differs");
        const char *digest;
        size_t len;
        uint64_t pid = 0;
        found->state = object_state(reply, states);
        if (!found->state)
                return fail(c, STREAMER_EPROTO, "publish_find: the daemon's reply has no valid state");
        object_u64(reply, "generation", &found->generation);
        object_u64(reply, "pid", &pid);
        found->pid = (int64_t)pid;
        if (object_str(reply, "digest", &digest, &len) && len == sizeof(found->digest) - 1)
                memcpy(found->digest, digest, len);
        if (!differs)
                return 0;
        json_t *json = json_from_object(differs);
        found->differs = json ? json_dumps(json, JSON_COMPACT) : NULL;
        json_decref(json);
        return found->differs ? 0 : fail(c, STREAMER_ENOMEM, "publish_find: no memory");
}

static int take_claim(streamer_client *c, const msgpack_object *reply, unsigned flags, streamer_publication **claim)
{
        uint64_t id, granularity, page = 0, small = 0;
        if (!object_u64(reply, "claim", &id))
                return 0;
        if (!object_u64(reply, "granularity", &granularity) || granularity == 0 || granularity % PUBLISHED_ALIGN != 0 ||
            granularity > (UINT64_C(1) << 40))
                return fail(c, STREAMER_EPROTO, "publish_find: the daemon's reply has no valid granularity");
        /* An older daemon sends neither. */
        object_u64(reply, "small", &small);
        object_u64(reply, "page", &page);
        if (small > 0 && (page == 0 || page % PUBLISHED_ALIGN != 0 || page > granularity || small > granularity))
                return fail(c, STREAMER_EPROTO, "publish_find: the daemon's reply has no valid page");
        struct streamer_publication *p = calloc(1, sizeof(*p));
        if (!p)
                return fail(c, STREAMER_ENOMEM, "publish_find: no memory");
        *p = (struct streamer_publication){.client = channel_ref(c),
                                           .claim = id,
                                           .granularity = granularity,
                                           .page = page,
                                           .small = small,
                                           .as_tensors = (flags & STREAMER_PUBLISH_TENSORS) != 0};
        *claim = p;
        return 0;
}

static int check_options(const streamer_client *c, streamer_publish_opts *to, const streamer_publish_opts *from)
{
        int rc = args_copy(c, "publish_find", "opts", to, sizeof(*to), from)
                         ?: args_text(c, "publish_find", "opts->name", to->name)
                         ?: args_flags(c, "publish_find", to->flags, FLAGS);
        if (rc == 0 && to->n_key > 0)
                rc = args_pointer(c, "publish_find", "opts->key", to->key);
        for (size_t i = 0; rc == 0 && i < to->n_key; i++)
                rc = args_pointer(c, "publish_find", "opts->key[i]", to->key[i]);
        if (rc == 0 && to->n_key > PROTO_KEY_MAX)
                rc = fail(c, STREAMER_EINVAL, "publish_find: a key has %d fields at most", PROTO_KEY_MAX);
        return rc;
}

int streamer_publish_find(streamer_client *client, const streamer_publish_opts *opts, streamer_found *found,
                          streamer_publication **claim)
{
        streamer_publish_opts o;
        streamer_found result = {.struct_size = sizeof(result)};
        cleanup_free char *base = NULL;
        struct call call = {0};
        int rc = args_client(client, "publish_find")
                         ?: check_options(client, &o, opts)
                         ?: args_out(client, "publish_find", "found", found);
        if (rc != 0)
                return rc;
        bool by_name = o.base && source_is_name(o.base);
        if (o.base && !by_name && (rc = source_resolve(o.base, &base, client->fault)) != 0)
                return rc;
        int timeout_ms = o.timeout_ms == 0 ? client->timeout_ms : o.timeout_ms;
        struct request request = {.verb = VERB_publish_find,
                                  .u.publish_find = {.model = o.name,
                                                     .key = {(const char **)(uintptr_t)o.key, o.n_key},
                                                     .base = base,
                                                     .base_model = by_name ? o.base : NULL,
                                                     .device = o.device,
                                                     .claim = claim != NULL,
                                                     .replace = (o.flags & STREAMER_PUBLISH_REPLACE) != 0,
                                                     .wait = (o.flags & STREAMER_PUBLISH_NO_WAIT) == 0}};
        /* The daemon ends the wait, and says what for. */
        if (timeout_ms > 0)
                request.u.publish_find.timeout_ms = (uint64_t)timeout_ms;
        rc = channel_call(client, &request, &call, channel_deadline_after(timeout_ms));
        if (rc != 0)
                return missing_model_explain(client, by_name ? o.base : NULL, rc);
        const msgpack_object *reply = &call.reply.unpacked.data;
        struct streamer_publication *made = NULL;
        rc = take_reply(client, reply, &result);
        if (rc == 0 && claim)
                rc = take_claim(client, reply, o.flags, &made);
        if (rc != 0) {
                free(result.differs);
                lock_scope(&client->lock);
                channel_give_back(client, reply);
                call_deinit(&call);
                return rc;
        }
        call_deinit(&call);
        args_fill(found, &result, sizeof(result));
        if (claim)
                *claim = made;
        return 0;
}
