/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker's users: what each may do, and what each is charged for.
 */
#include "tests/model/checker_model.h"

#define OTHER_UID 60103
#define CHARGES_EVERY 4 /* steps */

/* The daemon sees the user who connects. */
static streamer_client *connect_as(uid_t uid, const streamer_connect_opts *opts)
{
        streamer_client *connected = NULL;
        must(seteuid(uid));
        int r = streamer_connect(opts, &connected);
        must(seteuid(0));
        if (r < 0)
                die("connect as uid %d: %s", (int)uid, streamer_last_error(NULL));
        return connected;
}

void users_start(struct checker *c, const streamer_connect_opts *opts)
{
        c->users[ADMIN] = c->client;
        c->n_users = 1;
        while (geteuid() == 0 && c->n_users < USERS) {
                c->users[c->n_users] = connect_as(OTHER_UID + c->n_users, opts);
                c->n_users++;
        }
}

void users_stop(struct checker *c)
{
        for (unsigned i = 0; i < c->n_users; i++)
                streamer_close(c->users[i]);
}

unsigned draw_user(struct checker *c)
{
        return c->n_users == 1 || random_below(c, 2) == 0 ? ADMIN : 1 + (unsigned)random_below(c, c->n_users - 1);
}

/* ---- names and owners ---- */

bool name_exists(const struct checker *c, unsigned name)
{
        for (unsigned d = 0; d < c->n_devices; d++)
                if (c->names[name][d] != NULL)
                        return true;
        return false;
}

static bool is_anothers(const struct checker *c, unsigned user, unsigned name)
{
        return user != ADMIN && name_exists(c, name) && c->owners[name] != user;
}

/* The name refers to it or to another rank of its set. */
static bool is_named_by(const struct checker *c, const struct gen *g, unsigned name)
{
        for (unsigned d = 0; d < c->n_devices && g->number != 0; d++)
                if (c->names[name][d] != NULL && in_one_set(c, g, c->names[name][d]))
                        return true;
        return false;
}

/* A bit for each user who may be the owner of the generation's oldest name. */
static unsigned owners_of(const struct checker *c, const struct gen *g)
{
        uint64_t oldest = UINT64_MAX;
        unsigned owners = 0;
        for (unsigned i = 0; i < NAMES; i++) {
                if (c->names[i][g->device] != g || g->order[i] > oldest)
                        continue;
                owners = (g->order[i] == oldest ? owners : 0) | 1u << c->owners[i];
                oldest = g->order[i];
        }
        return owners;
}

/* The request changes this generation too. */
static void add_generation(struct verdict *verdict, const struct checker *c, unsigned user, const struct gen *g)
{
        unsigned owners = owners_of(c, g), own = 1u << user;
        verdict->must = verdict->must || !(owners & own);
        verdict->may = verdict->may || (owners & ~own);
}

/* ---- verdicts ---- */

/* Under the name of another user only the source that the name has, by the same path, on every device. */
static void judge_source(struct verdict *verdict, const struct checker *c, const struct trial *t)
{
        unsigned path = 1u << t->by_link;
        for (unsigned d = 0; d < c->n_devices && is_anothers(c, t->user, t->name); d++) {
                const struct gen *g = c->names[t->name][d];
                if (g == NULL)
                        continue;
                verdict->must = verdict->must || g->source != t->source || !(c->paths[t->name][d] & path);
                verdict->may = verdict->may || verdict->must || (c->paths[t->name][d] & ~path);
        }
}

/* Settings only of the user's own names and models, also those that the load turns out to share. With another load of
 * these files under way it depends on which came first. */
static void judge_options(struct verdict *verdict, struct checker *c, const struct trial *t)
{
        const struct load_options *o = &t->options;
        bool joins = t->joined < NAMES;
        if (t->user == ADMIN || (!o->pin && o->priority == 0 && o->keep_alive_ms == 0 && o->drain_ms == 0))
                return;
        verdict->must = verdict->must || is_anothers(c, t->user, t->name);
        verdict->may = verdict->may || verdict->must || joins;
        for (unsigned d = 0; d < c->n_devices && !joins; d++) {
                const struct gen *g = t->on[d] ? resident_copy(c, t, d) : NULL;
                if (g != NULL)
                        add_generation(verdict, c, t->user, g);
        }
}

