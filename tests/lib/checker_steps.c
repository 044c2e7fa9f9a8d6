/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps: each does one thing to the daemon and the same to the model, looks at the answer, and
 * compares the two. Loads are in checker_loads.c.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_only_name(const struct checker *c, unsigned name)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (i != name && c->names[i] == c->names[name])
                        return false;
        return true;
}

/* What lost the name before and is held still is taken with what has it. */
static void take_draining(struct checker *c, unsigned name)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->number == 0 || g->leases == 0 || g->taken || g->called != name || is_named(c, g))
                        continue;
                g->taken = true;
                c->counts->taken++;
        }
}

static void unload(struct checker *c, unsigned name, unsigned flags)
{
        struct gen *g = c->names[name];
        int r = streamer_unload(c->client, name_of(name), flags);
        bool last = g != NULL && g->leases > 0 && is_only_name(c, name), busy = last && flags == 0;
        /* A load that failed under this name stays listed until then. */
        if (g == NULL ? r != STREAMER_ENOENT && r != 0 : r != (busy ? STREAMER_EBUSY : 0))
                differ(c, "unload %s: %s (%s)", name_of(name), streamer_strerror(r), streamer_last_error(c->client));
        c->counts->unloads += r == 0;
        c->counts->busy += busy;
        c->counts->drains += r == 0 && g != NULL && g->leases > 0;
        if (flags == STREAMER_UNLOAD_FORCE)
                take_draining(c, name);
        if (last && flags == STREAMER_UNLOAD_FORCE) {
                g->taken = true;
                c->counts->taken++;
        }
        if (r == 0)
                take_name(c, name, NULL);
        compare(c, false);
}

static void step_unload(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES);
        unload(c, name, random_below(c, 3) == 0 ? STREAMER_UNLOAD_DRAIN : 0);
}

static void step_verify(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES);
        char *args = format_text("{\"model\":\"%s\"}", name_of(name));
        if (c->names[name] != NULL)
                json_decref(ask(c, "verify", args));
        c->counts->verifies += c->names[name] != NULL;
        free(args);
}

/* ---- wishes ---- */

static void check_wish(struct checker *c, const char *verb, unsigned name, int r)
{
        bool failed_one = c->names[name] == NULL && r == 0; /* stays listed, and has a priority */
        if (!failed_one && r != (c->names[name] != NULL ? 0 : STREAMER_ENOENT))
                differ(c, "%s %s: %s (%s)", verb, name_of(name), streamer_strerror(r), streamer_last_error(c->client));
        compare(c, false);
}

/* As many as that leave room for most loads. */
static void step_pin(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES);
        bool pin = random_below(c, 3) == 0;
        int r = streamer_pin(c->client, name_of(name), pin);
        if (r == 0 && c->names[name] != NULL)
                c->names[name]->pinned = pin;
        c->counts->pins += r == 0 && pin;
        c->counts->unpins += r == 0 && !pin;
        check_wish(c, pin ? "pin" : "unpin", name, r);
}

static void step_priority(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES), priority = 1 + (unsigned)random_below(c, 200);
        char *args = format_text("{\"model\":\"%s\",\"priority\":%u}", name_of(name), priority), *reply = NULL;
        int r = streamer_call(c->client, "set_priority", args, &reply);
        if (r == 0 && c->names[name] != NULL)
                c->names[name]->priority = priority;
        c->counts->priorities += r == 0;
        check_wish(c, "set_priority", name, r);
        free(reply);
        free(args);
}

/* ---- clients ---- */

void check_answer(struct checker *c, const struct puppet_answer *answer)
{
        if (answer->wrong)
                differ(c, "a client sees what is not so: %s", answer->text);
}

static void detach(struct checker *c, unsigned p, unsigned slot)
{
        struct puppet_answer answer;
        struct gen *g = c->held[p][slot];
        puppet_detach(&c->puppets[p], slot, &answer);
        check_answer(c, &answer);
        c->held[p][slot] = NULL;
        g->leases--;
        settle(c, g);
        c->counts->detaches++;
}

