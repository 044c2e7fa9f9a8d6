/* SPDX-License-Identifier: Apache-2.0
 *
 * What identifies a version of a local file. Decided here alone, by the kind of file system:
 *
 *   CHANGE  device, inode, size, mtime, ctime. The kernel (or the server) sets ctime whenever the file changes. Where
 *           ctime is in whole seconds another image may have it, too: then also the volume
 *   IMAGE   these and the volume: ctime says nothing about another image at the same device number, and inode numbers
 *           are positions in the image. squashfs, erofs, iso9660, udf; overlays, whose layers may be such images
 *   WEAK    path, size, mtime, ctime, the volume: inode numbers may be made up when the file is looked up, and ctime
 *           may be a copy of mtime. FUSE, vfat, exfat, and what is not known
 *
 * The volume tells file systems of one device number apart: the unique id of the mount (Linux 6.8), and the `diskseq`
 * of a block device (5.15), which another image gets while it is mounted (LOOP_CHANGE_FD). A mount ends before other
 * bytes can be mounted at its device; a disk stays attached. A weak version, or one that needs a volume where the
 * kernel does not name the mount, does not suffice: where another one is equal, a sample of the bytes has to be equal,
 * too.
 *
 * A version is settled when it is read: a later change yields another one.
 */
#pragma once

#include "daemon/io/object.h"

#include <sys/stat.h>

const char *object_kind(mode_t mode); /* "a FIFO" */

/* What decides how a file is read (file_object.c). */
enum file_system {
        FILE_SYSTEM_OTHER,
        FILE_SYSTEM_OVERLAY,
        FILE_SYSTEM_FUSE,
};
enum file_system file_system_of(uint64_t f_type);

/* The file's version, settled: waits until the file is older than the resolution of its times (up to 2 s; some ms on
 * ordinary file systems), and writes back pages that are dirty, so that the next store through a mapping moves the
 * times. A file that is being written to all the time is not waited for: file_version_compare() finds that.
 * STREAMER_EFAILED: not a regular file, I/O. */
int file_version_open(int fd, const char *path, struct object_version *version, enum file_system *system,
                      struct error *error);

/* What it says is the same after the next boot, but for the numbers of devices and volumes, and another version has
 * another. False: a sample of the bytes has to be equal, too. */
static inline bool file_version_is_durable(const struct object_version *version)
{
        return !version->by_volume;
}
/* The file's path without links; as it was opened where the kernel does not tell it. malloc'd; NULL: no memory. */
char *file_version_path(int fd, const char *opened);

/* For object_ops: the header, and pieces at even distances. */
int file_version_sample(const struct object *object, size_t n_objects, struct hash *hash, struct error *error);

/* The file that is open is still the same: 0, or STREAMER_EFAILED with what differs. */
int file_version_compare(const struct object *object, struct error *error);

void file_version_identify(const struct object *object, struct hash *hash);

/* The same file, in whatever version; of file systems without reliable inode numbers as far as these tell. */
static inline bool file_version_same_file(const struct object_version *a, const struct object_version *b)
{
        return a->dev == b->dev && a->ino == b->ino;
}

/* How a file system's versions are recognised. Pure, for tests. */
enum file_times { TIMES_CHANGE, TIMES_IMAGE, TIMES_WEAK };
enum file_times file_times_of(uint64_t f_type);
/* Such a ctime also distinguishes the file from files of other volumes. */
bool file_ctime_is_unique(uint64_t ctime_ns);
/* How long after `then` another change may have the same time. `tick_ns`: the grain of the kernel's own times. */
uint64_t file_times_grain(uint64_t f_type, uint64_t then_ns, uint64_t tick_ns);
/* What the kernel says of the volume; 0: nothing. */
struct file_volume {
        uint64_t mount, diskseq;
};
bool file_version_needs_volume(const struct object_version *version, uint64_t f_type);
void file_version_add_volume(struct object_version *version, uint64_t f_type, const struct file_volume *volume);