struct verdict judge_load(struct checker *c, const struct trial *t)
{
        struct verdict verdict = {false, false};
        judge_source(&verdict, c, t);
        judge_options(&verdict, c, t);
        return verdict;
}

/* A failed load that is still listed may be another user's. */
static struct verdict judge_failure(unsigned user)
{
        return (struct verdict){.may = user != ADMIN};
}

struct verdict judge_unload(const struct checker *c, unsigned user, unsigned name)
{
        bool denied = is_anothers(c, user, name);
        return name_exists(c, name) ? (struct verdict){denied, denied} : judge_failure(user);
}

struct verdict judge_settings(const struct checker *c, unsigned user, unsigned name)
{
        struct verdict verdict = {false, false};
        if (!name_exists(c, name))
                return judge_failure(user);
        for (unsigned i = 0; i < GENERATIONS && user != ADMIN; i++)
                if (is_named_by(c, &c->gens[i], name))
                        add_generation(&verdict, c, user, &c->gens[i]);
        return verdict;
}

bool may_revoke(const struct checker *c, unsigned user, const struct gen *g)
{
        if (is_named(c, g))
                checker_fail(c, "generation %" PRIu64 " does not drain", g->number);
        return user == ADMIN || g->left_owners[g->last_name] == user;
}

bool was_denied(struct checker *c, unsigned user, const char *verb, unsigned name, int r, struct verdict verdict)
{
        bool denied = r == STREAMER_EPERM;
        if (denied ? !verdict.may : verdict.must)
                checker_fail(c, "user %u: %s %s: %s (%s), and must %sbe denied", user, verb, name_of(name),
                             streamer_strerror(r), streamer_last_error(c->users[user]), denied ? "not " : "");
        c->counts->denied += denied;
        c->counts->by_others += r == 0 && user != ADMIN;
        return denied;
}

/* ---- charges ---- */

static uint64_t held(struct checker *c, unsigned user, const char *what)
{
        char *reply = NULL;
        int r = streamer_call(c->users[user], "whoami", NULL, &reply);
        if (r < 0)
                checker_fail(c, "user %u: whoami: %s", user, streamer_strerror(r));
        json_auto_t *whoami = json_loads(reply, 0, NULL);
        free(reply);
        return json_number(json_at(whoami, "holds"), what);
}

static bool is_charged(const struct checker *c, const struct gen *g, unsigned user)
{
        bool named = false;
        for (unsigned i = 0; i < NAMES; i++) {
                bool has = c->names[i][g->device] == g;
                if (has && g->givers[i] == user)
                        return true;
                named = named || has;
        }
        return !named && g->givers[g->last_name] == user;
}

/* A wrong charge lasts as long as its generation, so most steps need not ask each user for it. */
bool charges_agree(struct checker *c, const bool counts[GENERATIONS])
{
        for (unsigned u = 0; u < c->n_users && c->counts->steps % CHARGES_EVERY == 0; u++) {
                uint64_t sum = 0, bytes = held(c, u, "bytes");
                for (unsigned i = 0; i < GENERATIONS; i++)
                        sum += counts[i] && is_charged(c, &c->gens[i], u) ? c->gens[i].charged : 0;
                if (sum == bytes)
                        continue;
                snprintf(c->text, sizeof(c->text), "user %u is charged for %" PRIu64 " bytes, not %" PRIu64, u, bytes,
                         sum);
                return false;
        }
        return true;
}

bool charges_ended(struct checker *c)
{
        static const char *const what[] = {"leases", "loads", "models", "bytes"};
        for (unsigned u = 0; u < c->n_users; u++)
                for (size_t i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
                        uint64_t n = held(c, u, what[i]);
                        if (n == 0)
                                continue;
                        snprintf(c->text, sizeof(c->text), "user %u holds %" PRIu64 " %s, and nothing is resident", u,
                                 n, what[i]);
                        return false;
                }
        return true;
}
