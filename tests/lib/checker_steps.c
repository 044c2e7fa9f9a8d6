/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps: each does one thing to the daemon and the same to the model, looks at the answer, and
 * compares the two. Loads are in checker_loads.c and checker_meets.c.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- unloads ---- */

struct unloading {
        unsigned name;
        const char *device; /* NULL: all of them */
        bool on[DEVICES];
        bool drain, force;
        unsigned drain_ms; /* 0: as long as it is held */
};

static bool is_only_name(const struct checker *c, unsigned name, unsigned device)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (i != name && c->names[i][device] == c->names[name][device])
                        return false;
        return true;
}

/* What lost the name before and is held still is taken with what has it. */
static void take_draining(struct checker *c, unsigned name, unsigned device)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->number != 0 && g->device == device && g->leases > 0 && !g->taken && g->called == name &&
                    !is_named(c, g))
                        mark_taken(c, g);
        }
}

/* Held by clients to whom no other name is left. */
static unsigned count_in_use(const struct checker *c, const struct unloading *u)
{
        unsigned n = 0;
        for (unsigned d = 0; d < c->n_devices; d++)
                if (u->on[d] && c->names[u->name][d] != NULL && is_only_name(c, u->name, d))
                        n += c->names[u->name][d]->leases;
        return n;
}

static int ask_unload(struct checker *c, const struct unloading *u)
{
        json_t *args = json_pack("{s:s,s:b,s:b}", "model", name_of(u->name), "drain", u->drain, "force", u->force);
        if (u->device != NULL)
                json_object_set_new(args, "device", json_string(u->device));
        if (u->drain_ms > 0)
                json_object_set_new(args, "drain_timeout_ms", json_integer(u->drain_ms));
        return try(c, "unload", args);
}

static void unload_from(struct checker *c, const struct unloading *u, unsigned device)
{
        struct gen *g = c->names[u->name][device];
        bool held = g != NULL && g->leases > 0 && is_only_name(c, u->name, device);
        if (u->force || u->drain_ms == BRIEF_MS)
                take_draining(c, u->name, device);
        if (held && u->force)
                mark_taken(c, g);
        take_name(c, u->name, device, NULL, u->drain_ms);
}

/* Nobody held it: its memory was free again before the reply. */
static void check_freed(struct checker *c, const struct unloading *u)
{
        for (unsigned d = 0; d < c->n_devices; d++) {
                uint64_t left = 0, used = device_bytes(c, d, "used");
                for (unsigned i = 0; i < GENERATIONS; i++)
                        left += c->gens[i].number != 0 && c->gens[i].device == d && !c->gens[i].cached
                                        ? c->gens[i].charged
                                        : 0;
                if (used > left)
                        differ(c, "unload %s: %" PRIu64 " bytes of %s are used still, and should be %" PRIu64,
                               name_of(u->name), used, c->devices[d].name, left);
        }
}

static void unload(struct checker *c, const struct unloading *u)
{
        unsigned in_use = count_in_use(c, u);
        bool busy = in_use > 0 && !u->drain && !u->force, there = false, held = false;
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = u->on[d] ? c->names[u->name][d] : NULL;
                there = there || g != NULL;
                held = held || (g != NULL && g->leases > 0);
        }
        int r = ask_unload(c, u);
        trail_add(c, "unload %s from %s%s%s: %s", name_of(u->name), u->device != NULL ? u->device : "all",
                  u->drain ? " (drain)" : "", u->force ? " (force)" : "", streamer_strerror(r));
        /* A load that failed under this name stays listed until then. */
        if (!there ? r != STREAMER_ENOENT && r != 0 : r != (busy ? STREAMER_EBUSY : 0))
                differ(c, "unload %s: %s (%s)", name_of(u->name), streamer_strerror(r), streamer_last_error(c->client));
        c->counts->unloads += r == 0;
        c->counts->busy += busy;
        c->counts->drains += r == 0 && in_use > 0 && !u->force;
        c->counts->off_one_device += r == 0 && there && u->device != NULL;
        for (unsigned d = 0; d < c->n_devices && (r == 0 || r == STREAMER_ENOENT); d++)
                if (u->on[d])
                        unload_from(c, u, d);
        if (r == 0 && there && !held && !u->drain)
                check_freed(c, u);
        compare(c, false);
}

