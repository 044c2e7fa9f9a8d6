/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps: each performs one action on the daemon and on the model, checks the reply, and compares the two. Loads
 * are in checker_loads.c and checker_concurrent.c.
 */
#include "tests/model/checker_model.h"

/* ---- unloads ---- */

struct unload_request {
        unsigned user, name;
        const char *device; /* NULL: all of them */
        bool on[DEVICES];
        bool drain, force;
        unsigned drain_ms; /* 0: until the last lease ends */
};

static bool is_only_name(const struct checker *c, unsigned name, unsigned device)
{
        for (unsigned i = 0; i < NAMES; i++)
                if (i != name && c->names[i][device] == c->names[name][device])
                        return false;
        return true;
}

/* Revokes the user's draining generations that lost this name before. */
static void revoke_draining(struct checker *c, unsigned user, unsigned name, unsigned device)
{
        for (unsigned i = 0; i < GENERATIONS; i++) {
                struct gen *g = &c->gens[i];
                if (g->number != 0 && g->device == device && g->leases > 0 && !g->revoked && g->last_name == name &&
                    !is_named(c, g) && may_revoke(c, user, g))
                        mark_revoked(c, g);
        }
}

/* The leases on generations that have no other name. */
static unsigned count_in_use(const struct checker *c, const struct unload_request *u)
{
        unsigned n = 0;
        for (unsigned d = 0; d < c->n_devices; d++)
                if (u->on[d] && c->names[u->name][d] != NULL && is_only_name(c, u->name, d))
                        n += c->names[u->name][d]->leases;
        return n;
}

static int send_unload(struct checker *c, const struct unload_request *u)
{
        json_t *args = json_pack("{s:s,s:b,s:b}", "model", name_of(u->name), "drain", u->drain, "force", u->force);
        if (u->device != NULL)
                json_object_set_new(args, "device", json_string(u->device));
        if (u->drain_ms > 0)
                json_object_set_new(args, "drain_timeout_ms", json_integer(u->drain_ms));
        return call_error(c, u->user, "unload", args);
}

static void unload_from(struct checker *c, const struct unload_request *u, unsigned device)
{
        struct gen *g = c->names[u->name][device];
        bool leased = g != NULL && g->leases > 0 && is_only_name(c, u->name, device);
        if (u->force || u->drain_ms == BRIEF_MS)
                revoke_draining(c, u->user, u->name, device);
        if (leased && u->force)
                mark_revoked(c, g);
        move_name(c, u->name, device, NULL, u->drain_ms);
}

/* The model had no leases: its memory was freed before the reply. */
static void check_freed(struct checker *c, const struct unload_request *u)
{
        for (unsigned d = 0; d < c->n_devices; d++) {
                uint64_t left = 0, used = device_bytes(c, d, "used");
                for (unsigned i = 0; i < GENERATIONS; i++)
                        left += c->gens[i].number != 0 && c->gens[i].device == d && !c->gens[i].cached
                                        ? c->gens[i].charged
                                        : 0;
                if (used > left)
                        checker_fail(c, "unload %s: %" PRIu64 " bytes of %s are still used, not %" PRIu64,
                                     name_of(u->name), used, c->devices[d].name, left);
        }
}

