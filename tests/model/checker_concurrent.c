/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads with a concurrent step: an attach to a loading model, or exits of clients that free memory for a waiting load.
 */
#include "tests/model/checker_model.h"

/* What the load makes does not expire before it is compared, although its name may have a brief keep-alive. What it
 * replaces may expire meanwhile, so the load asks for all settings, as the admin. */
static void outlive(struct checker *c, struct trial *t)
{
        bool is_brief = false;
        for (unsigned d = 0; d < c->n_devices; d++)
                is_brief = is_brief ||
                           (t->on[d] && c->names[t->name][d] != NULL && c->facts[t->name][d].keep_alive_ms == BRIEF_MS);
        if (t->options.keep_alive_ms == BRIEF_MS)
                t->options.keep_alive_ms = LONG_MS; /* it still asks: see trial_ask_for_lost() */
        if (!is_brief)
                return;
        t->options.keep_alive_ms = LONG_MS;
        t->options.priority = t->options.priority > 0 ? t->options.priority : 1 + (unsigned)random_below(c, 200);
        t->user = ADMIN;
}

/* ---- attach while loading ---- */

static bool apply_lease(struct checker *c, struct gen **place, struct gen *g, const struct client_answer *answer)
{
        if (answer->result != 0 || *place != NULL || g == NULL || g->cached || answer->generation != g->number)
                return false;
        if (answer->seed != g->seed)
                checker_fail(c, "attached to generation %" PRIu64 " while it loads: seed %" PRIu64 ", not %" PRIu64,
                             g->number, answer->seed, g->seed);
        *place = g;
        g->leases++;
        c->counts->attaches++;
        return true;
}

/* The attach returns the generation that served before or the one that is loading. It may fail with ENOENT if none
 * served and the daemon handled it before the load. */
static void attach_while_loading(struct checker *c, const struct trial *t, unsigned p, unsigned slot)
{
        unsigned device = t->order[0];
        const struct attach_target target = {
                .model = name_of(t->name), .device = c->devices[device].name, .loading = true};
        struct client_answer answer;
        struct outcome outcome;
        streamer_op *op = NULL;
        struct gen *before = name_serves(c, t->name, device) ? c->names[t->name][device] : NULL,
                   **place = &c->leased[p][slot];
        int r = trial_begin(c, t, 0, &op);
        client_process_attach(&c->processes[p], slot, &target, &answer);
        trail_add(c, "client %u, slot %u: attached to %s on %s while it loads: %s, generation %" PRIu64, p, slot,
                  target.model, target.device, streamer_strerror(answer.result), answer.generation);
        trial_end(c, t, r, op, &outcome);
        check_answer(c, &answer);
        apply_lease(c, place, before, &answer);
        trial_follow(c, t, &outcome);
        if (outcome.got[device])
                c->counts->joins += apply_lease(c, place, c->names[t->name][device], &answer) && outcome.fresh[device];
        trial_check(c, t, &outcome);
        if (answer.result == 0 && *place == NULL)
                checker_fail(c, "attach %s while it loads: generation %" PRIu64, name_of(t->name), answer.generation);
        if (answer.result != 0 && (before != NULL || (outcome.got[device] && answer.result != STREAMER_ENOENT)))
                checker_fail(c, "attach %s while it loads: %s (%s)", name_of(t->name), streamer_strerror(answer.result),
                             answer.text);
        c->counts->refused_attaches += answer.result != 0;
}

void step_attach_loading(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, CLIENTS), slot = (unsigned)random_below(c, CLIENT_SLOTS);
        struct trial t;
        detach_slot(c, p, slot);
        trial_init(c, &t, true);
        outlive(c, &t);
        attach_while_loading(c, &t, p, slot);
        trial_deinit(&t);
}

/* ---- loads that wait for memory ---- */

/* The targets of a load in `status`. */
struct load_query {
        struct checker *c;
        const struct trial *t;
        bool both; /* the same load without STREAMER_LOAD_WAIT was requested first */
        bool listed, waits, settled;
        bool ready[DEVICES];
};

