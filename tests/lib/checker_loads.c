/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads: what they may come to, and what the model makes of that.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"

#include "proto/messages.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- what is there ---- */

static bool is_of(const struct checker *c, const struct gen *g, unsigned source)
{
        return g->number != 0 && g->source == source && g->version == c->versions[source] && is_named(c, g);
}

static struct gen *find_copy(struct checker *c, unsigned source, unsigned device, unsigned rank, uint64_t number)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (is_of(c, g, source) && g->device == device && g->rank == rank && !g->cached &&
                    (number == 0 || g->number == number))
                        return g;
        }
        return NULL;
}

static bool is_whole_set(struct checker *c, const struct trial *t, uint64_t number)
{
        for (unsigned i = 0; i < t->n_devices; i++)
                if (find_copy(c, t->source, t->order[i], i, number) == NULL)
                        return false;
        return true;
}

struct gen *resident_copy(struct checker *c, const struct trial *t, unsigned device)
{
        if (t->ranks == 0)
                return find_copy(c, t->source, device, 0, 0);
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->device == device && is_of(c, g, t->source) && is_whole_set(c, t, g->number))
                        return g;
        }
        return NULL;
}

/* From the cache, if that has it: to the device that it was on, or to another. */
static bool come_back(struct checker *c, unsigned source)
{
        bool found = false;
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (!is_of(c, g, source) || !g->cached)
                        continue;
                found = g->came_back = true;
        }
        return found;
}

/* ---- one load ---- */

/* It, or another rank of its set, serves under the very name. */
static bool has_name(const struct checker *c, const struct gen *g, unsigned name)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if (c->names[name][d] != NULL && stand_together(c, g, c->names[name][d]))
                        return true;
        return false;
}

static bool has_to_stay(const struct checker *c, const struct gen *g, unsigned name)
{
        return is_held(c, g) || is_pinned(c, g) || (has_name(c, g, name) && !is_over(c, g));
}

uint64_t immovable(const struct checker *c, unsigned name, unsigned device)
{
        uint64_t bytes = 0;
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                if (g->number != 0 && g->device == device && !g->cached && has_to_stay(c, g, name))
                        bytes += g->charged;
        }
        return bytes;
}

static uint64_t needed(struct checker *c, const char *source, unsigned device)
{
        char *args = format_text("{\"source\":\"%s\",\"dry_run\":true,\"devices\":[\"%s\"]}", source,
                                 c->devices[device].name);
        json_t *estimate = ask(c, "load", args);
        uint64_t bytes = json_number(estimate, "needed");
        json_decref(estimate);
        free(args);
        return bytes;
}

static unsigned draw(struct checker *c, const unsigned *from, size_t n)
{
        return from[random_below(c, n)];
}

static struct wish draw_wish(struct checker *c)
{
        static const unsigned keep_alive[] = {0, 0, 0, 0, 0, 0, LONG_MS, LONG_MS, BRIEF_MS};
        static const unsigned drain[] = {0, 0, 0, 0, LONG_MS, BRIEF_MS};
        struct wish wish = {.priority = random_below(c, 2) == 0 ? 0 : 1 + (unsigned)random_below(c, 200)};
        wish.keep_alive_ms = draw(c, keep_alive, sizeof(keep_alive) / sizeof(keep_alive[0]));
        wish.drain_ms = draw(c, drain, sizeof(drain) / sizeof(drain[0]));
        wish.pin = random_below(c, 40) == 0;
        return wish;
}

/* One of five is cut by rank; where there are too few devices for that, it is a plain one as well. */
static void draw_source(struct checker *c, struct trial *t)
{
        t->source = (unsigned)random_below(c, PLAIN);
        if (random_below(c, 5) == 0) {
                unsigned cut = PLAIN + (unsigned)random_below(c, SOURCES - PLAIN);
                t->source = source_ranks(cut) <= c->n_devices ? cut : t->source;
        }
        t->ranks = source_ranks(t->source);
        t->path = source_path(c, t->source);
}

static unsigned draw_number(struct checker *c, bool several)
{
        static const unsigned numbers[] = {1, 1, 1, 1, 1, 2, 2, 2, 3};
        return several && c->n_devices > 1 ? draw(c, numbers, sizeof(numbers) / sizeof(numbers[0])) : 1;
}

