/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads that meet what is there: once a load's source is open, each of its devices may have these
 * very files already, or be getting them.
 *
 *   it serves there             the load becomes a name for it
 *   another load brings it      a load of one device joins one of one device; else it waits for the
 *                               other's end and looks again
 *   it serves on other devices  what is loaded is a replica of it, under its number
 *   else                        a new number
 *
 * A request joins in two ways: one for the same name, source, pattern and devices becomes part of the load before
 * that opens anything (loads.c); one for the same files by another name does here. It gets the outcome of the load that
 * is joined, which from then on is for both. So what the request asks for is added, and none who joins is refused
 * what a load of their own would have got:
 *
 *   wait                        where any asks for it: then all of them wait
 *   no_evict                    where all ask for it: it is a favour of who loads, not the victim's right
 *   pin                         where any asks for it
 *   priority, keep_alive,       the last that was named
 *   drain_timeout
 *   verify                      joins only what is verified as well, else is a load of its own
 *   devices                     the same ones, of which the load has lost none
 *   caller, roots, limits       of who came first; a further name is charged to who joins
 *   name                        each has its own
 *   dry_run                     never joins
 *
 * A load that waits for another's end may have to wait for its room so, also if it asked not to wait for its own: what
 * it wants is on its way there.
 */
#include "daemon/load/load_steps.h"

#include <string.h>

/* The older load that brings this generation; one that waits for a younger could wait for itself. */
static struct load *brought_by(const struct load *load, const struct generation *generation)
{
        list_each (pos, &load->loads->all) {
                struct load *l = container_of(pos, struct load, link);
                if (l == load)
                        return NULL;
                for (size_t i = 0; !load_ended(l->state) && i < l->n_targets; i++)
                        if (l->targets[i].generation == generation && !l->targets[i].shared)
                                return l;
        }
        return NULL;
}

static bool is_rank_of(const struct load_target *target, const struct generation *g)
{
        return g != target->generation && g->has_identity && g->device == target->device &&
               (g->state == GENERATION_READY || g->state == GENERATION_LOADING) &&
               memcmp(&g->identity, &target->part->identity, sizeof(g->identity)) == 0;
}

static struct generation *find_rank(const struct load_target *target, uint64_t number)
{
        list_each (pos, &target->load->loads->resident->generations) {
                struct generation *g = container_of(pos, struct generation, link);
                if (g->number == number && is_rank_of(target, g))
                        return g;
        }
        return NULL;
}

static bool has_all_ranks(const struct load *load, uint64_t number)
{
        for (size_t i = 0; i < load->n_targets; i++)
                if (find_rank(&load->targets[i], number) == NULL)
                        return false;
        return true;
}

/* Under which all of them are there, where others may be left of loads that lost a rank; 0: none. */
static uint64_t number_of_ranks(const struct load *load)
{
        list_each (pos, &load->loads->resident->generations) {
                const struct generation *g = container_of(pos, struct generation, link);
                if (g->number != 0 && is_rank_of(&load->targets[0], g) && has_all_ranks(load, g->number))
                        return g->number;
        }
        return 0;
}

/* The same files are on the target's device, or on their way: this load becomes a name for them. A
 * generation whose bytes were not held against published digests does not pass for one that must be. */
static struct generation *already(const struct load_target *target, uint64_t number, struct load **other)
{
        const struct load *load = target->load;
        struct generation *same = number != 0 ? find_rank(target, number)
                                              : resident_same(load->loads->resident, &target->part->identity,
                                                              target->device, target->generation);
        *other = same != NULL ? brought_by(load, same) : NULL;
        if (same == NULL || (same->state != GENERATION_READY && *other == NULL))
                return NULL;
        bool verified = *other != NULL ? (*other)->sha256 : same->verified;
        if (verified || !load->sha256)
                return same;
        *other = NULL;
        return NULL;
}

/* Ranks are of one load: all of them are there, or none counts. */
static bool ranks_agree(const struct load *load, struct generation *const *same)
{
        for (size_t i = 0; load->pattern != NULL && i < load->n_targets; i++)
                if (same[i] == NULL || same[i]->number != same[0]->number)
                        return false;
        return true;
}

static int add_name(const struct load *load, struct generation *same, struct error *error)
{
        struct user_charge charge = {.user = NULL};
        if (generation_has_name(same, load->name))
                return 0;
        int r = load_charge_model(load, same->device, &charge, error);
        user_count(&charge);
        if (r == 0 && generation_add_name(same, load->name, load->owner, &charge) < 0)
                r = error_set(error, STREAMER_ENOMEM, "no memory");
        user_discharge(&charge);
        return r;
}

