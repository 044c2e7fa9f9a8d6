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
        struct gen *before = name_serves(c, t->name, device) ? c->names[t->name][device] : NULL,
                   **place = &c->held[p][slot];
        int r = trial_begin(c, t, 0, &op);
        puppet_join(&c->puppets[p], slot, &wish, &answer);
        trail_add(c, "client %u, slot %u: joined %s on %s: %s, generation %" PRIu64, p, slot, wish.model, wish.device,
                  streamer_strerror(answer.result), answer.generation);
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

/* What `status` says of a load, by device. */
struct question {
        struct checker *c;
        const struct trial *t;
        bool there, waits, settled;
        bool ready[DEVICES];
};

static void look_at_target(struct question *q, const json_t *target)
{
        const char *state = json_text(target, "state");
        bool waits = json_number(target, "waits_ns") > 0, ready = strcmp(state, "ready") == 0;
        q->waits = q->waits || waits;
        q->settled = q->settled && (waits || ready || strcmp(state, "failed") == 0);
        for (unsigned d = 0; d < q->c->n_devices; d++)
                if (strcmp(json_text(target, "device"), q->c->devices[d].name) == 0)
                        q->ready[d] = ready;
}

static void look_at_load(struct question *q)
{
        json_t *status = ask(q->c, "status", NULL), *load, *target;
        size_t i, k;
        *q = (struct question){.c = q->c, .t = q->t, .settled = true};
        json_array_foreach(json_object_get(status, "loads"), i, load)
        {
                if (strcmp(json_text(load, "model"), name_of(q->t->name)) != 0)
                        continue;
                q->there = true;
                json_array_foreach(json_object_get(load, "targets"), k, target) look_at_target(q, target);
        }
        json_decref(status);
        if (q->t->ranks > 0) /* one asks for all */
                q->settled = q->settled || q->waits;
}

/* On each device the load waits for room, or is over; or all of it has ended. */
static bool is_settled(void *arg)
{
        struct question *q = arg;
        look_at_load(q);
        return !q->there || q->settled;
}

static bool waits(struct checker *c, const struct trial *t)
{
        struct question q = {.c = c, .t = t};
        if (!eventually(is_settled, &q, CHECKER_WAIT_MS))
                differ(c, "load %s: neither waits nor ends", name_of(t->name));
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
        for (unsigned p = 0; waits(c, t) && p < PUPPETS; p++) {
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
        if (t->ranks > 0)
                return load_fits(c, t);
        return resident_copy(c, t, device) != NULL ||
               immovable(c, t->name, device) + t->needed[device] <= c->devices[device].budget;
}

static bool will_serve(struct checker *c, const struct trial *t, unsigned device)
{
        bool lost = t->ranks > 0 ? on_lost_device(c, t) : c->devices[device].lost;
        return will_fit(c, t, device) && (!lost || resident_copy(c, t, device) != NULL);
}

/* It serves where there is room while it waits for the others. */
static bool serves_where_it_fits(void *arg)
{
        struct question *q = arg;
        look_at_load(q);
        for (unsigned d = 0; d < q->c->n_devices; d++)
                if (q->t->on[d] && q->ready[d] != will_serve(q->c, q->t, d))
                        return false;
        return q->there;
}

/* Somewhere there will be no room. */
static void give_up(struct checker *c, const struct trial *t, bool got[DEVICES])
{
        struct question q = {.c = c, .t = t};
        if (t->n_devices > 1 && !eventually(serves_where_it_fits, &q, CHECKER_WAIT_MS))
                differ(c, "load %s: while it waits for some devices it does not serve where there is room",
                       name_of(t->name));
        memcpy(got, q.ready, sizeof(q.ready));
        trail_add(c, "cancel %s", name_of(t->name));
        try(c, "cancel", json_pack("{s:s}", "model", name_of(t->name)));
}

/* The same load by somebody who would not wait, and whom the one that waits joins if it is in time: it is refused, or
 * has the other's outcome. */
static void end_hasty(struct checker *c, const struct trial *t, int r, streamer_op *op, const struct outcome *outcome)
{
        if (op != NULL)
                r = streamer_op_wait(op, CHECKER_WAIT_MS, NULL);
        trail_add(c, "load %s, which would not wait: %s", name_of(t->name), streamer_strerror(r));
        if (r != outcome->result && r != 0 && r != STREAMER_ENOMEM && r != STREAMER_EFAILED)
                differ(c, "load %s, which would not wait: %s (%s)", name_of(t->name), streamer_strerror(r),
                       streamer_last_error(c->client));
        streamer_op_free(op);
}

static void wait_for_room(struct checker *c, const struct trial *t)
{
        streamer_op *hasty = NULL;
        bool two = random_below(c, 2) == 0;
        int first = two ? trial_begin(c, t, 0, &hasty) : 0;
        bool blocked = false, lost = on_lost_device(c, t), served[DEVICES] = {false};
        struct outcome outcome;
        streamer_op *op = NULL;
        int r = trial_begin(c, t, STREAMER_LOAD_WAIT, &op);
        if (r == 0)
                make_room(c, t);
        /* A lost one fails, and of ranks all do. */
        for (unsigned d = 0; d < c->n_devices; d++)
                blocked = blocked || (t->on[d] && !c->devices[d].lost && !(t->ranks > 0 && lost) && !will_fit(c, t, d));
        if (blocked)
                give_up(c, t, served);
        trial_end(c, t, r, op, &outcome);
        if (two)
                end_hasty(c, t, first, hasty, &outcome);
        if (outcome.result != (blocked ? STREAMER_ECANCELED : 0) && !lost)
                differ(c, "load %s, which waits: %s (%s)", name_of(t->name), streamer_strerror(outcome.result),
                       streamer_last_error(c->client));
        if (outcome.result == STREAMER_ECANCELED)
                memcpy(outcome.got, served, sizeof(served));
        trial_follow(c, t, &outcome);
        compare(c, true);
}

/* Ranks that go as soon as one of them loses the name that is loaded, which may be before all of the load has room. */
static bool may_expire_meanwhile(const struct checker *c, const struct trial *t)
{
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = c->names[t->name][d];
                if (g != NULL && g->ranks > 1 && g->keep_alive_ms == BRIEF_MS)
                        return true;
        }
        return false;
}

void step_wait(struct checker *c)
{
        struct trial t;
        trial_init(c, &t, true);
        t.wish.keep_alive_ms = 0;
        t.no_evict = false;
        if (!may_expire_meanwhile(c, &t))
                wait_for_room(c, &t);
        trial_deinit(&t);
}
