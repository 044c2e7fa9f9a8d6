/* SPDX-License-Identifier: Apache-2.0
 *
 * Reports how files below a root can be read: the capabilities of its file system, tried on an existing file.
 */
#ifndef DAEMON_SOURCE_ROOTS_ROOT_FACTS_H
#define DAEMON_SOURCE_ROOTS_ROOT_FACTS_H

#include "daemon/source/roots/roots.h"

struct root_facts {
        char file[512];        /* that was inspected, below the root; "": none was found */
        uint32_t direct_align; /* of O_DIRECT; 0: refused */
        bool cachestat;        /* the kernel says what of it is cached */
};

/* As the daemon's own user. May hang with its file system: for its lane. STREAMER_EFAILED where the root
 * cannot be listed. */
int root_facts_read(const struct source_roots *roots, const char *path, struct root_facts *facts, struct error *error);

#endif
