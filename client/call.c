/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_call: any verb with JSON in and out. Verbs and fields are sent if the daemon lists them among its
 * features, and the daemon checks them. Long lists are requested page by page and returned whole, unless the
 * caller sets a limit.
 */
#include "client/call.h"

#include "client/args.h"
#include "client/features.h"
#include "client/json.h"
#include "client/missing.h"
#include "client/source.h"
#include "client/util.h"

#include <inttypes.h>
#include <stdio.h>

/* Lists that are paged: where the items are, and the field that takes the reply's "next". */
#define PAGED_LISTS 3
static const struct paged {
        const char *verb, *lists[PAGED_LISTS], *cursor;
} paged[] = {
        {"cache", {"entries"}, "after"},
        {"list", {"models"}, "after"},
        {"ps", {"leases"}, "after"},
        {"show", {"tensor_list"}, "offset"},
        {"status", {"loads", "preload", "restoring"}, "after"},
};

static const struct paged *find_paged(const char *verb)
{
        for (size_t i = 0; i < sizeof(paged) / sizeof(paged[0]); i++)
                if (strcmp(paged[i].verb, verb) == 0)
                        return &paged[i];
        return NULL;
}

/* ---- one request ---- */

static int parse_args(streamer_client *c, const char *verb, const char *text, json_t **args)
{
        json_error_t error;
        *args = text ? json_loads(text, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error) : json_object();
        if (!*args)
                return fail(c, STREAMER_EINVAL, "%s: the arguments are not JSON: %s", verb,
                            text ? error.text : "no memory");
        if (!json_is_object(*args))
                return fail(c, STREAMER_EINVAL, "%s: the arguments are not a JSON object", verb);
        return 0;
}

static void pack_request(struct writer *w, const char *verb, uint64_t id, const json_t *args)
{
        const char *key;
        json_t *value;
        writer_map(w, json_object_size(args) + 2);
        writer_kstr(w, "verb", verb);
        writer_ku64(w, "id", id);
        json_object_foreach((json_t *)(uintptr_t)args, key, value)
        {
                writer_key(w, key);
                json_write(w, value);
        }
}

/* How long a reply may take: verbs that wait for a load or read a whole model have no limit of their own, unless the
 * caller set one. */
static int64_t deadline_of(const streamer_client *c, const char *verb, const json_t *args)
{
        int64_t usual = channel_deadline(c);
        bool dry_run = strcmp(verb, "load") == 0 && json_is_true(json_object_get(args, "dry_run"));
        if (strcmp(verb, "wait") == 0) {
                json_int_t ms = json_integer_value(json_object_get(args, "timeout_ms"));
                bool endless = ms <= 0 || ms > INT32_MAX || usual == NEVER;
                return endless ? NEVER : usual + (int64_t)ms * 1000000;
        }
        bool reads = strcmp(verb, "verify") == 0 || strcmp(verb, "fetch") == 0 || strcmp(verb, "diff") == 0;
        return (reads || dry_run) && !c->timeout_given ? NEVER : usual;
}

static json_t *reply_json(const struct call *call)
{
        json_t *json = json_from_object(&call->reply.unpacked.data);
        json_object_del(json, "id");
        json_object_del(json, "ok");
        return json;
}

static int check_features(streamer_client *c, const char *verb, const json_t *args)
{
        const char *key;
        json_t *value;
        lock_scope(&c->lock);
        int rc = channel_ensure(c, true, channel_deadline(c)) ?: features_check_field(c, verb, NULL);
        json_object_foreach((json_t *)(uintptr_t)args, key, value)
        {
                rc = rc ?: features_check_field(c, verb, key);
        }
        return rc;
}

struct subscription {
        streamer_client *client;
        char *subject; /* the client's, once it is accepted */
};

static int subscription_init(struct subscription *s, streamer_client *c, const char *model)
{
        *s = (struct subscription){.client = c, .subject = model ? strdup(model) : NULL};
        return model && !s->subject ? fail(c, STREAMER_ENOMEM, "subscribe: no memory") : 0;
}

