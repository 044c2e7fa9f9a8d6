/* SPDX-License-Identifier: Apache-2.0
 *
 * See file_version.h. Settling a version takes a loop: what was changed while it was looked at is looked at again, a
 * few times at the most.
 */
#include "daemon/io/file/file_version.h"

#include "daemon/base/hash.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"
#include "daemon/io/file/file_read.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <linux/magic.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#ifndef STATX_MNT_ID_UNIQUE
#define STATX_MNT_ID_UNIQUE 0x00004000U /* Linux 6.8 */
#endif

#define SETTLE_TRIES 4
#define SAMPLE_PIECE (64 * KiB)
#define SAMPLE_PIECES 16u            /* of all files of a source together; one of each file at the least */
#define SAMPLE_HEADER_MAX (16 * MiB) /* of a header, all of which belongs to the sample */

/* ---- file systems ---- */

/* Those that linux/magic.h does not name. */
#define EXFAT_MAGIC 0x2011bab0
#define FUSE_MAGIC 0x65735546
#define JFS_MAGIC 0x3153464a
#define ZFS_MAGIC 0x2fc12fc1
#define BCACHEFS_MAGIC 0xca451a4e
#define GFS2_MAGIC_NUMBER 0x01161970
#define NTFS3_MAGIC 0x7366746e
#define LUSTRE_MAGIC 0x0bd00bd0
#define GPFS_MAGIC 0x47504653
#define ROMFS_MAGIC_NUMBER 0x7275
#define UDF_MAGIC 0x15013346

enum file_times file_times_of(uint64_t f_type)
{
        static const uint64_t changing[] = {
                EXT4_SUPER_MAGIC, /* ext2 and ext3, too */
                XFS_SUPER_MAGIC,  BTRFS_SUPER_MAGIC,    F2FS_SUPER_MAGIC, TMPFS_MAGIC,       RAMFS_MAGIC,
                HUGETLBFS_MAGIC,  NFS_SUPER_MAGIC,      CEPH_SUPER_MAGIC, OCFS2_SUPER_MAGIC, NILFS_SUPER_MAGIC,
                JFS_MAGIC,        REISERFS_SUPER_MAGIC, ZFS_MAGIC,        BCACHEFS_MAGIC,    GFS2_MAGIC_NUMBER,
                NTFS3_MAGIC,      LUSTRE_MAGIC,         GPFS_MAGIC,
        };
        static const uint64_t images[] = {
                SQUASHFS_MAGIC, EROFS_SUPER_MAGIC_V1, ISOFS_SUPER_MAGIC,     UDF_MAGIC,
                CRAMFS_MAGIC,   ROMFS_MAGIC_NUMBER,   OVERLAYFS_SUPER_MAGIC,
        };
        for (size_t i = 0; i < ARRAY_SIZE(changing); i++)
                if (f_type == changing[i])
                        return TIMES_CHANGE;
        for (size_t i = 0; i < ARRAY_SIZE(images); i++)
                if (f_type == images[i])
                        return TIMES_IMAGE;
        return TIMES_WEAK;
}

/* Tools that make images write whole seconds, of a fixed time or of when the image was made, and 0 or 1 for no time.
 * Where a kernel's own times are whole seconds, another file may have them as well. */
bool file_ctime_is_unique(uint64_t ctime_ns)
{
        return ctime_ns / SECOND > 1 && ctime_ns % SECOND != 0;
}

uint64_t file_times_grain(uint64_t f_type, uint64_t then_ns, uint64_t tick_ns)
{
        if (then_ns % SECOND != 0)
                return tick_ns;
        return f_type == MSDOS_SUPER_MAGIC || f_type == EXFAT_MAGIC ? 2 * SECOND : SECOND;
}

static uint64_t type_of(int fd)
{
        struct statfs fs;
        return fstatfs(fd, &fs) == 0 ? (uint64_t)fs.f_type & UINT32_MAX : 0;
}

