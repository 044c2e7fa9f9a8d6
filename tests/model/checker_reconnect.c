/* SPDX-License-Identifier: Apache-2.0
 *
 * Connections that break while their process lives: the process keeps its leases and reclaims them with its next call.
 */
#include "tests/model/checker_model.h"

static unsigned count_leases(const struct checker *c, unsigned p)
{
        unsigned n = 0;
        for (unsigned slot = 0; slot < CLIENT_SLOTS; slot++)
                n += c->leased[p][slot] != NULL;
        return n;
}

/* `ps` has all leases of the client, and all of them are orphans, or none. */
static bool leases_listed(struct checker *c, unsigned p, bool orphans)
{
        json_auto_t *ps = call_json(c, "ps", NULL), *row;
        unsigned n = 0, alike = 0;
        for (size_t i = 0; (row = json_array_get(json_object_get(ps, "leases"), i)); i++) {
                bool own = json_number(row, "pid") == (uint64_t)c->processes[p].pid;
                n += own;
                alike += own && json_is_true(json_object_get(row, "orphan")) == orphans;
        }
        return n == count_leases(c, p) && alike == n;
}

static void check_orphans(struct checker *c, unsigned p)
{
        if (!WITHIN(CHECKER_WAIT_MS, leases_listed(c, p, true)))
                checker_fail(c, "client %u: its connection is closed, and its %u leases are no orphans", p,
                             count_leases(c, p));
}

/* The client has reclaimed all its leases when its call ends. */
static void check_reclaimed(struct checker *c, unsigned p)
{
        if (!leases_listed(c, p, false))
                checker_fail(c, "client %u: has reconnected, and has not its %u leases", p, count_leases(c, p));
}

/* Breaks a client's connection. Two times of three the client reconnects at once, possibly before the daemon noticed;
 * otherwise it stays disconnected until its next step. */
void step_break(struct checker *c)
{
        unsigned p = (unsigned)random_below(c, CLIENTS);
        bool unnoticed = random_below(c, 3) == 0;
        struct client_answer answer;
        client_process_break(&c->processes[p], unnoticed, &answer);
        trail_add(c, "client %u: its connection breaks%s", p, unnoticed ? ", unnoticed by the daemon" : "");
        check_answer(c, &answer);
        c->counts->breaks++;
        if (!unnoticed && random_below(c, 2) == 0)
                check_orphans(c, p);
        if (random_below(c, 4) == 0)
                subscriber_disconnect(c);
        compare(c, false);
        if (random_below(c, 3) == 0) {
                c->counts->left_disconnected++;
                return;
        }
        recheck_client(c, p);
        if (count_leases(c, p) > 0)
                check_reclaimed(c, p);
        compare(c, false);
}
