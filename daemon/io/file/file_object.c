/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens files for reading, twice, detects changes of them, and reads them, however many bytes a call returns. An
 * interrupted read is repeated; a file that ends too soon is an error.
 *
 * The second descriptor is opened through /proc/self/fd, not by path: it is the same file even if the name was moved.
 * A file that is replaced by rename or removed while it is read keeps its inode here, and its ctime changes.
 */
#include "daemon/io/file/file_object.h"

#include "daemon/base/hash.h"
#include "daemon/base/sys/machine.h"
#include "daemon/base/util.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#define ALIGN_MIN 512u
#define ALIGN_MAX 4096u
/* One read brings the whole header of an ordinary checkpoint. */
#define FIRST_READ (64 * KiB)

/* ---- versions ---- */

static uint64_t ns_of(struct timespec ts)
{
        return (uint64_t)ts.tv_sec * UINT64_C(1000000000) + (uint64_t)ts.tv_nsec;
}

static int object_version_read(int fd, const char *path, struct object_version *version, struct error *error)
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

/* ---- reading ---- */

static void advance(struct pread_target *t, size_t n)
{
        t->offset += n;
        t->want -= n < t->want ? n : t->want;
        int first = 0;
        while (first < t->n && n >= t->iov[first].iov_len)
                n -= t->iov[first++].iov_len;
        t->n -= first;
        memmove(t->iov, t->iov + first, (size_t)t->n * sizeof(t->iov[0]));
        if (t->n > 0) {
                t->iov[0].iov_base = (char *)t->iov[0].iov_base + n;
                t->iov[0].iov_len -= n;
        }
}

int pread_target(const struct object *object, int fd, struct pread_target *t, uint64_t *moved_ns, struct error *error)
{
        bool direct = fd == object->direct;
        while (t->want > 0) {
                ssize_t n = preadv(fd, t->iov, t->n, (off_t)t->offset);
                if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
                        if (errno == EAGAIN)
                                nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
                        continue;
                }
                if (n < 0 && direct && errno == EINVAL)
                        return -1;
                if (n < 0)
                        return error_set(error, STREAMER_EFAILED, "read at offset %" PRIu64 ": %s (%s)", t->offset,
                                         strerror(errno), object->path);
                if (moved_ns != NULL)
                        store_relaxed(moved_ns, now_ns());
                /* O_DIRECT stops off its alignment only where the file ends. */
                if (n == 0 || (direct && (uint64_t)n < t->want && (uint64_t)n % object->direct_align != 0))
                        return error_set(error, STREAMER_EFAILED,
                                         "file cut short: no data at offset %" PRIu64 " of %" PRIu64 " (%s)",
                                         (t->offset + (uint64_t)n), object->version.size, object->path);
                advance(t, (size_t)n);
        }
        return 0;
}

/* The kernel fetches a page that is not cached, so the probe itself changes the answer of the next one. */
static bool page_cached(int fd, uint64_t size, uint64_t page)
{
        char bytes[PREAD_PAGE];
        uint64_t at = page * PREAD_PAGE, len = size - at < PREAD_PAGE ? size - at : PREAD_PAGE;
        struct iovec iov = {bytes, len};
        return preadv2(fd, &iov, 1, (off_t)at, RWF_NOWAIT) == (ssize_t)len;
}

bool pread_cached(const struct object *object, uint64_t offset, uint64_t len)
{
        uint64_t size = object->version.size;
        if (object->direct < 0 || len == 0 || offset + len > size)
                return true;
        uint64_t first = offset / PREAD_PAGE, n = (offset + len - 1) / PREAD_PAGE - first + 1;
        uint64_t range[2] = {first * PREAD_PAGE, n * PREAD_PAGE};
        struct {
                uint64_t cached, dirty, writeback, evicted, recently_evicted;
        } stat;
        if (syscall(SYS_CACHESTAT, object->fd, range, &stat, 0) == 0)
                return stat.cached >= n;
        /* Two pages represent the range. They are drawn at random each time: the ones that the last load of this file
         * examined are cached since then, and would be no sample. */
        uint64_t draw = now_ns() * UINT64_C(0x9e3779b97f4a7c15);
        return page_cached(object->fd, size, first + (draw >> 33) % n) &&
               page_cached(object->fd, size, first + (draw & 0xffffffff) % n);
}

