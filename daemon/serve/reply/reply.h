/* SPDX-License-Identifier: Apache-2.0
 *
 * The parts of replies that describe models and loads: the shapes of docs/protocol.md.
 */
#pragma once

#include "daemon/resident/model_set.h"
#include "daemon/serve/server_state.h"

/* A model under one of its names. `group` is empty, but for the name, if nothing of it is resident; `desired`: of this
 * name, or NULL. */
void reply_model(struct writer *writer, const struct model_set *group, const struct desired_model *desired,
                 const struct source_notes *notes);

/* A digest is empty where none is known yet (NULL); a URL loses its query, which may be a signature. */
struct pair reply_source(const char *source);
struct pair reply_digest(const struct generation *generation);
struct pair reply_digest_bytes(const char *key, const unsigned char *digest);
/* The i-th of an array of texts; for karray(). */
void reply_text(struct writer *writer, const void *texts, size_t i);
/* A struct encryption; for kcall(). */
void reply_encryption(struct writer *writer, const void *encryption);
/* Of the generation, which may be NULL or have none. */
extern const struct source_notes reply_no_notes;
const struct source_notes *reply_notes(const struct generation *generation);
/* The staging ring of a struct server; for kcall(). */
void reply_ring(struct writer *writer, const void *server);

/* How a client maps a segment. `n`: the number of its descriptor in the reply. */
#define REPLY_SEGMENT(segment, n)                                                                                      \
        kstr("kind", (segment)->device->handles),                                                                      \
                (segment)->fd >= 0 ? ku64("fd", n) : kbin("handle", (segment)->ipc, IPC_SIZE),                         \
                ku64("size", (segment)->size), ku64("offset", 0), kstr("uuid", (segment)->device->uuid)
/* A struct load_progress, for the load's watchers and for `status`. */
#define REPLY_PROGRESS(p)                                                                                              \
        ku64("generation", (p).generation), kstr("state", load_state_name((p).state)), ku64("bytes", (p).bytes),       \
                ku64("total", (p).total), ku64("tensors", (p).tensors), ku64("tensors_total", (p).tensors_total),      \
                ku64("load_ns", (p).load_ns)
/* A struct source_notes, never NULL: what a load left out, and what its index lists in vain. */
#define REPLY_NOTES(n)                                                                                                 \
        kif((n)->n_left_out > 0, karray("left_out", reply_text, (n)->left_out, (n)->n_left_out)),                      \
                kif((n)->n_missing > 0, ku64("missing_tensors", (n)->n_missing)),                                      \
                kif((n)->n_missing > 0, karray("missing", reply_text, (n)->missing, source_notes_named(n)))
/* What `status` and `doctor` say of a device. */
#define REPLY_DEVICE(d)                                                                                                \
        kstr("device", (d)->name), kstr("uuid", (d)->uuid), ku64("budget", (d)->budget), ku64("used", (d)->used),      \
                kstr("page_kind", page_kind_name((d)->pages))
