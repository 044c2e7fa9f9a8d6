/* SPDX-License-Identifier: Apache-2.0
 *
 * Changes of models that not all who listen have heard of yet: each as it was when it happened, kept until the
 * last of them has been told. Each stands at the one it has heard of last; telling, and whom what concerns, is the
 * caller's.
 */
#ifndef DAEMON_SERVE_NEWS_H
#define DAEMON_SERVE_NEWS_H

#include "daemon/resident/resident.h"

/* One change of one generation. */
struct item {
        struct list link;
        size_t standing; /* how many stand at it */
        size_t size;     /* of its memory */
        uint64_t ends;   /* news->ends then */
        uint64_t number, bytes, tensors;
        const char *device, *state;
        int code; /* 0, or why it failed, with `text` */
        const char *text;
        char *names; /* that it concerns, the one that it is told under first; an empty one ends them */
};

struct news {
        struct list items;   /* oldest first; never empty */
        struct item nothing; /* that one stands at who came before there was any */
        struct list behind;  /* of struct listener; who waits longest is first */
        struct list current; /* who has heard of all */
        size_t n_listeners;
        uint64_t bytes; /* of items */
        uint64_t ends;  /* the caller's: what else has happened by now that is told in one order with items */
};

struct listener {
        struct list link; /* in news->behind or news->current */
        struct item *at;  /* NULL: it does not listen */
};

void news_init(struct news *news);
void news_deinit(struct news *news); /* who still listens hears of nothing */

/* Nothing where nobody listens. STREAMER_ENOMEM. */
int news_add(struct news *news, const struct generation *generation);

/* It hears of what comes from now on. */
void news_join(struct news *news, struct listener *listener);
/* Accepts one that does not listen. */
void news_leave(struct news *news, struct listener *listener);

/* Who waits longest to hear something; NULL: nobody does. */
struct listener *news_behind(const struct news *news);
/* What news_next() would be. */
const struct item *news_peek(const struct news *news, const struct listener *listener);
/* What it hears of next, there until it hears of another; who else is behind comes before it then. NULL: it has
 * heard of all, or does not listen. */
const struct item *news_next(struct news *news, struct listener *listener);

/* NULL name: any. */
bool item_concerns(const struct item *item, const char *name);

#endif
