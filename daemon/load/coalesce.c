/* SPDX-License-Identifier: Apache-2.0
 *
 * Coalescing: once a load's source is open, each of its devices may already have these files, or be loading them.
 *
 *   resident there              the load adds a name
 *   loaded by another load      a load of one device joins one of one device, unless its name serves a later number,
 *                               or its user is to be charged for bytes that are not planned yet; else it waits for
 *                               the other's end and looks again
 *   resident on other devices   what is loaded is a replica, with the same number
 *   else                        a new number
 *
 * A request with the same name, source, pattern and devices joins a load before that opens anything (loads.c), one with
 * another name here. It shares the load's outcome, and no request gets less than from a load of its own:
 *
 *   name, rights, settings      each has its own (load_request.c); one that asks for settings of a model that turns out
 *                               to be another user's ends alone
 *   wait                        if any request sets it
 *   no_evict                    if all set it: it is a courtesy of the caller, not a right of the victim
 *   verify                      joins only a verified load, else is a load of its own
 *   encrypted_only              likewise, of encrypted files
 *   devices                     must be the same, and none may have failed
 *   caller, roots, limits       of the first request; a further name is charged, with the model's bytes, to the one
 *                               that joins
 *   dry_run                     never joins
 *
 * A load that waits for another one may thereby wait for memory even if it asked not to: its files are being loaded.
 */
#include "daemon/load/load_private.h"

#include "daemon/base/log/log.h"

#include <string.h>

/* The load that produces this generation, if this one may wait for it: an older one, or one that is settled and so
 * waits for no other. That excludes cycles. */
static struct load *load_producing(const struct load *load, const struct generation *generation)
{
        bool older = true;
        list_each_item (struct load, l, &load->loads->all, link) {
                if (l == load)
                        older = false;
                if (l == load || load_ended(l->state) || (!older && !load_is_settled(l)))
                        continue;
                for (size_t i = 0; i < l->n_targets; i++)
                        if (l->targets[i].generation == generation && l->targets[i].state != TARGET_SERVES)
                                return l;
        }
        return NULL;
}

/* Number 0: any. */
static struct generation *find_same(const struct load_target *target, uint64_t number)
{
        return resident_same(target->load->loads->resident, &target->part->identity, target->device, target->generation,
                             number);
}

/* The number under which all ranks are resident; other numbers may lack some. 0: none. */
static uint64_t number_of_ranks(const struct load *load)
{
        resident_each_identical(g, load->loads->resident, &load->targets[0].part->identity)
        {
                bool all = g->number != 0 && g->device == load->targets[0].device &&
                           find_same(&load->targets[0], g->number) == g;
                for (size_t i = 1; all && i < load->n_targets; i++)
                        all = find_same(&load->targets[i], g->number) != NULL;
                if (all)
                        return g->number;
        }
        return 0;
}

/* The files of the generation have matched these published digests, or are compared with them now. */
static bool is_verified(const struct load_target *target, const struct generation *same, const struct load *other)
{
        const struct source_files *files = target->part->files;
        if (other == NULL)
                return same->verified && (files == NULL || memcmp(same->sums, files->sums, DIGEST_SIZE) == 0);
        return other->sha256 &&
               (files == NULL || source_files_compare_sums(same->files, files, &(struct error){0}) == 0);
}

/* The generation's files are encrypted, or it fails. */
static bool is_encrypted(const struct generation *same, const struct load *other)
{
        return same->encryption != NULL || (other != NULL && other->encrypted_only != NULL);
}

/* A generation of the same files on the target's device, resident or loading. One that was not verified against
 * published digests, or whose files are not encrypted, does not count where that is asked for. */
static struct generation *find_resident(const struct load_target *target, uint64_t number, struct load **other)
{
        const struct load *load = target->load;
        struct generation *same = find_same(target, number);
        *other = same != NULL ? load_producing(load, same) : NULL;
        if (same == NULL || (same->state != GENERATION_READY && *other == NULL))
                return NULL;
        if ((!load->sha256 || is_verified(target, same, *other)) &&
            (load->encrypted_only == NULL || is_encrypted(same, *other)))
                return same;
        *other = NULL;
        return NULL;
}

/* ---- sharing a generation ---- */

/* Requests that ask for what they may not of one of these generations end alone. False: none is left, and the load has
 * ended. */