enum file_system file_system_of(uint64_t f_type)
{
        return f_type == FUSE_MAGIC              ? FILE_SYSTEM_FUSE
               : f_type == OVERLAYFS_SUPER_MAGIC ? FILE_SYSTEM_OVERLAY
                                                 : FILE_SYSTEM_OTHER;
}

/* ---- volumes ---- */

/* A partition's is its disk's. 0: not known. */
static uint64_t diskseq_of(dev_t dev)
{
        static const char *const folders[] = {"", "../"};
        uint64_t seq = 0;
        for (size_t i = 0; seq == 0 && i < ARRAY_SIZE(folders); i++) {
                char path[64], text[24] = "";
                snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%sdiskseq", major(dev), minor(dev), folders[i]);
                cleanup_close int fd = open(path, O_RDONLY | O_CLOEXEC);
                if (fd >= 0 && read(fd, text, sizeof(text) - 1) > 0)
                        seq = strtoull(text, NULL, 10);
        }
        return seq;
}

/* 0: not known. */
static uint64_t mount_id_of(int fd)
{
        struct statx stx;
        bool known = statx(fd, "", AT_EMPTY_PATH, STATX_MNT_ID_UNIQUE, &stx) == 0 &&
                     (stx.stx_mask & STATX_MNT_ID_UNIQUE) != 0;
        return known ? stx.stx_mnt_id : 0;
}

/* An overlay's files may have the device number of a layer. */
static struct file_volume volume_of(int fd, dev_t dev, uint64_t f_type)
{
        bool has_disk = major(dev) != 0 && f_type != OVERLAYFS_SUPER_MAGIC;
        return (struct file_volume){.mount = mount_id_of(fd), .diskseq = has_disk ? diskseq_of(dev) : 0};
}

/* ---- versions ---- */

const char *object_kind(mode_t mode)
{
        static const struct {
                mode_t type;
                const char *name;
        } kinds[] = {{S_IFREG, "a regular file"}, {S_IFDIR, "a folder"}, {S_IFIFO, "a FIFO"},
                     {S_IFSOCK, "a socket"},      {S_IFLNK, "a link"},   {S_IFCHR, "a character device"},
                     {S_IFBLK, "a block device"}};
        for (size_t i = 0; i < ARRAY_SIZE(kinds); i++)
                if ((mode & S_IFMT) == kinds[i].type)
                        return kinds[i].name;
        return "of an unknown kind";
}

static uint64_t ns_of(struct timespec ts)
{
        return (uint64_t)ts.tv_sec * SECOND + (uint64_t)ts.tv_nsec;
}

static int read_version(int fd, const char *path, struct object_version *version, struct error *error)
{
        struct stat st;
        if (fstat(fd, &st) < 0)
                return error_set(error, STREAMER_EFAILED, "%s (%s)", strerror(errno), path);
        if (!S_ISREG(st.st_mode))
                return error_set(error, STREAMER_EFAILED, "%s, not a regular file (%s)", object_kind(st.st_mode), path);
        *version = (struct object_version){
                .dev = st.st_dev,
                .ino = st.st_ino,
                .size = (uint64_t)st.st_size,
                .mtime_ns = ns_of(st.st_mtim),
                .ctime_ns = ns_of(st.st_ctim),
        };
        return 0;
}

/* The kernel marks the path of a file that it cannot look up any more. */
char *file_version_path(int fd, const char *opened)
{
        static const char deleted[] = " (deleted)";
        char link[64], path[PATH_MAX];
        snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
        ssize_t len = readlink(link, path, sizeof(path));
        size_t tail = strlen(deleted);
        if (len > (ssize_t)tail && memcmp(path + len - tail, deleted, tail) == 0)
                len -= (ssize_t)tail;
        return len > 0 ? strndup(path, (size_t)len) : strdup(opened);
}

