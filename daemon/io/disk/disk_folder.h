/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of the disk cache, and what in it is durable when.
 *
 *   lock                  an empty file, locked while a daemon uses the folder
 *   objects/ID/data       the bytes of an object, as the source has them
 *   objects/ID/entry      whose they are, and their digests (disk_record.h); its mtime is when it was last used
 *   objects/new.N/        an entry that is being written
 *   sources/ID            which objects a source consisted of (disk_source.h); sources/new.N while it is written
 *
 * An entry appears by one rename:
 *
 *   new.N made > data written > data synced > entry written and synced > new.N synced > renamed to ID > objects synced
 *                                                                                     ^ from here on it exists
 *
 * so it is complete and durable before it has its name, whenever the power fails or the daemon is killed. Before the
 * rename there is only new.N, after an interrupted removal only ID without `entry`, which is removed first: a scan
 * removes both, and what has another size than its record says. A scan compares no bytes of `data`: they are compared
 * whenever they are read.
 *
 * What others may put below objects or sources is removed where it is met, folders with what they have, and nothing is
 * read but regular files: links are not followed, FIFOs and sockets not waited for, other file systems not entered.
 *
 * Nothing here knows of budgets or locks; an entry is written, or removed, by one thread at a time. A scan has threads
 * of its own, which end with it.
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/io/disk/disk_record.h"

#define DISK_NAME_SIZE (2 * DISK_ID_SIZE + 1)

struct disk_folder {
        char *path;
        int lock, objects, sources; /* descriptors; -1: none */
};

/* Makes it with mode 0700 if it does not exist, and locks it. One that exists is used if it is this user's, closed to
 * all others, and has nothing but what is listed above (and a file system's lost+found): its mode and what else it has
 * are never changed. STREAMER_EBUSY: another daemon has it; STREAMER_EFAILED. Zeroed before; deinited also after a
 * failure. */
int disk_folder_init(struct disk_folder *folder, const char *path, struct error *error);
void disk_folder_deinit(struct disk_folder *folder);

/* Of its file system; false: not known. */
bool disk_folder_space(const struct disk_folder *folder, uint64_t *free_bytes, uint64_t *total);

/* Calls found() for each entry, on several threads in turn; it may take the record (without sums) over by zeroing it.
 * Removes what is none, and returns how many of these there were. What it has no descriptor or memory for stays:
 * *unknown. */
struct disk_found {
        struct disk_record record;
        uint64_t used_ns; /* since 1970 */
        void *context;
};
typedef void disk_found_fn(struct disk_found *found);
uint64_t disk_folder_scan(const struct disk_folder *folder, disk_found_fn *found, void *context, const bool *stop,
                          uint64_t *unknown);

/* ---- reading ---- */

/* Opens both files, which links are not, and reads the record. STREAMER_EFAILED: it is damaged, or cannot be read;
 * STREAMER_ELIMIT, STREAMER_ENOMEM: it may be whole. */
int disk_folder_read(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE], int *data,
                     struct disk_record *record, struct error *error);
/* It was used now. */
void disk_folder_touch(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE]);
/* Whatever has this name: also what no daemon has made. */
void disk_folder_remove(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE]);
/* The path of its bytes. malloc'd; NULL: no memory. */
char *disk_folder_data_path(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE]);

/* ---- sources ---- */

/* Calls take() with each file, and its time as in disk_source.h; one that it refuses is removed. */
typedef bool disk_taken_fn(const unsigned char *bytes, size_t size, uint64_t noted_ns, void *context);
void disk_folder_each_source(const struct disk_folder *folder, disk_taken_fn *take, void *context);
/* It holds at this time. */
void disk_folder_touch_source(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE],
                              uint64_t noted_ns);
/* In place of what it has of this id. */
int disk_folder_put_source(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE],
                           const unsigned char *bytes, size_t size, struct error *error);
void disk_folder_remove_source(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE]);

/* ---- writing ---- */

#define DISK_PAGE UINT64_C(4096)

struct disk_new {
        char name[32]; /* "": nothing is there, or it was committed */
        int dir, data;
        bool direct;
};
#define DISK_NEW_NONE                                                                                                  \
        (struct disk_new)                                                                                              \
        {                                                                                                              \
                .dir = -1, .data = -1                                                                                  \
        }
/* With space for `size` bytes of data. To be followed by disk_new_abort() also after a failure, unless it was
 * committed. */
int disk_new_begin(struct disk_new *new, const struct disk_folder *folder, uint64_t number, uint64_t size,
                   struct error *error);
/* Whole pages to a page's offset, from page-aligned memory; the last one may have bytes beyond the end. */
int disk_new_write(struct disk_new *new, const void *pages, uint64_t offset, uint64_t len, struct error *error);
/* After a failure there is no entry. */
int disk_new_commit(struct disk_new *new, const struct disk_folder *folder, const struct disk_record *record,
                    struct error *error);
void disk_new_abort(struct disk_new *new, const struct disk_folder *folder); /* accepts one that was committed */