static void unload(struct checker *c, const struct unload_request *u)
{
        unsigned in_use = count_in_use(c, u);
        bool busy = in_use > 0 && !u->drain && !u->force, resident = false, leased = false;
        struct verdict verdict = judge_unload(c, u->user, u->name);
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = u->on[d] ? c->names[u->name][d] : NULL;
                resident = resident || g != NULL;
                leased = leased || (g != NULL && g->leases > 0);
        }
        int r = send_unload(c, u);
        trail_add(c, "user %u: unload %s from %s%s%s: %s", u->user, name_of(u->name),
                  u->device != NULL ? u->device : "all", u->drain ? " (drain)" : "", u->force ? " (force)" : "",
                  streamer_strerror(r));
        if (was_denied(c, u->user, "unload", u->name, r, verdict))
                return compare(c, false);
        /* A failed load of this name stays listed until it is unloaded. */
        if (!resident ? r != STREAMER_ENOENT && r != 0 : r != (busy ? STREAMER_EBUSY : 0))
                checker_fail(c, "unload %s: %s (%s)", name_of(u->name), streamer_strerror(r),
                             streamer_last_error(c->users[u->user]));
        c->counts->unloads += r == 0;
        c->counts->busy += busy;
        c->counts->drains += r == 0 && in_use > 0 && !u->force;
        c->counts->single_device_unloads += r == 0 && resident && u->device != NULL;
        for (unsigned d = 0; d < c->n_devices && (r == 0 || r == STREAMER_ENOENT); d++)
                if (u->on[d])
                        unload_from(c, u, d);
        if (r == 0 && resident && !leased && !u->drain)
                check_freed(c, u);
        compare(c, false);
}

/* One name, on all of its devices or on one. */
static struct unload_request draw_unload(struct checker *c)
{
        struct unload_request u = {.user = draw_user(c), .name = (unsigned)random_below(c, NAMES)};
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
        struct unload_request u = draw_unload(c);
        u.drain = random_below(c, 2) == 0;
        if (u.drain)
                u.drain_ms = times[random_below(c, sizeof(times) / sizeof(times[0]))];
        unload(c, &u);
}

/* ---- verify ---- */

/* Verifies all replicas of one generation. */
static void step_verify(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES);
        bool resident = false, lost = false;
        for (unsigned d = 0; d < c->n_devices; d++) {
                resident = resident || name_serves(c, name, d);
                lost = lost || (name_serves(c, name, d) && c->devices[d].lost);
        }
        int r = call_error(c, ADMIN, "verify", json_pack("{s:s}", "model", name_of(name)));
        if (resident ? r != 0 && !lost : r == 0)
                checker_fail(c, "verify %s: %s (%s)", name_of(name), streamer_strerror(r),
                             streamer_last_error(c->client));
        c->counts->verifies += r == 0;
}

/* ---- pin and priority ---- */

static void check_setting(struct checker *c, unsigned user, const char *verb, unsigned name, int r)
{
        bool resident = name_exists(c, name);
        bool failed_one = !resident && r == 0; /* a failed load stays listed with its settings */
        if (!was_denied(c, user, verb, name, r, judge_settings(c, user, name)) && !failed_one &&
            r != (resident ? 0 : STREAMER_ENOENT))
                checker_fail(c, "%s %s: %s (%s)", verb, name_of(name), streamer_strerror(r),
                             streamer_last_error(c->users[user]));
        compare(c, false);
}

/* Unpins twice as often as it pins, so that most loads find memory. */
static void step_pin(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES), user = draw_user(c);
        bool pin = random_below(c, 3) == 0;
        int r = streamer_pin(c->users[user], name_of(name), pin);
        trail_add(c, "user %u: %s %s: %s", user, pin ? "pin" : "unpin", name_of(name), streamer_strerror(r));
        for (unsigned d = 0; d < c->n_devices && r == 0; d++)
                c->facts[name][d].pinned = pin;
        c->counts->pins += r == 0 && pin;
        c->counts->unpins += r == 0 && !pin;
        check_setting(c, user, pin ? "pin" : "unpin", name, r);
}

static void step_priority(struct checker *c)
{
        unsigned name = (unsigned)random_below(c, NAMES), priority = 1 + (unsigned)random_below(c, 200);
        unsigned user = draw_user(c);
        int r = call_error(c, user, "set_priority",
                           json_pack("{s:s,s:i}", "model", name_of(name), "priority", (int)priority));
        for (unsigned d = 0; d < c->n_devices && r == 0; d++)
                c->facts[name][d].priority = priority;
        c->counts->priorities += r == 0;
        check_setting(c, user, "set_priority", name, r);
}

