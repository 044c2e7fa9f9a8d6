/* SPDX-License-Identifier: Apache-2.0
 *
 * Files that clients fetch: the memory that they use, and the pages in which they are sent. Belongs to the loop thread.
 *
 * A file of one page is sent at once. A larger one waits until the bytes of its user and of all users allow it, in
 * order; it uses them from its reading until its last page is sent, its connection is closed, or its time is over.
 */
#ifndef DAEMON_SERVE_FILE_TRANSFER_H
#define DAEMON_SERVE_FILE_TRANSFER_H

#include "daemon/serve/verb_task.h"

#define TRANSFER_PAGE (512 * KiB)
#define TRANSFER_FILE_MAX (64 * MiB)
#define TRANSFER_USER_MAX (64 * MiB)   /* files of one user that are read or sent, without those of one page */
#define TRANSFER_BYTES_MAX (256 * MiB) /* of all users */

/* A file, from the request for its memory to its last page. */
struct transfer {
        struct list in_session; /* while it is sent */
        struct list waiting;    /* in server->file_memory */
        struct server *server;
        struct quota_charge charge; /* of the user; amount 0 while it waits */
        bool own;                   /* root or the daemon's own user */
        struct verb_task *task;     /* while it waits, as `source` */
        const char *source;
        uint64_t id, size, sent, until_ns;
        char *data;
        char file[];
};

/* NULL: STREAMER_ENOMEM. */
struct transfer *transfer_new(const struct session *session, const char *file, uint64_t size, struct error *error);
/* Submits the task in the lane of the source (verb_task_submit_source), at once or when `data` may be allocated, by
 * malloc(). */
void transfer_await_memory(struct transfer *transfer, struct verb_task *task, const char *source);
/* Accepts NULL. */
void transfer_free(struct transfer *transfer);

/* Replies with the file, or its first page. Takes the transfer over. `until_ns`: its end. */
void transfer_send_consume(struct session *session, uint64_t id, struct transfer *transfer, uint64_t until_ns);
/* Replies with the next page of the transfer `more`. STREAMER_ENOENT. */
int transfer_send_next(struct session *session, uint64_t id, uint64_t more, struct error *error);
/* About once a second: frees those whose time is over. UINT64_MAX: the session ends, and so do all. */
void transfers_expire(struct session *session, uint64_t now_ns);

#endif
