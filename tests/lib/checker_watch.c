/* SPDX-License-Identifier: Apache-2.0
 *
 * A client that has subscribed, to one name or to all: before it gets a reply it has heard of every change that
 * was before that. Now and then its connection breaks, and then it is told that it has missed some.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

void watch_start(struct checker *c, const streamer_connect_opts *opts)
{
        if (streamer_connect(opts, &c->watcher) < 0)
                die("connect: %s", streamer_last_error(NULL));
        step_subscribe(c);
}

/* To one name more often than to all. */
void step_subscribe(struct checker *c)
{
        c->watched = (unsigned)random_below(c, NAMES + NAMES / 2);
        const char *name = c->watched < NAMES ? name_of(c->watched) : NULL;
        int r = streamer_subscribe(c->watcher, name);
        trail_add(c, "subscribe to %s: %s", name != NULL ? name : "all", streamer_strerror(r));
        if (r != 0)
                differ(c, "subscribe: %s (%s)", streamer_strerror(r), streamer_last_error(c->watcher));
        watch_hear(c);
}

void watch_break(struct checker *c)
{
        must(shutdown(streamer_fd(c->watcher), SHUT_RDWR));
        trail_add(c, "the connection of the one that has subscribed breaks");
        c->deaf = true;
}

static void check_lost(struct checker *c, uint64_t lost)
{
        if (c->deaf != (lost > 0))
                differ(c, "who has subscribed missed %" PRIu64 " changes, and its connection %s", lost,
                       c->deaf ? "was broken" : "was not");
        c->deaf = false;
}

void watch_hear(struct checker *c)
{
        uint64_t lost = 0;
        char *text = NULL;
        int r = streamer_call(c->watcher, "ping", NULL, NULL);
        if (r != 0)
                differ(c, "ping of who has subscribed: %s (%s)", streamer_strerror(r), streamer_last_error(c->watcher));
        json_decref(c->heard);
        c->heard = json_array();
        while ((r = streamer_event_next(c->watcher, 0, &text)) == 0) {
                json_t *event = json_loads(text, 0, NULL);
                lost += json_number(event, "count");
                json_array_append_new(c->heard, event);
                free(text);
        }
        if (r != STREAMER_ETIMEOUT)
                differ(c, "events: %s (%s)", streamer_strerror(r), streamer_last_error(c->watcher));
        check_lost(c, lost);
}

static bool has_heard(const struct checker *c, const char *name, const struct gen *g)
{
        const json_t *event;
        size_t i;
        json_array_foreach(c->heard, i, event)
        {
                if (strcmp(json_text(event, "event"), "model") == 0 && strcmp(json_text(event, "model"), name) == 0 &&
                    strcmp(json_text(event, "device"), c->devices[g->device].name) == 0 &&
                    strcmp(json_text(event, "state"), "ready") == 0 && json_number(event, "generation") == g->number)
                        return true;
        }
        return false;
}

/* What is there already is told under the name that was asked for alone; of a load that was cancelled nobody knows
 * whether it came to that. */
void watch_check(struct checker *c, const struct trial *t, const struct outcome *outcome)
{
        bool own = c->watched == t->name, all = c->watched >= NAMES;
        watch_hear(c);
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = c->names[t->name][d];
                bool found = outcome->got[d] && !outcome->fresh[d] && outcome->result != STREAMER_ECANCELED;
                if ((!own && !all) || (!outcome->fresh[d] && !(own && found)))
                        continue;
                c->counts->heard++;
                if (!has_heard(c, name_of(t->name), g))
                        differ(c, "%s: generation %" PRIu64 " serves on %s, and who has subscribed heard nothing of it",
                               name_of(t->name), g->number, c->devices[d].name);
        }
}