/* ---- clients ---- */

void check_answer(struct checker *c, const struct client_answer *answer)
{
        if (answer->mismatch)
                checker_fail(c, "a client got wrong data: %s", answer->text);
}

static void detach(struct checker *c, unsigned p, unsigned slot)
{
        struct client_answer answer;
        struct gen *g = c->leased[p][slot];
        client_process_detach(&c->processes[p], slot, &answer);
        trail_add(c, "client %u, slot %u: detached generation %" PRIu64, p, slot, g->number);
        check_answer(c, &answer);
        c->leased[p][slot] = NULL;
        g->leases--;
        clear_if_unused(c, g);
        c->counts->detaches++;
}

void detach_slot(struct checker *c, unsigned p, unsigned slot)
{
        if (c->leased[p][slot] == NULL)
                return;
        detach(c, p, slot);
        compare(c, false); /* a generation that was alive only by its lease must have expired before the next step */
}

struct attach_request {
        unsigned name;
        struct attach_target target;
        char digest[33];
        const struct gen *digest_of; /* the generation with that digest */
};

static void draw_digest(struct checker *c, struct attach_request *request)
{
        request->digest_of = &c->gens[random_below(c, GENERATIONS)];
        for (unsigned d = 0; d < c->n_devices && random_below(c, 2) == 0; d++)
                if (c->names[request->name][d] != NULL)
                        request->digest_of = c->names[request->name][d];
        if (request->digest_of->number == 0)
                return;
        struct model *m = seeded_model(request->digest_of->seed);
        model_digest(m, request->digest);
        model_free(m);
        request->target.digest = request->digest;
        c->counts->by_digest++;
}

/* Often the number of the name's generation, else that of any other, also a draining one. */
static void draw_generation(struct checker *c, struct attach_request *request)
{
        request->target.generation = c->gens[random_below(c, GENERATIONS)].number;
        for (unsigned d = 0; d < c->n_devices && random_below(c, 2) == 0; d++)
                if (c->names[request->name][d] != NULL)
                        request->target.generation = c->names[request->name][d]->number;
        c->counts->by_generation += request->target.generation != 0;
}

/* Prefers a device on which the name serves. */
static unsigned draw_device(struct checker *c, unsigned name)
{
        unsigned device = (unsigned)random_below(c, c->n_devices);
        return name_serves(c, name, device) ? device : (unsigned)random_below(c, c->n_devices);
}

static void draw_attach(struct checker *c, struct attach_request *request)
{
        *request = (struct attach_request){.name = (unsigned)random_below(c, NAMES)};
        request->target.model = name_of(request->name);
        if (c->n_devices > 1 && random_below(c, 5) != 0)
                request->target.device = c->devices[draw_device(c, request->name)].name;
        if (random_below(c, 8) == 0)
                draw_digest(c, request);
        if (random_below(c, 8) == 0)
                draw_generation(c, request);
}

/* The generation that the attach must lease; NULL: it must fail. A model on several devices needs a device. */
static struct gen *expected_lease(const struct checker *c, const struct attach_request *request)
{
        struct gen *found = NULL;
        unsigned n = 0;
        for (unsigned d = 0; d < c->n_devices; d++) {
                struct gen *g = c->names[request->name][d];
                bool device = request->target.device == NULL || strcmp(request->target.device, c->devices[d].name) == 0;
                bool number = request->target.generation == 0 || (g != NULL && g->number == request->target.generation);
                if (!name_serves(c, request->name, d) || !device || !number)
                        continue;
                found = g;
                n++;
        }
        return n == 1 && (request->target.digest == NULL || found->seed == request->digest_of->seed) ? found : NULL;
}

