/* SPDX-License-Identifier: Apache-2.0
 *
 * The roots: folders below which files may be opened, and the only module that opens files by a client's name.
 */
#ifndef DAEMON_SOURCE_ROOTS_ROOTS_H
#define DAEMON_SOURCE_ROOTS_ROOTS_H

#include "daemon/source/roots/openat_beneath.h"
#include "daemon/source/source.h"

/* In the order of the configuration. NULL after the last. */
const char *source_root(const struct source_roots *roots, size_t i);

/* Names are resolved by the daemon, since the kernel does not (openat_beneath.h). */
bool source_roots_walked(const struct source_roots *roots);

/* A path below a root. */
struct place {
        int root;                /* borrowed descriptor */
        openat_beneath_fn *find; /* how names are resolved below it */
        char *below;             /* relative to root; "." for the root itself */
        char *shown;             /* the whole path, for messages */
        const char *rule;        /* whose root it is; NULL: the daemon's; borrowed */
};

/* STREAMER_EFAILED, or for a rule's roots STREAMER_EPERM, where no root holds the path, which is decided by its text
 * alone: whether the file exists is not disclosed. */
int place_init(struct place *place, const struct source_roots *roots, const char *canonical, struct error *error);
int place_init_child(struct place *place, const struct place *folder, const char *name, struct error *error);
int place_init_parent(struct place *place, const struct place *child, struct error *error);
void place_deinit(struct place *place); /* accepts a zeroed one */

/* Resolves the path below its root and says what it finds there, without opening it (O_PATH). */
int place_find(const struct place *place, int *path_fd, mode_t *mode, struct error *error);
/* Opens it, which must be a regular file, for reading. */
int place_open_file(const struct place *place, int *fd, struct error *error);
/* Opens what place_find() found to be a folder, for listing. */
int place_open_folder(const struct place *place, int path_fd, int *fd, struct error *error);

#endif
