/* SPDX-License-Identifier: Apache-2.0
 *
 * streamer_call: any verb with JSON in and out. Verbs and fields are sent if the daemon lists them among its
 * features, and the daemon checks them. Long lists are requested page by page, each while the one before is
 * read, and returned whole, unless the caller sets a limit. The text of a reply is written from the bytes of its
 * messages (json_text.h).
 */
#include "client/call.h"

#include "client/args.h"
#include "client/features.h"
#include "client/json.h"
#include "client/json_text.h"
#include "client/missing.h"
#include "client/source.h"
#include "client/util.h"
#include "proto/require.h"

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

/* It reads or removes files without a limit. */
static bool takes_long(const char *verb, const json_t *args)
{
        static const char *const verbs[] = {"cache_remove", "cache_verify", "diff", "fetch", "verify"};
        for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++)
                if (strcmp(verbs[i], verb) == 0)
                        return true;
        return strcmp(verb, "load") == 0 && json_is_true(json_object_get(args, "dry_run"));
}

/* How long a reply may take: verbs that wait for a load, or take long, have no limit of their own, unless the caller
 * set one. */
static int64_t deadline_of(const streamer_client *c, const char *verb, const json_t *args)
{
        int64_t usual = channel_deadline(c);
        if (strcmp(verb, "wait") == 0) {
                json_int_t ms = json_integer_value(json_object_get(args, "timeout_ms"));
                bool endless = ms <= 0 || ms > INT32_MAX || usual == NEVER;
                return endless ? NEVER : usual + (int64_t)ms * 1000000;
        }
        return takes_long(verb, args) && !c->timeout_given ? NEVER : usual;
}

/* ---- the reply ---- */

/* The text of a reply, of which the lists may come in several pages. */
struct reply {
        const struct paged *paged; /* NULL: it has one page */
        /* Lock held: `next` is known, before the page is read where the daemon sends it first. */
        void (*next_known)(void *arg);
        void *arg;
        struct text head; /* the first page, with empty lists */
        struct text lists[PAGED_LISTS];
        size_t at[PAGED_LISTS];  /* where they belong in `head`; 0: the first page has no such list */
        struct text next;        /* of the last page; empty: none */
        size_t n_pages, n_items; /* n_items: of the last page */
        bool ended;              /* a page has no items: it is the last, whatever its `next` says */
        uint64_t generation;     /* of the first model that it shows */
        bool replaced;           /* by another generation, on a later page */
};

static void reply_deinit(struct reply *r)
{
        text_deinit(&r->head);
        text_deinit(&r->next);
        for (size_t i = 0; i < PAGED_LISTS; i++)
                text_deinit(&r->lists[i]);
}

/* The number of this list; PAGED_LISTS: it is none. */
static size_t find_list(const struct reply *r, const struct value *key)
{
        size_t i = 0;
        while (i < PAGED_LISTS && (!r->paged || !r->paged->lists[i] || !value_is_text(key, r->paged->lists[i])))
                i++;
        return i;
}

/* A list of tensors must not mix two generations of a model. */
static void check_generation(struct reply *r, const void *data, size_t len)
{
        struct bytes b = {data, (const unsigned char *)data + len};
        struct value v;
        bool found = r->paged && strcmp(r->paged->verb, "show") == 0 && bytes_next(&b, &v) &&
                     bytes_find(&b, v.number, "models") && bytes_next(&b, &v) && v.kind == VALUE_ARRAY &&
                     v.number > 0 && bytes_next(&b, &v) && v.kind == VALUE_MAP &&
                     bytes_find(&b, v.number, "generation") && bytes_next(&b, &v);
        if (found && r->n_pages == 0)
                r->generation = v.number;
        if (found && v.number != r->generation)
                r->replaced = true;
}

static bool add_items(struct reply *r, size_t list, struct bytes *b)
{
        struct text *text = &r->lists[list];
        struct value v;
        if (!bytes_next(b, &v) || v.kind != VALUE_ARRAY)
                return false;
        for (uint64_t i = 0; i < v.number; i++) {
                if (text->size > 0)
                        text_add(text, ",", 1);
                if (!text_add_value(text, b))
                        return false;
        }
        r->n_items += v.number;
        return true;
}

static bool add_key(struct text *head, const struct value *key)
{
        if (head->size > 1)
                text_add(head, ",", 1);
        bool ok = text_add_string(head, key->data, key->number);
        text_add(head, ":", 1);
        return ok;
}

