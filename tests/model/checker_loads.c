/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads: the outcomes that the model permits, and their effect on it.
 */
#include "tests/model/checker_model.h"

#include "proto/messages.h"

/* ---- resident copies ---- */

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

/* Marks the cached copies of the source as restored; returns whether the cache has any. */
static bool mark_restored(struct checker *c, unsigned source)
{
        bool found = false;
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (!is_of(c, g, source) || !g->cached)
                        continue;
                found = g->restored = true;
        }
        return found;
}

/* ---- one load ---- */

/* It or another rank of its set serves under `name`. */
static bool serves_name(const struct checker *c, const struct gen *g, unsigned name)
{
        for (unsigned d = 0; d < c->n_devices && name < NAMES; d++)
                if (c->names[name][d] != NULL && in_one_set(c, g, c->names[name][d]))
                        return true;
        return false;
}

static bool is_protected(const struct checker *c, const struct gen *g, unsigned name)
{
        return is_leased(c, g) || facts_of(c, g).pinned || (serves_name(c, g, name) && !is_expired(c, g));
}

uint64_t protected_bytes(const struct checker *c, unsigned name, unsigned device)
{
        uint64_t bytes = 0;
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                if (g->number != 0 && g->device == device && !g->cached && is_protected(c, g, name))
                        bytes += g->charged;
        }
        return bytes;
}

static uint64_t needed(struct checker *c, const char *source, unsigned device)
{
        char *args = format_text("{\"source\":\"%s\",\"dry_run\":true,\"devices\":[\"%s\"]}", source,
                                 c->devices[device].name);
        json_auto_t *estimate = call_json(c, "load", args);
        uint64_t bytes = json_number(estimate, "needed");
        free(args);
        return bytes;
}

static unsigned draw(struct checker *c, const unsigned *from, size_t n)
{
        return from[random_below(c, n)];
}

static struct load_options draw_options(struct checker *c)
{
        static const unsigned keep_alive[] = {0, 0, 0, 0, 0, 0, LONG_MS, LONG_MS, BRIEF_MS};
        static const unsigned drain[] = {0, 0, 0, 0, LONG_MS, BRIEF_MS};
        struct load_options options = {.priority = random_below(c, 2) == 0 ? 0 : 1 + (unsigned)random_below(c, 200)};
        options.keep_alive_ms = draw(c, keep_alive, sizeof(keep_alive) / sizeof(keep_alive[0]));
        options.drain_ms = draw(c, drain, sizeof(drain) / sizeof(drain[0]));
        options.pin = random_below(c, 40) == 0;
        return options;
}

/* One source of five has ranks, if the daemon has enough devices for them. */
static void draw_source(struct checker *c, struct trial *t)
{
        t->source = (unsigned)random_below(c, PLAIN_SOURCES);
        if (random_below(c, 5) == 0) {
                unsigned cut = PLAIN_SOURCES + (unsigned)random_below(c, SOURCES - PLAIN_SOURCES);
                t->source = source_ranks(cut) <= c->n_devices ? cut : t->source;
        }
        t->ranks = source_ranks(t->source);
        t->by_link = t->ranks == 0 && random_below(c, 3) == 0;
        t->path = t->by_link ? link_path(c, t->source) : source_path(c, t->source);
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

/* The state before the load. */
static void record_before(struct checker *c, struct trial *t)
{
        for (unsigned i = 0; i < t->n_devices; i++) {
                unsigned d = t->order[i];
                char *path = rank_path(c, t->source, i);
                t->used[d] = device_bytes(c, d, "used");
                t->needed[d] = needed(c, path, d);
                t->protected_bytes[d] = protected_bytes(c, t->name, d);
                free(path);
        }
        subscriber_read_events(c);
        if (c->n_devices > 1)
                t->before = call_json(c, "list", NULL);
        memcpy(t->gens, c->gens, sizeof(t->gens));
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                const struct facts facts = facts_of(c, g);
                t->priorities[i] = facts.priority;
                t->evictable[i] = g->number != 0 && !g->cached && is_named(c, g) && !is_leased(c, g) && !facts.pinned &&
                                  !serves_name(c, g, t->name);
        }
}

/* Of the names of other users most are drawn again: they are denied for most sources. */
static void draw_name(struct checker *c, struct trial *t)
{
        do {
                t->name = (unsigned)random_below(c, NAMES);
                t->owner = name_exists(c, t->name) ? c->owners[t->name] : t->user;
        } while (t->user != ADMIN && t->owner != t->user && random_below(c, 4) != 0);
}

