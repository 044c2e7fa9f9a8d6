/* SPDX-License-Identifier: Apache-2.0
 *
 * The checker's model of the daemon. It tracks each generation on each device until its memory there is freed;
 * replicas share a number. On each device a name refers to one generation or none; each slot of each client process
 * leases one or none.
 *
 *   named, ready --(last name removed)--> draining --(last lease ended)--> freed
 *     |                                     \-- by force, or after its drain timeout: revoked; lease holders are
 * notified
 *     \--(evicted from a GPU)--> cached --(restored, unloaded, or dropped from the cache)--> freed
 *
 * The model has no clock. A keep-alive of one millisecond expires at once when the generation has no lease and no pin,
 * and a drain timeout of one millisecond passes at once; the daemon may take until the next comparison agrees. LONG_MS
 * never passes.
 *
 * Some sources have one file per rank. Their ranks are loaded to one device each, all or none: rank r to the r-th
 * device named. Such a load creates a set with a number of its own. A load of these files to these devices in
 * this order finds the set resident while each rank has a name; otherwise all are loaded anew. Names refer to each rank
 * separately: a load to one of the devices, or an unload from one, removes that rank's name only. But the named ranks
 * of a set are evicted, cached, dropped from the cache and expire together, so a rank that is leased or pinned, or
 * serves the name that is being loaded, protects the others; a draining rank does not count. The cache has all ranks of
 * a set or none: the first that loses its name there removes the others.
 *
 * Each load and each change is one user's: the checker's own, who is an admin, or one of two who may load. A name
 * belongs to the user who first loaded something under it, as long as it leads to anything; a generation belongs to the
 * owner of its oldest name; its bytes are charged to each user who gave it one of its names, or the last it had. What a
 * user asks for without the right to it changes nothing.
 *
 * The disk cache changes nothing of all this: what is loaded has the bytes of the file that it was loaded from. In the
 * middle of a run the daemon ends and another one starts, with no model and the same disk cache.
 *
 * The model does not determine, and takes from the daemon's list: which candidates are evicted (though none if lower
 * priorities suffice), whether the host cache accepts them and what it drops, whether a cancelled load ends first, and
 * which of two requests that one load answers had begun it.
 */
#pragma once

#include "tests/model/checker.h"
#include "tests/lib/client_process.h"
#include "tests/lib/fixture.h"

#define SOURCES 14u
#define PLAIN_SOURCES 10u /* the first of the sources; the others have one file per rank */
#define NAMES 8u
#define CLIENTS 6u
#define USERS 3u
#define ADMIN 0u /* the checker's own user; the others have the role load */
#define DEVICES 3u
#define GENERATIONS (DEVICES * (NAMES + 1) + CLIENTS * CLIENT_SLOTS)
#define TRAIL 16u
#define CHECKER_WAIT_MS 30000
/* Keep-alive and drain times: one that passes at once, and one that does not pass during a run. */
#define BRIEF_MS 1u
#define LONG_MS 86400000u

/* The settings of a name on a device. They stay with it until it leads to nothing there, but for the time to drain,
 * which is of the load of what it leads to. What a name of a generation or of its set has, protects that as a whole. */
struct facts {
        unsigned priority, keep_alive_ms, drain_ms;
        bool pinned;
};

struct gen {
        uint64_t number; /* 0: unused entry */
        uint64_t seed, charged;
        unsigned device, source, version, leases;
        unsigned rank, ranks; /* 0: a plain source */
        unsigned last_name;   /* the last name that was removed from it */
        /* Bits of the names that one step removed from it last: overlapping loads remove two, in either order, and the
         * daemon's list has the last of them. */
        unsigned left;
        uint64_t left_at;                               /* that step */
        unsigned left_paths[NAMES], left_owners[NAMES]; /* of each when it was removed, as in struct checker */
        struct facts left_facts[NAMES];
        uint64_t order[NAMES];  /* of its names, the oldest first; equal where the model does not know it */
        unsigned givers[NAMES]; /* the user who gave it each of its names, and of the last it had */
        bool revoked, cached;
        bool restored; /* cached, and just loaded from the cache: the cache may have dropped it */
};

struct checker_device {
        const char *name;
        uint64_t budget;
        int gpu;   /* -1: none */
        bool lost; /* out of service */
};

struct checker {
        struct daemon daemon;
        struct checker_device devices[DEVICES];
        unsigned n_devices;
        uint64_t cache_budget; /* 0: no cache */
        char *report;          /* path of the fake GPUs' leak report; NULL: no fake GPUs */
        streamer_client *client, *subscriber;
        streamer_client *users[USERS]; /* of each; the first is `client` */
        unsigned n_users;              /* 1: only root can connect as others */
        unsigned subscribed_name;      /* NAMES or more: all names */
        bool subscriber_disconnected;  /* and not yet notified of lost events */
        json_t *events;                /* that the subscriber received last */
        char root[PATH_SIZE], text[1024];
        uint64_t seed, random_state, last_number, last_seed, first_step;
        struct checker_counts *counts;
        char trail[TRAIL][200]; /* the last actions: a ring */
        unsigned n_trail;

