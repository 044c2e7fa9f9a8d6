/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_call: any verb with JSON in and out. The arguments are packed as they are and then read
 * back by the daemon's own decoder, so that a wrong field is refused here in the same words, before
 * anything is sent. Long lists are asked for page by page and returned whole, unless the caller set
 * a limit and turns the pages itself.
 */
#include "client/channel.h"
#include "client/json.h"
#include "client/source.h"
#include "client/util.h"

#include <inttypes.h>
#include <stdio.h>

static void json_decref_p(json_t **json)
{
        json_decref(*json);
}
#define cleanup_json __attribute__((cleanup(json_decref_p)))

/* Lists that come in pages: where the items are, and the field that takes the reply's "next". */
#define PAGED_LISTS 3
static const struct paged {
        enum verb verb;
        const char *lists[PAGED_LISTS], *cursor;
} paged[] = {
        {VERB_list, {"models"}, "after"},
        {VERB_ps, {"leases"}, "after"},
        {VERB_show, {"tensor_list"}, "offset"},
        {VERB_status, {"loads", "preload", "again"}, "after"},
};

static const struct paged *find_paged(enum verb verb)
{
        for (size_t i = 0; i < sizeof(paged) / sizeof(paged[0]); i++)
                if (paged[i].verb == verb)
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
                return fail(c, STREAMER_EINVAL, "%s: the arguments are no JSON object", verb);
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

/* How long a reply may take: verbs that wait for a load or read a whole model have no end of their
 * own, unless the caller set one. */
static int64_t deadline_of(const streamer_client *c, const struct request *r)
{
        int64_t usual = channel_deadline(c);
        bool dry_run = r->verb == VERB_load && r->u.load.dry_run;
        if (r->verb == VERB_wait) {
                uint64_t ms = r->u.wait.timeout_ms;
                bool endless = ms == 0 || ms > INT32_MAX || usual == NEVER;
                return endless ? NEVER : usual + (int64_t)ms * 1000000;
        }
        return (r->verb == VERB_verify || dry_run) && !c->timeout_given ? NEVER : usual;
}

static json_t *reply_json(const struct call *call)
{
        json_t *json = json_from_object(&call->reply.unpacked.data);
        json_object_del(json, "id");
        json_object_del(json, "ok");
        return json;
}

static int send_checked(streamer_client *c, const struct writer *w, struct call *call)
{
        char text[256];
        struct request request;
        int rc = request_decode(&request, w->buf.data, w->buf.size, text, sizeof(text));
        if (rc != 0)
                return fail(c, rc, "%s", text);
        int64_t deadline = deadline_of(c, &request);
        request_deinit(&request);
        return channel_exchange(c, w->buf.data, w->buf.size, call, deadline);
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
        (void)reply;
        free(s->client->subject);
        s->client->subject = s->subject;
        s->client->subscribed = true;
        s->subject = NULL;
}

static int call_once(streamer_client *c, const struct verb_desc *verb, const json_t *args, json_t **reply)
{
        struct writer w;
        struct subscription s;
        struct call call = {.id = channel_next_id(c), .arg = &s};
        bool subscribes = verb->verb == VERB_subscribe;
        int rc = subscription_init(&s, c, subscribes ? json_string_value(json_object_get(args, "model")) : NULL);
        if (rc != 0)
                return rc;
        if (subscribes)
                call.accept = accept_subscribe;
        writer_init(&w);
        pack_request(&w, verb->name, call.id, args);
        rc = w.failed ? fail(c, STREAMER_ENOMEM, "%s: no memory", verb->name) : send_checked(c, &w, &call);
        writer_deinit(&w);
        free(s.subject);
        if (rc != 0)
                return rc;
        *reply = reply_json(&call);
        call_deinit(&call);
        return *reply ? 0 : fail(c, STREAMER_EPROTO, "%s: the daemon's reply cannot be written as JSON", verb->name);
}

/* ---- pages ---- */

static json_t *generation_of(const json_t *reply)
{
        return json_object_get(json_array_get(json_object_get(reply, "models"), 0), "generation");
}

/* A list of tensors must not mix two generations of a model. */
static bool same_model(const struct paged *p, const json_t *a, const json_t *b)
{
        return p->verb != VERB_show || json_equal(generation_of(a), generation_of(b));
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

static int call_paged(streamer_client *c, const struct paged *p, const struct verb_desc *verb, json_t *args,
                      json_t **whole)
{
        int rc = call_once(c, verb, args, whole);
        for (json_t *next; rc == 0 && (next = json_object_get(*whole, "next"));) {
                cleanup_json json_t *page = NULL;
                json_object_set(args, p->cursor, next);
                json_object_del(*whole, "next");
                rc = call_once(c, verb, args, &page);
                if (rc == 0)
                        rc = add_page(c, p, *whole, page);
        }
        return rc;
}

/* ---- the verbs ---- */

static int check_verb(streamer_client *c, const char *verb, const struct verb_desc **desc)
{
        *desc = verb ? verb_find(verb, strlen(verb)) : NULL;
        if (!*desc)
                return fail(c, STREAMER_EINVAL, "unknown verb '%.40s'", verb ? verb : "");
        if ((*desc)->verb == VERB_hello || (*desc)->verb == VERB_attach || (*desc)->verb == VERB_reclaim ||
            (*desc)->verb == VERB_detach)
                return fail(c, STREAMER_EINVAL, "%s: has a function of its own", verb);
        return 0;
}

static int resolve_source(streamer_client *c, json_t *args)
{
        cleanup_free char *resolved = NULL;
        const char *source = json_string_value(json_object_get(args, "source"));
        if (!source)
                return 0; /* the decoder will say what is wrong */
        int rc = source_resolve(source, &resolved, c->serial);
        if (rc == 0 && json_object_set_new(args, "source", json_string(resolved)) < 0)
                rc = fail(c, STREAMER_EINVAL, "load: the source is not valid UTF-8");
        return rc;
}

static int call_verb(streamer_client *c, const struct verb_desc *desc, json_t *args, json_t **reply)
{
        const struct paged *p = find_paged(desc->verb);
        int rc = desc->verb == VERB_load ? resolve_source(c, args) : 0;
        if (rc != 0)
                return rc;
        return p && !json_object_get(args, "limit") ? call_paged(c, p, desc, args, reply)
                                                    : call_once(c, desc, args, reply);
}

static int dump(streamer_client *c, const json_t *json, char **text)
{
        *text = json_dumps(json, JSON_COMPACT);
        return *text ? 0 : fail(c, STREAMER_ENOMEM, "no memory for a reply");
}

int streamer_call(streamer_client *client, const char *verb, const char *args_json, char **reply_json)
{
        const struct verb_desc *desc;
        cleanup_json json_t *args = NULL, *reply = NULL;
        int rc = channel_check(client);
        if (rc == 0)
                rc = check_verb(client, verb, &desc);
        if (rc == 0)
                rc = parse_args(client, verb, args_json, &args);
        if (rc == 0)
                rc = call_verb(client, desc, args, &reply);
        return rc == 0 && reply_json ? dump(client, reply, reply_json) : rc;
}

/* ---- events ---- */

int streamer_subscribe(streamer_client *client, const char *model)
{
        struct subscription s = {0};
        struct call call = {.accept = accept_subscribe, .arg = &s};
        struct request request = {.verb = VERB_subscribe, .u.subscribe = {.model = model}};
        int rc = channel_check(client);
        if (rc == 0)
                rc = subscription_init(&s, client, model);
        if (rc == 0)
                rc = channel_call(client, &request, &call, channel_deadline(client));
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

/* Lock held. What was lost is told when the events before it have been read. */
static json_t *pop_event(streamer_client *c)
{
        struct event *e = c->events;
        if (!e) {
                json_t *lost = json_pack("{s:s, s:I}", "event", "lost", "count", (json_int_t)c->events_lost);
                c->events_lost = 0;
                return lost;
        }
        c->events = e->next;
        if (!c->events)
                c->events_end = &c->events;
        c->n_events--;
        json_t *json = json_from_object(&e->message.unpacked.data);
        message_deinit(&e->message);
        free(e);
        return json;
}

int streamer_event_next(streamer_client *client, int timeout_ms, char **event_json)
{
        cleanup_json json_t *event = NULL;
        int rc = channel_check(client);
        if (rc != 0)
                return rc;
        if (!event_json)
                return fail(client, STREAMER_EINVAL, "events: no place for the event");
        pthread_mutex_lock(&client->lock);
        if (!client->subscribed)
                rc = fail(client, STREAMER_EINVAL, "events: the client has not subscribed");
        else
                rc = channel_wait(client, has_event, client, deadline_in_ms(timeout_ms));
        if (rc == STREAMER_ETIMEOUT)
                fail(client, rc, "no event in time");
        if (rc == 0)
                event = pop_event(client);
        pthread_mutex_unlock(&client->lock);
        if (rc != 0)
                return rc;
        return event ? dump(client, event, event_json)
                     : fail(client, STREAMER_EPROTO, "events: an event cannot be written as JSON");
}