/* Lock held, while the reply is dispatched: the first event may be right behind it. */
static void accept_subscribe(struct call *call, const msgpack_object *reply)
{
        struct subscription *s = call->arg;
        free(s->client->subject);
        s->client->subject = s->subject;
        s->client->subscribed = true;
        s->subject = NULL;
}

static int call_once(streamer_client *c, const char *verb, const json_t *args, json_t **reply)
{
        struct writer w;
        struct subscription s;
        struct call call = {.id = channel_next_id(c), .arg = &s};
        bool subscribes = strcmp(verb, "subscribe") == 0;
        int rc = subscription_init(&s, c, subscribes ? json_string_value(json_object_get(args, "model")) : NULL);
        if (rc != 0)
                return rc;
        if (subscribes)
                call.accept = accept_subscribe;
        writer_init(&w);
        pack_request(&w, verb, call.id, args);
        rc = w.failed ? fail(c, STREAMER_ENOMEM, "%s: no memory", verb)
                      : channel_exchange(c, w.buf.data, w.buf.size, &call, deadline_of(c, verb, args));
        writer_deinit(&w);
        free(s.subject);
        if (rc != 0)
                return rc;
        *reply = reply_json(&call);
        call_deinit(&call);
        return *reply ? 0 : fail(c, STREAMER_EPROTO, "%s: the daemon's reply cannot be written as JSON", verb);
}

/* ---- pages ---- */

static json_t *generation_of(const json_t *reply)
{
        return json_object_get(json_array_get(json_object_get(reply, "models"), 0), "generation");
}

/* A list of tensors must not mix two generations of a model. */
static bool same_model(const struct paged *p, const json_t *a, const json_t *b)
{
        return strcmp(p->verb, "show") != 0 || json_equal(generation_of(a), generation_of(b));
}

static int add_page(streamer_client *c, const struct paged *p, json_t *whole, const json_t *page)
{
        size_t n = 0;
        if (!same_model(p, whole, page))
                return fail(c, STREAMER_EFAILED, "show: the model was replaced while it was listed");
        for (size_t i = 0; i < PAGED_LISTS && p->lists[i]; i++) {
                json_t *items = json_object_get(page, p->lists[i]);
                n += json_array_size(items);
                json_array_extend(json_object_get(whole, p->lists[i]), items);
        }
        if (n == 0)
                return 0; /* the end, whatever its "next" says */
        json_object_set(whole, "next", json_object_get(page, "next"));
        return 0;
}

static int call_paged(streamer_client *c, const struct paged *p, json_t *args, json_t **whole)
{
        int rc = call_once(c, p->verb, args, whole);
        for (json_t *next; rc == 0 && (next = json_object_get(*whole, "next"));) {
                json_auto_t *page = NULL;
                json_object_set(args, p->cursor, next);
                json_object_del(*whole, "next");
                rc = call_once(c, p->verb, args, &page) ?: add_page(c, p, *whole, page);
        }
        return rc;
}

/* ---- the verbs ---- */

/* Replies with descriptors, and leases, are for functions. */
static int check_verb(streamer_client *c, const char *verb, const json_t *args)
{
        static const char *const functions[] = {"hello",         "attach",          "reclaim",       "detach",
                                                "publish_begin", "publish_segment", "publish_commit"};
        for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++)
                if (strcmp(functions[i], verb) == 0)
                        return fail(c, STREAMER_EINVAL, "call: '%s' has a function of its own", verb);
        if (json_object_get(args, "verb") || json_object_get(args, "id"))
                return fail(c, STREAMER_EINVAL, "call: the library sets 'verb' and 'id'");
        if (strcmp(verb, "load") == 0 && json_object_get(args, "attach"))
                return fail(c, STREAMER_EINVAL, "call: a load that attaches has a function of its own");
        if (strcmp(verb, "fetch") == 0 && json_object_get(args, "file"))
                return fail(c, STREAMER_EINVAL, "call: to fetch a file has a function of its own");
        return 0;
}

