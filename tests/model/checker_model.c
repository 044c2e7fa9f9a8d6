/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker's model of the daemon, and its comparison with the daemon's list and status.
 */
#include "tests/model/checker_model.h"

#include "proto/messages.h"

void trail_add(struct checker *c, const char *format, ...)
{
        char text[160];
        FORMAT_ARGS(text, format);
        snprintf(c->trail[c->n_trail++ % TRAIL], sizeof(c->trail[0]), "%" PRIu64 ": %s",
                 c->counts->steps - c->first_step, text);
}

/* Prints the last actions, the model and the daemon's state. */
static void print_state(const struct checker *c)
{
        static const char *const verbs[] = {"list", "ps", "status"};
        for (unsigned i = c->n_trail < TRAIL ? 0 : c->n_trail - TRAIL; i < c->n_trail; i++)
                printf("step %s\n", c->trail[i % TRAIL]);
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                if (g->number != 0)
                        printf("generation %" PRIu64 " on %s: %u leases%s%s%s\n", g->number, c->devices[g->device].name,
                               g->leases, facts_of(c, g).pinned ? ", pinned" : "", g->revoked ? ", revoked" : "",
                               g->cached ? ", cached" : "");
        }
        for (size_t i = 0; i < sizeof(verbs) / sizeof(verbs[0]); i++) {
                char *reply = NULL;
                if (streamer_call(c->client, verbs[i], NULL, &reply) == 0)
                        printf("%s: %s\n", verbs[i], reply);
                free(reply);
        }
        fflush(stdout);
}

void checker_fail(const struct checker *c, const char *format, ...)
{
        char text[900];
        FORMAT_ARGS(text, format);
        print_state(c);
        daemon_die(&c->daemon, "seed %" PRIu64 ", step %" PRIu64 ": %s", c->seed, c->counts->steps - c->first_step,
                   text);
}

uint64_t random_below(struct checker *c, uint64_t n)
{
        return draw_below(&c->random_state, n);
}

const char *name_of(unsigned n)
{
        static const char *const names[NAMES] = {"ada", "bea", "cay", "dot", "eve", "fay", "gus", "hal"};
        return names[n];
}

/* ---- requests to the daemon ---- */

json_t *call_json(struct checker *c, const char *verb, const char *args)
{
        char *reply = NULL;
        int r = streamer_call(c->client, verb, args, &reply);
        if (r < 0)
                checker_fail(c, "%s %s: %s (%s)", verb, args != NULL ? args : "", streamer_strerror(r),
                             streamer_last_error(c->client));
        json_t *json = json_loads(reply, 0, NULL);
        free(reply);
        return json;
}

int call_error(struct checker *c, unsigned user, const char *verb, json_t *args)
{
        char *text = json_dumps(args, 0), *reply = NULL;
        int r = streamer_call(c->users[user], verb, text, &reply);
        free(reply);
        free(text);
        json_decref(args);
        return r;
}

const json_t *device_in(const struct checker *c, const json_t *reply, unsigned device)
{
        const json_t *d = json_find(json_at(reply, "devices"), "device", c->devices[device].name);
        if (d == NULL)
                checker_fail(c, "%s: is not in the reply", c->devices[device].name);
        return d;
}

uint64_t device_bytes(struct checker *c, unsigned device, const char *which)
{
        json_auto_t *status = call_json(c, "status", NULL);
        return json_number(device_in(c, status, device), which);
}

/* ---- the model ---- */

struct gen *find_gen(struct checker *c, uint64_t n, unsigned device)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].number == n && c->gens[i].device == device)
                        return &c->gens[i];
        return NULL;
}

struct gen *find_free_gen(struct checker *c)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].number == 0)
                        return &c->gens[i];
        checker_fail(c, "the model has no entry for another generation");
}

bool is_named(const struct checker *c, const struct gen *g)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i][g->device] == g)
                        return true;
        return false;
}

bool name_serves(const struct checker *c, unsigned name, unsigned device)
{
        const struct gen *g = c->names[name][device];
        return g != NULL && !g->cached;
}

void clear_if_unused(struct checker *c, struct gen *g)
{
        if (g != NULL && g->leases == 0 && !is_named(c, g))
                *g = (struct gen){0};
}

void mark_revoked(struct checker *c, struct gen *g)
{
        g->revoked = true;
        c->counts->revoked++;
}

