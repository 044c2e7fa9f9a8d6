/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads that somebody meets: by an attach while it loads, or by going, so that one that waits has room.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static unsigned first_device(const struct trial *t)
{
        unsigned d = 0;
        while (!t->on[d])
                d++;
        return d;
}

/* ---- met by an attach ---- */

static bool takes(struct checker *c, struct gen **place, struct gen *g, const struct puppet_answer *answer)
{
        if (answer->result != 0 || *place != NULL || g == NULL || g->cached || answer->generation != g->number)
                return false;
        if (answer->seed != g->seed)
                differ(c, "joined generation %" PRIu64 ": seed %" PRIu64 ", not %" PRIu64, g->number, answer->seed,
                       g->seed);
        *place = g;
        g->leases++;
        c->counts->attaches++;
        return true;
}

/* Somebody attaches while it loads: to what served before, or to the newcomer as it arrives. Nobody, where
 * nothing served and the attach was too early. */
static void join(struct checker *c, const struct trial *t, unsigned p, unsigned slot)
{
        unsigned device = first_device(t);
        const struct puppet_wish wish = {.model = name_of(t->name), .device = c->devices[device].name};
        struct puppet_answer answer;
        struct outcome outcome;
        streamer_op *op = NULL;
        struct gen *before = serves(c, t->name, device) ? c->names[t->name][device] : NULL, **place = &c->held[p][slot];
        int r = trial_begin(c, t, 0, &op);
        puppet_join(&c->puppets[p], slot, &wish, &answer);
        trial_end(c, t, r, op, &outcome);
        check_answer(c, &answer);
        takes(c, place, before, &answer);
        trial_follow(c, t, &outcome);
        if (outcome.got[device])
                c->counts->joins += takes(c, place, c->names[t->name][device], &answer) && outcome.fresh[device];
        trial_check(c, t, &outcome);
        if (answer.result == 0 && *place == NULL)
                differ(c, "attach %s while it loads: generation %" PRIu64, name_of(t->name), answer.generation);
        if (answer.result != 0 && (before != NULL || (outcome.got[device] && answer.result != STREAMER_ENOENT)))
                differ(c, "attach %s while it loads: %s (%s)", name_of(t->name), streamer_strerror(answer.result),
                       answer.text);
        c->counts->refused_attaches += answer.result != 0;
}

void step_join(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, PUPPETS), slot = (unsigned)random_below(c, PUPPET_SLOTS);
        struct trial t;
        empty_slot(c, p, slot);
        trial_init(c, &t, true);
        t.wish.keep_alive_ms = 0; /* it might be over before anybody comes */
        join(c, &t, p, slot);
        trial_deinit(&t);
}

/* ---- waiting for room ---- */

struct question {
        struct checker *c;
        const char *name;
        bool waits;
};

/* The load waits for room, or has ended. */
static bool is_settled(void *arg)
{
        struct question *q = arg;
        json_t *status = ask(q->c, "status", NULL), *load;
        bool there = false;
        size_t i;
        q->waits = false;
        json_array_foreach(json_object_get(status, "loads"), i, load)
        {
                if (strcmp(json_text(load, "model"), q->name) != 0)
                        continue;
                there = true;
                q->waits = json_number(json_array_get(json_object_get(load, "targets"), 0), "waits_ns") > 0;
        }
        json_decref(status);
        return q->waits || !there;
}

static bool waits(struct checker *c, unsigned name)
{
        struct question q = {.c = c, .name = name_of(name)};
        if (!eventually(is_settled, &q, CHECKER_WAIT_MS))
                differ(c, "load %s: neither waits nor ends", q.name);
        return q.waits;
}

static bool leases_agree(void *arg)
{
        struct checker *c = arg;
        json_t *ps = ask(c, "ps", NULL);
        uint64_t have = json_array_size(json_object_get(ps, "leases")), want = 0;
        for (unsigned i = 0; i < GENERATIONS; i++)
                want += c->gens[i].leases;
        json_decref(ps);
        return have == want;
}

/* One client after the other is killed, until there is room for it. */
static void make_room(struct checker *c, const struct trial *t)
{
        for (unsigned p = 0; p < PUPPETS && waits(c, t->name); p++) {
                c->counts->waits += p == 0;
                let_go(c, p);
                if (!eventually(leases_agree, c, CHECKER_WAIT_MS))
                        differ(c, "leases of a client that was killed are left");
                puppet_start(&c->puppets[p], c->daemon.socket);
                c->counts->kills++;
        }
}

static bool will_fit(struct checker *c, const struct trial *t, unsigned device)
{
        return resident_copy(c, t->source, device) != NULL ||
               immovable(c, t->name, device) + t->needed[device] <= c->devices[device].budget;
}

static void wait_for_room(struct checker *c, const struct trial *t)
{
        unsigned device = first_device(t);
        struct outcome outcome;
        streamer_op *op = NULL;
        int r = trial_begin(c, t, STREAMER_LOAD_WAIT, &op);
        if (r == 0)
                make_room(c, t);
        bool fits = will_fit(c, t, device);
        if (!fits)
                try(c, "cancel", json_pack("{s:s}", "model", name_of(t->name)));
        trial_end(c, t, r, op, &outcome);
        if (outcome.result != (fits ? 0 : STREAMER_ECANCELED) && !c->devices[device].lost)
                differ(c, "load %s, which waits: %s (%s)", name_of(t->name), streamer_strerror(outcome.result),
                       streamer_last_error(c->client));
        if (outcome.result == 0)
                trial_follow(c, t, &outcome);
        compare(c, true);
}

void step_wait(struct checker *c)
{
        struct trial t;
        trial_init(c, &t, false);
        t.wish.keep_alive_ms = 0;
        t.no_evict = false;
        wait_for_room(c, &t);
        trial_deinit(&t);
}
