/* SPDX-License-Identifier: Apache-2.0
 *
 * A lease: one attach by one client. It ends by detach, or when its connection is closed and its
 * process has exited: memory that a live process may have mapped is never freed or reused. In
 * between it is an orphan, which `ps` shows.
 *
 *   held --- detach -------------------------------> ended
 *    |  \-- connection closed --> orphan --- exit --/
 *    |                             |   ^          /
 *    \---------- reclaimed -------/    \--- taken back from an earlier run
 *
 * Each has a token, known to its client alone: by that the client's library finds its lease again
 * when the connection or the daemon was gone in between.
 */
#ifndef DAEMON_RESIDENT_LEASE_H
#define DAEMON_RESIDENT_LEASE_H

#include "daemon/base/buckets.h"
#include "daemon/base/user.h"
#include "daemon/resident/book.h"
#include "daemon/resident/resident.h"

#include <sys/types.h>

struct keep;

/* A process that holds leases; one for each, whatever the number of its connections. */
struct process {
        struct list link;   /* in leases->processes */
        struct list by_pid; /* in leases->by_pid, or without_pid */
        struct leases *leases;
        pid_t pid; /* 0: in another PID namespace */
        uid_t uid;
        int pidfd;      /* readable when the process has exited */
        uint64_t began; /* of one that is looked at (pidfd.h), which is never in the store; 0: it has a pidfd */
        bool exited, counted;
        char *client;     /* what it calls itself; NULL: nothing */
        struct list held; /* of leases */
        void *watch;      /* the server's poll handle */
        uint64_t kept_id; /* its number in the book; 0: holds no kept lease */
        bool stored;      /* its pidfd is in the store */
};

struct lease {
        struct list in_generation, in_process, in_owner;
        struct list by_token; /* in leases->by_token */
        uint64_t id;
        struct generation *generation;
        struct process *process;
        void *owner; /* the session; NULL: orphan */
        uint64_t since_ns;
        struct user_charge charge;
        uint64_t told;         /* arrivals its client knows of */
        uint64_t looked;       /* generation->changes when its owner was told last */
        bool revoked;          /* its client knows that the model was taken from it */
        bool following, dirty; /* the model was loading at attach; something to tell */
        unsigned char token[BOOK_TOKEN];
        struct book_lease *row;  /* in the book; NULL: not kept */
        uint64_t claim_until_ns; /* taken back: how long its client may take until it is an orphan */
};

struct leases {
        struct list processes;
        struct buckets by_pid, by_token;
        struct list without_pid; /* processes of other PID namespaces */
        uint64_t last_id;
        size_t n;
        struct users *users; /* to whom what was taken back is charged; NULL: nobody counts */
        struct keep *keep;   /* what survives this process; NULL: nothing */
        /* A process holds its first lease / its last one is gone: begin and end watching its pidfd. */
        int (*watch)(struct process *process);
        void (*unwatch)(struct process *process);
};

void leases_init(struct leases *leases);

/* Takes over pidfd: for a process already known it is closed. NULL on ENOMEM (pidfd is closed). `began`: of
 * pidfd_of_client(). */
struct process *leases_process_consume_fd(struct leases *leases, pid_t pid, uid_t uid, int pidfd, uint64_t began);

/* NULL on ENOMEM. `process` may have come without any lease yet; it goes with its last. */
struct lease *lease_new(struct leases *leases, struct process *process, struct generation *generation, void *owner);
/* As lease_new, with the number and the token that it had; its user is charged, whatever the limits are now. */
struct lease *lease_restore(struct leases *leases, struct process *process, struct generation *generation,
                            struct book_lease *row);
void lease_end(struct leases *leases, struct lease *lease);

/* NULL if none has it. */
struct lease *leases_by_token(struct leases *leases, const unsigned char token[BOOK_TOKEN]);
bool lease_is_orphan(const struct lease *lease, uint64_t now);
/* How many processes hold it. */
unsigned leases_count_processes(const struct generation *generation);

/* The connection is gone: the lease lives on as an orphan if its process does. */
void lease_abandon(struct leases *leases, struct lease *lease);
/* The process is gone: its orphans end; leases of connections that others keep open end with those. */
void process_exited(struct process *process);
/* Frees a process that holds nothing. */
void process_settle(struct process *process);

#endif