void move_name(struct checker *c, unsigned name, unsigned device, struct gen *g, unsigned drain_ms)
{
        struct gen *before = c->names[name][device];
        c->names[name][device] = g;
        if (g != NULL && g != before)
                g->order[name] = order_now(c);
        if (before == NULL || before == g)
                return;
        before->last_name = name;
        before->left = (before->left_at == c->counts->steps ? before->left : 0) | 1u << name;
        before->left_at = c->counts->steps;
        before->left_paths[name] = c->paths[name][device];
        before->left_owners[name] = c->owners[name];
        before->left_facts[name] = c->facts[name][device];
        if (drain_ms == BRIEF_MS && before->leases > 0 && !is_named(c, before)) {
                mark_revoked(c, before);
                c->counts->drain_timeouts++;
        }
        clear_if_unused(c, before);
}

static void remove_names(struct checker *c, struct gen *g)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i][g->device] == g)
                        c->names[i][g->device] = NULL;
        clear_if_unused(c, g);
}

bool in_one_set(const struct checker *c, const struct gen *g, const struct gen *other)
{
        return g == other || (g->ranks > 0 && g->number == other->number && is_named(c, g) && is_named(c, other));
}

bool is_leased(const struct checker *c, const struct gen *g)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].leases > 0 && in_one_set(c, g, &c->gens[i]))
                        return true;
        return false;
}

struct facts new_facts(void)
{
        return (struct facts){.priority = PROTO_PRIORITY_DEFAULT};
}

static unsigned longer(unsigned a, unsigned b)
{
        return a == 0 || b == 0 ? 0 : a > b ? a : b;
}

struct facts facts_of(const struct checker *c, const struct gen *g)
{
        struct facts all = {.priority = 0};
        bool any = false;
        for (unsigned i = 0; i < NAMES; i++)
                for (unsigned d = 0; d < c->n_devices; d++) {
                        const struct facts *one = &c->facts[i][d];
                        if (c->names[i][d] == NULL || !in_one_set(c, g, c->names[i][d]))
                                continue;
                        all.pinned = all.pinned || one->pinned;
                        all.priority = one->priority > all.priority ? one->priority : all.priority;
                        all.keep_alive_ms = any ? longer(all.keep_alive_ms, one->keep_alive_ms) : one->keep_alive_ms;
                        any = true;
                }
        return all;
}

bool is_name_pinned(const struct checker *c, unsigned name, unsigned device)
{
        const struct gen *g = c->names[name][device];
        for (unsigned d = 0; d < c->n_devices && g != NULL; d++) {
                const struct gen *other = c->names[name][d];
                if (other != NULL && in_one_set(c, g, other) && c->facts[name][d].pinned)
                        return true;
        }
        return false;
}

bool is_expired(const struct checker *c, const struct gen *g)
{
        const struct facts facts = facts_of(c, g);
        return g->number != 0 && facts.keep_alive_ms == BRIEF_MS && !g->cached && !is_leased(c, g) && !facts.pinned;
}

static bool may_be_evicted(const struct checker *c, const struct gen *g)
{
        return !is_leased(c, g) && !facts_of(c, g).pinned;
}

/* The number of a name that is listed; NAMES: no name of the model. */
static unsigned number_of(const char *name)
{
        unsigned i = 0;
        while (i < NAMES && strcmp(name_of(i), name) != 0)
                i++;
        return i;
}

/* ---- comparison ---- */

struct comparison {
        struct checker *c;
        bool may_evict;
        bool named[NAMES][DEVICES];
        bool cached[GENERATIONS]; /* evicted to the cache since the last comparison */
        unsigned draining;
};

