/* SPDX-License-Identifier: Apache-2.0
 *
 * The model. A generation is known from the load that made it until nothing of it is left; names lead
 * to generations; each slot of each puppet holds one or none.
 *
 *   named, ready --(last name gone)--> draining --(last lease gone)--> gone
 *
 * What the model leaves open, and takes from the daemon's own list: which of the generations that may
 * be evicted are, and whether a load that is cancelled ends before that.
 */
#include "tests/lib/checker.h"
#include "tests/lib/base.h"
#include "tests/lib/puppet.h"

#include "streamer/client.h"

#include <dirent.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SOURCES 10u
#define NAMES 8u
#define PUPPETS 6u
#define GENERATIONS (NAMES + PUPPETS * PUPPET_SLOTS)
#define BUDGET (24u << 20)
#define WAIT_MS 30000

struct gen {
        uint64_t number; /* 0: this place is empty */
        uint64_t seed, charged;
        unsigned source, version, leases;
};

struct checker {
        struct daemon daemon;
        streamer_client *client;
        char root[PATH_SIZE], text[1024];
        uint64_t seed, chance, last_number, last_seed;
        struct checker_counts *counts;

        unsigned versions[SOURCES]; /* how often a source was written */
        uint64_t seeds[SOURCES];
        struct gen gens[GENERATIONS];
        struct gen *names[NAMES];
        struct puppet puppets[PUPPETS];
        struct gen *held[PUPPETS][PUPPET_SLOTS];
};

static _Noreturn void differ(const struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void differ(const struct checker *c, const char *format, ...)
{
        char text[900];
        va_list args;
        va_start(args, format);
        vsnprintf(text, sizeof(text), format, args);
        va_end(args);
        die("seed %" PRIu64 ", step %" PRIu64 ": %s", c->seed, c->counts->steps, text);
}

static uint64_t random_below(struct checker *c, uint64_t n)
{
        uint64_t z = (c->chance += UINT64_C(0x9e3779b97f4a7c15));
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        return (z ^ (z >> 31)) % n;
}

static const char *name_of(unsigned n)
{
        static const char *const names[NAMES] = {"ada", "bea", "cay", "dot", "eve", "fay", "gus", "hal"};
        return names[n];
}

/* ---- the daemon's word ---- */

static json_t *ask(struct checker *c, const char *verb, const char *args)
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

static uint64_t number(const json_t *object, const char *key)
{
        return (uint64_t)json_integer_value(json_object_get(object, key));
}

static const char *word(const json_t *object, const char *key)
{
        const char *text = json_string_value(json_object_get(object, key));
        return text != NULL ? text : "";
}

static uint64_t charged_of(const json_t *model)
{
        return number(json_array_get(json_object_get(model, "devices"), 0), "bytes");
}

static uint64_t used(struct checker *c)
{
        json_t *status = ask(c, "status", NULL);
        uint64_t bytes = number(json_array_get(json_object_get(status, "devices"), 0), "used");
        json_decref(status);
        return bytes;
}

/* ---- the model of it ---- */

static struct gen *find_gen(struct checker *c, uint64_t n)
{
        for (unsigned i = 0; i < GENERATIONS; i++)
                if (c->gens[i].number == n)
                        return &c->gens[i];
        return NULL;
}

static bool is_named(const struct checker *c, const struct gen *g)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i] == g)
                        return true;
        return false;
}

/* Nothing leads to it any more. */
static void settle(struct checker *c, struct gen *g)
{
        if (g != NULL && g->leases == 0 && !is_named(c, g))
                *g = (struct gen){0};
}

static void take_name(struct checker *c, unsigned name, struct gen *g)
{
        struct gen *before = c->names[name];
        c->names[name] = g;
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
        const char *state = word(row, "state"), *name = word(row, "name");
        struct gen *g = find_gen(c, number(row, "generation"));
        if (strcmp(state, "failed") == 0)
                return true;
        if (g == NULL)
                return note(c, "%s: generation %" PRIu64 " (%s) should be gone", name, number(row, "generation"),
                            state);
        if (number(row, "leases") != g->leases)
                return note(c, "%s: %" PRIu64 " leases, not %u", name, number(row, "leases"), g->leases);
        g->charged = charged_of(row);
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
                if (c->names[i] != NULL && !named[i] && (!may_evict || c->names[i]->leases > 0))
                        return note(c, "%s: should serve", name_of(i));
        return true;
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
        return same && missing_agrees(c, now->named, now->may_evict);
}

