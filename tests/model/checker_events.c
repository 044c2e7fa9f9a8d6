/* SPDX-License-Identifier: Apache-2.0
 *
 * The subscriber: a client that subscribes to one name or to all. Before any later reply it receives the latest state
 * of every model that has changed. After its connection broke, it is notified of lost events.
 */
#include "tests/model/checker_model.h"

#include <sys/socket.h>

void subscriber_start(struct checker *c, const streamer_connect_opts *opts)
{
        if (streamer_connect(opts, &c->subscriber) < 0)
                die("connect: %s", streamer_last_error(NULL));
        step_subscribe(c);
}

/* Subscribes to one name twice as often as to all. */
void step_subscribe(struct checker *c)
{
        c->subscribed_name = (unsigned)random_below(c, NAMES + NAMES / 2);
        const char *name = c->subscribed_name < NAMES ? name_of(c->subscribed_name) : NULL;
        int r = streamer_subscribe(c->subscriber, name);
        trail_add(c, "subscribe to %s: %s", name != NULL ? name : "all", streamer_strerror(r));
        if (r != 0)
                checker_fail(c, "subscribe: %s (%s)", streamer_strerror(r), streamer_last_error(c->subscriber));
        subscriber_read_events(c);
}

void subscriber_disconnect(struct checker *c)
{
        must(shutdown(client_socket(c->subscriber), SHUT_RDWR));
        trail_add(c, "the subscriber's connection breaks");
        c->subscriber_disconnected = true;
}

static void check_lost(struct checker *c, uint64_t lost)
{
        if (c->subscriber_disconnected != (lost > 0))
                checker_fail(c, "the subscriber lost %" PRIu64 " events, and its connection %s", lost,
                             c->subscriber_disconnected ? "was broken" : "was not broken");
        c->subscriber_disconnected = false;
}

void subscriber_read_events(struct checker *c)
{
        uint64_t lost = 0;
        char *text = NULL;
        int r = streamer_call(c->subscriber, "ping", NULL, NULL);
        if (r != 0)
                checker_fail(c, "ping of the subscriber: %s (%s)", streamer_strerror(r),
                             streamer_last_error(c->subscriber));
        json_decref(c->events);
        c->events = json_array();
        while ((r = streamer_event_next(c->subscriber, 0, &text)) == 0) {
                json_t *event = json_loads(text, 0, NULL);
                lost += json_number(event, "count");
                json_array_append_new(c->events, event);
                free(text);
        }
        if (r != STREAMER_ETIMEOUT)
                checker_fail(c, "events: %s (%s)", streamer_strerror(r), streamer_last_error(c->subscriber));
        check_lost(c, lost);
}

/* Its latest state, which is "ready" or a later one. */
static bool received_ready(const struct checker *c, const char *name, const struct gen *g)
{
        const json_t *event;
        for (size_t i = 0; (event = json_array_get(c->events, i)); i++)
                if (strcmp(json_text(event, "event"), "model") == 0 && strcmp(json_text(event, "model"), name) == 0 &&
                    strcmp(json_text(event, "device"), c->devices[g->device].name) == 0 &&
                    strcmp(json_text(event, "state"), "loading") != 0 && json_number(event, "generation") == g->number)
                        return true;
        return false;
}

/* The event of a generation that was resident already goes only to subscribers of the requested name. A cancelled load
 * may have ended before that event. */
void subscriber_check_events(struct checker *c, const struct trial *t, const struct outcome *outcome)
{
        bool by_name = c->subscribed_name == t->name, all = c->subscribed_name >= NAMES;
        subscriber_read_events(c);
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = c->names[t->name][d];
                bool found = outcome->got[d] && !outcome->fresh[d] && outcome->result != STREAMER_ECANCELED;
                if ((!by_name && !all) || (!outcome->fresh[d] && !(by_name && found)))
                        continue;
                c->counts->events++;
                if (!received_ready(c, name_of(t->name), g))
                        checker_fail(c,
                                     "%s: generation %" PRIu64 " is ready on %s, and the subscriber received no event",
                                     name_of(t->name), g->number, c->devices[d].name);
        }
}
