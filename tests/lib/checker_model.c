/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/checker_model.h"
#include "tests/lib/base.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void trail_add(struct checker *c, const char *format, ...)
{
        char text[160];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        snprintf(c->trail[c->n_trail++ % TRAIL], sizeof(c->trail[0]), "%" PRIu64 ": %s",
                 c->counts->steps - c->first_step, text);
}

/* What led there, and both sides as they are now. */
static void show(const struct checker *c)
{
        static const char *const verbs[] = {"list", "ps", "status"};
        for (unsigned i = c->n_trail < TRAIL ? 0 : c->n_trail - TRAIL; i < c->n_trail; i++)
                printf("step %s\n", c->trail[i % TRAIL]);
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                if (g->number != 0)
                        printf("generation %" PRIu64 " on %s: %u leases%s%s%s\n", g->number, c->devices[g->device].name,
                               g->leases, g->pinned ? ", pinned" : "", g->taken ? ", taken" : "",
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

void differ(const struct checker *c, const char *format, ...)
{
        char text[900];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        show(c);
        daemon_die(&c->daemon, "differs: seed %" PRIu64 ", step %" PRIu64 ": %s", c->seed,
                   c->counts->steps - c->first_step, text);
}

uint64_t random_below(struct checker *c, uint64_t n)
{
        return draw_below(&c->chance, n);
}

const char *name_of(unsigned n)
{
        static const char *const names[NAMES] = {"ada", "bea", "cay", "dot", "eve", "fay", "gus", "hal"};
        return names[n];
}

/* ---- the daemon's word ---- */

json_t *ask(struct checker *c, const char *verb, const char *args)
{
        char *reply = NULL;
        int r = streamer_call(c->client, verb, args, &reply);
        if (r < 0)
                differ(c, "%s %s: %s (%s)", verb, args != NULL ? args : "", streamer_strerror(r),
                       streamer_last_error(c->client));
        json_t *json = json_loads(reply, 0, NULL);
        free(reply);
        return json;
}

int try(struct checker *c, const char *verb, json_t *args)
{
        char *text = json_dumps(args, 0), *reply = NULL;
        int r = streamer_call(c->client, verb, text, &reply);
        free(reply);
        free(text);
        json_decref(args);
        return r;
}

static const json_t *device_in(const struct checker *c, const json_t *status, unsigned device)
{
        const json_t *d;
        size_t i;
        json_array_foreach(json_object_get(status, "devices"), i, d)
        {
                if (strcmp(json_text(d, "device"), c->devices[device].name) == 0)
                        return d;
        }
        differ(c, "%s: is not there", c->devices[device].name);
}

uint64_t device_bytes(struct checker *c, unsigned device, const char *which)
{
        json_t *status = ask(c, "status", NULL);
        uint64_t bytes = json_number(device_in(c, status, device), which);
        json_decref(status);
        return bytes;
}

/* ---- the model of it ---- */

struct gen *find_gen(struct checker *c, uint64_t n, unsigned device)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].number == n && c->gens[i].device == device)
                        return &c->gens[i];
        return NULL;
}

struct gen *free_place(struct checker *c)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].number == 0)
                        return &c->gens[i];
        differ(c, "more generations than there can be");
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

/* Nothing leads to it any more. */
void settle(struct checker *c, struct gen *g)
{
        if (g != NULL && g->leases == 0 && !is_named(c, g))
                *g = (struct gen){0};
}

void mark_taken(struct checker *c, struct gen *g)
{
        g->taken = true;
        c->counts->taken++;
}

void take_name(struct checker *c, unsigned name, unsigned device, struct gen *g, unsigned drain_ms)
{
        struct gen *before = c->names[name][device];
        c->names[name][device] = g;
        if (before == NULL || before == g)
                return;
        before->called = name;
        if (drain_ms == BRIEF_MS && before->leases > 0 && !is_named(c, before)) {
                mark_taken(c, before);
                c->counts->overdue++;
        }
        settle(c, before);
}

static void forget(struct checker *c, struct gen *g)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i][g->device] == g)
                        c->names[i][g->device] = NULL;
        settle(c, g);
}

