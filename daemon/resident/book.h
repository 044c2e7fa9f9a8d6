/* SPDX-License-Identifier: Apache-2.0
 *
 * What must survive a kill -9 and changes too often for a file: which name leads to which kept model,
 * and who holds leases. A memfd that the daemon writes and the service manager keeps open: what was
 * written is there for the next run, in the order in which it was written.
 *
 * Rows of fixed size, one for each name and lease. A row is filled first and then marked, by one
 * store, so that it is there whole or not at all. A name switches in one step: the row for the newer
 * model is marked before the older one's is cleared, and a reader takes the newest of two.
 */
#ifndef DAEMON_RESIDENT_BOOK_H
#define DAEMON_RESIDENT_BOOK_H

#include "daemon/base/error.h"
#include "proto/messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define BOOK_TOKEN 16
#define BOOK_NAMES 65536u
#define BOOK_LEASES 262144u

/* How a model is to be kept; each of these may change at any time. */
struct book_wish {
        uint64_t keep_alive_ns, drain_timeout_ns;
        uint32_t priority, pinned, owner; /* owner: of the name */
        uint32_t charged;                 /* whom the name is charged to, its uid and 1; 0: nobody, or not known */
};

struct book_name {
        uint64_t model; /* its id among the kept ones; 0: a free row; atomic */
        struct book_wish wish;
        char text[PROTO_NAME_MAX + 8];
};

struct book_lease {
        uint64_t id;      /* 0: a free row; atomic */
        uint64_t model;   /* kept id */
        uint64_t process; /* 0: its pidfd is not in the store yet */
        uint64_t since_ns;
        uint32_t pid, uid;
        unsigned char token[BOOK_TOKEN];
        uint64_t taken_ns; /* its model is taken by force then, or was (CLOCK_MONOTONIC); 0: never; atomic */
};

/* Numbers that are never used twice, run after run. */
enum book_counter { BOOK_MODEL, BOOK_PROCESS, BOOK_LEASE, BOOK_GENERATION, BOOK_COUNTERS };

struct book;

struct book *book_new(struct error *error); /* NULL on failure */
/* One of an earlier run. Takes over fd; NULL where it is not one, or of another version. */
struct book *book_open_consume_fd(int fd, struct error *error);
struct book *book_free(struct book *book);
int book_fd(const struct book *book);

uint64_t book_next(struct book *book, enum book_counter counter);
uint64_t book_last(const struct book *book, enum book_counter counter);
void book_raise(struct book *book, enum book_counter counter, uint64_t at_least);

/* A free row, filled and marked; NULL where all are taken. */
struct book_name *book_add_name(struct book *book, uint64_t model, const char *text, const struct book_wish *wish);
void book_drop_name(struct book *book, struct book_name *row);
struct book_lease *book_add_lease(struct book *book, const struct book_lease *lease);
void book_drop_lease(struct book *book, struct book_lease *row);

/* Rows that are marked: the next after `row`, NULL for the first; NULL at the end. */
struct book_name *book_each_name(struct book *book, const struct book_name *row);
struct book_lease *book_each_lease(struct book *book, const struct book_lease *row);

#endif
