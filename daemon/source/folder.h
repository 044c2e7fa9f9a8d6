/* SPDX-License-Identifier: Apache-2.0
 *
 * Which files of a folder make a model. The choice is a function of the folder's names alone.
 */
#ifndef DAEMON_SOURCE_FOLDER_H
#define DAEMON_SOURCE_FOLDER_H

#include "daemon/base/error.h"

#include <stdbool.h>
#include <stddef.h>

#define FOLDER_INDEX "model.safetensors.index.json"
#define FOLDER_MODEL "model.safetensors"

struct folder {
        char **names; /* *.safetensors, in byte order */
        size_t n;
        bool has_index; /* then the index decides and names are not to be used */
};

/* Lists the folder that fd is (consumed) and chooses. STREAMER_ENOENT where there is nothing. */
int folder_init_consume_fd(struct folder *folder, int fd, const char *shown, struct error *error);
void folder_deinit(struct folder *folder); /* accepts a zeroed one */

/* A name that a listing holds; kept if it is of a file that may belong to a model. */
int folder_offer(struct folder *folder, const char *name, const char *shown, struct error *error);

/* Leaves in names what makes the model; the rest is freed. */
void folder_choose(struct folder *folder);

#endif
