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
        const struct source_roots *roots;
        const struct root *root;
        char *shown; /* the whole path as it was given, for messages */
        char *at;    /* the same where a link before the root was followed: its text is below the root's */
        int fd;      /* of the root as it is now */
        bool owns_fd;
};

/* STREAMER_EFAILED, or for a rule's roots STREAMER_EPERM, where no root holds the path, also without its links; whether
 * the file exists is not disclosed. If another file system is mounted on the root than when the daemon started, or
 * another folder has its path, that is the root, provided that the caller may see it. */
int root_path_init(struct root_path *path, const struct source_roots *roots, const char *canonical,
                   struct error *error);
int root_path_init_child(struct root_path *path, const struct root_path *folder, const char *name, struct error *error);
void root_path_to_parent(struct root_path *path); /* the folder that holds it, below the same root */
void root_path_deinit(struct root_path *path);    /* accepts a zeroed one */

/* The folder at the root's path is another one than at the start: a file system was mounted there, or unmounted. */
bool source_root_changed(const struct source_roots *roots, const char *path);

/* Resolves the path, as a descriptor (O_PATH) and what fstat() says of it. Links are followed where they lead below a
 * root. */
int root_path_find(const struct root_path *path, int *path_fd, struct stat *st, struct error *error);
/* Opens a regular file for reading; and one that was found. */
int root_path_open_found(const struct root_path *path, int path_fd, const struct stat *st, int *fd,
                         struct error *error);
int root_path_open_file(const struct root_path *path, int *fd, struct error *error);
/* Opens a folder for listing; closed with closedir(). */
int root_path_open_folder(const struct root_path *path, DIR **dir, struct error *error);
