/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps: each does one thing to the daemon and the same to the model, looks at the answer, and
 * compares the two.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"

#include "proto/messages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sources ---- */

static char *source_path(const struct checker *c, unsigned source)
{
        return format_text("%s/source-%u.safetensors", c->root, source);
}

void rewrite_source(struct checker *c, unsigned source)
{
        char *path = source_path(c, source), *aside = format_text("%s.new", path);
        struct model *m = puppet_model(++c->last_seed);
        model_write(m, aside);
        must(rename(aside, path));
        model_free(m);
        free(aside);
        free(path);
        c->seeds[source] = c->last_seed;
        c->versions[source]++;
}

static void step_rewrite(struct checker *c)
{
        rewrite_source(c, (unsigned)random_below(c, SOURCES));
        c->counts->rewrites++;
}

/* ---- loads ---- */

static struct gen *resident_copy(struct checker *c, unsigned source)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->number != 0 && g->source == source && g->version == c->versions[source] && is_named(c, g))
                        return g;
        }
        return NULL;
}

struct wish {
        unsigned priority, keep_alive_ms; /* 0: none */
};

static void loaded(struct checker *c, unsigned name, unsigned source, uint64_t generation, struct wish wish)
{
        struct gen *g = resident_copy(c, source);
        if (g != NULL && g->number != generation)
                differ(c, "%s: generation %" PRIu64 " was resident, and %" PRIu64 " is a second copy", name_of(name),
                       g->number, generation);
        c->counts->aliases += g != NULL && c->names[name] != g;
        c->counts->replaced += g == NULL && c->names[name] != NULL;
        if (g == NULL) {
                if (generation <= c->last_number)
                        differ(c, "generation %" PRIu64 " after %" PRIu64, generation, c->last_number);
                c->last_number = generation;
                g = find_gen(c, 0);
                *g = (struct gen){.number = generation,
                                  .seed = c->seeds[source],
                                  .source = source,
                                  .version = c->versions[source],
                                  .priority = wish.priority > 0 ? wish.priority : PROTO_PRIORITY_DEFAULT};
        }
        /* Whoever asks for it again says anew how long. */
        if (wish.keep_alive_ms > 0)
                g->keep_alive_ms = wish.keep_alive_ms;
        /* A pin is of the name: it goes on to what serves next. */
        g->pinned = g->pinned || (c->names[name] != NULL && c->names[name]->pinned);
        take_name(c, name, g);
}

/* Bytes that no eviction can bring: what is leased or pinned, and what serves under the name itself. */
static uint64_t immovable(const struct checker *c, unsigned name)
{
        uint64_t bytes = 0;
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                if (g->number != 0 && (g->leases > 0 || g->pinned || g == c->names[name]))
                        bytes += g->charged;
        }
        return bytes;
}

static uint64_t needed(struct checker *c, const char *source)
{
        char *args = format_text("{\"source\":\"%s\",\"dry_run\":true}", source);
        json_t *estimate = ask(c, "load", args);
        uint64_t bytes = json_number(estimate, "needed");
        json_decref(estimate);
        free(args);
        return bytes;
}

/* One load, and what stood before it. */
struct trial {
        unsigned name, source;
        char *path;
        struct wish wish;
        bool no_evict;
        uint64_t used, needed;
        struct gen gens[GENERATIONS];
        bool may_go[GENERATIONS]; /* of these: may be evicted for it */
};

static void trial_init(struct checker *c, struct trial *t)
{
        static const unsigned times[] = {0, 0, 0, 0, 0, 0, LONG_MS, LONG_MS, BRIEF_MS};
        *t = (struct trial){.name = (unsigned)random_below(c, NAMES), .source = (unsigned)random_below(c, SOURCES)};
        t->path = source_path(c, t->source);
        t->wish.priority = random_below(c, 2) == 0 ? 0 : 1 + (unsigned)random_below(c, 200);
        t->wish.keep_alive_ms = times[random_below(c, sizeof(times) / sizeof(times[0]))];
        t->no_evict = random_below(c, 6) == 0;
        t->used = device_bytes(c, "used");
        t->needed = needed(c, t->path);
        memcpy(t->gens, c->gens, sizeof(t->gens));
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                t->may_go[i] =
                        g->number != 0 && g->leases == 0 && !g->pinned && g != c->names[t->name] && is_named(c, g);
        }
}

