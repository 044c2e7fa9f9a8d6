/* SPDX-License-Identifier: Apache-2.0
 *
 * Where snapshots are written, each a whole with changes behind it (snapshot.h):
 *
 *   memory   a memfd of two buffers. Changes are appended in one of them. A whole is written to the other one, which
 *            counts from then on: whenever the daemon is killed, one has all that was written, but for a change that
 * was being written. The next run reads both and takes the one with more writes. Where the changes have outgrown the
 * whole, a worker reads the buffer and writes a whole to the other one, while the loop appends to the first; then the
 * loop copies those changes behind the new whole, and goes on there. file     DIR/state, likewise: changes are appended
 * and synced. A whole is written to DIR/state.new, which is synced and renamed (a disk may tear it); a worker writes
 * one when the changes have outgrown the last, and a run begins with one, so that nothing is appended behind what a
 * killed run has left. DIR/state.damaged: one whose whole could not be read, set aside
 */
#pragma once

#include "daemon/resident/persist/snapshot.h"

#define SNAPSHOT_MAX (64 * MiB)
/* Changes that a whole may have behind it, at least. */
#define SNAPSHOT_CHANGES (64 * KiB)
#define STATE_FILE "state"

/* What is written in one place. */
struct snapshot_extent {
        uint64_t whole, all; /* bytes: of the whole, 0: there is none, and with the changes behind it */
};
/* The changes have outgrown the whole. */
bool snapshot_outgrown(const struct snapshot_extent *extent);

/* ---- memory ---- */

struct snapshot_memory {
        int fd;                        /* owned; -1: none */
        unsigned next;                 /* the buffer to which the next whole is written; changes go to the other one */
        struct snapshot_extent extent; /* of the other one */
};

/* Empty. STREAMER_ENOMEM. */
int snapshot_memory_new(struct snapshot_memory *memory, struct error *error);
/* One of an earlier run, with its snapshot: a zeroed one if none was written. Takes over fd. STREAMER_ECORRUPT. */
int snapshot_memory_open_consume_fd(struct snapshot_memory *memory, int fd, struct snapshot *snapshot,
                                    struct error *error);
/* A whole. Does not block. STREAMER_ENOMEM. */
int snapshot_memory_write(struct snapshot_memory *memory, const void *data, size_t size, struct error *error);
/* A change, behind a whole. Does not block. STREAMER_ENOMEM, and nothing may be appended before the next whole. */
int snapshot_memory_append(struct snapshot_memory *memory, const void *data, size_t size, struct error *error);

/* On a worker, of a copy of the memory's description: writes a whole of what is in use to the other buffer, to which
 * nothing else is written meanwhile. *whole: its bytes. */
int snapshot_memory_compact(const struct snapshot_memory *memory, uint64_t *whole, struct error *error);
/* Goes on behind that whole: copies the changes since `from` was described. */
int snapshot_memory_switch(struct snapshot_memory *memory, const struct snapshot_memory *from, uint64_t whole,
                           struct error *error);

/* ---- the file ---- */

/* All may block. STREAMER_ENOENT where there is none; STREAMER_ECORRUPT where it was invalid and set aside;
 * STREAMER_EOS where it could not be read now, and is not to be overwritten; STREAMER_EFAILED: the folder cannot be
 * opened. */
int snapshot_load(struct snapshot *snapshot, const char *folder, struct error *error);
/* A whole; sets *extent. STREAMER_EFAILED. */
int snapshot_save(const char *folder, const void *data, size_t size, struct snapshot_extent *extent,
                  struct error *error);
/* Another process has removed or changed the file. */
#define SNAPSHOT_LOST 1
/* A change, behind what *extent describes; then a whole of all, where they have outgrown it. SNAPSHOT_LOST or
 * STREAMER_EFAILED, and nothing may be appended before the next whole. */
int snapshot_save_change(const char *folder, const void *data, size_t size, struct snapshot_extent *extent,
                         struct error *error);