/* By the page cache, else by O_DIRECT if that works. */
static int read_range(const struct object_range *range, struct error *error)
{
        const struct object *object = range->object;
        uint64_t offset = range->offset, len = range->len;
        if (!pread_cached(object, offset, len)) {
                unsigned char *page = range->to - offset % PREAD_PAGE;
                require((uintptr_t)page % PREAD_PAGE == 0);
                struct pread_target t = pread_pages(page, offset, len);
                int r = pread_target(object, object->direct, &t, NULL, error);
                if (r == 0 || error->code != 0)
                        return r;
        }
        struct pread_target t = {.iov = {{range->to, len}}, .n = 1, .offset = offset, .want = len};
        return pread_target(object, object->fd, &t, NULL, error);
}

/* ---- operations ---- */

static int file_read_ranges(const struct object_range *ranges, size_t n, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < n; i++)
                r = read_range(&ranges[i], error);
        return r;
}

static int check_version(const struct object *object, struct error *error)
{
        const struct object_version *opened = &object->version;
        struct object_version now;
        int r = object_version_read(object->fd, object->path, &now, error);
        if (r < 0)
                return r;
        if (now.size != opened->size)
                return error_set(error, STREAMER_EFAILED,
                                 "changed while it was read: its size was %" PRIu64 " and is %" PRIu64 " (%s)",
                                 opened->size, now.size, object->path);
        const char *field = now.mtime_ns != opened->mtime_ns   ? "mtime (it was written to)"
                            : now.ctime_ns != opened->ctime_ns ? "ctime (renamed, linked, or its mode changed)"
                            : now.ino != opened->ino || now.dev != opened->dev ? "inode"
                                                                               : NULL;
        return field == NULL ? 0
                             : error_set(error, STREAMER_EFAILED, "changed while it was read: another %s (%s)", field,
                                         object->path);
}

static int file_check_versions(const struct object *const *objects, size_t n, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < n; i++)
                r = check_version(objects[i], error);
        return r;
}

static void file_identify(const struct object *object, struct hash *hash)
{
        const struct object_version *v = &object->version;
        const uint64_t fields[] = {htole64(v->dev), htole64(v->ino), htole64(v->size), htole64(v->mtime_ns),
                                   htole64(v->ctime_ns)};
        hash_update(hash, fields, sizeof(fields));
}

static void file_deinit(struct object *object)
{
        close_p(&object->fd);
        close_p(&object->direct);
}

const struct object_ops object_file_ops = {
        .engine = READ_PREAD,
        .read_ranges = file_read_ranges,
        .check_versions = file_check_versions,
        .identify = file_identify,
        .deinit = file_deinit,
};

/* ---- opening ---- */

/* 0 if O_DIRECT is refused, or requires more than readers provide. The kernel's answer is raised to a sector: some file
 * systems claim that any memory address will do, and their devices disagree. */
static uint32_t direct_alignment(int fd)
{
#ifdef STATX_DIOALIGN
        struct statx stx;
        if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &stx) == 0 && (stx.stx_mask & STATX_DIOALIGN) != 0) {
                uint32_t memory = stx.stx_dio_mem_align, offset = stx.stx_dio_offset_align;
                uint32_t align = memory > offset ? memory : offset;
                if (memory == 0 || offset == 0 || align > ALIGN_MAX)
                        return 0;
                return align < ALIGN_MIN ? ALIGN_MIN : align;
        }
#endif
        return ALIGN_MAX;
}

/* A file that refuses O_DIRECT is read through the page cache, so only what would fail every further open is an
 * error. */
static int open_direct(struct object *object, struct error *error)
{
        char name[64];
        object->direct_align = direct_alignment(object->fd);
        if (object->direct_align == 0)
                return 0;
        snprintf(name, sizeof(name), "/proc/self/fd/%d", object->fd);
        object->direct = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (object->direct < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM))
                return error_set(error, STREAMER_ELIMIT, "%s (%s)", strerror(errno), object->path);
        return 0;
}

int object_init_consume_fd(struct object *object, int fd, const char *path, struct error *error)
{
        *object = (struct object){.ops = &object_file_ops, .path = strdup(path), .fd = fd, .direct = -1};
        int r = object->path != NULL ? object_version_read(fd, path, &object->version, error) : error_no_memory(error);
        r = r ?: open_direct(object, error);
        object->first_read = object->version.size < FIRST_READ ? object->version.size : FIRST_READ;
        if (r == 0)
                posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
        else
                object_deinit(object);
        return r;
}
