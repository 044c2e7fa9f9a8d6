/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/checker_model.h"
#include "tests/lib/base.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void differ(const struct checker *c, const char *format, ...)
{
        char text[900];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        die("seed %" PRIu64 ", step %" PRIu64 ": %s", c->seed, c->counts->steps, text);
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

static uint64_t charged_of(const json_t *model)
{
        return json_number(json_array_get(json_object_get(model, "devices"), 0), "bytes");
}

uint64_t device_bytes(struct checker *c, const char *which)
{
        json_t *status = ask(c, "status", NULL);
        uint64_t bytes = json_number(json_array_get(json_object_get(status, "devices"), 0), which);
        json_decref(status);
        return bytes;
}

/* ---- the model of it ---- */

struct gen *find_gen(struct checker *c, uint64_t n)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].number == n)
                        return &c->gens[i];
        return NULL;
}

bool is_named(const struct checker *c, const struct gen *g)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i] == g)
                        return true;
        return false;
}

/* Nothing leads to it any more. */
void settle(struct checker *c, struct gen *g)
{
        if (g != NULL && g->leases == 0 && !is_named(c, g))
                *g = (struct gen){0};
}

void take_name(struct checker *c, unsigned name, struct gen *g)
{
        struct gen *before = c->names[name];
        c->names[name] = g;
        if (before != NULL && before != g)
                before->called = name;
        if (before != g)
                settle(c, before);
}

static void forget(struct checker *c, struct gen *g)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i] == g)
                        c->names[i] = NULL;
        settle(c, g);
}

static bool is_over(const struct gen *g)
{
        return g->number != 0 && g->keep_alive_ms == BRIEF_MS && g->leases == 0 && !g->pinned;
}

/* What is kept alive no longer is to be gone. */
static void expire(struct checker *c)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                if (!is_over(&c->gens[i]))
                        continue;
                c->counts->expired++;
                forget(c, &c->gens[i]);
        }
}

/* ---- the two, held against each other ---- */

static bool note(struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool note(struct checker *c, const char *format, ...)
{
        va_list args;
        va_start(args, format);
        vsnprintf(c->text, sizeof(c->text), format, args);
        va_end(args);
        return false;
}

static bool row_agrees(struct checker *c, const json_t *row, bool named[NAMES], unsigned *draining)
{
        const char *state = json_text(row, "state"), *name = json_text(row, "name");
        struct gen *g = find_gen(c, json_number(row, "generation"));
        if (strcmp(state, "failed") == 0)
                return true;
        if (g == NULL)
                return note(c, "%s: generation %" PRIu64 " (%s) should be gone", name, json_number(row, "generation"),
                            state);
        if (json_number(row, "leases") != g->leases)
                return note(c, "%s: %" PRIu64 " leases, not %u", name, json_number(row, "leases"), g->leases);
        g->charged = charged_of(row);
        if (json_is_true(json_object_get(row, "pinned")) != g->pinned || json_number(row, "priority") != g->priority)
                return note(c, "%s: should be %spinned and of priority %u", name, g->pinned ? "" : "not ", g->priority);
        if (json_number(row, "keep_alive_ns") != g->keep_alive_ms * UINT64_C(1000000))
                return note(c, "%s: should be kept alive for %u ms", name, g->keep_alive_ms);
        if (strcmp(state, "draining") == 0) {
                ++*draining;
                return !is_named(c, g) || note(c, "%s: drains, and should serve", name);
        }
        if (strcmp(state, "ready") != 0)
                return note(c, "%s: is %s", name, state);
        for (unsigned i = 0; i < NAMES; i++)
                if (strcmp(name_of(i), name) == 0) {
                        named[i] = true;
                        return c->names[i] == g || note(c, "%s: leads to generation %" PRIu64, name, g->number);
                }
        return note(c, "%s: nobody has loaded that", name);
}

/* What is not listed may have been evicted, where that is allowed. */
static bool missing_agrees(struct checker *c, const bool named[NAMES], bool may_evict)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i] != NULL && !named[i] && (!may_evict || c->names[i]->leases > 0 || c->names[i]->pinned))
                        return note(c, "%s: should serve", name_of(i));
        return true;
}

/* What was taken by force is counted until the last who holds it is gone. */
static bool quarantine_agrees(struct checker *c)
{
        uint64_t taken = 0, told = device_bytes(c, "quarantined");
        for (unsigned i = 0; i < GENERATIONS; i++)
                taken += c->gens[i].taken ? c->gens[i].charged : 0;
        return told == taken || note(c, "%" PRIu64 " bytes in quarantine, not %" PRIu64, told, taken);
}

struct comparison {
        struct checker *c;
        bool may_evict;
        bool named[NAMES];
};

static bool agrees(void *arg)
{
        struct comparison *now = arg;
        struct checker *c = now->c;
        json_t *list = ask(c, "list", NULL), *row;
        unsigned draining = 0, expected = 0;
        size_t i;
        bool same = true;
        memset(now->named, 0, sizeof(now->named));
        json_array_foreach(json_object_get(list, "models"), i, row) same =
                same && row_agrees(c, row, now->named, &draining);
        json_decref(list);
        for (i = 0; i < GENERATIONS; i++)
                expected += c->gens[i].number != 0 && !is_named(c, &c->gens[i]);
        if (same && draining != expected)
                same = note(c, "%u generations drain, not %u", draining, expected);
        return same && missing_agrees(c, now->named, now->may_evict) && quarantine_agrees(c);
}

/* Releases and exits of processes take their time; nothing else does. */
void compare(struct checker *c, bool may_evict)
{
        struct comparison now = {.c = c, .may_evict = may_evict};
        expire(c);
        if (!eventually(agrees, &now, CHECKER_WAIT_MS))
                differ(c, "%s", c->text);
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i] != NULL && !now.named[i]) {
                        c->counts->evicted++;
                        forget(c, c->names[i]);
                }
}
