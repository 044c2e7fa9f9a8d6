/* SPDX-License-Identifier: Apache-2.0
 *
 * The state that the modules of daemon/serve share: the daemon's parts that sessions act on, the queues and tasks of
 * the loop, and the sessions. Everything here belongs to the loop thread.
 */
#pragma once

#include "daemon/base/sys/listen.h"
#include "daemon/load/load.h"
#include "daemon/publish/publication.h"
#include "daemon/resident/persist/persist.h"
#include "daemon/serve/access/role.h"
#include "daemon/serve/conn/conn.h"
#include "daemon/serve/conn/turns.h"
#include "daemon/serve/desired/desired.h"
#include "daemon/serve/desired/disk_pins.h"
#include "daemon/serve/desired/scrub.h"
#include "daemon/serve/events/changes.h"
#include "daemon/serve/limits.h"

#define STATUS_MAX 256

struct cuda;
struct reload;
struct session_ops;

/* The verb `shutdown` was called. */
enum server_ending {
        ENDING_NOT,
        ENDING_DRAINED, /* as soon as no lease and no load is left; no new ones begin */
        ENDING_NOW,
};

struct server {
        uv_loop_t *loop;
        struct poll_set *polls; /* connections and processes */
        const struct limits *limits;
        const struct session_ops *session_ops; /* what sessions do */
        const struct roles *roles;
        struct loop_cpu loop_cpu;
        struct desired desired;
        struct disk_pins disk_pins;
        struct reload *reload;                 /* of daemon/config */
        void (*reload_begin)(struct reload *); /* verbs_reloaded() answers */
        /* Adds a row for each key of the configuration. */
        void (*describe_config)(const struct reload *reload, struct items *rows);
        uint64_t exit_idle_ns, last_active_ns;                /* exits after so long without activity; 0: never */
        bool was_busy;                                        /* a second ago */
        void (*exit)(struct server *server, const char *why); /* begins the end */
        enum server_ending ending;
        uid_t ended_by;             /* ending: the user who asked for it */
        struct list reloads;        /* of struct deferred: requests for a reload */
        bool share_across_uids;     /* writable handles may go to processes of several users */
        bool trust_detach;          /* a detach ends a lease of writable handles; else the process's exit does */
        bool publish_across_uids;   /* published models may be attached to by every user */
        bool decrypted_across_uids; /* likewise those that were decrypted */
        bool publish_cuda_ipc;      /* clients may publish in memory that stays writable */
        uint64_t publish_keep;      /* struct publications */
        uint64_t n_compared;        /* resident->n_readied when publish_tick() was called last */
        struct resident *resident;
        struct loads *loads;
        struct publications publications;
        struct leases leases;
        struct persist persist; /* what survives this process */
        struct scrub scrub;
        uint64_t started_ns;
        uint64_t last_op;
        uint64_t fds_out,
                fds_counted_ns;   /* descriptors on their way to clients at the most, and when they were counted */
        struct cuda *cuda;        /* NULL: no GPU is configured; then doctor opens the runtime for a look */
        const char *cuda_library; /* NULL: the usual names */
        const struct device_absence *absent; /* optional devices that do not work */
        size_t n_absent;

        struct listener listener;
        uv_poll_t accept_poll;
        struct turns turns;
        /* The timer (server.c): when it is due next, and for each_second(); UINT64_MAX: not before something happens.
         */
        uv_timer_t tick;
        uv_prepare_t about_to_wait;
        uint64_t tick_at_ns, second_at_ns;
        uv_timer_t arrivals;     /* calls loads_notify_arrivals() */
        uint64_t arrivals_at_ns; /* UINT64_MAX: not */
        uint64_t n_happened;     /* what the loop had been called for when the timer was started last */
        uint64_t n_accepted;
        unsigned accept_most; /* connections that are taken in this turn of the loop */
        bool accepts;         /* it has taken some */
        bool closing;         /* server_close() */

        struct list conns;       /* of struct conn */
        struct buckets waiting;  /* of struct deferred: requests that a change may answer, by its subject */
        struct list recheck;     /* the same, since there was one, and those whose deadline has passed */
        struct tree timed;       /* those that have a deadline, the earliest first */
        struct loop_task answer; /* examines them */
        /* Notification (events.h). */
        struct changes model_changes;
        struct list due, up_to_date; /* of struct session; up_to_date: those that subscribe or watch loads */
        struct list watching;        /* by in_watching: those that watch loads */
        uint64_t progress_round;
        struct loop_task notify;     /* sends events */
        struct list queued, started; /* of struct verb_task */
        bool starting;               /* some of the queued ones are being started */
        uint64_t file_bytes;         /* of transfers (verbs/fetch.c) */
        uint64_t last_transfer;
        struct quotas users;
        uint64_t n_conns;             /* within the limits */
        bool refusing;                /* one was refused, since the last one ended */
        char last_status[STATUS_MAX]; /* the last STATUS= */
        bool ready_due;               /* READY=1 could not be sent */
        uint64_t alive_ns;            /* the last WATCHDOG=1 */
};

#define SESSION_MAGIC 0x73657373u

struct session {
        unsigned magic; /* SESSION_MAGIC */
        struct server *server;
        struct conn *conn;
        bool greeted;
        bool counted;                 /* its user is known, and it is within the limits: in server->n_conns */
        char *client;                 /* what it calls itself; NULL: nothing */
        struct list in_events;        /* in server->due or ->up_to_date, or in none */
        struct subscriber subscriber; /* of states of models */
        uint64_t ends_notified;       /* loads->n_ended when none of its ops was left that had ended */
        uint64_t progress_round;      /* of the server, in which its ops became due last */
        struct list ops;              /* of struct op */
        struct list due_ops;          /* of these, by in_due: to be notified of the progress */
        struct list in_watching;      /* in server->watching, while it has ops */
        struct lease_owner leases;
        struct list due_leases;   /* of these, by in_due: with an event to be sent */
        struct list publications; /* of struct publication, by in_session */
        struct list deferred;     /* of struct deferred, by in_session */
        struct list transfers;    /* of struct transfer */
        uint64_t n_deferred;
        uint64_t probe;             /* the seed of its test model, which ends with the session; 0: none */
        struct quota_charge charge; /* the connection */
        struct quota_charge fds;    /* descriptors that it may not have received yet */
};