void empty_slot(struct checker *c, unsigned p, unsigned slot)
{
        if (c->held[p][slot] == NULL)
                return;
        detach(c, p, slot);
        compare(c, false); /* what was kept alive for as long as it was held is to be gone, not going */
}

static void step_attach(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, PUPPETS), slot = (unsigned)random_below(c, PUPPET_SLOTS);
        unsigned name = (unsigned)random_below(c, NAMES);
        struct puppet_answer answer;
        empty_slot(c, p, slot);
        struct gen *g = c->names[name];
        puppet_attach(&c->puppets[p], slot, name_of(name), &answer);
        check_answer(c, &answer);
        c->counts->attaches += answer.result == 0;
        if (answer.result != 0) {
                c->counts->refused_attaches++;
                if (g != NULL)
                        differ(c, "attach %s: %s (%s)", name_of(name), streamer_strerror(answer.result), answer.text);
                return;
        }
        if (g == NULL || answer.generation != g->number || answer.seed != g->seed)
                differ(c, "attach %s: generation %" PRIu64 ", seed %" PRIu64 ", not %" PRIu64 ", %" PRIu64,
                       name_of(name), answer.generation, answer.seed, g != NULL ? g->number : 0,
                       g != NULL ? g->seed : 0);
        c->held[p][slot] = g;
        g->leases++;
        compare(c, false);
}

static void step_detach(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, PUPPETS), slot = (unsigned)random_below(c, PUPPET_SLOTS);
        if (c->held[p][slot] == NULL)
                return;
        detach(c, p, slot);
        compare(c, false);
}

/* Every byte of all that it holds, and what it knows of it. */
static void look(struct checker *c, unsigned p)
{
        struct puppet_answer answer;
        puppet_look(&c->puppets[p], &answer);
        check_answer(c, &answer);
        for (unsigned slot = 0; slot < PUPPET_SLOTS; slot++) {
                const struct gen *g = c->held[p][slot];
                bool knows = answer.revoked & (1u << slot), taken = g != NULL && g->taken;
                if (knows != taken)
                        differ(c, "client %u, lease %u: was %staken, and it knows %s", p, slot, taken ? "" : "not ",
                               knows ? "that it was" : "nothing of that");
        }
        c->counts->looks++;
}

static void step_look(struct checker *c)
{
        look(c, (unsigned)random_below(c, PUPPETS));
}

/* Whoever holds it is told before the reply, and reads on. */
static void step_force(struct checker *c)
{
        unload(c, (unsigned)random_below(c, NAMES), STREAMER_UNLOAD_FORCE);
        for (unsigned p = 0; p < PUPPETS; p++)
                look(c, p);
}

void let_go(struct checker *c, unsigned p)
{
        puppet_kill(&c->puppets[p]);
        for (unsigned slot = 0; slot < PUPPET_SLOTS; slot++) {
                struct gen *g = c->held[p][slot];
                c->held[p][slot] = NULL;
                if (g != NULL)
                        g->leases--;
                settle(c, g);
        }
}

static void step_kill(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, PUPPETS);
        let_go(c, p);
        compare(c, false);
        puppet_start(&c->puppets[p], c->daemon.socket);
        c->counts->kills++;
}

/* ---- one of them ---- */

static const struct {
        void (*take)(struct checker *c);
        unsigned weight;
} steps[] = {{step_attach, 70}, {step_load, 20},    {step_detach, 8}, {step_kill, 16},  {step_unload, 8},
             {step_look, 6},    {step_rewrite, 5},  {step_cancel, 4}, {step_verify, 2}, {step_pin, 5},
             {step_force, 3},   {step_priority, 2}, {step_join, 8},   {step_wait, 6}};

void step(struct checker *c)
{
        unsigned sum = 0;
        for (size_t i = 0; i < sizeof(steps) / sizeof(steps[0]); i++)
                sum += steps[i].weight;
        uint64_t n = random_below(c, sum);
        size_t i = 0;
        while (n >= steps[i].weight)
                n -= steps[i++].weight;
        steps[i].take(c);
        c->counts->steps++;
}