static void read_target(struct load_query *q, const json_t *target)
{
        const char *state = json_text(target, "state");
        bool waits = json_number(target, "waiting_ns") > 0, ready = strcmp(state, "ready") == 0;
        q->waits = q->waits || waits;
        q->settled = q->settled && (waits || ready || strcmp(state, "failed") == 0);
        for (unsigned d = 0; d < q->c->n_devices; d++)
                if (strcmp(json_text(target, "device"), q->c->devices[d].name) == 0)
                        q->ready[d] = ready;
}

static void read_load(struct load_query *q)
{
        json_t *status = call_json(q->c, "status", NULL), *load, *target;
        *q = (struct load_query){.c = q->c, .t = q->t, .both = q->both, .settled = true};
        for (size_t i = 0; (load = json_array_get(json_object_get(status, "loads"), i)); i++) {
                if (strcmp(json_text(load, "name"), name_of(q->t->name)) != 0)
                        continue;
                q->listed = true;
                for (size_t k = 0; (target = json_array_get(json_object_get(load, "targets"), k)); k++)
                        read_target(q, target);
        }
        json_decref(status);
}

/* Each target waits for memory or has ended, or the load has ended. */
static bool is_settled(struct load_query *q)
{
        read_load(q);
        return !q->listed || q->settled;
}

static bool load_waits(struct checker *c, const struct trial *t)
{
        struct load_query q = {.c = c, .t = t};
        if (!WITHIN(CHECKER_WAIT_MS, is_settled(&q)))
                checker_fail(c, "load %s: neither waits nor ends", name_of(t->name));
        return q.waits;
}

static bool leases_agree(struct checker *c)
{
        json_auto_t *ps = call_json(c, "ps", NULL);
        uint64_t have = json_array_size(json_object_get(ps, "leases")), want = 0;
        for (unsigned i = 0; i < GENERATIONS; i++)
                want += c->gens[i].leases;
        return have == want;
}

/* Kills one client after the other until the load no longer waits. */
static void free_memory_for(struct checker *c, const struct trial *t)
{
        for (unsigned p = 0; load_waits(c, t) && p < CLIENTS; p++) {
                c->counts->waits += p == 0;
                kill_client(c, p);
                if (!WITHIN(CHECKER_WAIT_MS, leases_agree(c)))
                        checker_fail(c, "the leases of a killed client have not ended");
                client_process_start(&c->processes[p], c->daemon.socket);
                c->counts->kills++;
        }
}

static bool will_fit(struct checker *c, const struct trial *t, unsigned device)
{
        if (t->ranks > 0)
                return load_fits(c, t);
        return resident_copy(c, t, device) != NULL ||
               protected_bytes(c, t->name, device) + t->needed[device] <= c->devices[device].budget;
}

/* Replicas wait together, except for devices where the model is resident already: those are ready. If the same load
 * without STREAMER_LOAD_WAIT has ended, it may have made the model resident on further devices. */
static bool resident_targets_are_ready(struct load_query *q)
{
        read_load(q);
        for (unsigned d = 0; d < q->c->n_devices; d++) {
                bool resident = q->t->ranks == 0 && resident_copy(q->c, q->t, d) != NULL;
                if (q->t->on[d] && q->ready[d] != resident && !(q->both && q->ready[d]))
                        return false;
        }
        return q->listed;
}

/* Cancels a load that does not fit on one of its devices. */
static void cancel_waiting(struct checker *c, const struct trial *t, bool both, bool got[DEVICES])
{
        struct load_query q = {.c = c, .t = t, .both = both};
        if (t->n_devices > 1 && !WITHIN(CHECKER_WAIT_MS, resident_targets_are_ready(&q)))
                checker_fail(c, "load %s: waits, and is not ready on exactly those devices where it was resident",
                             name_of(t->name));
        memcpy(got, q.ready, sizeof(q.ready));
        trail_add(c, "cancel %s", name_of(t->name));
        call_error(c, t->user, "cancel", json_pack("{s:s}", "model", name_of(t->name)));
}

