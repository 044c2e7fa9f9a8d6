/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to daemon/io/remote: remote objects (http_object.c), the network threads (http_engine.c), and the ranges of
 * their jobs that they have in flight (range.c).
 */
#pragma once

#include "daemon/io/http/transfer.h"
#include "daemon/io/reader/copy_queue.h"
#include "daemon/io/remote/concurrency.h"
#include "daemon/io/remote/http_object.h"

/* ---- objects ---- */

struct remote {
        struct http *http;
        struct http_access *access;
        const struct http_dialect *dialect;
        char *url;
        char *etag, *modified,
                *encoding; /* of each answer: its version (ETag), Last-Modified, Content-Encoding; NULL: it has none */
        char *listed_etag, *listed_time; /* as in struct object_url */
        bool atomic, text;               /* likewise */
        bool listed_another;             /* the list has another ETag than the object */
        bool unconditional;              /* atomic: the server refuses If-Match for the version that it has */
        bool is_unique;                  /* the version cannot be trusted: two numbers make it differ from all others */
        uint64_t unique[2];
        unsigned char *first;    /* the object's beginning: object.first_read bytes */
        struct disk_cache *disk; /* NULL: it is not for the disk cache */
        char *content;           /* as in struct object_url */
        unsigned char *stored;   /* what a label has as its first bytes: n_stored; NULL: what it has is in `first` */
        uint64_t n_stored;
        pthread_mutex_t mutex;
        char *redirect_url; /* under the mutex: see remote_redirect_url() */
};
struct remote *remote_of(const struct object *object);

/* A request for its bytes; len 0: all of it. What it points to lives as long as the object. */
void remote_request(const struct object *object, uint64_t offset, uint64_t len, struct http_request *request);
/* How an answer differs from the version that was opened. */
enum remote_difference { REMOTE_SAME, REMOTE_OTHER_ETAG, REMOTE_OTHER };
/* Sets `error` unless it is the same. */
enum remote_difference remote_compare_answer(const struct object *object, const struct http_answer *answer,
                                             struct error *error);
/* STREAMER_EFAILED: after an answer with another ETag one has the object's again. */
int remote_two_etags(const struct object *object, struct error *error);

/* The last target of its URL's redirects, so that not every range is redirected: a copy, or NULL. Links expire; then
 * NULL is set, and the next request starts from the beginning. */
char *remote_redirect_url(const struct object *object);
void remote_set_redirect_url(const struct object *object, const char *url);

/* ---- network threads ---- */

#define HTTP_TICK_MS 100u /* between two checks of what is in flight */

struct http_thread {
        struct reader_thread base;
        struct http_loop loop;
        struct copy_queue copy_queue;
        struct list ranges; /* in flight */
        unsigned n_ranges;  /* of them; under the reader's lock, as the next */
        bool waits;         /* for a copy to a device, and takes no runs meanwhile */
        bool recheck;       /* atomic: there may be tickets to take or to give up */
        uint64_t busy_ns;   /* when it last had work; 0: its connections are closed */
};

static inline void http_thread_recheck(struct http_thread *self)
{
        __atomic_store_n(&self->recheck, true, __ATOMIC_SEQ_CST);
}

/* ---- jobs ---- */

/* What the engine keeps for a job, under the reader's lock. */
struct http_job {
        struct concurrency concurrency;
        uint64_t received; /* atomic: bytes, including hedges */
        unsigned requests; /* of ranges: under way, and not paused */
        unsigned repeats;  /* of silent ones, which have not been answered */
};
/* Bytes of an answer were received and taken: those that a pause puts off are received again. */
static inline void http_job_moved(struct read_job *job, uint64_t now, size_t n)
{
        store_relaxed(&job->moved_ns, now);
        add_relaxed(&job->http->received, n);
}

/* ---- ranges ---- */

/* Of its first request. */
enum range_state {
        RANGE_WAITING,   /* there is none: it is made at retry.at_ns, or as soon as the load may have one more */
        RANGE_REQUESTED, /* under way, and counted among the requests of its job */
        RANGE_PAUSED, /* under way, and waits for a slot: it is not counted, since the slots may be held by ranges that
                       * wait for its end */
};

/* The second request instead of a silent one. */
enum range_repeat { REPEAT_UNUSED, REPEAT_UNANSWERED, REPEAT_USED };

struct range {
        struct list link;
        struct http_thread *thread;
        enum range_state state;
        enum range_repeat repeat;
        struct read_run run;
        struct http_transfer first, hedge;
        bool redirected;           /* the first goes to the stored target of a redirect instead of the object's URL */
        bool other_etag;           /* an answer had another ETag than the object */
        bool wrong;                /* its bytes cannot be decrypted: they are not requested again */
        unsigned char *hedge_slot; /* NULL: no hedge is under way */
        struct http_retry retry;

        /* The current block, if has_block: */
        bool has_block;
        struct ticket ticket;
        unsigned char *to;
        struct fill fill;
        bool silent;              /* its ticket is counted so */
        uint64_t begun_ns;        /* it, or the present try for it */
        uint64_t hedge_failed_ns; /* the last one; 0: none has */
};

/* Takes one more, if there is one. */
bool range_take(struct http_thread *self);
/* Ends the ranges of stopped jobs, or all if the reader ends; resumes ranges that waited for a slot. */
void ranges_recheck(struct http_thread *self);
/* Once for each turn of the loop: starts retries, and remedies for silent and late ranges. Milliseconds that the loop
 * may wait. */
unsigned ranges_tick(struct http_thread *self);

/* The engine's operation: wakes all threads; the one with the fewest ranges takes what there is. */
void http_wake(struct reader *reader);

/* ---- steps of a range that tests call, too ---- */

/* With the lock held: the thread that is to take the next run, which has the fewest ranges of those that do not wait.
 */
struct http_thread *http_next_taker_locked(struct http_thread *self);

/* With the lock held: the block that was requested at `since_ns` is late, no block is left to take, and the server has
 * capacity for more requests. */
bool http_block_late_locked(struct read_job *job, uint64_t since_ns, uint64_t now);
/* The same: counts the repeat of a silent request. False if blocks are left to take, or enough are repeated. */
bool http_try_repeat_locked(struct read_job *job);
/* Callbacks of the first request and of the hedge. */
enum http_sink range_bytes(struct http_transfer *t, const unsigned char *data, size_t n);
void hedge_done(struct http_transfer *t, enum http_outcome outcome);
