/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of replies that describe models and loads: the shapes of docs/protocol.md.
 */
#ifndef DAEMON_SERVE_REPLY_H
#define DAEMON_SERVE_REPLY_H

#include "daemon/resident/group.h"
#include "daemon/serve/server.h"

/* One model under one of its names; `wanted`: of this name, or NULL. */
void reply_model(struct writer *writer, const struct group *group, const struct wanted *wanted);

/* One that is to be resident and of which nothing is there. */
void reply_wanted(struct writer *writer, const struct wanted *wanted);

/* A key and its value. A digest is empty where none is known yet; a URL loses its query, which may be
 * a signature. */
void reply_source(struct writer *writer, const char *source);
void reply_digest(struct writer *writer, const char *key, const struct generation *generation);
void reply_group_digest(struct writer *writer, const struct group *group);
/* Seven keys: what is told of a load to its watchers and by `status`. */
void reply_progress(struct writer *writer, const struct load_progress *progress);

/* ---- whole replies ---- */

void reply_list(struct writer *writer, const struct server *server, const struct request *request);
/* STREAMER_EUNSUPPORTED where one record exceeds a frame. */
int reply_show(struct writer *writer, const struct server *server, const struct group *group,
               const struct generation *generation, const struct request *request, struct error *error);
void reply_estimate(struct writer *writer, const struct load *load, uint64_t id);

#endif
