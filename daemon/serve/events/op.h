/* SPDX-License-Identifier: Apache-2.0
 *
 * Load events: a load that a client watches, and the events that notify it of the progress and the end.
 */
#ifndef DAEMON_SERVE_EVENTS_OP_H
#define DAEMON_SERVE_EVENTS_OP_H

#include "daemon/serve/session.h"

/* A load that this client watches. */
struct op {
        struct list link;
        struct round_robin_member round_robin; /* it is notified of the progress */
        struct session *session;
        struct load_watch watch;
        uint64_t id;
        uint64_t request; /* of a load that attaches, which is answered later; else 0 */
        char *model;
};

/* NULL on ENOMEM: the connection ends, since the client would wait for ever. */
struct op *op_new(struct session *session, struct load *load, uint64_t id);
void op_free(struct op *op);

/* Sends an event about the progress. */
void op_send_progress(struct op *op);
/* Sends the event of the end, and frees the op. All that happened before was sent before. */
void op_send_end(struct op *op);

#endif
