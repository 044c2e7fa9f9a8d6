/* SPDX-License-Identifier: Apache-2.0
 *
 * A FUSE file system with one file whose reads the test holds and releases, so that "while it loads" is a fixed moment.
 *
 *   fuse_file_start(&h, folder, name, backing);   FOLDER/NAME shows the file `backing`
 *   fuse_file_hold(&h, 4096);                     reads that touch byte 4096 or later wait
 *   ... start a load ...
 *   fuse_file_wait_held(&h);                      one is held now
 *   ... change the backing file ...
 *   fuse_file_release(&h);                        all complete, with the current contents of the backing file
 *
 * Spoken straight to /dev/fuse by a child process. The mount is in a mount namespace of the calling process. A daemon
 * must be started afterwards; the mount ends with the last process of the namespace.
 */
#pragma once

#include "tests/lib/base.h"

/* How the file system differs from an ordinary one; set before fuse_file_start(). */
struct fuse_oddities {
        bool constant_times;  /* mtime and ctime are 0 */
        bool whole_seconds;   /* times have no nanoseconds */
        bool unstable_inodes; /* each look at the attributes shows another inode number */
        uint32_t read_max;    /* bytes of one reply at most; 0: as many as are asked for */
        bool keep_cache;      /* a further open keeps cached pages, and does not wait for those that are being read */
        bool no_readahead;    /* the kernel asks for nothing but what a process reads: it waits for each held read */
        int read_error;       /* every read fails with it; 0: none does */
};

#define FUSE_HANDLES 64

/* What the server was asked for, by opened handle. Shared memory. */
struct fuse_counts {
        _Atomic uint64_t bytes, reads, handles;
        _Atomic uint64_t
                jumps; /* reads that do not go on where the last one of their handle ended; the first is none */
        uint64_t ends[FUSE_HANDLES];
};

struct fuse_file {
        struct fuse_oddities odd;
        struct fuse_counts *counts;
        char path[PATH_SIZE]; /* of the file to load */
        char folder[PATH_SIZE], name[256];
        pid_t pid;
        int commands, reports;
};

/* NULL if FUSE works here, else the reason for a skip. */
const char *fuse_file_unavailable(void);

void fuse_file_start(struct fuse_file *h, const char *folder, const char *name, const char *backing);
void fuse_file_stop(struct fuse_file *h); /* held reads fail; unmounts */

void fuse_file_hold(struct fuse_file *h, uint64_t from);
void fuse_file_wait_held(struct fuse_file *h); /* waits until a read is held; fails otherwise */
void fuse_file_release(struct fuse_file *h);
void fuse_file_fail(struct fuse_file *h); /* held reads fail with EIO, as do later ones that would be held */
