/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a load: private to daemon/load. Each file calls only those above it here; loads.c and load.c call all.
 */
#pragma once

#include "daemon/load/load.h"

/* ---- targets ---- */

/* Neither serves nor has failed. */
static inline bool target_lives(const struct load_target *target)
{
        return target->state == TARGET_OPEN;
}

/* The next target that lives, from this one on; NULL: none. */
static inline struct load_target *load_next_open(const struct load *load, struct load_target *target)
{
        while (target < load->targets + load->n_targets && !target_lives(target))
                target++;
        return target < load->targets + load->n_targets ? target : NULL;
}
#define load_each_open(t, load)                                                                                        \
        for (struct load_target *t = load_next_open(load, (load)->targets); t != NULL; t = load_next_open(load, t + 1))

/* Its first target that lives; NULL: none does. */
static inline struct load_target *part_first(const struct load_part *part)
{
        for (size_t i = 0; i < part->n_targets; i++)
                if (target_lives(part->targets[i]))
                        return part->targets[i];
        return NULL;
}

/* Of a part that is, or was, reading. */
static inline struct read_job *part_reading(const struct load_part *part)
{
        struct read_job *job = __atomic_load_n(&part->reading, __ATOMIC_ACQUIRE);
        require(job != NULL);
        return job;
}

/* Has a target in this state. */
static inline bool load_has(const struct load *load, enum target_state state)
{
        load_each_target (t, load)
                if (t->state == state)
                        return true;
        return false;
}

/* Nothing of the target is in flight. */
static inline void target_put_generation(struct load_target *target)
{
        struct generation *g = target->generation;
        target->generation = NULL;
        if (g != NULL)
                generation_put(g);
}

/* ---- load_request.c ---- */

/* Which generations the load shares is known, and they have been given what its requests asked for. */
static inline bool load_is_settled(const struct load *load)
{
        return load->state > LOAD_AWAITING;
}
static inline bool load_may_evict(const struct load *load)
{
        return !load->no_evict && !source_is_test(load->source);
}

/* Adds a request, and applies the settings that it asks for to all generations of the load. NULL with *error:
 * STREAMER_EPERM for what its caller may not ask for, STREAMER_ENOMEM. */
struct load_request *load_request_add(struct load *load, const struct load_args *args, struct error *error);
struct load_request *load_request_free(struct load_request *request);
/* Whether its caller may ask this of the generation's owner: 0 or STREAMER_EPERM. */
int load_request_check(const struct load_request *request, const struct generation *generation, struct error *error);
/* Gives its name, if the generation has that, the settings that it asks for, and may. */
void load_request_apply(const struct load_request *request, struct generation *generation);
/* What a name begins with, before requests change it. */
struct model_settings load_name_settings(const struct loads *loads, const char *name, const struct device *device);
/* The load is about to be settled. */
void load_settle_requests(struct load *load);
/* It begins again, and may share another model than the one that it has made: what was asked for, or a verb has changed
 * since, is to be applied to that one. */
void load_unsettle_requests(struct load *load);
/* Its weight in the reader, and its place in admission: the highest priority of the names that it loads. */
void load_refresh_priority(struct load *load);
/* Another request joins, which would wait for memory, or evict. */
void load_relax(struct load *load, bool wait, bool no_evict);
/* A load that waits does not reference generations that serve: other loads may evict them. */
void load_put_served(struct load *load);

/* ---- load_new.c ---- */

/* Without requests; load_launch() begins it. The source is canonical. NULL: no memory. */
struct load *load_new(struct loads *loads, const struct load_args *args, struct device *const *devices, size_t n);
/* Of one that was not begun. */
void load_discard(struct load *load);
/* It has ended and nothing is in flight: what it has opened and planned; on a worker, since large tables take time. */
void load_drop_tables(struct load *load);
/* The rest. */
void load_free(struct load *load);

/* ---- part_disk.c ---- */

/* On a worker, once the part is planned: finds out which files are read from their copies, and which are stored. */
int part_prepare_disk(struct load_part *part, struct error *error);
void part_drop_disk(struct load_part *part); /* on a worker, when nothing is read any more */
/* Before it is read. */
void part_begin_write(struct load_part *part);
/* The job to begin with: that of the part, which is complete, or one of copies. */
struct read_job *part_begin_copies(struct load_part *part);
/* When a job has ended: the next one to start; NULL: the outcome of this one is the part's. */
struct read_job *part_next_job(struct load_part *part);
enum model_origin part_origin(const struct load_part *part);

/* ---- part.c ---- */