/* Pinned ones are neither dropped nor evicted. */
static bool may_lose_settings(const struct checker *c, const struct trial *t, bool may_be_evicted)
{
        const struct facts none = new_facts();
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = t->on[d] ? c->names[t->name][d] : NULL;
                const struct facts *facts = &c->facts[t->name][d];
                bool has_some = facts->priority != none.priority || facts->keep_alive_ms != none.keep_alive_ms;
                if (g != NULL && has_some && (g->cached || may_be_evicted))
                        return true;
        }
        return false;
}

void trial_ask_for_lost(struct checker *c, struct trial *t, bool may_be_evicted)
{
        if (!may_lose_settings(c, t, may_be_evicted))
                return;
        t->user = ADMIN;
        if (t->options.priority == 0)
                t->options.priority = 1 + (unsigned)random_below(c, 200);
        if (t->options.keep_alive_ms == 0)
                t->options.keep_alive_ms = LONG_MS;
}

void trial_init(struct checker *c, struct trial *t, bool several)
{
        *t = (struct trial){.user = draw_user(c), .joined = NAMES};
        draw_name(c, t);
        draw_source(c, t);
        t->options = draw_options(c);
        /* These are denied where the name, or the model, is another user's. */
        if (t->user != t->owner && random_below(c, 4) != 0)
                t->options = (struct load_options){0};
        t->no_evict = random_below(c, 6) == 0;
        draw_devices(c, t, several);
        trial_ask_for_lost(c, t, false);
        record_before(c, t);
}

void trial_init_alias(struct checker *c, struct trial *t, const struct trial *of)
{
        *t = (struct trial){.user = draw_user(c),
                            .name = (of->name + 1 + (unsigned)random_below(c, NAMES - 1)) % NAMES,
                            .source = of->source,
                            .ranks = of->ranks,
                            .no_evict = of->no_evict,
                            .n_devices = of->n_devices,
                            .by_link = of->ranks == 0 && random_below(c, 2) == 0,
                            .options = of->options,
                            .joined = of->name};
        t->owner = name_exists(c, t->name) ? c->owners[t->name] : t->user;
        t->path = t->by_link ? link_path(c, t->source) : source_path(c, t->source);
        memcpy(t->on, of->on, sizeof(t->on));
        memcpy(t->devices, of->devices, sizeof(t->devices));
        memcpy(t->order, of->order, sizeof(t->order));
        trial_ask_for_lost(c, t, false);
        record_before(c, t);
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
                                   .priority = t->options.priority,
                                   .layout = t->ranks > 0 ? "rank" : NULL,
                                   .keep_alive_ms = t->options.keep_alive_ms,
                                   .drain_timeout_ms = t->options.drain_ms,
                                   .flags = flags | (t->no_evict ? STREAMER_LOAD_NO_EVICT : 0) |
                                            (t->options.pin ? STREAMER_LOAD_PIN : 0)};
        trail_add(c, "user %u: load %s of %s %u (version %u) to %s %s %s,%s%s%s", t->user, name_of(t->name),
                  t->by_link ? "link" : "source", t->source, c->versions[t->source], t->devices[0],
                  t->n_devices > 1 ? t->devices[1] : "", t->n_devices > 2 ? t->devices[2] : "",
                  flags & STREAMER_LOAD_WAIT ? " waits" : "",
                  t->options.keep_alive_ms == BRIEF_MS ? " short keep-alive" : "",
                  t->options.drain_ms == BRIEF_MS ? " short drain" : "");
        c->counts->loads++;
        c->counts->no_evict += t->no_evict;
        c->counts->keep_alives += t->options.keep_alive_ms > 0;
        return streamer_load(c->users[t->user], &opts, op);
}

static unsigned device_of(const struct checker *c, const char *name)
{
        unsigned d = 0;
        while (d < c->n_devices && strcmp(c->devices[d].name, name) != 0)
                d++;
        if (d == c->n_devices)
                checker_fail(c, "%s: no such device", name);
        return d;
}

/* Each of several devices fails alone. */
static void apply_failures(struct checker *c, const struct trial *t, const streamer_op *op, struct outcome *outcome)
{
        streamer_device_failure failure = STREAMER_DEVICE_FAILURE_INIT;
        for (size_t i = 0; op != NULL && streamer_op_failure_get(op, i, &failure) == 0; i++) {
                unsigned d = device_of(c, failure.device);
                if (!outcome->got[d])
                        checker_fail(c, "load %s: failed on %s, which is not a target or is reported twice",
                                     name_of(t->name), failure.device);
                if (failure.err != STREAMER_ENOMEM && !c->devices[d].lost)
                        checker_fail(c, "load %s: %s", name_of(t->name), failure.text);
                outcome->got[d] = false;
        }
}

