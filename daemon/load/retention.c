/* SPDX-License-Identifier: Apache-2.0
 *
 * What repeated and joining requests add to a load: its priority and its terms of admission, and the retention of its
 * generations.
 */
#include "daemon/load/load_private.h"

void load_put_served(struct load *load)
{
        for (size_t i = 0; load->request.wait && i < load->n_targets; i++)
                if (load->targets[i].state == TARGET_SERVES)
                        target_put_generation(&load->targets[i]);
}

void load_relax(struct load *load, bool wait, bool no_evict)
{
        load->request.wait = load->request.wait || wait;
        load->request.no_evict = load->request.no_evict && no_evict;
        if (load->state >= LOAD_QUEUED) /* before, load_reserve() does it */
                load_put_served(load);
        admission_relax(&load->admission, !load->request.no_evict && !source_is_test(load->source), load->request.wait);
}

void load_set_priority(struct load *load, unsigned priority)
{
        load->priority = priority;
        if (load->request.retention.priority > 0)
                load->request.retention.priority = priority;
        load_each_part (part, load)
                if (part->state == PART_READING)
                        reader_set_weight(load->loads->reader, &part->job, priority);
        admission_set_priority(&load->admission, priority);
}

bool retention_allowed(const struct model_settings *asked, uid_t owner, uid_t uid, bool admin)
{
        bool asks = asked->pinned || asked->priority > 0 || asked->keep_alive_ns > 0 || asked->drain_timeout_ns > 0;
        return !asks || admin || owner == uid;
}

static void add_retention(struct model_settings *settings, const struct model_settings *asked)
{
        settings->pinned = settings->pinned || asked->pinned;
        if (asked->keep_alive_ns > 0)
                settings->keep_alive_ns = asked->keep_alive_ns;
        if (asked->drain_timeout_ns > 0)
                settings->drain_timeout_ns = asked->drain_timeout_ns;
        if (asked->priority > 0)
                settings->priority = asked->priority;
}

void load_apply_retention(const struct load *load, struct generation *generation)
{
        uid_t owner = generation_owner(generation);
        generation_used(generation);
        if (retention_allowed(&load->request.retention, owner, load->caller.uid, load->request.admin))
                add_retention(&generation->settings, &load->request.retention);
}

void load_set_retention(struct load *load, const struct load_request *request)
{
        add_retention(&load->request.retention, &request->retention);
        load_relax(load, request->wait, request->no_evict);
        if (request->retention.priority > 0)
                load_set_priority(load, request->retention.priority);
        load_each_target (t, load) {
                struct generation *g = t->generation;
                bool released = g == NULL && t->state == TARGET_SERVES; /* a load that waits holds no reference */
                if (released)
                        g = resident_on(load->loads->resident, load->name, GENERATION_READY, t->device);
                if (g != NULL && (!released || g->number == load->number))
                        load_apply_retention(load, g);
        }
}