/* A name, and all of its devices or one. */
static struct unloading draw_unloading(struct checker *c)
{
        struct unloading u = {.name = (unsigned)random_below(c, NAMES)};
        bool one = c->n_devices > 1 && random_below(c, 2) == 0;
        unsigned device = (unsigned)random_below(c, c->n_devices);
        u.device = one ? c->devices[device].name : NULL;
        for (unsigned d = 0; d < c->n_devices; d++)
                u.on[d] = !one || d == device;
        return u;
}

static void step_unload(struct checker *c)
{
        static const unsigned times[] = {0, 0, LONG_MS, BRIEF_MS};
        struct unloading u = draw_unloading(c);
        u.drain = random_below(c, 2) == 0;
        if (u.drain)
                u.drain_ms = times[random_below(c, sizeof(times) / sizeof(times[0]))];
        unload(c, &u);
}

/* ---- verify ---- */

/* All copies of one generation. */
static void step_verify(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES);
        bool there = false, lost = false;
        for (unsigned d = 0; d < c->n_devices; d++) {
                there = there || name_serves(c, name, d);
                lost = lost || (name_serves(c, name, d) && c->devices[d].lost);
        }
        int r = try(c, "verify", json_pack("{s:s}", "model", name_of(name)));
        if (there ? r != 0 && !lost : r == 0)
                differ(c, "verify %s: %s (%s)", name_of(name), streamer_strerror(r), streamer_last_error(c->client));
        c->counts->verifies += r == 0;
}

/* ---- wishes ---- */

static bool is_anywhere(const struct checker *c, unsigned name)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if (c->names[name][d] != NULL)
                        return true;
        return false;
}

static void check_wish(struct checker *c, const char *verb, unsigned name, int r)
{
        bool there = is_anywhere(c, name), failed_one = !there && r == 0; /* stays listed, and has a priority */
        if (!failed_one && r != (there ? 0 : STREAMER_ENOENT))
                differ(c, "%s %s: %s (%s)", verb, name_of(name), streamer_strerror(r), streamer_last_error(c->client));
        compare(c, false);
}

/* All that the name leads to, and the other ranks of it. */
static bool is_reached(const struct checker *c, const struct gen *g, unsigned name)
{
        for (unsigned d = 0; d < c->n_devices && g->number != 0; d++)
                if (c->names[name][d] != NULL && stand_together(c, g, c->names[name][d]))
                        return true;
        return false;
}

/* As many as that leave room for most loads. */
static void step_pin(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES);
        bool pin = random_below(c, 3) == 0;
        int r = streamer_pin(c->client, name_of(name), pin);
        trail_add(c, "%s %s: %s", pin ? "pin" : "unpin", name_of(name), streamer_strerror(r));
        for (unsigned i = 0; i < GENERATIONS && r == 0; i++)
                if (is_reached(c, &c->gens[i], name))
                        c->gens[i].pinned = pin;
        c->counts->pins += r == 0 && pin;
        c->counts->unpins += r == 0 && !pin;
        check_wish(c, pin ? "pin" : "unpin", name, r);
}

static void step_priority(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES), priority = 1 + (unsigned)random_below(c, 200);
        int r = try(c, "set_priority", json_pack("{s:s,s:i}", "model", name_of(name), "priority", (int)priority));
        for (unsigned i = 0; i < GENERATIONS && r == 0; i++)
                if (is_reached(c, &c->gens[i], name))
                        c->gens[i].priority = priority;
        c->counts->priorities += r == 0;
        check_wish(c, "set_priority", name, r);
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
        trail_add(c, "client %u, slot %u: detached generation %" PRIu64, p, slot, g->number);
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

/* What an attach asks for. */
struct asked {
        unsigned name;
        struct puppet_wish wish;
        char digest[33];
        const struct gen *of; /* whose digest it is */
};

static void draw_digest(struct checker *c, struct asked *asked)
{
        asked->of = &c->gens[random_below(c, GENERATIONS)];
        for (unsigned d = 0; d < c->n_devices && random_below(c, 2) == 0; d++)
                if (c->names[asked->name][d] != NULL)
                        asked->of = c->names[asked->name][d];
        if (asked->of->number == 0)
                return;
        struct model *m = puppet_model(asked->of->seed);
        model_digest(m, asked->digest);
        model_free(m);
        asked->wish.digest = asked->digest;
        c->counts->by_digest++;
}

