/* SPDX-License-Identifier: Apache-2.0
 *
 * Requests about one model that reply with no more than success.
 */
#include "client/args.h"
#include "client/channel.h"
#include "client/missing.h"
#include "client/util.h"

static int check(const streamer_client *c, const char *call, const char *model)
{
        return args_client(c, call) ?: args_text(c, call, "model", model);
}

static int request_about(streamer_client *c, const char *model, struct request *request, int64_t deadline)
{
        return missing_model_explain(c, model, channel_request(c, request, deadline));
}

int streamer_unload(streamer_client *client, const char *model, unsigned flags)
{
        int rc = check(client, "unload", model)
                         ?: args_flags(client, "unload", flags, STREAMER_UNLOAD_DRAIN | STREAMER_UNLOAD_FORCE);
        if (rc != 0)
                return rc;
        struct request request = {.verb = VERB_unload,
                                  .u.unload = {.model = model,
                                               .drain = (flags & STREAMER_UNLOAD_DRAIN) != 0,
                                               .force = (flags & STREAMER_UNLOAD_FORCE) != 0}};
        return request_about(client, model, &request, channel_deadline(client));
}

int streamer_pin(streamer_client *client, const char *model, int pinned)
{
        struct request pin = {.verb = VERB_pin, .u.pin = {.model = model}};
        struct request unpin = {.verb = VERB_unpin, .u.unpin = {.model = model}};
        return check(client, "pin", model)
                       ?: request_about(client, model, pinned ? &pin : &unpin, channel_deadline(client));
}

int streamer_keep_alive(streamer_client *client, const char *model, uint64_t keep_alive_ms)
{
        struct request request = {.verb = VERB_keep_alive,
                                  .u.keep_alive = {.model = model, .keep_alive_ms = keep_alive_ms}};
        return check(client, "keep_alive", model) ?: request_about(client, model, &request, channel_deadline(client));
}

int streamer_cancel(streamer_client *client, const char *model)
{
        struct request request = {.verb = VERB_cancel, .u.cancel = {.model = model}};
        return check(client, "cancel", model) ?: request_about(client, model, &request, channel_deadline(client));
}

/* The daemon ends the wait; the reply then has the time that every reply has. A timeout of 0 is an absent one. */
int streamer_wait(streamer_client *client, const char *model, int timeout_ms)
{
        struct request request = {.verb = VERB_wait, .u.wait = {.model = model}};
        int rc = check(client, "wait", model);
        if (rc != 0)
                return rc;
        if (timeout_ms >= 0)
                request.u.wait.timeout_ms = timeout_ms > 0 ? (uint64_t)timeout_ms : 1;
        int64_t deadline = channel_deadline(client);
        if (timeout_ms < 0 || deadline == NEVER)
                deadline = NEVER;
        else
                deadline += (int64_t)timeout_ms * 1000000;
        return request_about(client, model, &request, deadline);
}
