/* SPDX-License-Identifier: Apache-2.0
 *
 * Where snapshots are written:
 *
 *   memory   a memfd of two buffers, each a size and a snapshot, which are written in turn: whenever the daemon is
 *            killed, one is whole. The next run takes the newer one.
 *   file     DIR/state, and DIR/state.new while the next is written, which is synced and renamed (a disk may tear a
 *            buffer); DIR/state.damaged: one that could not be read, set aside
 */
#pragma once

#include "daemon/resident/persist/snapshot.h"

#define SNAPSHOT_MAX (64 * MiB)
#define STATE_FILE "state"

/* ---- memory ---- */

struct snapshot_memory {
        int fd;        /* owned; -1: none */
        unsigned next; /* the buffer that is written next */
};

/* Empty. STREAMER_ENOMEM. */
int snapshot_memory_new(struct snapshot_memory *memory, struct error *error);
/* One of an earlier run, with its snapshot: a zeroed one if none was written. Takes over fd. STREAMER_ECORRUPT. */
int snapshot_memory_open_consume_fd(struct snapshot_memory *memory, int fd, struct snapshot *snapshot,
                                    struct error *error);
/* Does not block. STREAMER_ENOMEM. */
int snapshot_memory_write(struct snapshot_memory *memory, const void *data, size_t size, struct error *error);

/* ---- the file ---- */

/* Both may block. STREAMER_ENOENT where there is none; STREAMER_ECORRUPT where it was invalid and set aside;
 * STREAMER_EOS where it could not be read now, and is not to be overwritten; STREAMER_EFAILED: the folder cannot be
 * opened. */
int snapshot_load(struct snapshot *snapshot, const char *folder, struct error *error);
int snapshot_save(const char *folder, const void *data, size_t size, struct error *error);