static void draw_devices(struct checker *c, struct trial *t, bool several)
{
        unsigned n = t->ranks > 0 ? t->ranks : draw_number(c, several);
        while (t->n_devices < n) {
                unsigned d = (unsigned)random_below(c, c->n_devices);
                if (t->on[d])
                        continue;
                t->on[d] = true;
                t->order[t->n_devices] = d;
                t->devices[t->n_devices++] = c->devices[d].name;
        }
}

void trial_init(struct checker *c, struct trial *t, bool several)
{
        *t = (struct trial){.name = (unsigned)random_below(c, NAMES)};
        draw_source(c, t);
        t->wish = draw_wish(c);
        t->no_evict = random_below(c, 6) == 0;
        draw_devices(c, t, several);
        for (unsigned i = 0; i < t->n_devices; i++) {
                unsigned d = t->order[i];
                char *path = rank_path(c, t->source, i);
                t->used[d] = device_bytes(c, d, "used");
                t->needed[d] = needed(c, path, d);
                t->stays[d] = immovable(c, t->name, d);
                free(path);
        }
        watch_hear(c);
        if (c->n_devices > 1)
                t->before = ask(c, "list", NULL);
        memcpy(t->gens, c->gens, sizeof(t->gens));
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                t->may_go[i] = g->number != 0 && !g->cached && is_named(c, g) && !is_held(c, g) && !is_pinned(c, g) &&
                               !has_name(c, g, t->name);
        }
}

void trial_deinit(struct trial *t)
{
        json_decref(t->before);
        free(t->path);
}

int trial_begin(struct checker *c, const struct trial *t, unsigned flags, streamer_op **op)
{
        streamer_load_opts opts = {.struct_size = sizeof(opts),
                                   .source = t->path,
                                   .name = name_of(t->name),
                                   .devices = t->devices,
                                   .n_devices = t->n_devices,
                                   .priority = t->wish.priority,
                                   .layout = t->ranks > 0 ? "rank" : NULL,
                                   .keep_alive_ms = t->wish.keep_alive_ms,
                                   .drain_timeout_ms = t->wish.drain_ms,
                                   .flags = flags | (t->no_evict ? STREAMER_LOAD_NO_EVICT : 0) |
                                            (t->wish.pin ? STREAMER_LOAD_PIN : 0)};
        trail_add(c, "load %s of source %u (version %u) to %s %s %s,%s%s%s", name_of(t->name), t->source,
                  c->versions[t->source], t->devices[0], t->n_devices > 1 ? t->devices[1] : "",
                  t->n_devices > 2 ? t->devices[2] : "", flags & STREAMER_LOAD_WAIT ? " waits" : "",
                  t->wish.keep_alive_ms == BRIEF_MS ? " kept briefly" : "",
                  t->wish.drain_ms == BRIEF_MS ? " drains briefly" : "");
        c->counts->loads++;
        c->counts->no_evict += t->no_evict;
        c->counts->kept_alive += t->wish.keep_alive_ms > 0;
        return streamer_load(c->client, &opts, op);
}

static unsigned device_of(const struct checker *c, const char *name)
{
        unsigned d = 0;
        while (d < c->n_devices && strcmp(c->devices[d].name, name) != 0)
                d++;
        if (d == c->n_devices)
                differ(c, "%s: no such device", name);
        return d;
}

/* Of several devices each fails on its own. */
static void note_failures(struct checker *c, const struct trial *t, const streamer_op *op, struct outcome *outcome)
{
        streamer_device_failure failure;
        for (size_t i = 0; op != NULL && streamer_op_failure_get(op, i, &failure) == 0; i++) {
                unsigned d = device_of(c, failure.device);
                if (!outcome->got[d])
                        differ(c, "load %s: %s failed, and was not asked for, or twice", name_of(t->name),
                               failure.device);
                if (failure.err != STREAMER_ENOMEM && !c->devices[d].lost)
                        differ(c, "load %s: %s", name_of(t->name), failure.text);
                outcome->got[d] = false;
        }
}