static void refused(struct checker *c, const struct trial *t, int r)
{
        const char *name = name_of(t->name);
        if (r != STREAMER_ENOMEM)
                differ(c, "load %s: %s (%s)", name, streamer_strerror(r), streamer_last_error(c->client));
        c->counts->no_room++;
        compare(c, false);
        uint64_t stays = t->no_evict ? t->used : immovable(c, t->name);
        if (stays + t->needed <= BUDGET)
                differ(c, "load %s: refused, and would fit: %s", name, streamer_last_error(c->client));
}

/* Of those that were evicted none is more important than others that would have done. */
static void check_evicted(struct checker *c, const struct trial *t)
{
        uint64_t free_bytes = BUDGET - t->used;
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &t->gens[i];
                uint64_t lesser = 0;
                if (!t->may_go[i] || find_gen(c, g->number) != NULL)
                        continue;
                if (t->needed <= free_bytes)
                        differ(c, "load %s: evicted, and there was room", name_of(t->name));
                for (unsigned k = 0; k < GENERATIONS; k++)
                        if (t->may_go[k] && t->gens[k].priority < g->priority)
                                lesser += t->gens[k].charged;
                if (lesser >= t->needed - free_bytes)
                        differ(c, "load %s: evicted generation %" PRIu64 " of priority %u, and lesser ones would do",
                               name_of(t->name), g->number, g->priority);
        }
}

static void step_load(struct checker *c)
{
        struct trial t;
        trial_init(c, &t);
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = t.path,
                                   .name = name_of(t.name),
                                   .priority = t.wish.priority,
                                   .keep_alive_ms = t.wish.keep_alive_ms,
                                   .flags = t.no_evict ? STREAMER_LOAD_NO_EVICT : 0};
        streamer_progress progress = {.struct_size = sizeof(progress)};
        streamer_op *op = NULL;
        int r = streamer_load(c->client, &opts, &op);
        if (r == 0)
                r = streamer_op_wait(op, CHECKER_WAIT_MS, &progress);
        streamer_op_free(op);
        c->counts->loads++;
        c->counts->no_evict += t.no_evict;
        c->counts->kept_alive += t.wish.keep_alive_ms > 0;
        if (r != 0) {
                refused(c, &t, r);
        } else {
                bool resident = resident_copy(c, t.source) != NULL;
                loaded(c, t.name, t.source, progress.generation, t.wish);
                compare(c, !t.no_evict && !resident);
                if (!resident)
                        check_evicted(c, &t);
        }
        free(t.path);
}

/* Begun and cancelled at once: which of the two comes first is open. */
static void step_cancel(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES), source = (unsigned)random_below(c, SOURCES);
        char *path = source_path(c, source), *args = format_text("{\"model\":\"%s\"}", name_of(name)), *reply = NULL;
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = path, .name = name_of(name)};
        streamer_progress progress = {.struct_size = sizeof(progress)};
        streamer_op *op = NULL;
        int r = streamer_load(c->client, &opts, &op);
        if (r == 0) {
                streamer_call(c->client, "cancel", args, &reply);
                r = streamer_op_wait(op, CHECKER_WAIT_MS, &progress);
        }
        streamer_op_free(op);
        c->counts->cancels++;
        if (r == 0)
                loaded(c, name, source, progress.generation, (struct wish){0});
        else if (r != STREAMER_ECANCELED && r != STREAMER_ENOMEM)
                differ(c, "cancel %s: %s (%s)", name_of(name), streamer_strerror(r), streamer_last_error(c->client));
        compare(c, true);
        free(reply);
        free(args);
        free(path);
}

static bool is_only_name(const struct checker *c, unsigned name)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (i != name && c->names[i] == c->names[name])
                        return false;
        return true;
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

static void check_answer(struct checker *c, const struct puppet_answer *answer)
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

static void step_attach(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, PUPPETS), slot = (unsigned)random_below(c, PUPPET_SLOTS);
        unsigned name = (unsigned)random_below(c, NAMES);
        struct puppet_answer answer;
        if (c->held[p][slot] != NULL) {
                detach(c, p, slot);
                compare(c, false); /* what was kept alive for as long as it was held is to be gone, not going */
        }
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
} steps[] = {{step_attach, 70}, {step_load, 20}, {step_detach, 8},  {step_kill, 16},
             {step_unload, 8},  {step_look, 6},  {step_rewrite, 5}, {step_cancel, 4},
             {step_verify, 2},  {step_pin, 5},   {step_force, 3},   {step_priority, 2}};

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
