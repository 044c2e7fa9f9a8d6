/* SPDX-License-Identifier: Apache-2.0
 *
 * How files below a root can be read: what its file system offers, asked of a file that is there.
 */
#ifndef DAEMON_SOURCE_ROOT_LOOK_H
#define DAEMON_SOURCE_ROOT_LOOK_H

#include "daemon/source/roots.h"

struct root_facts {
        char file[512];        /* that was asked, below the root; "": none was found */
        uint32_t direct_align; /* of O_DIRECT; 0: refused */
        bool cachestat;        /* the kernel says what of it is cached */
};

/* As the daemon's own user. May hang with its file system: for its lane. STREAMER_EFAILED where the root
 * cannot be listed. */
int root_look(const struct source_roots *roots, const char *path, struct root_facts *facts, struct error *error);

#endif