void trial_end(struct checker *c, const struct trial *t, int r, streamer_op *op, struct outcome *outcome)
{
        streamer_progress progress = {.struct_size = sizeof(progress)};
        if (r == 0)
                r = streamer_op_wait(op, CHECKER_WAIT_MS, &progress);
        *outcome = (struct outcome){.result = r, .generation = progress.generation};
        trail_add(c, "load %s: %s, generation %" PRIu64, name_of(t->name), streamer_strerror(r), progress.generation);
        bool some = r == STREAMER_EFAILED && progress.state != NULL && strcmp(progress.state, "ready") == 0;
        bool each = t->n_devices > 1 && t->ranks == 0 && r != STREAMER_ECANCELED;
        for (unsigned d = 0; d < c->n_devices; d++)
                outcome->got[d] = t->on[d] && (r == 0 || each);
        if (each)
                note_failures(c, t, op, outcome);
        unsigned n = 0;
        for (unsigned d = 0; d < c->n_devices; d++)
                n += outcome->got[d];
        if (r == 0 ? n != t->n_devices : some ? n == 0 || n == t->n_devices : n != 0)
                differ(c, "load %s: %s (%s), and %u of %u devices got it", name_of(t->name), streamer_strerror(r),
                       streamer_last_error(c->client), n, t->n_devices);
        c->counts->partial += some;
        streamer_op_free(op);
}

/* ---- numbers ---- */

/* Something of this number was on the device; what failed there under the name makes way. */
static bool was_on(const struct trial *t, uint64_t number, const char *device)
{
        const json_t *row, *entry;
        size_t i, k;
        json_array_foreach(json_object_get(t->before, "models"), i, row)
        {
                if (json_number(row, "generation") != number)
                        continue;
                json_array_foreach(json_object_get(row, "devices"), k, entry)
                {
                        bool makes_way = strcmp(json_text(entry, "state"), "failed") == 0 &&
                                         strcmp(json_text(row, "name"), name_of(t->name)) == 0;
                        if (strcmp(json_text(entry, "device"), device) == 0 && !makes_way)
                                return true;
                }
        }
        return false;
}

/* What is there already, or has the name and is later. */
static bool is_taken(struct checker *c, const struct trial *t, uint64_t number)
{
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *before = c->names[t->name][d];
                if (t->on[d] && resident_copy(c, t, d) == NULL &&
                    (was_on(t, number, c->devices[d].name) || (name_serves(c, t->name, d) && before->number > number)))
                        return true;
        }
        return false;
}

/* What is new on one device has a number of its own, or that of the same files under the same name on another:
 * a replica. It must be one, unless such a number is taken there. Ranks are nobody's replicas. */
static void check_number(struct checker *c, const struct trial *t, uint64_t generation)
{
        bool must_be = false, may_differ = false, is_replica = false;
        for (unsigned d = 0; d < c->n_devices && t->ranks == 0; d++) {
                const struct gen *g = resident_copy(c, t, d);
                if (g == NULL || (!t->on[d] && c->names[t->name][d] != g))
                        continue;
                is_replica = is_replica || generation == g->number;
                may_differ = may_differ || is_taken(c, t, g->number);
                must_be = true;
        }
        c->counts->replicas += is_replica;
        if (!is_replica && generation <= c->last_number)
                differ(c, "generation %" PRIu64 " after %" PRIu64, generation, c->last_number);
        if (!is_replica && must_be && !may_differ)
                differ(c, "%s: generation %" PRIu64 " is no replica of what serves elsewhere", name_of(t->name),
                       generation);
        if (generation > c->last_number)
                c->last_number = generation;
}

/* ---- what it came to ---- */

static unsigned rank_on(const struct trial *t, unsigned device)
{
        unsigned i = 0;
        while (t->ranks > 0 && t->order[i] != device)
                i++;
        return i;
}

static struct gen *new_gen(struct checker *c, const struct trial *t, unsigned device, uint64_t generation)
{
        struct gen *g = free_place(c);
        unsigned rank = rank_on(t, device);
        *g = (struct gen){.number = generation,
                          .seed = c->seeds[t->source][rank],
                          .device = device,
                          .rank = rank,
                          .ranks = t->ranks,
                          .source = t->source,
                          .version = c->versions[t->source],
                          .priority = PROTO_PRIORITY_DEFAULT};
        return g;
}