static bool deny_requests(struct load *load, struct generation *const *same)
{
        struct error error = {0};
        list_each_item_safe (struct load_request, r, &load->requests, link) {
                int denied = 0;
                for (size_t i = 0; denied == 0 && i < load->n_targets; i++)
                        if (same[i] != NULL)
                                denied = load_request_check(r, same[i], &error);
                if (denied < 0)
                        load_deny(r, &error);
        }
        list_each_item (const struct load_request, r, &load->requests, link)
                if (!r->by_verb)
                        return true;
        require(error.code != 0); /* each name has a request */
        load_each_open (t, load) {
                generation_discard(t->generation);
                target_put_generation(t);
        }
        load_end(load, LOAD_FAILED, &error);
        return false;
}

/* A request that was not denied has the name. */
static bool is_asked_for(const struct load *load, const char *name)
{
        list_each_item (const struct load_request, r, &load->requests, link)
                if (!r->by_verb && strcmp(r->name, name) == 0)
                        return true;
        return false;
}

/* The load's user, unless the name has the charges of another one, whose load has joined this one. */
static int charge_name(const struct load *load, const char *name, const struct generation *to,
                       struct name_charges *charges, struct error *error)
{
        if (charges->name.user != NULL || load->users == NULL)
                return 0;
        int r = load_charge_model(load, name, to->device, &charges->name, error);
        quota_commit(&charges->name);
        return r ?: generation_charge_user(to, load->users, load->caller.uid, &load->limits, &charges->bytes, error);
}

int load_give_name(const struct load *load, struct model_name *name, struct generation *to, struct error *error)
{
        struct model_name *known = generation_find_name(to, name->text);
        if (known != NULL)
                return model_name_set_source(known, model_name_source(name), model_name_caller(name)) < 0
                               ? error_no_memory(error)
                               : 0;
        struct name_charges charges = name->charges;
        name->charges = (struct name_charges){.name = {.user = NULL}};
        int r = charge_name(load, name->text, to, &charges, error);
        if (r == 0 && generation_add_name(to, name->text, model_name_source(name), model_name_caller(name), name->owner,
                                          &charges) < 0)
                r = error_no_memory(error);
        const struct model_settings settings = load_name_settings(load->loads, name->text, to->device);
        if (r == 0)
                model_name_set_settings(generation_find_name(to, name->text), &settings, 0);
        quota_discharge(&charges.bytes);
        quota_discharge(&charges.name);
        return r;
}

/* False: the load has failed. */
static bool share(struct load_target *target, struct generation *same, bool serves)
{
        struct load *load = target->load;
        struct generation *mine = target->generation;
        struct error error = {0};
        int r = 0;
        require(target_lives(target) && mine != NULL && mine != same);
        list_each_item (struct model_name, n, &mine->names, link)
                if (r == 0 && is_asked_for(load, n->text))
                        r = load_give_name(load, n, same, &error);
        if (r == 0) {
                list_each_item (const struct load_request, request, &load->requests, link)
                        load_request_apply(request, same);
                /* Afterwards: the drain timeout of this load applies to what it replaces. */
                list_each_item (const struct model_name, n, &mine->names, link)
                        if (serves && is_asked_for(load, n->text))
                                generation_take_over(same, n->text);
        }
        generation_discard(mine);
        target_put_generation(target);
        if (r < 0) {
                load_end(load, LOAD_FAILED, &error);
                return false;
        }
        generation_get(same);
        target->generation = same;
        target->served = same->sequence;
        target->served_number = same->number;
        if (serves)
                same->stale = load->opened.stale; /* its store has said by now, or cannot say, that it is the newest */
        target_set_state(target, TARGET_SERVES);
        target->copy.dead = true; /* nothing is copied there */
        load->number = same->number;
        generation_changed(same);
        list_each_item (const struct load_request, request, &load->requests, link)
                generation_name_changed(same, request->name); /* which may be none of its new ones */
        return true;
}

/* One of the names serves a generation of a higher number on the device: it would stay with that one when `same` is
 * ready (generation_ready). */
static bool serves_newer(const struct load_target *target, const struct generation *same)
{
        list_each_item (const struct model_name, n, &target->generation->names, link) {
                const struct generation *ready =
                        resident_on(target->load->loads->resident, n->text, GENERATION_READY, target->device);
                if (ready != NULL && ready->number > same->number)
                        return true;
        }
        return false;
}

