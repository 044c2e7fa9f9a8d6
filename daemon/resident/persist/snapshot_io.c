/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/resident/persist/snapshot_io.h"

#include "daemon/base/text/text.h"

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

/* STREAMER_ENOENT where nothing was written. */
static int read_buffer(int fd, unsigned i, struct snapshot *snapshot, struct error *error)
{
        off_t at = (off_t)(i * SNAPSHOT_MAX);
        uint64_t size = 0;
        *snapshot = (struct snapshot){0};
        if (pread(fd, &size, sizeof(size), at) != sizeof(size) || size > SNAPSHOT_MAX - sizeof(size))
                return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: wrong sizes");
        if (size == 0)
                return STREAMER_ENOENT;
        cleanup_free char *data = malloc(size);
        if (data == NULL)
                return error_no_memory(error);
        if (pread(fd, data, size, at + (off_t)sizeof(size)) != (ssize_t)size)
                return error_set(error, STREAMER_ECORRUPT, "the snapshot is damaged: it is too short");
        return snapshot_unpack(snapshot, data, size, error);
}

int snapshot_memory_open_consume_fd(struct snapshot_memory *memory, int fd, struct snapshot *snapshot,
                                    struct error *error)
{
        cleanup_close int own = fd;
        struct snapshot read[2];
        struct stat st;
        int seals = fcntl(fd, F_GET_SEALS);
        *memory = (struct snapshot_memory){.fd = -1};
        *snapshot = (struct snapshot){0};
        if (fstat(fd, &st) < 0 || st.st_size != 2 * SNAPSHOT_MAX || seals < 0 || (seals & SEALS) != SEALS)
                return error_set(error, STREAMER_ECORRUPT, "the snapshots: not one of this version");
        int first = read_buffer(fd, 0, &read[0], error), second = read_buffer(fd, 1, &read[1], error);
        unsigned newest =
                second == 0 && (first < 0 || read[1].counters[SNAPSHOT_WRITES] > read[0].counters[SNAPSHOT_WRITES]);
        snapshot_deinit(&read[!newest]);
        /* One that is torn was being written when the daemon was killed. */
        if (first < 0 && second < 0 && (first != STREAMER_ENOENT || second != STREAMER_ENOENT))
                return error->code;
        *snapshot = read[newest];
        *memory = (struct snapshot_memory){.fd = take_fd(&own), .next = !newest};
        return 0;
}

int snapshot_memory_write(struct snapshot_memory *memory, const void *data, size_t size, struct error *error)
{
        uint64_t n = size;
        const struct iovec parts[] = {{&n, sizeof(n)}, {(void *)(uintptr_t)data, size}};
        if (size > SNAPSHOT_MAX - sizeof(n))
                return error_set(error, STREAMER_ENOMEM, "the snapshot: it is larger than %d MiB",
                                 (int)(SNAPSHOT_MAX / MiB));
        if (pwritev(memory->fd, parts, 2, (off_t)(memory->next * SNAPSHOT_MAX)) != (ssize_t)(sizeof(n) + size))
                return error_errno(error, STREAMER_ENOMEM, errno, "the snapshot");
        memory->next = !memory->next;
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
        r = snapshot_unpack(snapshot, text.data, text.size, error);
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

int snapshot_save(const char *folder, const void *data, size_t size, struct error *error)
{
        cleanup_close int dir = open_folder(folder, error);
        if (dir < 0)
                return error->code;
        cleanup_close int fd =
                openat(dir, STATE_FILE ".new", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0 || text_write_fd(fd, data, size) < 0 || fsync(fd) < 0 ||
            renameat(dir, STATE_FILE ".new", dir, STATE_FILE) < 0 || fsync(dir) < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "state: cannot be written (%s)", folder);
        return 0;
}
