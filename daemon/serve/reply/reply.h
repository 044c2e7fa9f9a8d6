/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of replies that describe models and loads: the shapes of docs/protocol.md.
 */
#ifndef DAEMON_SERVE_REPLY_REPLY_H
#define DAEMON_SERVE_REPLY_REPLY_H

#include "daemon/resident/model_set.h"
#include "daemon/serve/server_state.h"

/* A model under one of its names; `desired`: of this name, or NULL. */
void reply_model(struct writer *writer, const struct model_set *group, const struct desired_model *desired);

/* A desired model of which nothing is resident. */
void reply_desired(struct writer *writer, const struct desired_model *desired);

/* A key and its value. A digest is empty where none is known yet; a URL loses its query, which may be
 * a signature. */
void reply_source(struct writer *writer, const char *source);
void reply_digest(struct writer *writer, const struct generation *generation);
void reply_digest_bytes(struct writer *writer, const char *key, const unsigned char *digest); /* NULL: unknown */
/* Five keys: how a client maps a segment. `fd`: the number of its descriptor in the reply. Returns the descriptor, or
 * -1 where the reply has the handle's bytes. */
int reply_segment(struct writer *writer, const struct generation *generation, unsigned segment, size_t fd);
/* A key and its value: the staging ring. */
void reply_ring(struct writer *writer, struct reader *reader);
/* Seven keys: the progress of a load, for its watchers and for `status`. */
void reply_progress(struct writer *writer, const struct load_progress *progress);

/* ---- whole replies ---- */

/* Or *error, and nothing is written. */
typedef int reply_fn(struct writer *writer, const struct server *server, const struct request *request,
                     struct error *error);
reply_fn reply_list, reply_show, reply_status;
void reply_estimate(struct writer *writer, const struct load *load, uint64_t id);

#endif
