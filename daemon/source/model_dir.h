/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses the files of a folder that make a model: a pure function of its file names.
 */
#ifndef DAEMON_SOURCE_MODEL_DIR_H
#define DAEMON_SOURCE_MODEL_DIR_H

#include "daemon/base/error.h"

#define MODEL_DIR_INDEX "model.safetensors.index.json"
#define MODEL_DIR_MODEL "model.safetensors"

struct model_dir {
        char **names; /* *.safetensors, in byte order */
        size_t n;
        bool has_index; /* the index decides; names are not used */
};

void model_dir_deinit(struct model_dir *folder); /* accepts a zeroed one */

/* A name of a listing; stored if the file may belong to a model. */
int model_dir_offer(struct model_dir *folder, const char *name, const char *shown, struct error *error);

/* Reduces names to the files of the model. STREAMER_ENOENT: "no safetensors files WHERE (SHOWN)". */
int model_dir_choose(struct model_dir *folder, const char *where, const char *shown, struct error *error);

#endif