static bool mismatch(struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool mismatch(struct checker *c, const char *format, ...)
{
        FORMAT_ARGS(c->text, format);
        return false;
}

static bool name_agrees(struct comparison *now, const char *name, const struct gen *g)
{
        struct checker *c = now->c;
        unsigned i = number_of(name);
        if (i == NAMES)
                return mismatch(c, "%s: was never loaded", name);
        now->named[i][g->device] = true;
        return c->names[i][g->device] == g || mismatch(c, "%s: refers to generation %" PRIu64, name, g->number);
}

static bool settings_agree(struct checker *c, const json_t *row, const struct gen *g)
{
        const char *name = json_text(row, "name");
        unsigned i = number_of(name);
        const struct facts *facts =
                c->names[i][g->device] == g ? &c->facts[i][g->device] : &g->left_facts[g->last_name];
        if (json_number(row, "priority") != facts->priority)
                return mismatch(c, "%s: should have priority %u", name, facts->priority);
        return json_number(row, "keep_alive_ns") == facts->keep_alive_ms * UINT64_C(1000000) ||
               mismatch(c, "%s: should have a keep-alive of %u ms", name, facts->keep_alive_ms);
}

/* Either it was cached before, or the daemon was free to evict it now. */
static bool cached_agrees(struct comparison *now, struct gen *g)
{
        struct checker *c = now->c;
        if (!g->cached && (!now->may_evict || !may_be_evicted(c, g)))
                return mismatch(c, "generation %" PRIu64 " of %s is in the host cache, and should be ready", g->number,
                                c->devices[g->device].name);
        now->cached[g - c->gens] = !g->cached;
        return true;
}

static bool draining_agrees(struct checker *c, const char *name, struct gen *g)
{
        if (is_named(c, g))
                return mismatch(c, "%s: is draining, and should be ready", name);
        for (unsigned i = 0; i < NAMES; i++)
                if ((g->left & 1u << i) && strcmp(name_of(i), name) == 0) {
                        g->last_name = i;
                        return true;
                }
        return mismatch(c, "%s: is not the last name of generation %" PRIu64, name, g->number);
}

static bool state_agrees(struct comparison *now, const char *name, const json_t *entry, struct gen *g)
{
        struct checker *c = now->c;
        const char *state = json_text(entry, "state");
        if (strcmp(state, "cached") == 0)
                return cached_agrees(now, g) && name_agrees(now, name, g);
        if (g->cached)
                return mismatch(c, "%s: is %s, and should be in the host cache", name, state);
        g->charged = json_number(entry, "bytes");
        if (strcmp(state, "draining") == 0) {
                now->draining++;
                return draining_agrees(c, name, g);
        }
        if (strcmp(state, "ready") != 0)
                return mismatch(c, "%s: is %s", name, state);
        if (is_expired(c, g))
                return mismatch(c, "%s: should have expired", name);
        return name_agrees(now, name, g);
}

/* A name has, on each device, the settings that were asked for of it, and the source that was loaded under it there
 * last, whatever other names its generation has;
 * a load that fails on a device changes nothing there. The row shows what its leading device has, `g`; a row of
 * failures alone shows what failed, which is no source of the name. */
static bool source_agrees(struct checker *c, const json_t *row, const struct gen *g)
{
        const char *name = json_text(row, "name"), *source = json_text(row, "source");
        unsigned last = g->left_paths[g->last_name];
        bool same = false;
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i][g->device] == g && strcmp(name_of(i), name) == 0)
                        last = c->paths[i][g->device];
        char *paths[] = {source_path(c, g->source), link_path(c, g->source)};
        for (unsigned k = 0; k < 2; k++) {
                same = same || ((last & 1u << k) && strcmp(paths[k], source) == 0);
                free(paths[k]);
        }
        return same || mismatch(c, "%s: has the source %s on %s", name, source, c->devices[g->device].name);
}

/* `first_match`: the entry is the first with the row's own state, whose settings and source the row
 * shows. Cleared then. */
static bool entry_agrees(struct comparison *now, const json_t *row, const json_t *entry, bool *first_match)
{
        struct checker *c = now->c;
        const char *state = json_text(entry, "state"), *name = json_text(row, "name");
        unsigned device = 0;
        if (strcmp(state, "failed") == 0)
                return true;
        while (device < c->n_devices && strcmp(c->devices[device].name, json_text(entry, "device")) != 0)
                device++;
        struct gen *g = find_gen(c, json_number(row, "generation"), device);
        if (g == NULL)
                return mismatch(c, "%s: generation %" PRIu64 " (%s) should be freed on %s", name,
                                json_number(row, "generation"), state, json_text(entry, "device"));
        if (json_number(entry, "leases") != g->leases)
                return mismatch(c, "%s: %" PRIu64 " leases, not %u", name, json_number(entry, "leases"), g->leases);
        if (!state_agrees(now, name, entry, g))
                return false;
        unsigned i = number_of(name);
        bool pinned = c->names[i][device] == g && is_name_pinned(c, i, device);
        if (json_is_true(json_object_get(entry, "pinned")) != pinned)
                return mismatch(c, "%s: should %sbe pinned on %s", name, pinned ? "" : "not ",
                                json_text(entry, "device"));
        bool first = *first_match && strcmp(state, json_text(row, "state")) == 0;
        *first_match = *first_match && !first;
        return !first || (settings_agree(c, row, g) && source_agrees(c, row, g));
}