static void step_attach(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, CLIENTS), slot = (unsigned)random_below(c, CLIENT_SLOTS);
        struct attach_request request;
        struct client_answer answer;
        detach_slot(c, p, slot);
        draw_attach(c, &request);
        struct gen *g = expected_lease(c, &request);
        client_process_attach(&c->processes[p], slot, &request.target, &answer);
        trail_add(c, "client %u, slot %u: attached %s on %s: %s, generation %" PRIu64, p, slot, request.target.model,
                  request.target.device != NULL ? request.target.device : "any", streamer_strerror(answer.result),
                  answer.generation);
        check_answer(c, &answer);
        c->counts->attaches += answer.result == 0;
        if (answer.result != 0) {
                c->counts->refused_attaches++;
                if (g != NULL || answer.result == STREAMER_ETIMEOUT)
                        checker_fail(c, "attach %s: %s (%s)", request.target.model, streamer_strerror(answer.result),
                                     answer.text);
                return;
        }
        if (g == NULL || answer.generation != g->number || answer.seed != g->seed)
                checker_fail(c, "attach %s: generation %" PRIu64 ", seed %" PRIu64 ", not %" PRIu64 ", %" PRIu64,
                             request.target.model, answer.generation, answer.seed, g != NULL ? g->number : 0,
                             g != NULL ? g->seed : 0);
        c->leased[p][slot] = g;
        g->leases++;
        compare(c, false);
}

static void step_detach(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, CLIENTS), slot = (unsigned)random_below(c, CLIENT_SLOTS);
        if (c->leased[p][slot] == NULL)
                return;
        detach(c, p, slot);
        compare(c, false);
}

void recheck_client(struct checker *c, unsigned p)
{
        struct client_answer answer;
        client_process_recheck(&c->processes[p], &answer);
        check_answer(c, &answer);
        for (unsigned slot = 0; slot < CLIENT_SLOTS; slot++) {
                const struct gen *g = c->leased[p][slot];
                bool knows = answer.revoked & (1u << slot), revoked = g != NULL && g->revoked;
                if (knows != revoked)
                        checker_fail(c, "client %u, lease %u: was %srevoked, and the client sees %s", p, slot,
                                     revoked ? "" : "not ", knows ? "a revoked lease" : "a valid one");
        }
        c->counts->rechecks++;
}

static void step_recheck(struct checker *c)
{
        recheck_client(c, (unsigned)random_below(c, CLIENTS));
}

/* Each lease holder is notified before the reply, and its memory stays readable. */
static void step_force(struct checker *c)
{
        struct unload_request u = draw_unload(c);
        u.force = true;
        unload(c, &u);
        for (unsigned p = 0; p < CLIENTS; p++)
                recheck_client(c, p);
}

void kill_client(struct checker *c, unsigned p)
{
        trail_add(c, "client %u, process %d: killed", p, (int)c->processes[p].pid);
        client_process_kill(&c->processes[p]);
        for (unsigned slot = 0; slot < CLIENT_SLOTS; slot++) {
                struct gen *g = c->leased[p][slot];
                c->leased[p][slot] = NULL;
                if (g != NULL)
                        g->leases--;
                clear_if_unused(c, g);
        }
}

static void step_kill(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, CLIENTS);
        kill_client(c, p);
        compare(c, false);
        client_process_start(&c->processes[p], c->daemon.socket);
        c->counts->kills++;
}

/* ---- random choice ---- */

static const struct {
        void (*take)(struct checker *c);
        unsigned weight;
} steps[] = {{step_attach, 80},   {step_load, 20},    {step_detach, 8},         {step_kill, 16},  {step_unload, 8},
             {step_recheck, 6},   {step_rewrite, 5},  {step_cancel, 4},         {step_verify, 2}, {step_pin, 5},
             {step_force, 3},     {step_priority, 2}, {step_attach_loading, 8}, {step_wait, 6},   {step_break, 4},
             {step_subscribe, 2}, {step_publish, 3},  {step_join, 5},           {step_damage, 2}};

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