bool stand_together(const struct checker *c, const struct gen *g, const struct gen *other)
{
        return g == other || (g->ranks > 0 && g->number == other->number && is_named(c, g) && is_named(c, other));
}

bool is_held(const struct checker *c, const struct gen *g)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].leases > 0 && stand_together(c, g, &c->gens[i]))
                        return true;
        return false;
}

bool is_pinned(const struct checker *c, const struct gen *g)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].pinned && stand_together(c, g, &c->gens[i]))
                        return true;
        return false;
}

bool is_over(const struct checker *c, const struct gen *g)
{
        return g->number != 0 && g->keep_alive_ms == BRIEF_MS && !g->cached && !is_held(c, g) && !is_pinned(c, g);
}

static bool may_be_evicted(const struct checker *c, const struct gen *g)
{
        return !is_held(c, g) && !is_pinned(c, g);
}

/* ---- the two, held against each other ---- */

struct comparison {
        struct checker *c;
        bool may_evict;
        bool named[NAMES][DEVICES];
        bool cached[GENERATIONS]; /* and was not before */
        unsigned draining;
};

static bool note(struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool note(struct checker *c, const char *format, ...)
{
        va_list args;
        va_start(args, format);
        vsnprintf(c->text, sizeof(c->text), format, args);
        va_end(args);
        return false;
}

static bool name_agrees(struct comparison *now, const char *name, const struct gen *g)
{
        struct checker *c = now->c;
        for (unsigned i = 0; i < NAMES; i++)
                if (strcmp(name_of(i), name) == 0) {
                        now->named[i][g->device] = true;
                        return c->names[i][g->device] == g ||
                               note(c, "%s: leads to generation %" PRIu64, name, g->number);
                }
        return note(c, "%s: nobody has loaded that", name);
}

/* How it is to be kept, of the device that speaks for all. */
static bool wishes_agree(struct checker *c, const json_t *row, const struct gen *g)
{
        const char *name = json_text(row, "name");
        if (json_number(row, "priority") != g->priority)
                return note(c, "%s: should be of priority %u", name, g->priority);
        return json_number(row, "keep_alive_ns") == g->keep_alive_ms * UINT64_C(1000000) ||
               note(c, "%s: should be kept alive for %u ms", name, g->keep_alive_ms);
}

/* It was evicted just now, or before. */
static bool cached_agrees(struct comparison *now, struct gen *g)
{
        struct checker *c = now->c;
        if (!g->cached && (!now->may_evict || !may_be_evicted(c, g)))
                return note(c, "generation %" PRIu64 " of %s is in the host cache, and should serve", g->number,
                            c->devices[g->device].name);
        now->cached[g - c->gens] = !g->cached;
        return true;
}

static bool state_agrees(struct comparison *now, const char *name, const json_t *entry, struct gen *g)
{
        struct checker *c = now->c;
        const char *state = json_text(entry, "state");
        if (strcmp(state, "cached") == 0)
                return cached_agrees(now, g) && name_agrees(now, name, g);
        if (g->cached)
                return note(c, "%s: is %s, and should be in the host cache", name, state);
        g->charged = json_number(entry, "bytes");
        if (strcmp(state, "draining") == 0) {
                now->draining++;
                return !is_named(c, g) || note(c, "%s: drains, and should serve", name);
        }
        if (strcmp(state, "ready") != 0)
                return note(c, "%s: is %s", name, state);
        if (is_over(c, g))
                return note(c, "%s: is kept alive for too long", name);
        return name_agrees(now, name, g);
}

/* What a row says of one device. */
static bool entry_agrees(struct comparison *now, const json_t *row, const json_t *entry, bool *speaks)
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
                return note(c, "%s: generation %" PRIu64 " (%s) should be gone from %s", name,
                            json_number(row, "generation"), state, json_text(entry, "device"));
        if (json_number(entry, "leases") != g->leases)
                return note(c, "%s: %" PRIu64 " leases, not %u", name, json_number(entry, "leases"), g->leases);
        if (!state_agrees(now, name, entry, g))
                return false;
        bool pinned = is_named(c, g) && is_pinned(c, g);
        if (json_is_true(json_object_get(entry, "pinned")) != pinned)
                return note(c, "%s: should %sbe pinned on %s", name, pinned ? "" : "not ", json_text(entry, "device"));
        bool first = *speaks && strcmp(state, json_text(row, "state")) == 0;
        *speaks = *speaks && !first;
        return !first || wishes_agree(c, row, g);
}