/* Releases and exits of processes take their time; nothing else does. */
static void compare(struct checker *c, bool may_evict)
{
        struct comparison now = {.c = c, .may_evict = may_evict};
        if (!eventually(agrees, &now, WAIT_MS))
                differ(c, "%s", c->text);
        for (unsigned i = 0; i < NAMES; i++)
                if (c->names[i] != NULL && !now.named[i]) {
                        c->counts->evicted++;
                        forget(c, c->names[i]);
                }
}

/* ---- sources ---- */

static char *source_path(const struct checker *c, unsigned source)
{
        return format_text("%s/source-%u.safetensors", c->root, source);
}

static void rewrite(struct checker *c, unsigned source)
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
        rewrite(c, (unsigned)random_below(c, SOURCES));
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

static void loaded(struct checker *c, unsigned name, unsigned source, uint64_t generation)
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
                                  .version = c->versions[source]};
        }
        take_name(c, name, g);
}

/* Bytes that no eviction can bring: what is leased, and what serves under the name itself. */
static uint64_t immovable(const struct checker *c, unsigned name)
{
        uint64_t bytes = 0;
        for (unsigned i = 0; i < GENERATIONS; i++) {
                const struct gen *g = &c->gens[i];
                if (g->number != 0 && (g->leases > 0 || g == c->names[name]))
                        bytes += g->charged;
        }
        return bytes;
}

static uint64_t needed(struct checker *c, const char *source)
{
        char *args = format_text("{\"source\":\"%s\",\"dry_run\":true}", source);
        json_t *estimate = ask(c, "load", args);
        uint64_t bytes = number(estimate, "needed");
        json_decref(estimate);
        free(args);
        return bytes;
}

static void refused(struct checker *c, unsigned name, const char *source, int r)
{
        if (r != STREAMER_ENOMEM)
                differ(c, "load %s: %s (%s)", name_of(name), streamer_strerror(r), streamer_last_error(c->client));
        c->counts->no_room++;
        compare(c, false);
        if (immovable(c, name) + needed(c, source) <= BUDGET)
                differ(c, "load %s: refused, and would fit: %s", name_of(name), streamer_last_error(c->client));
}

static void step_load(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES), source = (unsigned)random_below(c, SOURCES);
        char *path = source_path(c, source);
        streamer_load_opts opts = {.struct_size = sizeof(opts), .source = path, .name = name_of(name)};
        streamer_progress progress = {.struct_size = sizeof(progress)};
        streamer_op *op = NULL;
        uint64_t before = used(c);
        int r = streamer_load(c->client, &opts, &op);
        if (r == 0)
                r = streamer_op_wait(op, WAIT_MS, &progress);
        streamer_op_free(op);
        c->counts->loads++;
        if (r != 0) {
                refused(c, name, path, r);
                free(path);
                return;
        }
        uint64_t evicted = c->counts->evicted;
        loaded(c, name, source, progress.generation);
        compare(c, true);
        if (c->counts->evicted > evicted && before + c->names[name]->charged <= BUDGET)
                differ(c, "load %s: evicted, and there was room", name_of(name));
        free(path);
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
                r = streamer_op_wait(op, WAIT_MS, &progress);
        }
        streamer_op_free(op);
        c->counts->cancels++;
        if (r == 0)
                loaded(c, name, source, progress.generation);
        else if (r != STREAMER_ECANCELED && r != STREAMER_ENOMEM)
                differ(c, "cancel %s: %s (%s)", name_of(name), streamer_strerror(r), streamer_last_error(c->client));
        compare(c, true);
        free(reply);
        free(args);
        free(path);
}

static void step_unload(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES), others = 0;
        bool drain = random_below(c, 3) == 0;
        struct gen *g = c->names[name];
        for (unsigned i = 0; i < NAMES; i++)
                others += i != name && g != NULL && c->names[i] == g;
        int r = streamer_unload(c->client, name_of(name), drain ? STREAMER_UNLOAD_DRAIN : 0);
        bool busy = g != NULL && g->leases > 0 && others == 0 && !drain;
        /* A load that failed under this name stays listed until then. */
        if (g == NULL ? r != STREAMER_ENOENT && r != 0 : r != (busy ? STREAMER_EBUSY : 0))
                differ(c, "unload %s: %s (%s)", name_of(name), streamer_strerror(r), streamer_last_error(c->client));
        c->counts->unloads += r == 0;
        c->counts->busy += busy;
        c->counts->drains += r == 0 && g != NULL && g->leases > 0;
        if (r == 0)
                take_name(c, name, NULL);
        compare(c, false);
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
        struct gen *g = c->names[name];
        struct puppet_answer answer;
        if (c->held[p][slot] != NULL)
                detach(c, p, slot);
        g = c->names[name];
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

