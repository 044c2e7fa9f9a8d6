/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections that break while their process lives: what it held it holds, and has again with its next call.
 */
#include "tests/lib/base.h"
#include "tests/lib/checker_model.h"

/* What `ps` says of one client. */
struct holding {
        struct checker *c;
        unsigned puppet;
        bool orphans; /* looked for: all, or none */
};

static unsigned count_held(const struct checker *c, unsigned p)
{
        unsigned n = 0;
        for (unsigned slot = 0; slot < PUPPET_SLOTS; slot++)
                n += c->held[p][slot] != NULL;
        return n;
}

static bool holds(void *arg)
{
        const struct holding *h = arg;
        struct checker *c = h->c;
        json_t *ps = ask(c, "ps", NULL), *row;
        unsigned n = 0, alike = 0;
        size_t i;
        json_array_foreach(json_object_get(ps, "leases"), i, row)
        {
                bool own = json_number(row, "pid") == (uint64_t)c->puppets[h->puppet].pid;
                n += own;
                alike += own && json_is_true(json_object_get(row, "orphan")) == h->orphans;
        }
        json_decref(ps);
        return n == count_held(c, h->puppet) && alike == n;
}

static void check_orphans(struct checker *c, unsigned p)
{
        struct holding h = {c, p, true};
        if (!eventually(holds, &h, CHECKER_WAIT_MS))
                differ(c, "client %u: its connection is gone, and its %u leases are no orphans", p, count_held(c, p));
}

/* No orphan is left by the time that its call ends. */
static void check_reclaimed(struct checker *c, unsigned p)
{
        struct holding h = {c, p, false};
        if (!holds(&h))
                differ(c, "client %u: is back, and has not its %u leases", p, count_held(c, p));
}

/* Often it is back at once, be it before the daemon has seen it go; else whatever it does next brings it back, and
 * what happens until then happens without it. */
void step_break(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, PUPPETS);
        bool silent = random_below(c, 3) == 0;
        struct puppet_answer answer;
        puppet_break(&c->puppets[p], silent, &answer);
        trail_add(c, "client %u: its connection breaks%s", p, silent ? ", and nobody hears" : "");
        check_answer(c, &answer);
        c->counts->breaks++;
        if (!silent && random_below(c, 2) == 0)
                check_orphans(c, p);
        if (random_below(c, 4) == 0)
                watch_break(c);
        compare(c, false);
        if (random_below(c, 3) == 0) {
                c->counts->left_broken++;
                return;
        }
        look(c, p);
        if (count_held(c, p) > 0)
                check_reclaimed(c, p);
        compare(c, false);
}