/* Often that of the name, else that of another, or one that is on its way out. */
static void draw_generation(struct checker *c, struct asked *asked)
{
        asked->wish.generation = c->gens[random_below(c, GENERATIONS)].number;
        for (unsigned d = 0; d < c->n_devices && random_below(c, 2) == 0; d++)
                if (c->names[asked->name][d] != NULL)
                        asked->wish.generation = c->names[asked->name][d]->number;
        c->counts->by_generation += asked->wish.generation != 0;
}

/* More often one where it serves. */
static unsigned draw_device(struct checker *c, unsigned name)
{
        unsigned device = (unsigned)random_below(c, c->n_devices);
        return name_serves(c, name, device) ? device : (unsigned)random_below(c, c->n_devices);
}

static void draw_asked(struct checker *c, struct asked *asked)
{
        *asked = (struct asked){.name = (unsigned)random_below(c, NAMES)};
        asked->wish.model = name_of(asked->name);
        if (c->n_devices > 1 && random_below(c, 5) != 0)
                asked->wish.device = c->devices[draw_device(c, asked->name)].name;
        if (random_below(c, 8) == 0)
                draw_digest(c, asked);
        if (random_below(c, 8) == 0)
                draw_generation(c, asked);
}

/* What it gets; NULL: an error. A model on several devices is attached to by naming one. */
static struct gen *what_serves(const struct checker *c, const struct asked *asked)
{
        struct gen *found = NULL;
        unsigned n = 0;
        for (unsigned d = 0; d < c->n_devices; d++) {
                struct gen *g = c->names[asked->name][d];
                bool device = asked->wish.device == NULL || strcmp(asked->wish.device, c->devices[d].name) == 0;
                bool number = asked->wish.generation == 0 || (g != NULL && g->number == asked->wish.generation);
                if (!name_serves(c, asked->name, d) || !device || !number)
                        continue;
                found = g;
                n++;
        }
        return n == 1 && (asked->wish.digest == NULL || found->seed == asked->of->seed) ? found : NULL;
}

static void step_attach(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, PUPPETS), slot = (unsigned)random_below(c, PUPPET_SLOTS);
        struct asked asked;
        struct puppet_answer answer;
        empty_slot(c, p, slot);
        draw_asked(c, &asked);
        struct gen *g = what_serves(c, &asked);
        puppet_attach(&c->puppets[p], slot, &asked.wish, &answer);
        trail_add(c, "client %u, slot %u: attached %s on %s: %s, generation %" PRIu64, p, slot, asked.wish.model,
                  asked.wish.device != NULL ? asked.wish.device : "any", streamer_strerror(answer.result),
                  answer.generation);
        check_answer(c, &answer);
        c->counts->attaches += answer.result == 0;
        if (answer.result != 0) {
                c->counts->refused_attaches++;
                if (g != NULL || answer.result == STREAMER_ETIMEOUT)
                        differ(c, "attach %s: %s (%s)", asked.wish.model, streamer_strerror(answer.result),
                               answer.text);
                return;
        }
        if (g == NULL || answer.generation != g->number || answer.seed != g->seed)
                differ(c, "attach %s: generation %" PRIu64 ", seed %" PRIu64 ", not %" PRIu64 ", %" PRIu64,
                       asked.wish.model, answer.generation, answer.seed, g != NULL ? g->number : 0,
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

void look(struct checker *c, unsigned p)
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
        struct unloading u = draw_unloading(c);
        u.force = true;
        unload(c, &u);
        for (unsigned p = 0; p < PUPPETS; p++)
                look(c, p);
}

void let_go(struct checker *c, unsigned p)
{
        trail_add(c, "client %u, process %d: killed", p, (int)c->puppets[p].pid);
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
} steps[] = {{step_attach, 80}, {step_load, 20}, {step_detach, 8},  {step_kill, 16},
             {step_unload, 8},  {step_look, 6},  {step_rewrite, 5}, {step_cancel, 4},
             {step_verify, 2},  {step_pin, 5},   {step_force, 3},   {step_priority, 2},
             {step_join, 8},    {step_wait, 6},  {step_break, 4},   {step_subscribe, 2}};

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