static void step_look(struct checker *c)
{
        struct puppet_answer answer;
        puppet_look(&c->puppets[random_below(c, PUPPETS)], &answer);
        check_answer(c, &answer);
        c->counts->looks++;
}

static void let_go(struct checker *c, unsigned p)
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

/* ---- all of it ---- */

static const struct {
        void (*take)(struct checker *c);
        unsigned weight;
} steps[] = {{step_attach, 40}, {step_load, 20},   {step_detach, 8}, {step_kill, 7},  {step_unload, 8},
             {step_look, 6},    {step_rewrite, 5}, {step_cancel, 4}, {step_verify, 2}};

static void step(struct checker *c)
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

/* Entries of a folder of /proc: descriptors, threads. */
static unsigned count_entries(const struct checker *c, const char *folder)
{
        char *path = format_text("/proc/%d/%s", (int)c->daemon.pid, folder);
        DIR *dir = opendir(path);
        unsigned n = 0;
        if (dir == NULL)
                die_errno("%s", path);
        while (readdir(dir) != NULL)
                n++;
        closedir(dir);
        free(path);
        return n;
}

static void start(struct checker *c, const char *folder)
{
        char *budget = format_text("host=%u", BUDGET);
        snprintf(c->root, sizeof(c->root), "%s", folder);
        for (unsigned i = 0; i < SOURCES; i++)
                rewrite(c, i);
        daemon_init(&c->daemon, folder);
        daemon_start(&c->daemon, (const char *const[]){"--device", budget, "--root", c->root, "--memory-limit", "16MiB",
                                                       "--concurrency", "4", NULL});
        free(budget);
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = c->daemon.socket, .timeout_ms = WAIT_MS};
        if (streamer_connect(&opts, &c->client) < 0)
                die("connect: %s", streamer_last_error(NULL));
        for (unsigned i = 0; i < PUPPETS; i++)
                puppet_start(&c->puppets[i], c->daemon.socket);
}

static bool is_empty(void *arg)
{
        struct checker *c = arg;
        return used(c) == 0;
}

static void finish(struct checker *c, unsigned fds)
{
        for (unsigned p = 0; p < PUPPETS; p++)
                let_go(c, p);
        for (unsigned i = 0; i < NAMES; i++) {
                streamer_unload(c->client, name_of(i), STREAMER_UNLOAD_DRAIN);
                take_name(c, i, NULL);
        }
        compare(c, false);
        if (!eventually(is_empty, c, WAIT_MS))
                differ(c, "%" PRIu64 " bytes are left", used(c));
        if (count_entries(c, "fd") > fds)
                differ(c, "%u descriptors, %u at the beginning", count_entries(c, "fd"), fds);
        streamer_close(c->client);
        if (daemon_stop(&c->daemon) != 0)
                daemon_die(&c->daemon, "did not end well");
}

void checker_run(const char *folder, uint64_t seed, uint64_t n_steps, struct checker_counts *counts)
{
        struct checker *c = must_alloc(sizeof(*c));
        c->seed = c->chance = seed;
        c->counts = counts;
        start(c, folder);
        json_decref(ask(c, "list", NULL));
        unsigned fds = count_entries(c, "fd"), threads;
        for (uint64_t i = 0; i < n_steps / 2; i++)
                step(c);
        threads = count_entries(c, "task"); /* pools have grown to what they need */
        for (uint64_t i = n_steps / 2; i < n_steps; i++)
                step(c);
        if (count_entries(c, "task") > threads + 20) /* a pool's cap */
                differ(c, "%u threads, %u half way", count_entries(c, "task"), threads);
        finish(c, fds);
        free(c);
}

void checker_print(const struct checker_counts *counts)
{
#define X(name) printf(" " #name " %" PRIu64, counts->name);
        CHECKER_COUNTS(X)
#undef X
        printf("\n");
}