/* Links to a file lead to one version. */
static uint64_t place_of(int fd, const char *shown)
{
        unsigned char digest[DIGEST_SIZE];
        uint64_t place;
        cleanup_free char *path = file_version_path(fd, shown);
        const char *text = path ?: shown;
        hash_bytes(text, strlen(text), digest);
        memcpy(&place, digest, sizeof(place));
        return place | 1;
}

bool file_version_needs_volume(const struct object_version *version, uint64_t f_type)
{
        return file_times_of(f_type) != TIMES_CHANGE || !file_ctime_is_unique(version->ctime_ns);
}

/* A disk's number is that of an attachment, in which several file systems may be mounted one after another: without the
 * mount's it does not suffice. */
void file_version_add_volume(struct object_version *version, uint64_t f_type, const struct file_volume *volume)
{
        require(file_version_needs_volume(version, f_type) && !version->by_volume);
        version->by_volume = true;
        version->mount = volume->mount;
        version->diskseq = volume->diskseq;
        version->is_weak = file_times_of(f_type) == TIMES_WEAK || volume->mount == 0;
}

/* Adds what identifies the file besides its times. */
static void add_marks(int fd, const char *path, uint64_t f_type, struct object_version *version)
{
        version->place = file_times_of(f_type) == TIMES_WEAK ? place_of(fd, path) : 0;
        if (!file_version_needs_volume(version, f_type))
                return;
        struct file_volume volume = volume_of(fd, version->dev, f_type);
        file_version_add_volume(version, f_type, &volume);
}

/* ---- settling ---- */

/* How long a change may still have the same time as this version; 0: every later one differs. A time of the future is a
 * clock that is set otherwise, or was set by hand. */
static uint64_t unsettled_ns(const struct object_version *version, uint64_t f_type)
{
        struct timespec tick = {0};
        uint64_t now = read_clock_ns(CLOCK_REALTIME), then = version->ctime_ns;
        if (file_times_of(f_type) == TIMES_WEAK && version->mtime_ns > then)
                then = version->mtime_ns;
        clock_getres(CLOCK_REALTIME_COARSE, &tick);
        uint64_t grain = file_times_grain(f_type, then, ns_of(tick));
        return now >= then && now - then < grain ? grain - (now - then) : 0;
}

static bool has_dirty_pages(int fd)
{
        uint64_t range[2] = {0, 0}; /* to the end of the file */
        struct {
                uint64_t cached, dirty, writeback, evicted, recently_evicted;
        } stat = {0};
        return syscall(SYS_CACHESTAT, fd, range, &stat, 0) == 0 && stat.dirty > 0;
}

/* A page that is mapped shared and dirty takes further stores without a fault, and the times do not move. Written back,
 * it faults again. The writing is not waited for, but where a page was made dirty again while it was written.
 * True: something was dirty. */