static bool row_agrees(struct comparison *now, const json_t *row)
{
        const json_t *entry;
        size_t i;
        bool same = true, speaks = true, pinned = false;
        json_array_foreach(json_object_get(row, "devices"), i, entry)
        {
                same = same && entry_agrees(now, row, entry, &speaks);
                pinned = pinned || json_is_true(json_object_get(entry, "pinned"));
        }
        if (same && json_is_true(json_object_get(row, "pinned")) != pinned)
                return note(now->c, "%s: should %sbe pinned, as its devices say", json_text(row, "name"),
                            pinned ? "" : "not ");
        return same;
}

/* What is not listed may have been evicted, where that is allowed. */
static bool missing_agrees(const struct comparison *now)
{
        struct checker *c = now->c;
        for (unsigned i = 0; i < NAMES; i++)
                for (unsigned d = 0; d < c->n_devices; d++) {
                        const struct gen *g = c->names[i][d];
                        if (g == NULL || now->named[i][d] || is_over(c, g) || g->came_back ||
                            (now->may_evict && may_be_evicted(c, g)))
                                continue;
                        return note(c, "%s: should %s %s", name_of(i),
                                    g->cached ? "be in the host cache, of" : "serve on", c->devices[d].name);
                }
        return true;
}

/* Of whom a name leads to it. */
static bool is_listed(const struct comparison *now, const struct gen *g)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (now->c->names[i][g->device] == g)
                        return now->named[i][g->device];
        return true;
}

static bool is_whole(const struct checker *c, const struct gen *g)
{
        unsigned n = 0;
        for (unsigned i = 0; i < GENERATIONS; i++)
                n += stand_together(c, g, &c->gens[i]);
        return g->ranks == 0 || n == g->ranks;
}

/* What of a set had a name goes to the cache, leaves it or goes with all of that. */
static bool ranks_agree(const struct comparison *now)
{
        struct checker *c = now->c;
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (now->cached[i] && !is_whole(c, &c->gens[i]))
                        return note(c, "generation %" PRIu64 ": is kept in the host cache, and lacks a rank",
                                    c->gens[i].number);
        for (unsigned i = 0; i < GENERATIONS; i++)
                for (unsigned k = 0; k < i; k++) {
                        const struct gen *g = &c->gens[i], *other = &c->gens[k];
                        if (g->number == 0 || g->ranks == 0 || !stand_together(c, g, other))
                                continue;
                        if (is_listed(now, g) != is_listed(now, other) || now->cached[i] != now->cached[k])
                                return note(c, "generation %" PRIu64 ": its rank %u went, and its rank %u did not",
                                            g->number, is_listed(now, g) && !now->cached[i] ? other->rank : g->rank,
                                            is_listed(now, g) && !now->cached[i] ? g->rank : other->rank);
                }
        return true;
}

/* What a device has is what its models have; what was taken by force is counted until the last who holds it is
 * gone. At no time is it more than its budget. */
static bool device_agrees(const struct comparison *now, unsigned device, const json_t *told)
{
        struct checker *c = now->c;
        uint64_t taken = 0, used = 0, told_used = json_number(told, "used");
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                if (g->number == 0 || g->device != device || g->cached || now->cached[i] || !is_listed(now, g))
                        continue;
                used += g->charged;
                taken += g->taken ? g->charged : 0;
        }
        if (told_used > c->devices[device].budget)
                differ(c, "%s: %" PRIu64 " bytes are more than its budget", c->devices[device].name, told_used);
        if (json_number(told, "quarantined") != taken)
                return note(c, "%s: %" PRIu64 " bytes in quarantine, not %" PRIu64, c->devices[device].name,
                            json_number(told, "quarantined"), taken);
        return told_used == used ||
               note(c, "%s: %" PRIu64 " bytes are used, not %" PRIu64, c->devices[device].name, told_used, used);
}

