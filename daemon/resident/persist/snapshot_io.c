/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/snapshot_io.h"

#include "daemon/base/text/text.h"
#include "daemon/resident/persist/snapshot_v1.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>

#define SEALS (F_SEAL_GROW | F_SEAL_SHRINK)

/* ---- memory ---- */

int snapshot_memory_new(struct snapshot_memory *memory, struct error *error)
{
        cleanup_close int fd = memfd_create("streamerd-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0 || ftruncate(fd, 2 * SNAPSHOT_MAX) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0)
                return error_errno(error, STREAMER_ENOMEM, errno, "the snapshot");
        *memory = (struct snapshot_memory){.fd = take_fd(&fd)};
        return 0;
}

static int check_size(uint64_t all, struct error *error)
{
        if (all <= SNAPSHOT_MAX)
                return 0;
        return error_set(error, STREAMER_ENOMEM, "the snapshot: it is larger than %d MiB", (int)(SNAPSHOT_MAX / MiB));
}

bool snapshot_outgrown(const struct snapshot_extent *extent)
{
        uint64_t changes = extent->all - extent->whole, left = SNAPSHOT_MAX - extent->whole;
        require(extent->whole <= extent->all && extent->all <= SNAPSHOT_MAX);
        return changes > SNAPSHOT_CHANGES && (changes > extent->whole || changes > left / 2);
}

static off_t offset_of(unsigned buffer)
{
        return (off_t)(buffer * SNAPSHOT_MAX);
}

/* Bytes of a buffer, up to where nothing was ever written; all of it where the kernel does not know that. */
static size_t written_size(int fd, unsigned buffer)
{
        off_t begin = offset_of(buffer), end = begin + (off_t)SNAPSHOT_MAX, at = begin;
        while (at < end) {
                off_t data = lseek(fd, at, SEEK_DATA);
                if (data >= end || (data < 0 && errno == ENXIO))
                        break;
                at = data >= 0 ? lseek(fd, data, SEEK_HOLE) : end;
                if (at < 0)
                        at = end;
        }
        return (size_t)((at < end ? at : end) - begin);
}

/* STREAMER_ENOENT where nothing was written. */
static int read_buffer(int fd, unsigned buffer, size_t size, struct snapshot *snapshot, size_t *used,
                       struct error *error)
{
        uint64_t first;
        *snapshot = (struct snapshot){0};
        if (size < sizeof(first))
                return STREAMER_ENOENT;
        cleanup_free char *data = malloc(size);
        if (data == NULL)
                return error_no_memory(error);
        if (pread(fd, data, size, offset_of(buffer)) != (ssize_t)size)
                return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: it is too short");
        memcpy(&first, data, sizeof(first));
        return first == 0 ? STREAMER_ENOENT : snapshot_read(snapshot, data, size, used, error);
}

int snapshot_memory_open_consume_fd(struct snapshot_memory *memory, int fd, struct snapshot *snapshot,
                                    struct error *error)
{
        cleanup_close int own = fd;
        struct snapshot read[2];
        struct stat st;
        int r[2];
        int seals = fcntl(fd, F_GET_SEALS);
        *memory = (struct snapshot_memory){.fd = -1};
        *snapshot = (struct snapshot){0};
        if (fstat(fd, &st) < 0 || st.st_size != 2 * SNAPSHOT_MAX || seals < 0 || (seals & SEALS) != SEALS)
                return error_set(error, STREAMER_ECORRUPT, "the snapshots: not one of this version");
        for (unsigned i = 0; i < 2; i++) {
                size_t used = 0;
                r[i] = read_buffer(fd, i, written_size(fd, i), &read[i], &used, error);
        }
        unsigned newest =
                r[1] == 0 && (r[0] < 0 || read[1].counters[SNAPSHOT_WRITES] > read[0].counters[SNAPSHOT_WRITES]);
        snapshot_deinit(&read[!newest]);
        /* One whose whole is torn was being written when the daemon was killed. */
        if (r[0] < 0 && r[1] < 0 && (r[0] != STREAMER_ENOENT || r[1] != STREAMER_ENOENT))
                return error->code;
        *snapshot = read[newest];
        /* This run begins with a whole: no change follows what may be the rest of one. */
        *memory = (struct snapshot_memory){.fd = take_fd(&own), .next = !newest};
        return 0;
}

/* With its size before it. STREAMER_ENOMEM. */
static int write_at(int fd, off_t at, const void *data, size_t size, struct error *error)
{
        uint64_t n = size;
        const struct iovec parts[] = {{&n, sizeof(n)}, {(void *)(uintptr_t)data, size}};
        if (pwritev(fd, parts, 2, at) != (ssize_t)(sizeof(n) + size))
                return error_errno(error, STREAMER_ENOMEM, errno, "the snapshot");
        return 0;
}

int snapshot_memory_write(struct snapshot_memory *memory, const void *data, size_t size, struct error *error)
{
        uint64_t all = sizeof(uint64_t) + size;
        int r = check_size(all, error) ?: write_at(memory->fd, offset_of(memory->next), data, size, error);
        if (r < 0)
                return r;
        memory->next = !memory->next;
        memory->extent = (struct snapshot_extent){.whole = all, .all = all};
        return 0;
}

int snapshot_memory_append(struct snapshot_memory *memory, const void *data, size_t size, struct error *error)
{
        struct snapshot_extent *extent = &memory->extent;
        uint64_t all = extent->all + sizeof(uint64_t) + size;
        require(extent->whole > 0);
        off_t at = offset_of(!memory->next) + (off_t)extent->all;
        int r = check_size(all, error) ?: write_at(memory->fd, at, data, size, error);
        if (r < 0)
                return r;
        extent->all = all;
        return 0;
}

int snapshot_memory_compact(const struct snapshot_memory *memory, uint64_t *whole, struct error *error)
{
        cleanup_with(snapshot_deinit) struct snapshot snapshot = {0};
        msgpack_sbuffer bytes;
        size_t used = 0;
        int r = read_buffer(memory->fd, !memory->next, memory->extent.all, &snapshot, &used, error);
        if (r < 0)
                return r;
        if (used != memory->extent.all) /* all of it was written by this run */
                return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: wrong sizes");
        msgpack_sbuffer_init(&bytes);
        if (snapshot_pack(&bytes, &snapshot) < 0)
                r = error_no_memory(error);
        r = r ?: check_size(sizeof(uint64_t) + bytes.size, error)
              ?: write_at(memory->fd, offset_of(memory->next), bytes.data, bytes.size, error);
        *whole = sizeof(uint64_t) + bytes.size;
        msgpack_sbuffer_destroy(&bytes);
        return r;
}

int snapshot_memory_switch(struct snapshot_memory *memory, const struct snapshot_memory *from, uint64_t whole,
                           struct error *error)
{
        uint64_t size = memory->extent.all - from->extent.all;
        require(memory->next == from->next && memory->extent.all >= from->extent.all);
        cleanup_free char *changes = malloc(size + 1);
        if (changes == NULL)
                return error_no_memory(error);
        off_t begin = offset_of(!from->next) + (off_t)from->extent.all;
        off_t to = offset_of(from->next) + (off_t)whole;
        int r = check_size(whole + size, error);
        if (r < 0)
                return r;
        const struct iovec part = {changes, size};
        if (pread(memory->fd, changes, size, begin) != (ssize_t)size ||
            pwritev(memory->fd, &part, 1, to) != (ssize_t)size)
                return error_errno(error, STREAMER_ENOMEM, errno, "the snapshot");
        memory->next = !memory->next;
        memory->extent = (struct snapshot_extent){.whole = whole, .all = whole + size};
        return 0;
}

/* ---- the file ---- */

static int open_folder(const char *folder, struct error *error)
{
        int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        return fd >= 0 ? fd : error_errno(error, STREAMER_EFAILED, errno, "state: %s", folder);
}

/* Something else than a file is as bad as a damaged one. Other failures may be over at the next start. */
static int open_file(int dir, struct error *error)
{
        struct stat st;
        cleanup_close int fd = openat(dir, STATE_FILE, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT)
                return STREAMER_ENOENT;
        bool is_file = fd < 0 ? errno != ELOOP && errno != ENXIO : fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
        if (!is_file || (fd >= 0 && st.st_size > (off_t)SNAPSHOT_MAX))
                return error_set(error, STREAMER_ECORRUPT, "state: not a file, or not of this version");
        return fd >= 0 ? take_fd(&fd) : error_errno(error, STREAMER_EOS, errno, "state: cannot be opened");
}

static int read_file(struct snapshot *snapshot, int fd, struct error *error)
{
        struct text text = {0};
        int r = text_read_fd(&text, fd, SNAPSHOT_MAX, STATE_FILE, error);
        if (r < 0)
                return STREAMER_EOS;
        size_t used;
        bool earlier = record_is(text.data, text.size, SNAPSHOT_V1_MAGIC) ||
                       record_is(text.data, text.size, SNAPSHOT_V2_MAGIC);
        r = earlier ? snapshot_unpack(snapshot, text.data, text.size, error)
                    : snapshot_read(snapshot, text.data, text.size, &used, error);
        text_deinit(&text);
        return r;
}

int snapshot_load(struct snapshot *snapshot, const char *folder, struct error *error)
{
        *snapshot = (struct snapshot){0};
        cleanup_close int dir = open_folder(folder, error);
        if (dir < 0)
                return error->code;
        cleanup_close int fd = open_file(dir, error);
        int r = fd < 0 ? fd : read_file(snapshot, fd, error);
        if (r == STREAMER_ECORRUPT)
                renameat(dir, STATE_FILE, dir, STATE_FILE ".damaged"); /* set aside for an inspection */
        return r == STREAMER_ENOMEM ? STREAMER_EOS : r;
}

/* With its size before it. */
static int write_file(int fd, const void *data, size_t size)
{
        uint64_t n = size;
        return text_write_fd(fd, &n, sizeof(n)) ?: text_write_fd(fd, data, size) ?: fsync(fd);
}

static int unwritten(const char *folder, struct error *error)
{
        return error_errno(error, STREAMER_EFAILED, errno, "state: cannot be written (%s)", folder);
}

int snapshot_save(const char *folder, const void *data, size_t size, struct snapshot_extent *extent,
                  struct error *error)
{
        cleanup_close int dir = open_folder(folder, error);
        if (dir < 0)
                return error->code;
        cleanup_close int fd =
                openat(dir, STATE_FILE ".new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || write_file(fd, data, size) < 0 || renameat(dir, STATE_FILE ".new", dir, STATE_FILE) < 0 ||
            fsync(dir) < 0)
                return unwritten(folder, error);
        extent->whole = extent->all = sizeof(uint64_t) + size;
        return 0;
}

static int compact_file(const char *folder, struct snapshot_extent *extent, struct error *error)
{
        cleanup_with(snapshot_deinit) struct snapshot snapshot = {0};
        msgpack_sbuffer bytes;
        int r = snapshot_load(&snapshot, folder, error);
        if (r < 0)
                return r;
        msgpack_sbuffer_init(&bytes);
        r = snapshot_pack(&bytes, &snapshot) < 0 ? error_no_memory(error)
                                                 : snapshot_save(folder, bytes.data, bytes.size, extent, error);
        msgpack_sbuffer_destroy(&bytes);
        return r;
}

int snapshot_save_change(const char *folder, const void *data, size_t size, struct snapshot_extent *extent,
                         struct error *error)
{
        struct stat st;
        uint64_t all = extent->all + sizeof(uint64_t) + size;
        require(extent->whole > 0);
        cleanup_close int dir = open_folder(folder, error);
        if (dir < 0)
                return error->code;
        cleanup_close int fd = openat(dir, STATE_FILE, O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
        if (fd < 0 && errno == ENOENT)
                return SNAPSHOT_LOST;
        if (fd < 0 || fstat(fd, &st) < 0)
                return unwritten(folder, error);
        if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != extent->all)
                return SNAPSHOT_LOST;
        if (check_size(all, error) < 0)
                return error->code;
        if (write_file(fd, data, size) < 0)
                return unwritten(folder, error);
        extent->all = all;
        return snapshot_outgrown(extent) ? compact_file(folder, extent, error) : 0;
}
