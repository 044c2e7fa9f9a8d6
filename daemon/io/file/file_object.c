/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens files for reading, twice, and reads pieces of them.
 *
 * The second descriptor is opened through /proc/self/fd, not by path: it is the same file even if the name was moved.
 * A file that is replaced by rename or removed while it is read keeps its inode here, and its ctime changes.
 */
#include "daemon/io/file/file_object.h"

#include "daemon/base/util.h"
#include "daemon/io/file/file_read.h"
#include "daemon/io/file/file_version.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/stat.h>

#define ALIGN_MIN 512u
#define ALIGN_MAX 4096u
/* One read brings the whole header of an ordinary checkpoint. */
#define FIRST_READ (64 * KiB)

/* ---- reading ---- */

/* By the page cache, else by O_DIRECT if that works. */
static int read_range(const struct object_range *range, struct error *error)
{
        const struct object *object = range->object;
        uint64_t offset = range->offset, len = range->len;
        if (!pread_cached(object, offset, len)) {
                unsigned char *page = range->to - offset % PREAD_PAGE;
                require((uintptr_t)page % PREAD_PAGE == 0);
                struct pread_target t = pread_pages(page, offset, len);
                int r = pread_target(object, object->direct, &t, &pread_unwatched, error);
                if (r == 0 || error->code != 0)
                        return r;
        }
        struct pread_target t = {.iov = {{range->to, len}}, .n = 1, .offset = offset, .want = len};
        return pread_target(object, object->fd, &t, &pread_unwatched, error);
}

/* ---- operations ---- */

static int file_read_ranges(const struct object_range *ranges, size_t n, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < n; i++)
                r = read_range(&ranges[i], error);
        return r;
}

static int file_check_versions(const struct object *const *objects, size_t n, struct error *error)
{
        int r = 0;
        for (size_t i = 0; r == 0 && i < n; i++)
                r = file_version_compare(objects[i], error);
        return r;
}

static void file_deinit(struct object *object)
{
        close_fd(&object->fd);
        close_fd(&object->direct);
        while (object->n_streams > 0)
                close_p(&object->streams[--object->n_streams]);
}

const struct object_ops object_file_ops = {
        .engine = READ_PREAD,
        .read_ranges = file_read_ranges,
        .check_versions = file_check_versions,
        .identify = file_version_identify,
        .sample = file_version_sample,
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
 * error. One that the first read brings from the cache does not need it. */
static int open_direct(struct object *object, struct error *error)
{
        char name[64], why[ERROR_ERRNO_SIZE];
        bool needed = !object->is_streamed && !(object_is_read(object) && file_is_cached(object));
        object->direct_align = needed ? direct_alignment(object->fd) : 0;
        if (object->direct_align == 0)
                return 0;
        snprintf(name, sizeof(name), "/proc/self/fd/%d", object->fd);
        object->direct = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        if (object->direct < 0 && (errno == EMFILE || errno == ENFILE || errno == ENOMEM)) {
                error_errno_text(why, errno);
                return error_set(error, STREAMER_ELIMIT, "%s (%s)", why, object->path);
        }
        return 0;
}

int object_init_consume_fd(struct object *object, int fd, const char *path, struct error *error)
{
        *object = (struct object){.ops = &object_file_ops, .path = strdup(path), .fd = fd, .direct = -1};
        enum file_system system = FILE_SYSTEM_OTHER;
        int r = object->path != NULL ? file_version_open(fd, path, &object->version, &system, error)
                                     : error_no_memory(error);
        object->is_overlay = system == FILE_SYSTEM_OVERLAY;
        object->is_streamed = system == FILE_SYSTEM_FUSE;
        object->first_read = object->version.size < FIRST_READ ? object->version.size : FIRST_READ;
        r = r ?: open_direct(object, error);
        /* Without O_DIRECT the kernel's read-ahead is what keeps storage busy. */
        if (r == 0 && object->direct >= 0)
                posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
        if (r == 0 && object->is_streamed)
                posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
        if (r < 0)
                object_deinit(object);
        return r;
}

void object_open_streams(struct object *object, size_t n_objects)
{
        char name[64];
        unsigned n = n_objects < OBJECT_STREAMS ? (OBJECT_STREAMS + (unsigned)n_objects - 1) / (unsigned)n_objects : 1;
        require(n_objects > 0 && object->n_streams == 0);
        snprintf(name, sizeof(name), "/proc/self/fd/%d", object->fd);
        while (object->is_streamed && object->n_streams + 1 < n) {
                int fd = open(name, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
                if (fd < 0)
                        return;
                posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
                object->streams[object->n_streams++] = fd;
        }
}