static void loaded_on(struct checker *c, const struct trial *t, unsigned device, uint64_t generation)
{
        struct gen *g = resident_copy(c, t, device), *before = c->names[t->name][device];
        c->counts->aliases += g != NULL && before != g;
        c->counts->rank_aliases += g != NULL && before != g && t->ranks > 0;
        c->counts->ranks += t->ranks > 0;
        c->counts->replaced += g == NULL && before != NULL;
        c->counts->brought_back += g == NULL && come_back(c, t->source);
        if (g == NULL)
                g = new_gen(c, t, device, generation);
        /* Whoever asks for it again says anew how long, and how important it is. */
        if (t->wish.keep_alive_ms > 0)
                g->keep_alive_ms = t->wish.keep_alive_ms;
        if (t->wish.drain_ms > 0)
                g->drain_ms = t->wish.drain_ms;
        if (t->wish.priority > 0)
                g->priority = t->wish.priority;
        /* A pin is of the name: it goes on to what serves next, and to its ranks. */
        g->pinned = g->pinned || t->wish.pin || (before != NULL && before->pinned);
        c->counts->pins += t->wish.pin;
        take_name(c, t->name, device, g, g->drain_ms);
}

/* Ranks are pinned together. */
static void pin_ranks(struct checker *c)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                g->pinned = g->pinned || (g->number != 0 && g->ranks > 0 && is_named(c, g) && is_pinned(c, g));
        }
}

static bool would_fit(const struct checker *c, const struct trial *t, unsigned device)
{
        uint64_t stays = t->no_evict ? t->used[device] : t->stays[device];
        return !c->devices[device].lost && stays + t->needed[device] <= c->devices[device].budget;
}

/* Of ranks all are, where one does not fit. */
static void check_refused(const struct checker *c, const struct trial *t, unsigned device)
{
        bool fits = would_fit(c, t, device);
        for (unsigned i = 0; i < t->ranks; i++)
                fits = fits && would_fit(c, t, t->order[i]);
        if (fits)
                differ(c, "load %s: refused on %s, and would fit: %s", name_of(t->name), c->devices[device].name,
                       streamer_last_error(c->client));
}

bool load_fits(struct checker *c, const struct trial *t)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if (t->on[d] && resident_copy(c, t, d) == NULL &&
                    immovable(c, t->name, d) + t->needed[d] > c->devices[d].budget)
                        return false;
        return true;
}

bool on_lost_device(const struct checker *c, const struct trial *t)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if (t->on[d] && c->devices[d].lost)
                        return true;
        return false;
}

static bool was_evicted(struct checker *c, const struct gen *g)
{
        const struct gen *now = find_gen(c, g->number, g->device);
        return now == NULL || now->cached;
}

static bool needs_more(const struct checker *c, const struct trial *t, unsigned device)
{
        return t->needed[device] > c->devices[device].budget - t->used[device];
}

/* It may have gone since another rank of its set had to, on another of the load's devices. */
static bool went_along(const struct checker *c, const struct trial *t, const struct outcome *outcome,
                       const struct gen *g)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *other = &t->gens[i];
                if (g->ranks > 0 && other->number == g->number && other->device != g->device && t->may_go[i] &&
                    outcome->fresh[other->device] && needs_more(c, t, other->device))
                        return true;
        }
        return false;
}

/* Of those that were evicted none is more important than others that would have done. */
static void check_evicted(struct checker *c, const struct trial *t, const struct outcome *outcome, unsigned device)
{
        uint64_t free_bytes = c->devices[device].budget - t->used[device], need = t->needed[device];
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &t->gens[i];
                uint64_t lesser = 0;
                if (!t->may_go[i] || g->device != device || !was_evicted(c, g) || went_along(c, t, outcome, g))
                        continue;
                if (!needs_more(c, t, device))
                        differ(c, "load %s: evicted, and there was room", name_of(t->name));
                for (unsigned k = 0; k < GENERATIONS; k++)
                        if (t->may_go[k] && t->gens[k].device == device && t->gens[k].priority < g->priority)
                                lesser += t->gens[k].charged;
                if (lesser >= need - free_bytes)
                        differ(c, "load %s: evicted generation %" PRIu64 " of priority %u, and lesser ones would do",
                               name_of(t->name), g->number, g->priority);
        }
}

/* No room, where it is not a lost device. */
static void check_result(const struct checker *c, const struct trial *t, const struct outcome *outcome)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if ((t->n_devices == 1 ||
                     (t->ranks > 0 && !on_lost_device(c, t) && outcome->result != STREAMER_ECANCELED)) &&
                    t->on[d] && outcome->result != 0 && outcome->result != STREAMER_ENOMEM && !c->devices[d].lost)
                        differ(c, "load %s: %s (%s)", name_of(t->name), streamer_strerror(outcome->result),
                               streamer_last_error(c->client));
}