const char *trial_wait(struct checker *c, const struct trial *t, int r, streamer_op *op, struct outcome *outcome)
{
        streamer_progress progress = {.struct_size = sizeof(progress)};
        if (r == 0)
                r = streamer_op_wait(op, CHECKER_WAIT_MS, &progress);
        *outcome = (struct outcome){.result = r, .generation = progress.generation};
        bool each = t->n_devices > 1 && t->ranks == 0 && r != STREAMER_ECANCELED && r != STREAMER_EPERM;
        for (unsigned d = 0; d < c->n_devices; d++)
                outcome->got[d] = t->on[d] && (r == 0 || each);
        if (each)
                apply_failures(c, t, op, outcome);
        streamer_op_free(op);
        return progress.state;
}

void trial_end(struct checker *c, const struct trial *t, int r, streamer_op *op, struct outcome *outcome)
{
        const char *state = trial_wait(c, t, r, op, outcome);
        r = outcome->result;
        trail_add(c, "load %s: %s, generation %" PRIu64, name_of(t->name), streamer_strerror(r), outcome->generation);
        was_denied(c, t->user, "load", t->name, r, judge_load(c, t));
        bool partial = r == STREAMER_EFAILED && state != NULL && strcmp(state, "ready") == 0;
        unsigned n = 0;
        for (unsigned d = 0; d < c->n_devices; d++)
                n += outcome->got[d];
        if (r == 0 ? n != t->n_devices : partial ? n == 0 || n == t->n_devices : n != 0)
                checker_fail(c, "load %s: %s (%s), and %u of %u devices have it", name_of(t->name),
                             streamer_strerror(r), streamer_last_error(c->users[t->user]), n, t->n_devices);
        c->counts->partial += partial;
}

/* ---- generation numbers ---- */

/* The generation was listed on the device. A failed load of the same name does not count, nor a cached replica that has
 * this name alone: the new load replaces it. */
static bool was_listed(const struct trial *t, uint64_t number, const char *device)
{
        const json_t *row, *entry;
        for (size_t i = 0; (row = json_array_get(json_object_get(t->before, "models"), i)); i++) {
                if (json_number(row, "generation") != number)
                        continue;
                for (size_t k = 0; (entry = json_array_get(json_object_get(row, "devices"), k)); k++) {
                        const char *state = json_text(entry, "state");
                        bool is_replaced = (strcmp(state, "failed") == 0 || strcmp(state, "cached") == 0) &&
                                           strcmp(json_text(row, "name"), name_of(t->name)) == 0;
                        if (strcmp(json_text(entry, "device"), device) == 0 && !is_replaced)
                                return true;
                }
        }
        return false;
}

/* On a target, the number is in use or below that of the generation that has the name. */
static bool number_in_use(struct checker *c, const struct trial *t, uint64_t number)
{
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *before = c->names[t->name][d];
                if (t->on[d] && resident_copy(c, t, d) == NULL &&
                    (was_listed(t, number, c->devices[d].name) ||
                     (name_serves(c, t->name, d) && before->number > number)))
                        return true;
        }
        return false;
}

/* A load without ranks is a replica of the same files under the same name on another device and has its number, unless
 * the number is in use on a target. Every other load has a new number. */
static void check_number(struct checker *c, const struct trial *t, uint64_t generation)
{
        bool must_match = false, may_be_new = false, is_replica = false;
        for (unsigned d = 0; d < c->n_devices && t->ranks == 0; d++) {
                const struct gen *g = resident_copy(c, t, d);
                bool joins = t->joined < NAMES && c->names[t->joined][d] == g;
                if (g == NULL || (!t->on[d] && c->names[t->name][d] != g && !joins))
                        continue;
                is_replica = is_replica || generation == g->number;
                may_be_new = may_be_new || t->joined < NAMES || number_in_use(c, t, g->number);
                must_match = true;
        }
        c->counts->replicas += is_replica;
        if (!is_replica && generation <= c->last_number)
                checker_fail(c, "generation %" PRIu64 " after %" PRIu64, generation, c->last_number);
        if (!is_replica && must_match && !may_be_new)
                checker_fail(c, "%s: generation %" PRIu64 " is no replica of the generation on another device",
                             name_of(t->name), generation);
        if (generation > c->last_number)
                c->last_number = generation;
}

/* ---- outcomes ---- */

static unsigned rank_on(const struct trial *t, unsigned device)
{
        unsigned i = 0;
        while (t->ranks > 0 && t->order[i] != device)
                i++;
        return i;
}

