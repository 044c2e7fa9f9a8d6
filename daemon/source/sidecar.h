/* SPDX-License-Identifier: Apache-2.0
 *
 * Sidecars: the small files beside the weights of a source, such as config.json and tokenizer.json. A sidecar's name is
 * relative to the directory of the source; the directory of a source that is one file is the one that holds it.
 */
#ifndef DAEMON_SOURCE_SIDECAR_H
#define DAEMON_SOURCE_SIDECAR_H

#include "daemon/base/error.h"
#include "proto/messages.h"

#define SIDECAR_FILES_MAX 1000 /* in one list */
#define SIDECAR_NAME_MAX PROTO_FILE_MAX

struct sidecar {
        char *name;
        uint64_t bytes; /* UINT64_MAX: unknown */
};

struct sidecar_list {
        struct sidecar *v;
        size_t n;
};

/* 0, or STREAMER_EINVAL unless the name is relative and has no empty, "." or ".." component. */
int sidecar_check_name(const char *name, struct error *error);

/* Adds a file that is not hidden, holds no weights and has a valid name; others are skipped. STREAMER_EFAILED beyond
 * SIDECAR_FILES_MAX; `shown` is the source, for the message. */
int sidecar_list_add(struct sidecar_list *list, const char *name, uint64_t bytes, const char *shown,
                     struct error *error);
void sidecar_list_sort(struct sidecar_list *list);   /* in byte order of the names */
void sidecar_list_deinit(struct sidecar_list *list); /* accepts a zeroed list */

#endif
