/* SPDX-License-Identifier: Apache-2.0
 *
 * Leases. A lease is one attach of one client. It ends by detach, or when its connection is closed and its process
 * has exited: memory that a live process may have mapped is never freed or reused.
 *
 *   attach --> loading --> held --> revoked <--+
 *                 |          |         |       | reclaimed, as any of these three
 *                 +----------+---------+       |
 *                   connection closed          |
 *                            v                 |
 *                         orphan --------------+--------- unclaimed <-- restored from an earlier run
 *
 * Each lease has a token that only its client knows: with it the client library reclaims the lease after the
 * connection or the daemon was lost.
 */
#pragma once

#include "daemon/base/list.h"
#include "daemon/base/quota.h"
#include "daemon/base/sys/container.h"
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/thread/poll_set.h"
#include "daemon/resident/model.h"

#include <sys/types.h>

#define LEASE_TOKEN 16 /* bytes */

/* A process that holds leases, over any number of connections. */
#define PROCESS_MAGIC 0x70726f63u

struct process {
        unsigned magic;     /* PROCESS_MAGIC */
        struct list link;   /* in leases->processes */
        struct list by_pid; /* in leases->by_pid, by its number or inode */
        struct leases *leases;
        pid_t pid;      /* 0: in another PID namespace */
        uint64_t inode; /* of its pidfd, which identifies it there; 0: it has a number, or is not identified */
        uid_t uid;
        int pidfd;          /* readable when the process has exited; -1: it is polled, and never in the fd store */
        uint64_t began;     /* start time of one that is polled (peer.h); else 0 */
        struct list polled; /* in leases->polled */
        bool exited, counted;
        char *client;  /* the name it gave; NULL: none */
        bool asked;    /* for its container, which `ps` shows */
        uint64_t page; /* of ps, for which its command name was read last */
        char comm[SYSFILE_COMM];
        struct container container;
        struct list held;      /* of leases */
        struct polled poll;    /* the server's, of pidfd */
        uint64_t persisted_id; /* its number in the snapshot; 0: it was in none */
        bool stored;           /* its pidfd is in the fd store */
        struct list in_due;    /* in persist->due_processes: its pidfd may have to be stored */
};

/* A session owns the first three. Detach ends and frees a lease that is owned, the exit of its process one that is not.
 */
enum lease_state {
        LEASE_LOADING,   /* its client is notified of the tensors that arrive */
        LEASE_HELD,      /* its client knows that the load has ended */
        LEASE_REVOKED,   /* its client knows that the model was unloaded by force */
        LEASE_ORPHAN,    /* its connection is closed */
        LEASE_UNCLAIMED, /* its connection was to an earlier run; an orphan once the time to reclaim is over */
};

/* Who holds leases: a session. */
struct lease_owner {
        struct list held; /* of struct lease, by in_owner */
        size_t n;
};

#define LEASE_MAGIC 0x6c656173u

struct lease {
        unsigned magic; /* LEASE_MAGIC */
        struct list in_generation, in_process, in_owner;
        struct list in_due;     /* in a list of its owner's: there is an event to be sent */
        struct list by_token;   /* in the buckets of leases */
        struct tree_node by_id; /* in leases->by_id */
        uint64_t id;
        struct generation *generation;
        struct process *process;
        enum lease_state state;
        struct lease_owner *owner; /* NULL: none */
        uint64_t since_ns;
        struct quota_charge charge;
        uint64_t notified_arrivals; /* that its client was notified of */
        unsigned char token[LEASE_TOKEN];
        uint64_t claim_until_ns; /* unclaimed: it counts as an orphan from then on */
        struct list in_persist;  /* in persist->due_leases: its row may differ from what was written last */
        bool written;            /* a row of it is in the snapshot */
};

struct leases {
        struct list processes;
        struct buckets by_pid, by_token;
        struct tree by_id;
        uint64_t pages;     /* of lists of leases that clients were sent */
        struct list polled; /* processes without a pidfd; the first is examined next */
        uint64_t last_id;
        size_t n;
        struct quotas *users; /* charged for restored leases; NULL: no quotas */
        /* Hooks of what makes leases outlive the daemon (persist), which sets them; NULL: nothing does. */
        struct persist *persist;
        void (*lease_made)(struct persist *persist, struct lease *lease);
        void (*lease_ended)(struct persist *persist, struct lease *lease);
        void (*process_freed)(struct persist *persist, struct process *process);
        /* Begin watching the pidfd of a new process; end it with its last lease. */
        int (*watch)(struct process *process);
        void (*unwatch)(struct process *process);
};

void leases_init(struct leases *leases);
void lease_owner_init(struct lease_owner *owner);

/* Takes over pidfd: for a process already known it is closed. NULL on ENOMEM (pidfd is closed). `pidfd`, `began`: of
 * pidfd_of_client(). */
struct process *leases_process_consume_fd(struct leases *leases, pid_t pid, uid_t uid, int pidfd, uint64_t began);

void lease_set_state(struct lease *lease, enum lease_state state);
/* NULL on ENOMEM. `process` may have no lease yet; it is freed with its last one. */
struct lease *lease_new(struct leases *leases, struct process *process, struct generation *generation,
                        struct lease_owner *owner);
/* As lease_new(), of an earlier run: unclaimed, with its old number and token; its user is charged even beyond today's
 * limits. */
struct lease *lease_restore(struct leases *leases, struct process *process, struct generation *generation, uint64_t id,
                            const unsigned char token[LEASE_TOKEN]);
/* Ends and frees it. */
void lease_end(struct leases *leases, struct lease *lease);
/* Passes it to another owner: an orphan, an unclaimed lease, or one whose connection has not been seen to close yet. */
void lease_claim(struct lease *lease, struct lease_owner *owner, enum lease_state state);

/* NULL if the owner holds none of this number. */
struct lease *lease_of_owner(struct leases *leases, const struct lease_owner *owner, uint64_t id);
/* The first from this number on, and the next one; NULL: none. */
struct lease *leases_from(const struct leases *leases, uint64_t id);
struct lease *lease_next(const struct lease *lease);
/* NULL if none has it. */
struct lease *leases_by_token(struct leases *leases, const unsigned char token[LEASE_TOKEN]);
bool lease_is_orphan(const struct lease *lease, uint64_t now);

/* The connection is closed: the lease becomes an orphan, or ends (and is freed) if its process has exited. */
void lease_abandon(struct leases *leases, struct lease *lease);
/* The process has exited: its orphans end. Leases of connections that other processes keep open end with those.
 * May free the process. */
void process_exited(struct process *process);
/* About ten times a second: examines some of the processes that have no pidfd. False: there are none. */
bool leases_poll(struct leases *leases);
/* Frees a process without leases. */
void process_reap(struct process *process);