static bool row_agrees(struct comparison *now, const json_t *row)
{
        const json_t *entry;
        bool same = true, first_match = true, pinned = false;
        for (size_t i = 0; (entry = json_array_get(json_object_get(row, "devices"), i)); i++) {
                same = same && entry_agrees(now, row, entry, &first_match);
                pinned = pinned || json_is_true(json_object_get(entry, "pinned"));
        }
        if (same && json_is_true(json_object_get(row, "pinned")) != pinned)
                return mismatch(now->c, "%s: should %sbe pinned, as its devices say", json_text(row, "name"),
                                pinned ? "" : "not ");
        return same;
}

/* A name that is not listed must have expired or been evicted. */
static bool unlisted_agrees(const struct comparison *now)
{
        struct checker *c = now->c;
        for (unsigned i = 0; i < NAMES; i++)
                for (unsigned d = 0; d < c->n_devices; d++) {
                        const struct gen *g = c->names[i][d];
                        if (g == NULL || now->named[i][d] || is_expired(c, g) || g->restored ||
                            (now->may_evict && may_be_evicted(c, g)))
                                continue;
                        return mismatch(c, "%s: should %s %s", name_of(i),
                                        g->cached ? "be in the host cache, from" : "be ready on", c->devices[d].name);
                }
        return true;
}

/* A draining generation counts as listed. */
static bool is_listed(const struct comparison *now, const struct gen *g)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (now->c->names[i][g->device] == g)
                        return now->named[i][g->device];
        return true;
}

static bool has_all_ranks(const struct checker *c, const struct gen *g)
{
        unsigned n = 0;
        for (unsigned i = 0; i < GENERATIONS; i++)
                n += in_one_set(c, g, &c->gens[i]);
        return g->ranks == 0 || n == g->ranks;
}

/* The named ranks of a set are cached, dropped from the cache and evicted together. */
static bool ranks_agree(const struct comparison *now)
{
        struct checker *c = now->c;
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (now->cached[i] && !has_all_ranks(c, &c->gens[i]))
                        return mismatch(c, "generation %" PRIu64 ": is in the host cache without all ranks",
                                        c->gens[i].number);
        for (unsigned i = 0; i < GENERATIONS; i++)
                for (unsigned k = 0; k < i; k++) {
                        const struct gen *g = &c->gens[i], *other = &c->gens[k];
                        if (g->number == 0 || g->ranks == 0 || !in_one_set(c, g, other))
                                continue;
                        if (is_listed(now, g) != is_listed(now, other) || now->cached[i] != now->cached[k])
                                return mismatch(c, "generation %" PRIu64 ": rank %u was evicted, and rank %u was not",
                                                g->number, is_listed(now, g) && !now->cached[i] ? other->rank : g->rank,
                                                is_listed(now, g) && !now->cached[i] ? g->rank : other->rank);
                }
        return true;
}

/* It has memory there. */
static bool is_on_device(const struct comparison *now, unsigned i)
{
        const struct gen *g = &now->c->gens[i];
        return g->number != 0 && !g->cached && !now->cached[i] && is_listed(now, g);
}

/* A device uses the sum of its models' bytes. Revoked bytes are in quarantine until their last lease ends. The sum
 * never exceeds the budget, so that difference fails at once. */
static bool device_agrees(const struct comparison *now, unsigned device, const json_t *reply)
{
        struct checker *c = now->c;
        uint64_t revoked = 0, used = 0, reported = json_number(reply, "used");
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                if (g->device != device || !is_on_device(now, i))
                        continue;
                used += g->charged;
                revoked += g->revoked ? g->charged : 0;
        }
        if (reported > c->devices[device].budget)
                checker_fail(c, "%s: %" PRIu64 " bytes are more than its budget", c->devices[device].name, reported);
        if (json_number(reply, "quarantined") != revoked)
                return mismatch(c, "%s: %" PRIu64 " bytes in quarantine, not %" PRIu64, c->devices[device].name,
                                json_number(reply, "quarantined"), revoked);
        return reported == used ||
               mismatch(c, "%s: %" PRIu64 " bytes are used, not %" PRIu64, c->devices[device].name, reported, used);
}