/* The load's user would be charged for bytes that the other load does not know yet. */
static bool has_unknown_charge(const struct load *load, const struct generation *same, const struct load *other)
{
        bool limited = load->users != NULL && !load->limits.unlimited;
        bool pays = other->users != NULL && other->caller.uid == load->caller.uid;
        return limited && !pays && generation_user_bytes(same) == 0;
}

/* One device each: the requests move to the other load, and this one ends. */
static void join_and_end(struct load *load, struct generation *same, struct load *other)
{
        if (!share(&load->targets[0], same, false))
                return;
        load_refresh_priority(other);
        load_relax(other, load->wait, load->no_evict);
        if (load_is_settled(other)) /* else it may share another generation than this one */
                load_settle_requests(load);
        log_info("%s: joins the load of %s", load->name, other->name);
        load->joined = true;
        load_move_requests(load, other);
        load_end(load, LOAD_READY, NULL);
}

/* ---- numbers ---- */

/* A replica shares the number of the resident generation, unless that is in use on one of the devices: by a generation
 * there, or since the name serves a later one there, which has precedence. A failure of that number on the device is
 * replaced by the new try. */
static void set_numbers(struct load *load)
{
        struct resident *resident = load->loads->resident;
        uint64_t number =
                load->pattern == NULL ? resident_shared_number(resident, &load->parts[0].identity, load->name) : 0;
        load_each_open (t, load) {
                struct generation *failed = resident_on(resident, load->name, GENERATION_FAILED, t->device);
                if (number != 0 && t->generation != NULL && failed != NULL && failed->number == number)
                        generation_drop_name(failed, load->name);
                const struct generation *ready = resident_on(resident, load->name, GENERATION_READY, t->device);
                if (resident_holds(resident, number, t->device, t->generation) ||
                    (ready != NULL && ready->number > number))
                        number = 0;
        }
        load_each_open (t, load) {
                struct generation *g = t->generation;
                if (g == NULL)
                        continue;
                if (number == 0) {
                        generation_assign_number(g);
                        number = g->number;
                }
                generation_set_number(g, number);
                load->number = number;
        }
}

/* The resident model's files have matched other digests than those that are published now: it need not be read again to
 * know that they differ from these. */
static int check_sums(const struct load *load, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && load->sha256 && i < load->n_targets; i++) {
                const struct load_target *target = &load->targets[i];
                const struct generation *same = find_same(target, 0);
                if (same != NULL && same->verified && same->files != NULL && target->part->files != NULL)
                        r = source_files_compare_sums(same->files, target->part->files, error);
        }
        return r;
}

enum coalesced load_coalesce(struct load *load)
{
        struct error error;
        if (check_sums(load, &error) < 0) {
                load_end(load, LOAD_FAILED, &error);
                return COALESCE_ENDED;
        }
        struct generation *same[LOAD_DEVICES];
        struct load *other, *under_way = NULL;
        uint64_t number = load->pattern != NULL ? number_of_ranks(load) : 0;
        /* Ranks are of one load: all are resident, or none counts. */
        bool counts = !load->dry_run;
        for (size_t i = 0; i < load->n_targets; i++) {
                same[i] = find_resident(&load->targets[i], number, &other);
                load->targets[i].resident = same[i] != NULL;
                under_way = under_way == NULL ? other : under_way;
                counts = counts && (load->pattern == NULL || (same[i] != NULL && same[i]->number == same[0]->number));
        }
        if (counts && under_way != NULL) {
                if (load->n_targets > 1 || under_way->n_targets > 1 || serves_newer(&load->targets[0], same[0]) ||
                    has_unknown_charge(load, same[0], under_way)) {
                        load_await(load, under_way);
                        return COALESCE_AWAITS;
                }
                if (deny_requests(load, same))
                        join_and_end(load, same[0], under_way);
                require(load_ended(load->state));
                return COALESCE_ENDED;
        }
        if (counts && !deny_requests(load, same))
                return COALESCE_ENDED;
        for (size_t i = 0; counts && i < load->n_targets; i++)
                if (same[i] != NULL && !share(&load->targets[i], same[i], true))
                        return COALESCE_ENDED;
        if (counts && !load_has(load, TARGET_OPEN)) {
                load_end(load, LOAD_READY, NULL);
                return COALESCE_ENDED;
        }
        load_settle_requests(load);
        load_find_cached(load);
        set_numbers(load);
        return COALESCE_LOADS;
}