static struct gen *new_gen(struct checker *c, const struct trial *t, unsigned device, uint64_t generation)
{
        struct gen *g = find_free_gen(c);
        unsigned rank = rank_on(t, device);
        *g = (struct gen){.number = generation,
                          .seed = c->seeds[t->source][rank],
                          .device = device,
                          .rank = rank,
                          .ranks = t->ranks,
                          .source = t->source,
                          .version = c->versions[t->source]};
        return g;
}

/* `outcome`: of the load, which has the model on the device. */
static void apply_load(struct checker *c, const struct trial *t, unsigned device, const struct outcome *outcome)
{
        struct gen *g = resident_copy(c, t, device), *before = c->names[t->name][device];
        c->counts->aliases += g != NULL && before != g;
        c->counts->rank_aliases += g != NULL && before != g && t->ranks > 0;
        c->counts->ranks += t->ranks > 0;
        c->counts->replaced += g == NULL && before != NULL;
        c->counts->restored += g == NULL && mark_restored(c, t->source);
        if (g == NULL)
                g = new_gen(c, t, device, outcome->generation);
        struct facts facts = before != NULL ? c->facts[t->name][device] : new_facts();
        if (t->options.keep_alive_ms > 0)
                facts.keep_alive_ms = t->options.keep_alive_ms;
        if (t->options.drain_ms > 0 || g != before)
                facts.drain_ms = t->options.drain_ms;
        if (t->options.priority > 0)
                facts.priority = t->options.priority;
        facts.pinned = facts.pinned || t->options.pin;
        c->counts->pins += t->options.pin;
        c->counts->links += t->by_link;
        if (g != before)
                g->givers[t->name] = t->user;
        move_name(c, t->name, device, g, facts.drain_ms);
        c->facts[t->name][device] = facts;
        c->owners[t->name] = t->owner;
        /* A load that was cancelled may have ended before it came to a device where the name led to this already. */
        bool unknown = outcome->result == STREAMER_ECANCELED && g == before;
        c->paths[t->name][device] = (unknown ? c->paths[t->name][device] : 0) | 1u << t->by_link;
}

static bool would_fit(const struct checker *c, const struct trial *t, unsigned device)
{
        uint64_t taken = t->no_evict ? t->used[device] : t->protected_bytes[device];
        return !c->devices[device].lost && taken + t->needed[device] <= c->devices[device].budget;
}

/* With ranks, the load fails on all devices if one rank does not fit. */
static void check_refused(const struct checker *c, const struct trial *t, unsigned device)
{
        bool fits = would_fit(c, t, device);
        for (unsigned i = 0; i < t->ranks; i++)
                fits = fits && would_fit(c, t, t->order[i]);
        if (fits)
                checker_fail(c, "load %s: failed on %s, and would fit: %s", name_of(t->name), c->devices[device].name,
                             streamer_last_error(c->users[t->user]));
}

bool load_fits(struct checker *c, const struct trial *t)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if (t->on[d] && resident_copy(c, t, d) == NULL &&
                    protected_bytes(c, t->name, d) + t->needed[d] > c->devices[d].budget)
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

static bool needs_eviction(const struct checker *c, const struct trial *t, unsigned device)
{
        return t->needed[device] > c->devices[device].budget - t->used[device];
}

/* It may have been evicted because another rank of its set was, on another device of the load. */
static bool evicted_with_set(const struct checker *c, const struct trial *t, const struct outcome *outcome,
                             const struct gen *g)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *other = &t->gens[i];
                if (g->ranks > 0 && other->number == g->number && other->device != g->device && t->evictable[i] &&
                    outcome->fresh[other->device] && needs_eviction(c, t, other->device))
                        return true;
        }
        return false;
}

/* No victim has a higher priority than other candidates that would have sufficed. */
static void check_evicted(struct checker *c, const struct trial *t, const struct outcome *outcome, unsigned device)
{
        uint64_t free_bytes = c->devices[device].budget - t->used[device], need = t->needed[device];
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &t->gens[i];
                uint64_t lesser = 0;
                if (!t->evictable[i] || g->device != device || !was_evicted(c, g) || evicted_with_set(c, t, outcome, g))
                        continue;
                if (!needs_eviction(c, t, device))
                        checker_fail(c, "load %s: evicted a generation, and the load fitted without", name_of(t->name));
                for (unsigned k = 0; k < GENERATIONS; k++)
                        if (t->evictable[k] && t->gens[k].device == device && t->priorities[k] < t->priorities[i])
                                lesser += t->gens[k].charged;
                if (lesser >= need - free_bytes)
                        checker_fail(c,
                                     "load %s: evicted generation %" PRIu64
                                     " of priority %u, and lower priorities would have sufficed",
                                     name_of(t->name), g->number, t->priorities[i]);
        }
}