/* An earlier entry of the same contents is in the cache. */
static bool shares_cached_copy(const struct comparison *now, const bool *in_cache, unsigned i)
{
        const struct gen *g = now->c->gens;
        for (unsigned k = 0; k < i; k++)
                if (in_cache[k] && g[k].seed == g[i].seed)
                        return true;
        return false;
}

/* The cache has one copy of the same contents for all devices, or one for each. It never exceeds its budget. */
static bool cache_agrees(const struct comparison *now, const json_t *reply)
{
        struct checker *c = now->c;
        bool in_cache[GENERATIONS];
        uint64_t most = 0, least = 0, used = json_number(reply, "used");
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                in_cache[i] = g->number != 0 && (g->cached || now->cached[i]) && is_listed(now, g);
                most += in_cache[i] ? g->charged : 0;
                least += in_cache[i] && !shares_cached_copy(now, in_cache, i) ? g->charged : 0;
        }
        if (used > c->cache_budget)
                checker_fail(c, "the host cache has %" PRIu64 " bytes, more than its budget", used);
        return (least <= used && used <= most) ||
               mismatch(c, "the host cache has %" PRIu64 " bytes, not %" PRIu64, used, most);
}

static bool bytes_agree(const struct comparison *now)
{
        struct checker *c = now->c;
        json_auto_t *status = call_json(c, "status", NULL);
        bool same = true, on_device[GENERATIONS];
        for (unsigned i = 0; i < GENERATIONS; i++)
                on_device[i] = is_on_device(now, i);
        for (unsigned d = 0; d < c->n_devices; d++)
                same = same && device_agrees(now, d, device_in(c, status, d));
        same = same && (c->cache_budget == 0 || cache_agrees(now, json_object_get(status, "host_cache")));
        return same && charges_agree(c, on_device);
}

static bool agrees(struct comparison *now)
{
        struct checker *c = now->c;
        json_t *list = call_json(c, "list", NULL), *row;
        unsigned expected = 0;
        bool same = true;
        *now = (struct comparison){.c = c, .may_evict = now->may_evict};
        for (size_t i = 0; (row = json_array_get(json_object_get(list, "models"), i)); i++)
                same = same && row_agrees(now, row);
        json_decref(list);
        for (size_t i = 0; i < GENERATIONS; i++)
                expected += c->gens[i].number != 0 && !is_named(c, &c->gens[i]);
        if (same && now->draining != expected)
                same = mismatch(c, "%u generations are draining, not %u", now->draining, expected);
        return same && unlisted_agrees(now) && ranks_agree(now) && bytes_agree(now);
}

/* Copies the daemon's choice of victims to the model. The state of all generations is read first, because removing one
 * changes the others of its set. */
static void apply_evictions(struct comparison *now)
{
        struct checker *c = now->c;
        bool unlisted[GENERATIONS], expired[GENERATIONS];
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                unlisted[i] = g->number != 0 && is_named(c, g) && !is_listed(now, g);
                expired[i] = is_expired(c, g);
        }
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->number == 0)
                        continue;
                g->restored = false;
                c->counts->ranks_evicted += g->ranks > 0 && (now->cached[i] || (unlisted[i] && !expired[i]));
                if (now->cached[i]) {
                        g->cached = true;
                        c->counts->evicted++;
                        c->counts->cached++;
                } else if (unlisted[i]) {
                        c->counts->expired += expired[i];
                        c->counts->dropped_from_cache += g->cached;
                        c->counts->evicted += !g->cached && !expired[i];
                        remove_names(c, g);
                }
        }
}

/* Drops cached ranks whose set is incomplete. */
static void drop_incomplete_sets(struct checker *c)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->number == 0 || !g->cached || has_all_ranks(c, g))
                        continue;
                c->counts->dropped_from_cache++;
                remove_names(c, g);
        }
}

/* It waits because the daemon frees memory and notices exits of processes later than it replies. */
void compare(struct checker *c, bool may_evict)
{
        struct comparison now = {.c = c, .may_evict = may_evict};
        drop_incomplete_sets(c);
        if (!WITHIN(CHECKER_WAIT_MS, agrees(&now)))
                checker_fail(c, "%s", c->text);
        apply_evictions(&now);
}