/* Of the same files another is in the cache, and comes before it. */
static bool is_doubled(const struct comparison *now, const bool *kept, unsigned i)
{
        const struct gen *g = now->c->gens;
        for (unsigned k = 0; k < i; k++)
                if (kept[k] && g[k].seed == g[i].seed)
                        return true;
        return false;
}

/* What is in it once for each device, or once for all. At no time is it more than its budget. */
static bool cache_agrees(const struct comparison *now, const json_t *told)
{
        struct checker *c = now->c;
        bool kept[GENERATIONS];
        uint64_t most = 0, least = 0, used = json_number(told, "used");
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                kept[i] = g->number != 0 && (g->cached || now->cached[i]) && is_listed(now, g);
                most += kept[i] ? g->charged : 0;
                least += kept[i] && !is_doubled(now, kept, i) ? g->charged : 0;
        }
        if (used > c->cache_budget)
                differ(c, "the host cache has %" PRIu64 " bytes, more than its budget", used);
        return (least <= used && used <= most) ||
               note(c, "the host cache has %" PRIu64 " bytes, not %" PRIu64, used, most);
}

static bool bytes_agree(const struct comparison *now)
{
        struct checker *c = now->c;
        json_t *status = ask(c, "status", NULL);
        bool same = true;
        for (unsigned d = 0; d < c->n_devices; d++)
                same = same && device_agrees(now, d, device_in(c, status, d));
        same = same && (c->cache_budget == 0 || cache_agrees(now, json_object_get(status, "host_cache")));
        json_decref(status);
        return same;
}

static bool agrees(void *arg)
{
        struct comparison *now = arg;
        struct checker *c = now->c;
        json_t *list = ask(c, "list", NULL), *row;
        unsigned expected = 0;
        size_t i;
        bool same = true;
        *now = (struct comparison){.c = c, .may_evict = now->may_evict};
        json_array_foreach(json_object_get(list, "models"), i, row) same = same && row_agrees(now, row);
        json_decref(list);
        for (i = 0; i < GENERATIONS; i++)
                expected += c->gens[i].number != 0 && !is_named(c, &c->gens[i]);
        if (same && now->draining != expected)
                same = note(c, "%u generations drain, not %u", now->draining, expected);
        return same && missing_agrees(now) && ranks_agree(now) && bytes_agree(now);
}

/* The model follows in what it leaves open: first in what it was of each, since what goes takes others along. */
static void follow(struct comparison *now)
{
        struct checker *c = now->c;
        bool gone[GENERATIONS], over[GENERATIONS];
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                gone[i] = g->number != 0 && is_named(c, g) && !is_listed(now, g);
                over[i] = is_over(c, g);
        }
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->number == 0)
                        continue;
                g->came_back = false;
                c->counts->ranks_evicted += g->ranks > 0 && (now->cached[i] || (gone[i] && !over[i]));
                if (now->cached[i]) {
                        g->cached = true;
                        c->counts->evicted++;
                        c->counts->cached++;
                } else if (gone[i]) {
                        c->counts->expired += over[i];
                        c->counts->left_cache += g->cached;
                        c->counts->evicted += !g->cached && !over[i];
                        forget(c, g);
                }
        }
}

/* Of ranks that are cached none is without the others. */
static void drop_rests(struct checker *c)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->number == 0 || !g->cached || is_whole(c, g))
                        continue;
                c->counts->left_cache++;
                forget(c, g);
        }
}

/* Releases and exits of processes take their time; nothing else does. */
void compare(struct checker *c, bool may_evict)
{
        struct comparison now = {.c = c, .may_evict = may_evict};
        drop_rests(c);
        if (!eventually(agrees, &now, CHECKER_WAIT_MS))
                differ(c, "%s", c->text);
        follow(&now);
}