/* On a worker: each part's files, from the open source, and their identity. */
int load_open_parts(struct load *load, struct error *error);
/* On a worker as well: adds samples of their files' bytes to the parts' identities, where they need them. */
int load_sample_parts(struct load *load, struct error *error);
/* On a worker: headers, the plan, the tracking of arrivals. */
int part_plan(struct load_part *part, struct error *error);
/* On a worker: compares samples of what the target holds with what was read, or copied from the host cache. */
void target_compare(struct load_target *target, struct error *error);
/* On the loop, after that: a target whose samples differ fails, and its kind of page is not used again. */
void target_compared(struct load_target *target, const struct error *error);
/* On a worker, once the source is open: its files are so small that the first reads, of their headers, bring all of
 * them, to host memory alone; and once it is planned: their bytes can be placed by any thread. */
bool load_may_be_small(const struct load *load);
bool load_is_small(const struct load *load);
/* On a worker: does for the part of a small load what reader threads do, and builds its manifest; and on the loop,
 * after that. */
void part_place(struct load_part *part, struct error *error);
void part_take_placed(struct load_part *part);
/* On a worker, when nothing of a small load is left to do: what it has left can be freed on the loop. */
void load_close_files(struct load *load);
/* Notifies of tensors whose pause is over; when it is to be called again, UINT64_MAX: not for this part. */
uint64_t part_notify_arrivals(struct load_part *part, uint64_t now);
/* While READING: starts to read. */
void part_read(struct load_part *part);
void part_set_state(struct load_part *part, enum part_state state); /* asserts that it may follow */

/* ---- report.c ---- */

/* At its end. */
void load_report(const struct load *load);

/* ---- load_state.c ---- */

/* The only way in which a state changes; each asserts that it may. A load's: by load.c and load_end(). */
void load_set_state(struct load *load, enum load_state state);
void target_set_state(struct load_target *target, enum target_state state);
/* Something that `pending` counts is done. False if the load has ended meanwhile, and will be freed: the caller
 * returns. */
bool load_step_done(struct load *load);
/* Something of the work of its state is done: a later turn of the loop looks whether all is (load.c). Without effect
 * on a load that has ended. */
void load_advance_later(struct load *load);
/* The load awaits the end of another one, or of the one that this begins again as; then it advances. */
void load_await(struct load *load, struct load *other);

/* The outcome is known. Called when a step is done (`pending` may be zero) or by a cancel. The load is freed in a later
 * turn of the loop. */
void load_end(struct load *load, enum load_state state, const struct error *error);
/* A target fails. The others continue. False: the load has ended, since there are none, or they are ranks. */
bool target_fail(struct load_target *target, const struct error *error);
/* All that live, of this part or (NULL) of the load, fail. False: the load has ended, since none is left, as ready if
 * some serve. */
bool load_fail_targets(struct load *load, const struct load_part *part, const struct error *error);
/* A failed target to which no copy is in flight frees its memory before the load ends. */
void target_release(struct load_target *target);
/* One request ends, since it asks for what it may not; the load continues. */
void load_deny(struct load_request *request, const struct error *error);
/* Calls the watchers of requests that have ended, each removed before, and reports to subscribers. */
void load_call_watchers(struct load *load);
/* All that have not ended, with what watches them, and the loads that await this one. */
void load_move_requests(struct load *from, struct load *to);

/* ---- load_memory.c ---- */

/* On entering QUEUED: requests the memory of all targets that are left, which is charged once it is `granted`. May end
 * the load. */
void load_reserve(struct load *load);
/* Charges the load's caller for a model, or a further name (resident_charge_model); does nothing without quotas. */
int load_charge_model(const struct load *load, const char *name, const struct device *device,
                      struct quota_charge *charge, struct error *error);

/* If the host cache has copies for all targets, they are used, and no plan is needed. */
void load_find_cached(struct load *load);

/* On the device's thread, with the error in target->step_error. */
void target_allocate(struct load_target *target);
void target_deallocate(struct load_target *target);
void target_copy(struct load_target *target);
/* What was copied becomes the generation's. */
void target_take_copy(struct load_target *target);

/* ---- coalesce.c ---- */

/* Once the source is open, and whenever an awaited load has ended: uses the generations that are resident, and awaits
 * those being loaded. */
enum coalesced {
        COALESCE_ENDED,  /* the load has ended */
        COALESCE_AWAITS, /* another load (load_await) */
        COALESCE_LOADS,  /* the targets that are open */
};
enum coalesced load_coalesce(struct load *load);
/* `to` gets a name that another generation of the load has, with its charge and the settings that a name begins
 * with, unless it has that name. */
int load_give_name(const struct load *load, struct model_name *name, struct generation *to, struct error *error);

/* ---- load.c ---- */

/* Begins the life of one that is new. */
void load_launch(struct load *load);
