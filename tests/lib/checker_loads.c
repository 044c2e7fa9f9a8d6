/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads: alone, cancelled, met by an attach, and waiting for room.
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

void step_rewrite(struct checker *c)
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
        /* Whoever asks for it again says anew how long, and how important it is. */
        if (wish.keep_alive_ms > 0)
                g->keep_alive_ms = wish.keep_alive_ms;
        if (wish.priority > 0)
                g->priority = wish.priority;
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

static int begin(struct checker *c, const struct trial *t, unsigned flags, streamer_op **op)
{
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = t->path,
                                   .name = name_of(t->name),
                                   .priority = t->wish.priority,
                                   .keep_alive_ms = t->wish.keep_alive_ms,
                                   .flags = flags | (t->no_evict ? STREAMER_LOAD_NO_EVICT : 0)};
        c->counts->loads++;
        c->counts->no_evict += t->no_evict;
        c->counts->kept_alive += t->wish.keep_alive_ms > 0;
        return streamer_load(c->client, &opts, op);
}

/* The generation, or what went wrong. */
static int end(int r, streamer_op *op, uint64_t *generation)
{
        streamer_progress progress = {.struct_size = sizeof(progress)};
        if (r == 0)
                r = streamer_op_wait(op, CHECKER_WAIT_MS, &progress);
        streamer_op_free(op);
        *generation = progress.generation;
        return r;
}

void step_load(struct checker *c)
{
        struct trial t;
        streamer_op *op = NULL;
        uint64_t generation;
        trial_init(c, &t);
        int r = begin(c, &t, 0, &op);
        r = end(r, op, &generation);
        if (r != 0) {
                refused(c, &t, r);
        } else {
                bool resident = resident_copy(c, t.source) != NULL;
                loaded(c, t.name, t.source, generation, t.wish);
                compare(c, !t.no_evict && !resident);
                if (!resident)
                        check_evicted(c, &t);
        }
        free(t.path);
}

/* ---- met by an attach ---- */

static bool takes(struct checker *c, struct gen **place, struct gen *g, const struct puppet_answer *answer)
{
        if (answer->result != 0 || *place != NULL || g == NULL || answer->generation != g->number)
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
void step_join(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, PUPPETS), slot = (unsigned)random_below(c, PUPPET_SLOTS);
        struct puppet_answer answer;
        struct trial t;
        streamer_op *op = NULL;
        uint64_t generation;
        empty_slot(c, p, slot);
        trial_init(c, &t);
        t.wish.keep_alive_ms = 0; /* it might be over before anybody comes */
        struct gen *before = c->names[t.name], **place = &c->held[p][slot];
        int r = begin(c, &t, 0, &op);
        puppet_join(&c->puppets[p], slot, name_of(t.name), &answer);
        r = end(r, op, &generation);
        check_answer(c, &answer);
        takes(c, place, before, &answer);
        if (r != 0) {
                refused(c, &t, r);
        } else {
                bool resident = resident_copy(c, t.source) != NULL;
                loaded(c, t.name, t.source, generation, t.wish);
                c->counts->joins += takes(c, place, c->names[t.name], &answer) && !resident;
                compare(c, !t.no_evict && !resident);
                if (!resident)
                        check_evicted(c, &t);
        }
        if (answer.result == 0 && *place == NULL)
                differ(c, "attach %s while it loads: generation %" PRIu64, name_of(t.name), answer.generation);
        if (answer.result != 0 && (before != NULL || (r == 0 && answer.result != STREAMER_ENOENT)))
                differ(c, "attach %s while it loads: %s (%s)", name_of(t.name), streamer_strerror(answer.result),
                       answer.text);
        c->counts->refused_attaches += answer.result != 0;
        free(t.path);
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

void step_wait(struct checker *c)
{
        struct trial t;
        streamer_op *op = NULL;
        uint64_t generation;
        trial_init(c, &t);
        t.wish.keep_alive_ms = 0;
        t.no_evict = false;
        bool resident = resident_copy(c, t.source) != NULL;
        int r = begin(c, &t, STREAMER_LOAD_WAIT, &op);
        if (r == 0)
                make_room(c, &t);
        bool fits = resident || immovable(c, t.name) + t.needed <= BUDGET;
        char *args = format_text("{\"model\":\"%s\"}", name_of(t.name));
        if (!fits)
                json_decref(ask(c, "cancel", args));
        r = end(r, op, &generation);
        if (r != (fits ? 0 : STREAMER_ECANCELED))
                differ(c, "load %s, which waits: %s (%s)", name_of(t.name), streamer_strerror(r),
                       streamer_last_error(c->client));
        if (r == 0)
                loaded(c, t.name, t.source, generation, t.wish);
        compare(c, !resident);
        free(args);
        free(t.path);
}

/* ---- cancelled ---- */

/* Begun and cancelled at once: which of the two comes first is open. */
void step_cancel(struct checker *c)
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