static bool write_back(int fd)
{
        if (!has_dirty_pages(fd))
                return false;
        sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
        if (has_dirty_pages(fd))
                sync_file_range(fd, 0, 0,
                                SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
        return true;
}

int file_version_open(int fd, const char *path, struct object_version *version, enum file_system *system,
                      struct error *error)
{
        uint64_t f_type = type_of(fd);
        *system = file_system_of(f_type);
        for (int tries = 0; tries < SETTLE_TRIES; tries++) {
                int r = read_version(fd, path, version, error);
                if (r < 0)
                        return r;
                bool dirty = write_back(fd); /* which may move the times on a server */
                uint64_t wait_ns = unsettled_ns(version, f_type);
                if (!dirty && wait_ns == 0)
                        break;
                nanosleep(&(struct timespec){.tv_sec = (time_t)(wait_ns / SECOND), .tv_nsec = (long)(wait_ns % SECOND)},
                          NULL);
        }
        add_marks(fd, path, f_type, version);
        return 0;
}

int file_version_compare(const struct object *object, struct error *error)
{
        const struct object_version *opened = &object->version;
        struct object_version now;
        int r = read_version(object->fd, object->path, &now, error);
        if (r < 0)
                return r;
        if (now.size != opened->size)
                return error_set(error, STREAMER_EFAILED,
                                 "changed while it was read: its size was %" PRIu64 " and is %" PRIu64 " (%s)",
                                 opened->size, now.size, object->path);
        bool other_file = opened->place == 0 && !file_version_same_file(&now, opened);
        const char *field = now.mtime_ns != opened->mtime_ns   ? "mtime (it was written to)"
                            : now.ctime_ns != opened->ctime_ns ? "ctime (renamed, linked, or its mode changed)"
                            : other_file                       ? "inode"
                                                               : NULL;
        return field == NULL ? 0
                             : error_set(error, STREAMER_EFAILED, "changed while it was read: another %s (%s)", field,
                                         object->path);
}

void file_version_identify(const struct object *object, struct hash *hash)
{
        const struct object_version *v = &object->version;
        bool by_path = v->place != 0;
        const uint64_t fields[] = {by_path ? 0 : htole64(v->dev), htole64(by_path ? v->place : v->ino),
                                   htole64(v->size), htole64(v->mtime_ns), htole64(v->ctime_ns)};
        const uint64_t volume[] = {htole64(v->mount), htole64(v->diskseq)};
        require(v->by_volume || (!v->is_weak && v->place == 0));
        hash_update(hash, fields, sizeof(fields));
        if (v->by_volume)
                hash_update(hash, volume, sizeof(volume));
}

/* ---- samples ---- */

static int sample_range(const struct object *object, unsigned char *buffer, uint64_t from, uint64_t len,
                        struct hash *hash, struct error *error)
{
        for (uint64_t n; len > 0; from += n, len -= n) {
                n = len < SAMPLE_PIECE ? len : SAMPLE_PIECE;
                struct pread_target t = {.iov = {{buffer, n}}, .n = 1, .offset = from, .want = n};
                int r = pread_target(object, object->fd, &t, &pread_unwatched, error);
                if (r < 0)
                        return r;
                hash_update(hash, buffer, n);
        }
        return 0;
}

/* The prefix, and the header that it announces if that can be one. */
static uint64_t header_end(const struct object *object, const unsigned char *first)
{
        uint64_t len, size = object->version.size;
        memcpy(&len, first, sizeof(len));
        len = le64toh(len);
        return len < SAMPLE_HEADER_MAX && len + sizeof(len) < size ? len + sizeof(len) : 0;
}

int file_version_sample(const struct object *object, size_t n_objects, struct hash *hash, struct error *error)
{
        uint64_t size = object->version.size, start = size < SAMPLE_PIECE ? size : SAMPLE_PIECE;
        require(n_objects > 0 && !file_version_is_durable(&object->version));
        uint64_t pieces = SAMPLE_PIECES / n_objects > 1 ? SAMPLE_PIECES / n_objects : 1;
        cleanup_free unsigned char *buffer = calloc(1, SAMPLE_PIECE);
        if (buffer == NULL)
                return error_no_memory(error);
        int r = sample_range(object, buffer, 0, start, hash, error);
        uint64_t end = r == 0 ? header_end(object, buffer) : 0;
        if (r == 0 && end > start)
                r = sample_range(object, buffer, start, end - start, hash, error);
        start = end > start ? end : start;
        /* Of what follows, pieces at even distances, the last at the end; all of it if that is no more. */
        uint64_t left = size - start;
        if (r == 0 && left <= pieces * SAMPLE_PIECE)
                return sample_range(object, buffer, start, left, hash, error);
        for (uint64_t i = 0; r == 0 && i < pieces; i++) {
                uint64_t from = i + 1 < pieces ? start + left / pieces * i : size - SAMPLE_PIECE;
                r = sample_range(object, buffer, from, SAMPLE_PIECE, hash, error);
        }
        return r;
}
