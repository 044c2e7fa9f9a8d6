/* SPDX-License-Identifier: Apache-2.0
 *
 * A file system of one file whose reads can be held and let go on command: what makes "while it
 * loads" a fixed moment for a test.
 *
 *   hang_start(&h, folder, name, backing);   FOLDER/NAME shows the file `backing`
 *   hang_hold(&h, 4096);                     reads that touch byte 4096 or later wait
 *   ... start a load ...
 *   hang_wait_held(&h);                      one waits now
 *   ... change the backing file ...
 *   hang_release(&h);                        all go on, with what the backing file holds by now
 *
 * Spoken straight to /dev/fuse by a child process. The mount is in a mount namespace of the calling
 * process, which a daemon must be started from afterwards; it is gone with the last of them.
 */
#ifndef TESTS_LIB_HANG_H
#define TESTS_LIB_HANG_H

#include "tests/lib/base.h"

#include <sys/types.h>

struct hang {
        char path[PATH_SIZE]; /* of the file to load */
        char folder[PATH_SIZE], name[256];
        pid_t pid;
        int commands, reports;
};

/* NULL where it can be done here, else the reason for a skip. */
const char *hang_unavailable(void);

void hang_start(struct hang *h, const char *folder, const char *name, const char *backing);
void hang_stop(struct hang *h); /* held reads fail; unmounts */

void hang_hold(struct hang *h, uint64_t from);
void hang_wait_held(struct hang *h); /* until a read is held; fails after 20 s */
void hang_release(struct hang *h);
void hang_fail(struct hang *h); /* held reads answer EIO, as do later ones that would have been held */

#endif