void trial_follow(struct checker *c, const struct trial *t, struct outcome *outcome)
{
        bool found = false;
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = resident_copy(c, t, d);
                outcome->fresh[d] = outcome->got[d] && g == NULL;
                outcome->any_fresh = outcome->any_fresh || outcome->fresh[d];
                found = found || (outcome->got[d] && g != NULL && g->number == outcome->generation);
                c->counts->no_room += t->on[d] && !outcome->got[d];
                if (t->on[d] && g != NULL && !outcome->got[d] && outcome->result != STREAMER_ECANCELED)
                        differ(c, "load %s: was on %s, and failed there", name_of(t->name), c->devices[d].name);
        }
        if (outcome->any_fresh)
                check_number(c, t, outcome->generation);
        else if (outcome->result == 0 && !found)
                differ(c, "%s: was resident, and generation %" PRIu64 " is a second copy", name_of(t->name),
                       outcome->generation);
        for (unsigned d = 0; d < c->n_devices; d++)
                if (outcome->got[d])
                        loaded_on(c, t, d, outcome->generation);
        pin_ranks(c);
        watch_check(c, t, outcome);
}

/* For a GPU that is lost nobody gives way. */
bool trial_may_evict(const struct trial *t, const struct outcome *outcome)
{
        return outcome->any_fresh && !t->no_evict;
}

void trial_check(struct checker *c, const struct trial *t, const struct outcome *outcome)
{
        check_result(c, t, outcome);
        compare(c, trial_may_evict(t, outcome));
        for (unsigned d = 0; d < c->n_devices; d++) {
                if (t->on[d] && !outcome->got[d])
                        check_refused(c, t, d);
                else if (outcome->fresh[d])
                        check_evicted(c, t, outcome, d);
        }
}

void step_load(struct checker *c)
{
        struct trial t;
        struct outcome outcome;
        streamer_op *op = NULL;
        trial_init(c, &t, true);
        int r = trial_begin(c, &t, 0, &op);
        trial_end(c, &t, r, op, &outcome);
        trial_follow(c, &t, &outcome);
        trial_check(c, &t, &outcome);
        trial_deinit(&t);
}

/* ---- cancelled ---- */

/* The name leads to what was on the device already. */
static bool was_shared(struct checker *c, const struct trial *t, unsigned device)
{
        const struct gen *g = resident_copy(c, t, device);
        json_t *list = ask(c, "list", NULL);
        const json_t *row, *entry;
        size_t i, k;
        bool shared = false;
        json_array_foreach(json_object_get(list, "models"), i, row)
        {
                if (g == NULL || json_number(row, "generation") != g->number ||
                    strcmp(json_text(row, "name"), name_of(t->name)) != 0)
                        continue;
                json_array_foreach(json_object_get(row, "devices"), k, entry) shared =
                        shared || (strcmp(json_text(entry, "device"), c->devices[device].name) == 0 &&
                                   strcmp(json_text(entry, "state"), "ready") == 0);
        }
        json_decref(list);
        return shared;
}

/* Begun and cancelled at once: which of the two comes first is open, and whether what is on one of several devices
 * already has got the name by then. */
void step_cancel(struct checker *c)
{
        struct trial t;
        struct outcome outcome;
        streamer_op *op = NULL;
        trial_init(c, &t, true);
        t.no_evict = false;
        t.wish = (struct wish){0}; /* nobody could tell whether it was heard */
        int r = trial_begin(c, &t, 0, &op);
        trail_add(c, "cancel %s", name_of(t.name));
        try(c, "cancel", json_pack("{s:s}", "model", name_of(t.name)));
        trial_end(c, &t, r, op, &outcome);
        c->counts->cancels++;
        for (unsigned d = 0; d < c->n_devices && outcome.result == STREAMER_ECANCELED; d++)
                outcome.got[d] = t.on[d] && was_shared(c, &t, d);
        trial_follow(c, &t, &outcome);
        if (outcome.result != STREAMER_ECANCELED)
                trial_check(c, &t, &outcome);
        compare(c, true);
        trial_deinit(&t);
}
