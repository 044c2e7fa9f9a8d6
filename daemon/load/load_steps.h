/* SPDX-License-Identifier: Apache-2.0
 *
 * Between load.c (the states), target.c (its devices), part.c (what is read once) and loads.c (who has
 * which load): private to daemon/load.
 */
#ifndef DAEMON_LOAD_LOAD_STEPS_H
#define DAEMON_LOAD_LOAD_STEPS_H

#include "daemon/load/load.h"

/* ---- load.c ---- */

/* From nothing to OPENING. */
void load_open(struct load *load);
/* From OPENING on, with what is left to be loaded. */
void load_plan(struct load *load);
/* The outcome is known. Called by a step that came home (`pending` may be zero) or by a cancel. */
void load_end(struct load *load, enum load_state state, const struct error *error);
/* A step on a worker; `pending` counts it. */
void load_step_start(struct load *load, struct work_pool *pool, uint64_t lane, void (*run)(struct work *),
                     void (*done)(struct work *));
/* Something that `pending` counts came home. False if the load has ended meanwhile: then there is
 * nothing to go on with. */
bool load_step_home(struct load *load);
/* With an error it failed all that is still to be loaded: the load ends, as one that serves where some do. */
bool load_step_failed(struct load *load, const struct error *error);
/* It has room everywhere: on to allocating. */
void load_allocate(struct load *load);
/* Where all parts are read: on to checking. */
void load_maybe_check(struct load *load);
/* Where the time of a load goes. */
void load_log_stage(const struct load *load, const char *stage);

/* ---- target.c ---- */

bool target_open(const struct load_target *target);  /* neither does it serve nor has it failed */
bool target_lives(const struct load_target *target); /* open, and of this round */
/* Has a target that is open. */
bool load_lives(const struct load *load);
/* A target is out. The others go on, unless there are none, or they are ranks: then the load ends. */
void target_failed(struct load_target *target, const struct error *error);
/* All that live; so the load ends, unless some serve already. */
void load_fail_targets(struct load *load, const struct error *error);
/* One that has failed, and that nothing is on its way to, gives its memory back before the load ends. */
void target_give_up(struct load_target *target);
/* The same, where nothing of the load is in flight. */
void target_let_go(struct load_target *target);
/* With the load, which has ended. */
void target_end(struct load_target *target);

/* ---- round.c ---- */

/* While QUEUED, when something has changed: goes on with the targets that have room where the others are blocked. */
void load_look_on(struct load *load);
/* Some are left to a later round. */
bool load_has_late(const struct load *load);
/* This round is read and checked: its targets serve, and the load goes on to the next. */
void load_serve_round(struct load *load);
/* Nothing of this round lives. When all of it is home the next begins. */
void load_round_over(struct load *load);
void load_settle_round(struct load *load);
/* All are of the round that begins anew. */
void load_join_rounds(struct load *load);

/* ---- admit.c ---- */

/* The segments that a target needs: how many, and their sizes; and their sum. */
size_t target_segments(const struct load_target *target, const uint64_t **sizes);
uint64_t target_needs(const struct load_target *target);

/* From PLANNING to QUEUED, and from there to load_allocate(). */
void load_admit(struct load *load);
/* Somebody else wants it, too, who would wait for room, or evict for it. */
void load_widen(struct load *load, bool wait, bool no_evict);
/* To who asked for the load; nothing where nobody's limits count. STREAMER_ELIMIT, STREAMER_ENOMEM. */
int load_charge_user(const struct load *load, struct user_charge *charge, enum user_slot slot, uint64_t amount,
                     struct error *error);
/* A model or a further name on this device: one of the caller's that it takes the place of stands for it until
 * user_count(). */
int load_charge_model(const struct load *load, const struct device *device, struct user_charge *charge,
                      struct error *error);
/* It has ended: what it still asks for is not wanted. */
void load_withdraw(struct load *load);

/* ---- bring_back.c ---- */

/* The host cache has what all targets want: then it needs no plan. */
bool load_find_cached(struct load *load);
bool load_is_cached(const struct load *load);
void load_forget_cached(struct load *load);
/* It is allocated: on to READING, and to the end of the round. */
void load_copy_back(struct load *load);

/* ---- retry.c ---- */

/* A device is out of memory that it was granted: is there a way to go on? */
bool target_may_retry(const struct load_target *target);
/* Gives back what was allocated, and asks again. */
void load_retry(struct load *load);

/* ---- rank.c ---- */

int load_split_ranks(struct load *load, struct error *error);
/* So that a rank's files are not taken for the same files alone. */
void load_tell_ranks(struct load *load);

/* ---- meet.c ---- */

/* The source is open: takes what is there, waits for what is on its way, goes on with the rest. */
void load_meet(struct load *load);

/* ---- part.c ---- */

/* Has a target that lives. */
bool part_lives(const struct load_part *part);
/* On a worker: headers, plan, books. */
int part_plan(struct load_part *part, struct error *error);
/* Again, for segments of another size. */
int part_replan(struct load_part *part, const struct device_layout *layout, struct error *error);
/* From its files on, for another round. */
int part_again(struct load_part *part, struct error *error);
void part_read(struct load_part *part);
void part_deinit(struct load_part *part); /* on a worker */

/* ---- progress.c ---- */

/* It has ended. Tells those who watch, each unlinked before it is called; those who follow keep it from going. */
void load_tell_watchers(struct load *load);
void load_move_watchers(struct load *from, struct load *to);

/* ---- loads.c ---- */

/* This load wants the generation: pinned, kept alive, as it was asked to be. */
void load_keep(const struct load *load, struct generation *generation);
/* May it? It asks for nothing, or the generation is its caller's. STREAMER_EPERM. */
int load_may_keep(const struct load *load, const struct generation *generation, struct error *error);
/* When nothing of it is in flight and it has ended. */
void load_free(struct load *load);

#endif