static void share(struct load_target *target, struct generation *same, bool serves)
{
        struct load *load = target->load;
        struct generation *mine = target->generation;
        struct error error = {0};
        int r = load_may_keep(load, same, &error);
        if (r == 0)
                r = add_name(load, same, &error);
        target->generation = NULL;
        generation_discard(mine);
        generation_unpin(mine);
        if (r < 0) {
                load_end(load, LOAD_FAILED, &error);
                return;
        }
        load_keep(load, same); /* before: what it replaces is to drain for as long as this load says */
        if (serves)
                generation_take_over(same, load->name);
        target->generation = same;
        target->shared = target->copy.dead = true; /* nothing is copied there */
        load->number = same->number;
        generation_pin(same);
        generation_changed(same);
}

/* One device each: who watched this load watches the other from now on. */
static void join(struct load *load, struct generation *same, struct load *other)
{
        share(&load->targets[0], same, false);
        if (load_ended(load->state))
                return;
        if (load->has_priority)
                load_set_priority(other, load->priority);
        load_widen(other, load->wait, load->no_evict);
        load_move_watchers(load, other);
        load_end(load, LOAD_READY, NULL);
}

/* Of an earlier try to bring this very model to the device: the new one takes its place. */
static void forget_failure(struct load_target *target, uint64_t number)
{
        const struct load *load = target->load;
        struct generation *failed = resident_on(load->loads->resident, load->name, GENERATION_FAILED, target->device);
        if (number != 0 && target->generation != NULL && failed != NULL && failed->number == number)
                generation_drop_name(failed, load->name);
}

/* Something of this number is there; or the name serves a later one there, before which this would have to yield. */
static bool is_taken_on(const struct load_target *target, uint64_t number)
{
        const struct load *load = target->load;
        struct resident *resident = load->loads->resident;
        const struct generation *ready = resident_on(resident, load->name, GENERATION_READY, target->device);
        return resident_holds(resident, number, target->device) || (ready != NULL && ready->number > number);
}

/* What a replica adds to has its number already, unless that is taken on one of the devices. */
static void set_numbers(struct load *load)
{
        struct resident *resident = load->loads->resident;
        struct generation *first = NULL;
        uint64_t number =
                load->pattern == NULL ? resident_shared_number(resident, &load->parts[0].identity, load->name) : 0;
        for (size_t i = 0; i < load->n_targets; i++) {
                if (!target_lives(&load->targets[i]))
                        continue;
                forget_failure(&load->targets[i], number);
                if (is_taken_on(&load->targets[i], number))
                        number = 0;
        }
        for (size_t i = 0; i < load->n_targets; i++) {
                struct generation *g = load->targets[i].generation;
                if (!target_lives(&load->targets[i]) || g == NULL)
                        continue;
                g->number = number;
                if (number == 0 && first == NULL)
                        generation_assign_number(g);
                else if (number == 0)
                        g->number = first->number;
                first = first == NULL ? g : first;
                load->number = g->number;
        }
}

static void on_resume(struct errand *item)
{
        struct load *load = container_of(item, struct load, resume);
        if (load_step_home(load))
                load_meet(load);
}

static void behind_ended(struct load_watch *watch, struct load *other)
{
        struct load *load = container_of(watch, struct load, behind);
        (void)other;
        load->pending++;
        load->resume.run = on_resume;
        wake_post(load->loads->reader->wake, &load->resume);
}

static void meet_under_way(struct load *load, struct generation *same, struct load *other)
{
        if (load->n_targets == 1 && other->n_targets == 1)
                join(load, same, other);
        else
                load_watch(other, &load->behind, behind_ended);
}

static void share_all(struct load *load, struct generation *const *same)
{
        for (size_t i = 0; i < load->n_targets && !load_ended(load->state); i++)
                if (same[i] != NULL)
                        share(&load->targets[i], same[i], true);
        if (!load_ended(load->state) && !load_lives(load))
                load_end(load, LOAD_READY, NULL);
}

void load_meet(struct load *load)
{
        struct generation *same[LOAD_DEVICES];
        struct load *other, *under_way = NULL;
        uint64_t number = load->pattern != NULL ? number_of_ranks(load) : 0;
        for (size_t i = 0; i < load->n_targets; i++) {
                same[i] = already(&load->targets[i], number, &other);
                load->targets[i].estimate.resident = same[i] != NULL;
                under_way = under_way == NULL ? other : under_way;
        }
        bool counts = !load->dry_run && ranks_agree(load, same);
        if (counts && under_way != NULL) {
                meet_under_way(load, same[0], under_way);
                return;
        }
        if (counts)
                share_all(load, same);
        if (load_ended(load->state))
                return;
        bool cached = load_find_cached(load);
        set_numbers(load);
        if (cached)
                load_admit(load);
        else
                load_plan(load);
}