static bool has_source(const char *verb)
{
        return strcmp(verb, "load") == 0 || strcmp(verb, "fetch") == 0 || strcmp(verb, "diff") == 0;
}

static int resolve_source(streamer_client *c, const char *verb, json_t *args)
{
        cleanup_free char *resolved = NULL;
        const char *source = json_string_value(json_object_get(args, "source"));
        if (!source)
                return 0; /* the decoder will say what is wrong */
        int rc = source_resolve(source, &resolved, c->fault);
        if (rc == 0 && json_object_set_new(args, "source", json_string(resolved)) < 0)
                rc = args_not_utf8(c, verb, resolved);
        return rc;
}

int call_json(streamer_client *c, const char *verb, json_t *args, json_t **reply)
{
        const struct paged *p = find_paged(verb);
        int rc = check_features(c, verb, args);
        if (rc == 0 && has_source(verb))
                rc = resolve_source(c, verb, args);
        if (rc != 0)
                return rc;
        rc = p && !json_object_get(args, "limit") ? call_paged(c, p, args, reply) : call_once(c, verb, args, reply);
        return missing_model_explain(c, json_string_value(json_object_get(args, "model")), rc);
}

static int dump(streamer_client *c, const json_t *json, char **text)
{
        *text = json_dumps(json, JSON_COMPACT);
        return *text ? 0 : fail(c, STREAMER_ENOMEM, "no memory for a reply");
}

int streamer_call(streamer_client *client, const char *verb, const char *args_json, char **reply_json)
{
        json_auto_t *args = NULL, *reply = NULL;
        int rc = args_client(client, "call")
                         ?: args_text(client, "call", "verb", verb)
                         ?: parse_args(client, verb, args_json, &args)
                         ?: check_verb(client, verb, args)
                         ?: call_json(client, verb, args, &reply);
        return rc == 0 && reply_json ? dump(client, reply, reply_json) : rc;
}

/* ---- events ---- */

int streamer_subscribe(streamer_client *client, const char *model)
{
        struct subscription s = {0};
        struct call call = {.accept = accept_subscribe, .arg = &s};
        struct request request = {.verb = VERB_subscribe, .u.subscribe = {.model = model}};
        int rc = args_client(client, "subscribe")
                         ?: (model ? args_text(client, "subscribe", "model", model) : 0)
                         ?: subscription_init(&s, client, model)
                         ?: channel_call(client, &request, &call, channel_deadline(client));
        if (rc == 0)
                call_deinit(&call);
        free(s.subject);
        return rc;
}

static bool has_event(const void *arg)
{
        const streamer_client *c = arg;
        return c->events || c->events_lost > 0;
}

/* Lock held. A loss is reported after the events before it. */
static json_t *pop_event(streamer_client *c)
{
        struct event *e = c->events;
        if (!e) {
                json_t *lost = json_pack("{s:s, s:I}", "event", "lost", "count", (json_int_t)c->events_lost);
                c->events_lost = 0;
                readiness_update(c);
                return lost;
        }
        c->events = e->next;
        if (!c->events)
                c->events_end = &c->events;
        c->n_events--;
        readiness_update(c);
        json_t *json = json_from_object(&e->message.unpacked.data);
        message_deinit(&e->message);
        free(e);
        return json;
}

int streamer_event_next(streamer_client *client, int timeout_ms, char **event_json)
{
        int rc = args_client(client, "event_next") ?: args_pointer(client, "event_next", "event_json", event_json);
        if (rc != 0)
                return rc;
        lock_scope(&client->lock);
        if (!client->subscribed)
                return fail(client, STREAMER_EINVAL, "event_next: the client has not subscribed");
        rc = channel_wait(client, has_event, client, deadline_in_ms(timeout_ms));
        if (rc == STREAMER_ETIMEOUT)
                fail(client, rc, "no event in time");
        if (rc != 0)
                return rc;
        json_auto_t *event = pop_event(client);
        return event ? dump(client, event, event_json)
                     : fail(client, STREAMER_EPROTO, "event_next: an event cannot be written as JSON");
}
