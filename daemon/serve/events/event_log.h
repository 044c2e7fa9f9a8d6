/* SPDX-License-Identifier: Apache-2.0
 *
 * Events of models that some subscribers have not received yet. Each records the state at its time, and is freed when
 * the last subscriber has received it. A subscriber's position is the last event that it has received. Sending
 * events, and filtering them by name, is the caller's task.
 */
#ifndef DAEMON_SERVE_EVENTS_EVENT_LOG_H
#define DAEMON_SERVE_EVENTS_EVENT_LOG_H

#include "daemon/resident/model.h"

/* One change of one generation. */
struct model_event {
        struct list link;
        size_t positions; /* subscribers whose position this is */
        size_t size;      /* of its memory */
        uint64_t ends;    /* event_log->ends at its time */
        uint64_t number, bytes, tensors;
        const char *device, *state;
        int code; /* 0, or the failure's, with `text` */
        const char *text;
        char *names; /* that it concerns, the reported one first; an empty one ends them */
};

struct event_log {
        struct list events;        /* oldest first; never empty */
        struct model_event origin; /* the position of subscribers that joined before the first event */
        struct list pending;       /* of struct subscriber; the one that has waited longest is first */
        struct list up_to_date;    /* subscribers that have received all events */
        size_t n_subscribers;
        uint64_t bytes; /* of events */
        uint64_t ends;  /* set by the caller: counts other events that are sent in one order with these */
};

struct subscriber {
        struct list link;       /* in event_log->pending or ->up_to_date */
        struct model_event *at; /* its position; NULL: not subscribed */
};

void event_log_init(struct event_log *event_log);
void event_log_deinit(struct event_log *event_log); /* subscribers receive nothing more */
/* Adds nothing without subscribers. STREAMER_ENOMEM. */
int event_log_add(struct event_log *event_log, const struct generation *generation);

/* It receives later events only. */
void event_log_subscribe(struct event_log *event_log, struct subscriber *subscriber);
/* Accepts one that is not subscribed. */
void event_log_unsubscribe(struct event_log *event_log, struct subscriber *subscriber);
/* The subscriber that has waited longest for its next event, or NULL. */
struct subscriber *event_log_next_subscriber(const struct event_log *event_log);
/* The event that event_log_next() would return. */
struct model_event *event_log_peek(const struct event_log *event_log, const struct subscriber *subscriber);
/* Its next event, valid until its next call; other pending subscribers then precede it. NULL: it has received all, or
 * is not subscribed. */
const struct model_event *event_log_next(struct event_log *event_log, struct subscriber *subscriber);
/* NULL name: any. */
bool model_event_concerns(const struct model_event *event, const char *name);

#endif