/* A pair of the reply: what the first page has, and of the others the lists and `next`. */
static bool add_pair(struct reply *r, const struct value *key, struct bytes *b)
{
        size_t list = find_list(r, key);
        bool first = r->n_pages == 0;
        if (value_is_text(key, "id") || value_is_text(key, "ok"))
                return bytes_skip(b);
        if (r->paged && value_is_text(key, "next")) {
                bool ok = text_add_value(&r->next, b);
                if (ok)
                        r->next_known(r->arg);
                return ok;
        }
        if (list == PAGED_LISTS)
                return first ? add_key(&r->head, key) && text_add_value(&r->head, b) : bytes_skip(b);
        if (first) {
                if (!add_key(&r->head, key))
                        return false;
                text_add(&r->head, "[", 1);
                r->at[list] = r->head.size;
                text_add(&r->head, "]", 1);
        }
        return add_items(r, list, b);
}

/* Lock held, while the reply is dispatched. */
static bool add_page(struct reply *r, const void *data, size_t len)
{
        struct bytes b = {data, (const unsigned char *)data + len};
        struct value map, key;
        if (r->ended) /* the page was requested before that was known */
                return true;
        r->n_items = r->next.size = 0;
        check_generation(r, data, len);
        if (!bytes_next(&b, &map) || map.kind != VALUE_MAP)
                return false;
        if (r->n_pages == 0)
                text_add(&r->head, "{", 1);
        for (uint64_t i = 0; i < map.number; i++)
                if (!bytes_next(&b, &key) || key.kind != VALUE_TEXT || !add_pair(r, &key, &b))
                        return false;
        if (b.at != b.end)
                return false;
        if (r->n_pages++ == 0)
                text_add(&r->head, "}", 1);
        r->ended = r->n_items == 0;
        return true;
}

static bool has_failed(const struct reply *r)
{
        bool failed = r->head.failed || r->next.failed;
        for (size_t i = 0; i < PAGED_LISTS; i++)
                failed = failed || r->lists[i].failed;
        return failed;
}

/* The list whose place in the head is the next behind this one; PAGED_LISTS: none is left. */
static size_t next_list(const struct reply *r, size_t done)
{
        size_t next = PAGED_LISTS;
        for (size_t i = 0; i < PAGED_LISTS; i++)
                if (r->at[i] > done && (next == PAGED_LISTS || r->at[i] < r->at[next]))
                        next = i;
        return next;
}

/* The whole. NULL: no memory. */
static char *reply_text(const struct reply *r)
{
        struct text whole = {0};
        size_t done = 0, list;
        for (; (list = next_list(r, done)) < PAGED_LISTS; done = r->at[list]) {
                text_add(&whole, r->head.data + done, r->at[list] - done);
                text_add(&whole, r->lists[list].data, r->lists[list].size);
        }
        text_add(&whole, r->head.data + done, r->head.size - done);
        text_add(&whole, "", 1);
        if (has_failed(r) || whole.failed)
                text_deinit(&whole);
        return whole.data;
}

/* ---- the requests of its pages ---- */

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

#define AT_ONCE 2

/* The thread of the call waits for the pages in turn. Whoever reads the socket adds them to the reply, and requests the
 * next one as soon as its place is known, so that the daemon makes it meanwhile. */
struct exchange {
        streamer_client *client;
        const char *verb;
        json_t *args; /* with the place of the page that was requested last */
        struct reply reply;
        struct call calls[AT_ONCE];
        unsigned n_begun, n_taken; /* requests: that were sent, and whose replies the call's thread has */
        char *subject;             /* of a subscription: the client's, once it is accepted */
};

static bool take_page(struct call *call, const void *data, size_t len)
{
        struct exchange *x = call->arg;
        return add_page(&x->reply, data, len);
}

/* Lock held, while the reply is dispatched: the first event may be right behind it. */
static void accept_subscribe(struct call *call, const msgpack_object *reply)
{
        struct exchange *x = call->arg;
        free(x->client->subject);
        x->client->subject = x->subject;
        x->client->subscribed = true;
        x->subject = NULL;
}

static int copy_subject(struct exchange *x, const char *model)
{
        x->subject = model ? strdup(model) : NULL;
        return model && !x->subject ? fail(x->client, STREAMER_ENOMEM, "subscribe: no memory") : 0;
}

/* Lock held. */
static int begin_page(struct exchange *x)
{
        streamer_client *c = x->client;
        struct call *call = &x->calls[x->n_begun % AT_ONCE];
        struct writer w;
        require(x->n_begun - x->n_taken < AT_ONCE);
        *call = (struct call){
                .id = ++c->last_id, .take = take_page, .arg = x, .slow = takes_long(x->verb, x->args) ? x->verb : NULL};
        if (strcmp(x->verb, "subscribe") == 0)
                call->accept = accept_subscribe;
        writer_init(&w);
        pack_request(&w, x->verb, call->id, x->args);
        int rc = w.failed ? fail(c, STREAMER_ENOMEM, "%s: no memory", x->verb)
                          : channel_send(c, w.buf.data, w.buf.size, call);
        writer_deinit(&w);
        if (rc == 0)
                x->n_begun++;
        return rc;
}

