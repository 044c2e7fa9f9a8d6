/* SPDX-License-Identifier: Apache-2.0
 *
 * The roots: folders below which files may be opened, and the only module that opens files by a client's name.
 */
#pragma once

#include "daemon/source/source.h"

#include <dirent.h>
#include <sys/stat.h>

/* In the order of the configuration. NULL after the last. */
const char *source_root(const struct source_roots *roots, size_t i);

/* A path below a root, or the root itself. Borrows the roots. */
struct root_path {
        const struct root *root;
        char *shown;      /* the whole path, as in messages */
        const char *rule; /* that the root belongs to; NULL: the daemon's */
};

/* STREAMER_EFAILED, or for a rule's roots STREAMER_EPERM, where no root holds the path, which is decided by its text
 * alone: whether the file exists is not disclosed. */
int root_path_init(struct root_path *path, const struct source_roots *roots, const char *canonical,
                   struct error *error);
int root_path_init_child(struct root_path *path, const struct root_path *folder, const char *name, struct error *error);
void root_path_to_parent(struct root_path *path); /* the folder that holds it, below the same root */
void root_path_deinit(struct root_path *path);    /* accepts a zeroed one */

/* Resolves the path below its root, as a descriptor (O_PATH) and what fstat() says of it. */
int root_path_find(const struct root_path *path, int *path_fd, struct stat *st, struct error *error);
/* Opens a regular file for reading. */
int root_path_open_file(const struct root_path *path, int *fd, struct error *error);
/* Opens a folder for listing; closed with closedir(). */
int root_path_open_folder(const struct root_path *path, DIR **dir, struct error *error);