/* Ends the same load without STREAMER_LOAD_WAIT, which was requested first. If the waiting load joined it, it fails for
 * lack of memory or has the same outcome. If it had ended before, its model is resident for the waiting load. */
static void end_without_wait(struct checker *c, const struct trial *t, int r, streamer_op *op,
                             const struct outcome *outcome)
{
        struct outcome no_wait;
        trial_wait(c, t, r, op, &no_wait);
        r = no_wait.result;
        trail_add(c, "load %s without wait: %s, generation %" PRIu64, name_of(t->name), streamer_strerror(r),
                  no_wait.generation);
        if (r != outcome->result && r != 0 && r != STREAMER_ENOMEM && r != STREAMER_EFAILED)
                checker_fail(c, "load %s without wait: %s (%s)", name_of(t->name), streamer_strerror(r),
                             streamer_last_error(c->users[t->user]));
        if (r != STREAMER_ECANCELED && no_wait.generation != 0)
                trial_apply(c, t, &no_wait);
}

static void wait_for_memory(struct checker *c, const struct trial *t)
{
        streamer_op *no_wait = NULL;
        bool both = random_below(c, 2) == 0;
        int first = both ? trial_begin(c, t, 0, &no_wait) : 0;
        bool blocked = false, lost = on_lost_device(c, t), served[DEVICES] = {false};
        struct outcome outcome;
        streamer_op *op = NULL;
        int r = trial_begin(c, t, STREAMER_LOAD_WAIT, &op);
        if (r == 0)
                free_memory_for(c, t);
        /* A load to a lost device fails; with ranks, it fails on all devices. */
        for (unsigned d = 0; d < c->n_devices; d++)
                blocked = blocked || (t->on[d] && !c->devices[d].lost && !(t->ranks > 0 && lost) && !will_fit(c, t, d));
        if (blocked)
                cancel_waiting(c, t, both, served);
        trial_end(c, t, r, op, &outcome);
        if (both)
                end_without_wait(c, t, first, no_wait, &outcome); /* before the waiting load is applied */
        if (outcome.result != (blocked ? STREAMER_ECANCELED : 0) && !lost)
                checker_fail(c, "load %s with wait: %s (%s)", name_of(t->name), streamer_strerror(outcome.result),
                             streamer_last_error(c->users[t->user]));
        if (outcome.result == STREAMER_ECANCELED)
                memcpy(outcome.got, served, sizeof(served));
        trial_follow(c, t, &outcome);
        compare(c, true);
}

/* The ranks of the set that has the name expire as soon as one of them loses it, possibly before the load is admitted
 * on every device. */
static bool may_expire_early(const struct checker *c, const struct trial *t)
{
        for (unsigned d = 0; d < c->n_devices; d++) {
                const struct gen *g = c->names[t->name][d];
                for (unsigned i = 0; i < NAMES && g != NULL && g->ranks > 1; i++)
                        for (unsigned k = 0; k < c->n_devices; k++)
                                if (c->names[i][k] != NULL && in_one_set(c, g, c->names[i][k]) &&
                                    c->facts[i][k].keep_alive_ms == BRIEF_MS)
                                        return true;
        }
        return false;
}

void step_wait(struct checker *c)
{
        struct trial t;
        trial_init(c, &t, true);
        outlive(c, &t);
        t.no_evict = false;
        if (!may_expire_early(c, &t) && !judge_load(c, &t).may)
                wait_for_memory(c, &t);
        trial_deinit(&t);
}

/* ---- two names, and a file that is replaced while it is read ---- */

/* Whether the name's generation on the device has the contents of this seed. */
static bool has_contents(struct checker *c, unsigned name, unsigned device, uint64_t seed)
{
        char want[33];
        struct model *m = seeded_model(seed);
        model_digest(m, want);
        model_free(m);
        json_auto_t *list = call_json(c, "list", NULL);
        const json_t *row, *entry;
        for (size_t i = 0; (row = json_array_get(json_object_get(list, "models"), i)); i++)
                for (size_t k = 0; (entry = json_array_get(json_object_get(row, "devices"), k)); k++)
                        if (strcmp(json_text(row, "name"), name_of(name)) == 0 &&
                            strcmp(json_text(entry, "device"), c->devices[device].name) == 0 &&
                            strcmp(json_text(entry, "state"), "ready") == 0)
                                return strcmp(json_text(entry, "digest"), want) == 0;
        return false;
}