/* The only permitted error on a working device is ENOMEM. */
static void check_result(const struct checker *c, const struct trial *t, const struct outcome *outcome)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if ((t->n_devices == 1 ||
                     (t->ranks > 0 && !on_lost_device(c, t) && outcome->result != STREAMER_ECANCELED)) &&
                    t->on[d] && outcome->result != 0 && outcome->result != STREAMER_ENOMEM && !c->devices[d].lost)
                        checker_fail(c, "load %s: %s (%s)", name_of(t->name), streamer_strerror(outcome->result),
                                     streamer_last_error(c->users[t->user]));
}

void trial_apply(struct checker *c, const struct trial *t, struct outcome *outcome)
{
        bool found = false;
        if (outcome->result == STREAMER_EPERM)
                return;
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = resident_copy(c, t, d);
                outcome->fresh[d] = outcome->got[d] && g == NULL;
                outcome->any_fresh = outcome->any_fresh || outcome->fresh[d];
                found = found || (outcome->got[d] && g != NULL && g->number == outcome->generation);
                c->counts->out_of_memory += t->on[d] && !outcome->got[d];
                if (t->on[d] && g != NULL && !outcome->got[d] && outcome->result != STREAMER_ECANCELED)
                        checker_fail(c, "load %s: was resident on %s, and failed there", name_of(t->name),
                                     c->devices[d].name);
        }
        if (outcome->any_fresh)
                check_number(c, t, outcome->generation);
        else if (outcome->result == 0 && !found)
                checker_fail(c, "%s: was resident, and generation %" PRIu64 " is a second copy", name_of(t->name),
                             outcome->generation);
        for (unsigned d = 0; d < c->n_devices; d++)
                if (outcome->got[d])
                        apply_load(c, t, d, outcome);
}

void trial_follow(struct checker *c, const struct trial *t, struct outcome *outcome)
{
        trial_apply(c, t, outcome);
        subscriber_check_events(c, t, outcome);
}

void trial_check(struct checker *c, const struct trial *t, const struct outcome *outcome)
{
        if (outcome->result == STREAMER_EPERM)
                return compare(c, false);
        check_result(c, t, outcome);
        compare(c, outcome->any_fresh && !t->no_evict); /* a load to a lost GPU evicts none */
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

/* ---- cancel ---- */

/* The name refers to the copy that was resident on the device before. */
static bool serves_resident_copy(struct checker *c, const struct trial *t, unsigned device)
{
        const struct gen *g = resident_copy(c, t, device);
        json_auto_t *list = call_json(c, "list", NULL);
        const json_t *row, *entry;
        bool shared = false;
        for (size_t i = 0; (row = json_array_get(json_object_get(list, "models"), i)); i++) {
                if (g == NULL || json_number(row, "generation") != g->number ||
                    strcmp(json_text(row, "name"), name_of(t->name)) != 0)
                        continue;
                for (size_t k = 0; (entry = json_array_get(json_object_get(row, "devices"), k)); k++)
                        shared = shared || (strcmp(json_text(entry, "device"), c->devices[device].name) == 0 &&
                                            strcmp(json_text(entry, "state"), "ready") == 0);
        }
        return shared;
}

/* Begins a load and cancels it at once. The load may end before the cancel, and on a device with a resident copy the
 * name may have moved to it. */
void step_cancel(struct checker *c)
{
        struct trial t;
        struct outcome outcome;
        streamer_op *op = NULL;
        trial_init(c, &t, true);
        t.no_evict = false;
        if (may_lose_settings(c, &t, false)) {
                trial_deinit(&t);
                return;
        }
        t.options = (struct load_options){0}; /* the model cannot know whether they were applied */
        int r = trial_begin(c, &t, 0, &op);
        trail_add(c, "cancel %s", name_of(t.name));
        call_error(c, t.user, "cancel", json_pack("{s:s}", "model", name_of(t.name)));
        trial_end(c, &t, r, op, &outcome);
        c->counts->cancels++;
        for (unsigned d = 0; d < c->n_devices && outcome.result == STREAMER_ECANCELED; d++)
                outcome.got[d] = t.on[d] && serves_resident_copy(c, &t, d);
        trial_follow(c, &t, &outcome);
        if (outcome.result != STREAMER_ECANCELED)
                trial_check(c, &t, &outcome);
        compare(c, true);
        trial_deinit(&t);
}
