/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of a load: private to daemon/load.
 */
#ifndef DAEMON_LOAD_LOAD_STEPS_H
#define DAEMON_LOAD_LOAD_STEPS_H

#include "daemon/load/load.h"

/* ---- load.c ---- */

/* The only way in which a state changes; each asserts that its table allows it. */
void load_set_state(struct load *load, enum load_state state);
void target_set_state(struct load_target *target, enum target_state state);
void part_set_state(struct load_part *part, enum part_state state);

/* The first step of one that is new. */
void load_open(struct load *load);
/* From OPENING to PLANNING, for targets that are not resident. */
void load_plan(struct load *load);
/* The outcome is known. Called when a step is done (`pending` may be zero) or by a cancel. The load is freed in a later
 * turn of the loop. */
void load_end(struct load *load, enum load_state state, const struct error *error);
/* A step: run() on a worker, then done() on the loop, unless the load has ended meanwhile. `pending` counts it. */
void load_step_start(struct load *load, uint64_t lane, void (*run)(struct load *), void (*done)(struct load *));
/* The same for each target that lives, on its device's thread. done(), if any, also if the target's step failed;
 * all_done() after the last one, whatever state they left the load in, unless it has ended. */
void load_start_targets(struct load *load, void (*run)(struct load_target *), void (*done)(struct load_target *),
                        void (*all_done)(struct load *));
/* Something that `pending` counts is done. False if the load has ended meanwhile: the caller returns. */
bool load_step_done(struct load *load);
/* With an error all targets that are left fail, and the load ends; as ready if some serve. True: it did. */
bool load_step_failed(struct load *load, const struct error *error);
/* Memory is granted everywhere: on to ALLOCATING. */
void load_allocate(struct load *load);
/* Once all parts are read: on to CHECKING. */
void load_maybe_check(struct load *load);
/* Logs the time at which a stage was reached. */
void load_log_stage(const struct load *load, const char *stage);

/* ---- target.c ---- */

static inline bool target_is(const struct load_target *target, unsigned states)
{
        return (states >> target->state & 1) != 0;
}

static inline bool target_lives(const struct load_target *target)
{
        return target_is(target, TARGETS_LIVE);
}

/* Has a target in one of these states. */
static inline bool load_has(const struct load *load, unsigned states)
{
        load_each_target (t, load)
                if (target_is(t, states))
                        return true;
        return false;
}
/* A target fails. The others continue; the load ends if there are none, or for ranks. */
void target_fail(struct load_target *target, const struct error *error);
/* All that live, of this part or (NULL) of the load, fail; the load ends if none is left, as ready if some serve. */
void load_fail_targets(struct load *load, const struct load_part *part, const struct error *error);
/* A failed target to which no copy is in flight frees its memory before the load ends. */
void target_release(struct load_target *target);
/* The same; nothing of the load is in flight. */
void target_put_generation(struct load_target *target);
/* Where the time of its load went, up to now or to the load's end. */
void target_stages(const struct load_target *target, struct stages *stages);

/* ---- round.c ---- */

/* While QUEUED: begins a round with the targets that were granted memory, if all others are blocked. */
void load_try_round(struct load *load);
/* This round has all bytes, checked: its targets serve, and the load continues with the next round or ends. */
void load_serve_round(struct load *load);
/* No target of this round is left. The next begins when nothing is in flight. */
void load_end_round(struct load *load);
void load_finish_round(struct load *load);
/* All open targets belong to the round that is planned again. */
void load_restart_rounds(struct load *load);

/* ---- reserve.c ---- */

/* The segments that a target needs: how many, and their sizes; and their sum. */
size_t target_segments(const struct load_target *target, const uint64_t **sizes);
uint64_t target_needs(const struct load_target *target);

/* From PLANNING to QUEUED, and from there to load_allocate(). */
void load_reserve(struct load *load);
/* Another request joins, which would wait for memory, or evict. */
void load_relax(struct load *load, bool wait, bool no_evict);
/* Charges a model, or a further name, on this device; where it replaces one of the caller's, only from quota_commit()
 * on. */
int load_charge_model(const struct load *load, const struct device *device, struct quota_charge *charge,
                      struct error *error);
/* Withdraws its request, if one is pending. */
void target_withdraw(struct load_target *target);

/* ---- from_cache.c ---- */

/* The host cache has copies for all targets: no plan is needed. */
bool load_find_cached(struct load *load);
static inline bool load_is_cached(const struct load *load)
{
        load_each_target (t, load)
                if (t->cached != NULL)
                        return true;
        return false;
}
void load_put_cached(struct load *load);
/* From ALLOCATING to READING, and to the end of the round. */
void load_copy_cached(struct load *load);

/* ---- retry.c ---- */

/* Frees what was allocated, plans and asks again. */
void load_retry(struct load *load);

/* ---- coalesce.c ---- */

/* The source is open: uses generations that are resident, waits for those being loaded, and loads the rest. */
void load_coalesce(struct load *load);

/* ---- part.c ---- */

/* Has a target that lives. */
bool part_lives(const struct load_part *part);
/* On a worker: each part's files, from the open source, and their identity. */
int load_open_parts(struct load *load, struct error *error);
/* On a worker: headers, plan, publishing. */
int part_plan(struct load_part *part, struct error *error);
/* Again, for segments of another size. */
int part_replan(struct load_part *part, const struct plan_layout *layout, struct error *error);
/* From its open files, for another round. */
int part_reopen(struct load_part *part, struct error *error);
void part_read(struct load_part *part);
void part_deinit(struct load_part *part); /* on a worker */

/* ---- progress.c ---- */

/* Its outcome is known: numbers the end, and posts the call of the watchers. */
void load_post_end(struct load *load);
/* Calls the watchers, each removed before, and reports to subscribers; once. */
void load_call_watchers(struct load *load);
void load_move_watchers(struct load *from, struct load *to);

/* ---- loads.c ---- */

/* Applies the pin, keep-alive, drain timeout and priority of the request. */
void load_apply_retention(const struct load *load, struct generation *generation);
/* 0 if it asks for none of these or may change them; STREAMER_EPERM. */
int load_may_retain(const struct load *load, const struct generation *generation, struct error *error);
/* Begins the request again as a new load, which takes over the watchers; the caller ends this one. False: not another
 * time, or no memory. */
bool load_begin_again(struct load *load);
/* It has ended and nothing is in flight. */
void load_free(struct load *load);

/* ---- report.c: one line of the log, and the metrics ---- */

/* At its end. */
void load_report(const struct load *load);
/* When the targets of a round will serve while others still wait for memory. */
void load_report_round(const struct load *load);

#endif