/* The file may have been replaced before the load, or after it: its contents say which version it has. One that failed
 * where the later version is resident had opened the earlier one, which must not be resident there, too. */
static void apply_version(struct checker *c, const struct trial *t, struct outcome *outcome, uint64_t old_seed)
{
        uint64_t new_seed = c->seeds[t->source][0];
        bool is_old = false;
        if (outcome->result == STREAMER_EPERM)
                return;
        for (unsigned d = 0; d < c->n_devices && old_seed != new_seed; d++)
                if (t->on[d])
                        is_old = is_old || (outcome->got[d] ? has_contents(c, t->name, d, old_seed)
                                                            : resident_copy(c, t, d) != NULL);
        c->seeds[t->source][0] = is_old ? old_seed : new_seed;
        c->versions[t->source] -= is_old;
        trial_apply(c, t, outcome);
        for (unsigned d = 0; d < c->n_devices; d++)
                if (outcome->got[d] && !has_contents(c, t->name, d, c->seeds[t->source][0]))
                        checker_fail(c, "load %s: is ready on %s, and has other contents", name_of(t->name),
                                     c->devices[d].name);
        c->seeds[t->source][0] = new_seed;
        c->versions[t->source] += is_old;
}

static void load_under_two_names(struct checker *c, const struct trial *t, const struct trial *alias, bool replaces)
{
        struct outcome first, second;
        streamer_op *op = NULL, *alias_op = NULL;
        uint64_t seed = c->seeds[t->source][0];
        int r = trial_begin(c, t, 0, &op), alias_r = trial_begin(c, alias, 0, &alias_op);
        if (replaces)
                replace_source(c, t->source);
        trial_end(c, t, r, op, &first);
        trial_end(c, alias, alias_r, alias_op, &second);
        /* Of two that each loaded a version, the one that was opened first has the lower number. One that failed did
         * not find what the other loaded. */
        bool swapped = first.result == 0 && (second.result != 0 || second.generation < first.generation);
        apply_version(c, swapped ? alias : t, swapped ? &second : &first, seed);
        apply_version(c, swapped ? t : alias, swapped ? &first : &second, seed);
        c->counts->two_names += first.result == 0 && second.result == 0;
        c->counts->replaced_while_read += replaces;
        compare(c, true);
}

/* What was asked for applies to the generation, whoever comes first, but for the time of draining. Another user is
 * denied if it comes second. */
static void separate_options(struct checker *c, struct trial *t, struct trial *alias)
{
        t->options.drain_ms = alias->options.drain_ms = 0;
        if (t->user != ADMIN && random_below(c, 4) != 0)
                t->options = (struct load_options){0};
        if (alias->user != ADMIN && random_below(c, 4) != 0)
                alias->options = (struct load_options){0};
}

/* A second request joins the load, or finds its model: both names lead to it. */
void step_join(struct checker *c)
{
        struct trial t, alias;
        trial_init(c, &t, false);
        outlive(c, &t);
        trial_init_alias(c, &alias, &t);
        outlive(c, &alias);
        t.joined = alias.name;
        /* Either load may evict what the other's name leads to, and then the name is nobody's. */
        if (!t.no_evict) {
                t.user = t.owner;
                alias.user = alias.owner;
                trial_ask_for_lost(c, &t, true);
                trial_ask_for_lost(c, &alias, true);
        }
        if (t.user != alias.user)
                separate_options(c, &t, &alias);
        if (t.ranks == 0) {
                bool replaces = random_below(c, 2) == 0;
                /* Each may load a version of its own, and one must not be evicted for the other before it is seen. */
                t.no_evict = t.no_evict || replaces;
                alias.no_evict = t.no_evict;
                load_under_two_names(c, &t, &alias, replaces);
        }
        trial_deinit(&t);
        trial_deinit(&alias);
}
