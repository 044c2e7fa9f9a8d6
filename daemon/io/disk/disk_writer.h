/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores what loads read from stores in the disk cache, behind them: one thread of the lowest priority copies leaves
 * that have landed back from the model's memory, and writes them to new entries in the order of their file.
 *
 *   prepared (worker) > started (loop) > [leaf landed (readers)] > checked (loop) > ended (worker)
 *                                        \-> written by the thread, file by file > committed, or given up
 *
 * Nothing waits for it: readers only mark leaves. What the disk has not taken when the load ends is written afterwards,
 * as long as the model stays in memory. The thread pauses while loads read files of the same file system. Its memory is
 * one buffer; a write has about 70 bytes for each tensor, 17 for each leaf, and the headers until it is done.
 *
 * Of an encrypted file the thread encrypts what it copies, before it is written, and computes the digests of that: a
 * copy has the bytes of the source, and tells no more of them.
 *
 * A file is committed once all of it is written, and its version is certain: at once where the version of each answer
 * proves the bytes, else when the load has checked it. A load that fails or is cancelled leaves the files that were
 * complete.
 *
 * How it fails: a file that cannot be stored is given up, counted by reason, and logged if the one before was stored;
 * the load does not notice. disk_write_revoke() ends the use of the model's memory, and with it what is not written.
 */
#pragma once

#include "daemon/io/disk/disk_cache.h"
#include "daemon/io/reader/reader.h"

struct disk_writer;
struct disk_write;

/* Starts the thread, which scans the cache first. All are borrowed. STREAMER_ENOMEM. */
int disk_writer_new(struct disk_writer **writer, struct disk_cache *cache, struct reader *reader, struct error *error);
/* True if the thread has ended, and the writer may be freed; false: it hangs in the kernel. Accepts NULL. */
bool disk_writer_stop(struct disk_writer *writer, uint64_t deadline_ns);
struct disk_writer *disk_writer_free(struct disk_writer *writer); /* accepts NULL */

/* From any thread: the cache's limits or pins have changed. What is beyond them is evicted, by the thread. */
void disk_writer_trim(struct disk_writer *writer);

/* ---- on a worker ---- */

/* For at most n files of a plan with so many; with one reference. NULL: no memory. */
struct disk_write *disk_write_new(struct disk_writer *writer, size_t n, size_t n_plan_files);
/* An object that is its own header. False, as the next: it is not added, since there is no memory, the headers of all
 * writes take too much, or it cannot be read. */
bool disk_write_add_text(struct disk_write *write, const struct object *object, const struct object_label *label);
/* A file of the plan with so many bytes before the first tensor. `encrypted`: NULL if it is not; it is copied. */
bool disk_write_add_file(struct disk_write *write, const struct object *object, const struct object_label *label,
                         const struct plan *plan, size_t file, uint64_t header, const struct encrypted_file *encrypted);
/* What its source consists of, to be noted once all of that is stored; also under another name of the source. Takes it
 * over; accepts NULL. */
#define DISK_WRITE_SOURCES 2
void disk_write_add_source(struct disk_write *write, struct disk_source *source);

/* No leaf lands any more: what is missing is not written. */
void disk_write_end(struct disk_write *write);

/* ---- on the loop ---- */

/* The segments of the plan are filled from now on. They are borrowed until disk_write_revoke(). */
void disk_write_start(struct disk_write *write, const struct segment *segments, struct device *device);
/* The versions of the objects were checked after they were read. */
void disk_write_checked(struct disk_write *write);

/* ---- on any thread ---- */

/* The leaves of this block are in memory, and have these digests. */
void disk_write_landed(struct disk_write *write, const struct plan *plan, const struct plan_block *block,
                       unsigned char (*leaves)[DIGEST_SIZE]);
/* The memory is not touched after this returns. Waits for a piece that is being copied. */
void disk_write_revoke(struct disk_write *write);
struct disk_write *disk_write_ref(struct disk_write *write);   /* accepts NULL, as the next */
struct disk_write *disk_write_unref(struct disk_write *write); /* NULL */