        unsigned versions[SOURCES];       /* how often each source was written */
        uint64_t seeds[SOURCES][DEVICES]; /* of each rank's file */
        struct gen gens[GENERATIONS];
        struct gen *names[NAMES][DEVICES];
        struct facts facts[NAMES][DEVICES]; /* of names that lead to something */
        /* What was loaded under the name last: bit 0, the source; bit 1, the link to it; both after a cancel, which may
         * have come before or after the load changed it. */
        unsigned paths[NAMES][DEVICES];
        unsigned owners[NAMES]; /* of a name that leads to something */
        struct client_process processes[CLIENTS];
        struct gen *leased[CLIENTS][CLIENT_SLOTS];
};

/* Of names that this step gives to generations; the number below it is free for one that turns out to be older. */
static inline uint64_t order_now(const struct checker *c)
{
        return 2 * c->counts->steps + 1;
}

_Noreturn void checker_fail(const struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Logs one action for the error report. */
void trail_add(struct checker *c, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint64_t random_below(struct checker *c, uint64_t n);
const char *name_of(unsigned n);

/* ---- the daemon (checker_daemons.c) ---- */

void start_daemon(struct checker *c, enum checker_kind kind, const char *folder);
/* Checks that it exits with 0 and leaks no GPU memory. */
void stop_daemon(struct checker *c);
/* Changes a byte of a copy in its disk cache. */
void step_damage(struct checker *c);
/* Makes one of its GPUs fail permanently. */
void lose_device(struct checker *c);

/* ---- requests to the daemon ---- */

json_t *call_json(struct checker *c, const char *verb, const char *args);
/* Returns 0 or the library's error; consumes `args`. */
int call_error(struct checker *c, unsigned user, const char *verb, json_t *args);
/* Its row in a reply of "status" or "doctor". */
const json_t *device_in(const struct checker *c, const json_t *reply, unsigned device);
uint64_t device_bytes(struct checker *c, unsigned device, const char *which); /* "used", "quarantined" */

/* ---- the model ---- */

struct gen *find_gen(struct checker *c, uint64_t number, unsigned device);
struct gen *find_free_gen(struct checker *c);
bool is_named(const struct checker *c, const struct gen *g);
/* The name refers to a generation on the device that is not cached. */
bool name_serves(const struct checker *c, unsigned name, unsigned device);
/* Also if another rank of its set is. */
bool is_leased(const struct checker *c, const struct gen *g);
/* What all names of it and of its set make together: the longest keep-alive (0: never, or it has no name), and the
 * highest priority. */
struct facts facts_of(const struct checker *c, const struct gen *g);
/* The name is pinned on the device, or with another rank of the set there. */
bool is_name_pinned(const struct checker *c, unsigned name, unsigned device);
/* Facts of a name that led to nothing. */
struct facts new_facts(void);
/* The two are the same, or named ranks of one set. */
bool in_one_set(const struct checker *c, const struct gen *g, const struct gen *other);
/* Its keep-alive time has passed. */
bool is_expired(const struct checker *c, const struct gen *g);
/* Clears the entry if no name and no lease refers to it; accepts NULL. */
void clear_if_unused(struct checker *c, struct gen *g);
/* Moves the name to `g`; NULL removes the name. The previous generation drains for at most `drain_ms`, or with 0 until
 * its last lease ends. */
void move_name(struct checker *c, unsigned name, unsigned device, struct gen *g, unsigned drain_ms);
void mark_revoked(struct checker *c, struct gen *g);

/* Waits until the daemon agrees with the model, or fails. With `may_evict` the daemon may have evicted any generation
 * that is neither leased nor pinned; the model then removes it or marks it cached, and counts it. */
void compare(struct checker *c, bool may_evict);

/* ---- steps (checker_steps.c) ---- */

void check_answer(struct checker *c, const struct client_answer *answer);
/* The client compares every byte of its leases and reports the revoked ones, which must be those of the model. */
void recheck_client(struct checker *c, unsigned process);
/* Detaches the lease of the slot. */
void detach_slot(struct checker *c, unsigned process, unsigned slot);
/* Kills the process and removes its leases from the model. */
void kill_client(struct checker *c, unsigned process);
void step(struct checker *c);

/* ---- connections (checker_reconnect.c) ---- */

void step_break(struct checker *c);

/* ---- loads (checker_loads.c) ---- */

struct load_options {
        unsigned priority, keep_alive_ms, drain_ms; /* 0: none */
        bool pin;
};

/* One load, and the state before it, by device. */
struct trial {
        unsigned user;
        unsigned name, source;
        unsigned owner;  /* of the name, once it is loaded */
        unsigned joined; /* the name of another load of the same files at the same time; NAMES: none */
        unsigned ranks;  /* 0: a plain source */
        bool by_link;    /* `path` is a link to the source: another text for the same files */
        bool on[DEVICES];
        const char *devices[DEVICES];
        unsigned order[DEVICES]; /* the same as numbers */
        unsigned n_devices;
        char *path;
        struct load_options options;
        bool no_evict;
        uint64_t used[DEVICES], needed[DEVICES];
        uint64_t protected_bytes[DEVICES]; /* bytes that no eviction could free when the load began */
        struct gen gens[GENERATIONS];
        unsigned priorities[GENERATIONS];
        bool evictable[GENERATIONS]; /* for this load */
        json_t *before;              /* the daemon's list; NULL with one device */
};

struct outcome {
        int result;
        uint64_t generation;
        bool got[DEVICES];
        bool fresh[DEVICES]; /* loaded by this request: not resident before; set by trial_apply() */
        bool any_fresh;
};

/* Draws a random load; `several`: of one or more devices. */
void trial_init(struct checker *c, struct trial *t, bool several);
/* Of the same source and devices under another name, by one of its paths, for any user. */
void trial_init_alias(struct checker *c, struct trial *t, const struct trial *of);
/* Asks for all settings where the name has some that the daemon may drop while it loads: with what it has of the name
 * in its cache, and, if another load may evict what the name leads to, wherever that is. As the admin, who may. */
void trial_ask_for_lost(struct checker *c, struct trial *t, bool may_be_evicted);
void trial_deinit(struct trial *t);
int trial_begin(struct checker *c, const struct trial *t, unsigned flags, streamer_op **op);
/* `r`: the result of trial_begin(). */
void trial_end(struct checker *c, const struct trial *t, int r, streamer_op *op, struct outcome *outcome);
/* The same for a load that another load may change concurrently: it does not check which devices have the model.
 * Returns the state that the daemon reports, or NULL. */
const char *trial_wait(struct checker *c, const struct trial *t, int r, streamer_op *op, struct outcome *outcome);
/* Applies the outcome to the model. */
void trial_apply(struct checker *c, const struct trial *t, struct outcome *outcome);
/* Applies it, and compares the events with it. */
void trial_follow(struct checker *c, const struct trial *t, struct outcome *outcome);
/* Compares the two; nothing was refused or evicted unnecessarily. */
void trial_check(struct checker *c, const struct trial *t, const struct outcome *outcome);

/* The resident generation that the load reuses on the device, or NULL. */
struct gen *resident_copy(struct checker *c, const struct trial *t, unsigned device);
/* Ranks are loaded on all devices or on none. */
bool load_fits(struct checker *c, const struct trial *t);
bool on_lost_device(const struct checker *c, const struct trial *t);
/* Bytes that no eviction can free: leased and pinned generations, and the one that serves the name (NAMES: none). */
uint64_t protected_bytes(const struct checker *c, unsigned name, unsigned device);

void step_load(struct checker *c);
void step_cancel(struct checker *c);

/* ---- sources (checker_sources.c) ---- */

/* As many files as it has ranks, or one. */
void write_source(struct checker *c, unsigned source);
unsigned source_ranks(unsigned source);
/* The whole of it, or the file of one rank. The caller frees. */
char *source_path(const struct checker *c, unsigned source);
char *link_path(const struct checker *c, unsigned source); /* leads to a plain source */
char *rank_path(const struct checker *c, unsigned source, unsigned rank);
/* Another version of the source, or of one of its ranks. */
void replace_source(struct checker *c, unsigned source);
void step_rewrite(struct checker *c);

/* ---- publications (checker_publish.c) ---- */

void step_publish(struct checker *c);

/* ---- events (checker_events.c) ---- */

void subscriber_start(struct checker *c, const streamer_connect_opts *opts);
void subscriber_disconnect(struct checker *c);
/* Reads all events that are pending. */
void subscriber_read_events(struct checker *c);
/* Checks that the subscriber was notified of the generations that became ready since the trial began. */
void subscriber_check_events(struct checker *c, const struct trial *t, const struct outcome *outcome);
void step_subscribe(struct checker *c);

/* ---- loads with a concurrent step (checker_concurrent.c) ---- */

void step_attach_loading(struct checker *c);
void step_wait(struct checker *c);
void step_join(struct checker *c);

/* ---- users (checker_users.c) ---- */

void users_start(struct checker *c, const streamer_connect_opts *opts);
void users_stop(struct checker *c);
unsigned draw_user(struct checker *c); /* the admin half of the time */
bool name_exists(const struct checker *c, unsigned name);

/* Whether a request is denied, as far as the model knows. */
struct verdict {
        bool must, may; /* be denied */
};
struct verdict judge_load(struct checker *c, const struct trial *t);
struct verdict judge_unload(const struct checker *c, unsigned user, unsigned name);
/* Pin, unpin and priority of all that the name leads to. */
struct verdict judge_settings(const struct checker *c, unsigned user, unsigned name);
/* Whether the user may revoke a draining generation. */
bool may_revoke(const struct checker *c, unsigned user, const struct gen *g);
/* The result is the verdict's; true: it was denied. */
bool was_denied(struct checker *c, unsigned user, const char *verb, unsigned name, int r, struct verdict verdict);

/* Each user is charged for the bytes that it has on the devices; `counts`: the generations that are there. */
bool charges_agree(struct checker *c, const bool counts[GENERATIONS]);
/* No user is charged for anything but connections. */
bool charges_ended(struct checker *c);