static bool set_place(struct exchange *x)
{
        const struct text *next = &x->reply.next;
        json_t *place = json_loadb(next->data, next->size, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        return json_object_set_new(x->args, x->reply.paged->cursor, place) == 0;
}

/* If it cannot, or both calls are in use, the call's thread does it. */
static void begin_next(void *arg)
{
        struct exchange *x = arg;
        if (!x->reply.ended && x->n_begun - x->n_taken < AT_ONCE && set_place(x))
                begin_page(x);
}

/* Lock held. */
static int await_page(struct exchange *x)
{
        streamer_client *c = x->client;
        int64_t deadline = deadline_of(c, x->verb, x->args);
        int rc = 0;
        if (x->n_begun == x->n_taken) {
                /* A loss since the last look is found first, so that the request is not lost with the connection. */
                rc = channel_ensure(c, true, deadline);
                if (rc == 0 && x->n_begun > 0 && !set_place(x))
                        rc = fail(c, STREAMER_ENOMEM, "no memory for a reply");
                rc = rc ?: begin_page(x);
        }
        if (rc != 0)
                return rc;
        struct call *call = &x->calls[x->n_taken % AT_ONCE];
        rc = channel_await(c, call, deadline);
        x->n_taken++; /* its call may be used again */
        if (rc != 0)
                return rc;
        call_deinit(call);
        if (has_failed(&x->reply))
                return fail(c, STREAMER_ENOMEM, "no memory for a reply");
        if (!call->taken)
                return fail(c, STREAMER_EPROTO, "%s: the daemon's reply cannot be written as JSON", x->verb);
        return x->reply.replaced ? fail(c, STREAMER_EFAILED, "show: the model was replaced while it was listed") : 0;
}

static int exchange_pages(struct exchange *x)
{
        const struct reply *reply = &x->reply;
        lock_scope(&x->client->lock);
        int rc = await_page(x);
        while (rc == 0 && !reply->ended && (x->n_begun > x->n_taken || reply->next.size > 0))
                rc = await_page(x);
        for (; x->n_begun > x->n_taken; x->n_taken++) {
                struct call *call = &x->calls[x->n_taken % AT_ONCE];
                channel_end(x->client, call);
                call_deinit(call);
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

static int call_text(streamer_client *c, const char *verb, json_t *args, char **text)
{
        struct exchange x = {
                .client = c,
                .verb = verb,
                .args = args,
                .reply = {.paged = json_object_get(args, "limit") ? NULL : find_paged(verb), .next_known = begin_next}};
        x.reply.arg = &x;
        bool subscribes = strcmp(verb, "subscribe") == 0;
        int rc = check_features(c, verb, args);
        if (rc == 0 && has_source(verb))
                rc = resolve_source(c, verb, args);
        if (rc == 0 && subscribes)
                rc = copy_subject(&x, json_string_value(json_object_get(args, "model")));
        if (rc == 0)
                rc = exchange_pages(&x);
        if (rc == 0 && !(*text = reply_text(&x.reply)))
                rc = fail(c, STREAMER_ENOMEM, "no memory for a reply");
        reply_deinit(&x.reply);
        free(x.subject);
        return rc == 0 ? 0 : missing_model_explain(c, json_string_value(json_object_get(args, "model")), rc);
}

int call_json(streamer_client *c, const char *verb, json_t *args, json_t **reply)
{
        cleanup_free char *text = NULL;
        int rc = call_text(c, verb, args, &text);
        if (rc == 0 && !(*reply = json_loads(text, JSON_ALLOW_NUL, NULL)))
                rc = fail(c, STREAMER_ENOMEM, "no memory for a reply");
        return rc;
}

static int dump(streamer_client *c, const json_t *json, char **text)
{
        *text = json_dumps(json, JSON_COMPACT);
        return *text ? 0 : fail(c, STREAMER_ENOMEM, "no memory for a reply");
}

int streamer_call(streamer_client *client, const char *verb, const char *args_json, char **reply_json)
{
        json_auto_t *args = NULL;
        char *reply = NULL;
        int rc = args_client(client, "call")
                         ?: args_text(client, "call", "verb", verb)
                         ?: parse_args(client, verb, args_json, &args)
                         ?: check_verb(client, verb, args)
                         ?: call_text(client, verb, args, &reply);
        if (rc == 0 && reply_json)
                *reply_json = reply;
        else
                free(reply);
        return rc;
}

/* ---- events ---- */

int streamer_subscribe(streamer_client *client, const char *model)
{
        struct exchange x = {.client = client};
        struct call call = {.accept = accept_subscribe, .arg = &x};
        struct request request = {.verb = VERB_subscribe, .u.subscribe = {.model = model}};
        int rc = args_client(client, "subscribe")
                         ?: (model ? args_text(client, "subscribe", "model", model) : 0)
                         ?: copy_subject(&x, model)
                         ?: channel_call(client, &request, &call, channel_deadline(client));
        if (rc == 0)
                call_deinit(&call);
        free(x.subject);
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
