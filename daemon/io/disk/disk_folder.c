/* SPDX-License-Identifier: Apache-2.0
 *
 * Errors name the path below the folder.
 */
#include "daemon/io/disk/disk_folder.h"

#include "daemon/base/log/log.h"
#include "daemon/base/text/text.h"
#include "daemon/base/thread/threads.h"
#include "daemon/base/util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#define OBJECTS "objects"
#define SOURCES "sources"
#define SOURCE_MAX (16 * MiB) /* bytes of one */
#define DATA "data"
#define ENTRY "entry"
#define NEW "new."
/* Beside the one that scans: each waits for the disk as long as its inodes are not cached. */
#define SCAN_THREADS 3
#define RECORD_MAX (DISK_RECORD_HEAD_MAX + DISK_RECORD_SUMS_MAX * DIGEST_SIZE)

/* "ID", or "ID/FILE". */
#define ENTRY_PATH (DISK_NAME_SIZE + 8)
static const char *named_path(char out[ENTRY_PATH], const char *name, const char *file)
{
        require(strlen(name) == DISK_NAME_SIZE - 1);
        strcpy(out, name);
        if (file == NULL)
                return out;
        out[DISK_NAME_SIZE - 1] = '/';
        strcpy(out + DISK_NAME_SIZE, file);
        return out;
}
static const char *entry_path(char out[ENTRY_PATH], const unsigned char id[DISK_ID_SIZE], const char *file)
{
        char name[DISK_NAME_SIZE];
        hex_encode(name, id, DISK_ID_SIZE);
        return named_path(out, name, file);
}

static int failed(struct error *error, const struct disk_folder *folder, const char *what)
{
        return error_errno(error, STREAMER_EFAILED, errno, "disk cache: %s/objects/%s", folder->path, what);
}

/* The daemon is short of something: that says nothing of a file. */
static bool is_lack(int errno_value)
{
        return errno_value == EMFILE || errno_value == ENFILE || errno_value == ENOMEM;
}

/* ---- the folder ---- */

static int failed_folder(struct error *error, const char *path, const char *what)
{
        return error_errno(error, STREAMER_EFAILED, errno, "disk_cache: %s: %s", path, what);
}

/* A folder of this user, which no other can look into. */
static int make_folder(int at, const char *path, const char *shown, int *fd, struct error *error)
{
        struct stat st;
        if (mkdirat(at, path, 0700) < 0 && errno != EEXIST)
                return failed_folder(error, shown, "cannot be made");
        *fd = openat(at, path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        if (*fd < 0 || fstat(*fd, &st) < 0)
                return failed_folder(error, shown, "cannot be opened");
        if (st.st_uid != geteuid())
                return error_set(error, STREAMER_EFAILED, "disk_cache: %s: belongs to uid %u, not to this daemon's",
                                 shown, (unsigned)st.st_uid);
        if ((st.st_mode & 07777) != 0700 && fchmod(*fd, 0700) < 0)
                return failed_folder(error, shown, "its mode cannot be set to 0700");
        return 0;
}

int disk_folder_init(struct disk_folder *folder, const char *path, struct error *error)
{
        cleanup_close int fd = -1;
        *folder = (struct disk_folder){.path = strdup(path), .lock = -1, .objects = -1, .sources = -1};
        if (folder->path == NULL)
                return error_no_memory(error);
        int r = make_folder(AT_FDCWD, path, path, &fd, error);
        if (r < 0)
                return r;
        folder->lock = openat(fd, "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (folder->lock < 0)
                return failed_folder(error, path, "its lock cannot be opened");
        if (flock(folder->lock, LOCK_EX | LOCK_NB) < 0)
                return errno == EWOULDBLOCK
                               ? error_set(error, STREAMER_EBUSY, "disk_cache: %s: another daemon uses it", path)
                               : failed_folder(error, path, "cannot be locked");
        return make_folder(fd, OBJECTS, path, &folder->objects, error)
                       ?: make_folder(fd, SOURCES, path, &folder->sources, error);
}

void disk_folder_deinit(struct disk_folder *folder)
{
        close_p(&folder->objects);
        close_p(&folder->sources);
        close_p(&folder->lock);
        free(folder->path);
        *folder = (struct disk_folder){.lock = -1, .objects = -1, .sources = -1};
}

bool disk_folder_space(const struct disk_folder *folder, uint64_t *free_bytes, uint64_t *total)
{
        struct statvfs fs;
        if (fstatvfs(folder->objects, &fs) < 0)
                return false;
        *free_bytes = (uint64_t)fs.f_bavail * fs.f_frsize;
        *total = (uint64_t)fs.f_blocks * fs.f_frsize;
        return true;
}

/* ---- removing ---- */

/* The record first: without it there is no entry. What is not there is removed already. */
static void remove_named(const struct disk_folder *folder, const char *name)
{
        cleanup_close int dir = openat(folder->objects, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = 0;
        if (dir >= 0) {
                r = unlinkat(dir, ENTRY, 0) < 0 && errno != ENOENT ? -1 : 0;
                if (r == 0)
                        r = unlinkat(dir, DATA, 0) < 0 && errno != ENOENT ? -1 : 0;
                if (r == 0)
                        r = unlinkat(folder->objects, name, AT_REMOVEDIR);
        } else if (errno == ENOTDIR || errno == ELOOP) {
                r = unlinkat(folder->objects, name, 0);
        } else if (errno != ENOENT) {
                r = -1;
        }
        if (r < 0)
                log_warn("disk cache: %s/objects/%s: cannot be removed: %s", folder->path, name, strerror(errno));
}

void disk_folder_remove(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE])
{
        char name[ENTRY_PATH];
        remove_named(folder, entry_path(name, id, NULL));
}

/* ---- scanning ---- */

static bool is_id(const char *name)
{
        return strlen(name) == DISK_NAME_SIZE - 1 && strspn(name, "0123456789abcdef") == DISK_NAME_SIZE - 1;
}

enum examined { IS_ENTRY, IS_NONE, IS_UNKNOWN };

/* The head of the record, and the sizes of both files. */
static enum examined examine(const struct disk_folder *folder, const char *name, struct disk_found *found)
{
        unsigned char head[DISK_RECORD_HEAD_MAX];
        char path[ENTRY_PATH], id[DISK_NAME_SIZE];
        struct stat entry, data;
        struct disk_record *record = &found->record;
        *record = (struct disk_record){.size = 0};
        if (!is_id(name))
                return IS_NONE;
        cleanup_close int fd =
                openat(folder->objects, named_path(path, name, ENTRY), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
        if (fd < 0 && is_lack(errno))
                return IS_UNKNOWN;
        ssize_t n = fd >= 0 ? TEMP_FAILURE_RETRY(pread(fd, head, sizeof(head), 0)) : -1;
        if (n < 0 || fstat(fd, &entry) < 0 || !disk_record_decode_head(record, head, (size_t)n))
                return IS_NONE;
        hex_encode(id, record->id, DISK_ID_SIZE);
        found->used_ns = (uint64_t)entry.st_mtim.tv_sec * SECOND + (uint64_t)entry.st_mtim.tv_nsec;
        bool whole = strcmp(id, name) == 0 && (uint64_t)entry.st_size == disk_record_size(record) &&
                     fstatat(folder->objects, named_path(path, name, DATA), &data, AT_SYMLINK_NOFOLLOW) == 0 &&
                     S_ISREG(data.st_mode) && (uint64_t)data.st_size == record->size;
        return whole ? IS_ENTRY : IS_NONE;
}

/* What the threads of a scan share. */
struct scan {
        const struct disk_folder *folder;
        disk_found_fn *take;
        void *context;
        const bool *stop;
        pthread_mutex_t mutex; /* guards what follows, and take() */
        DIR *dir;
        uint64_t removed, unknown;
};

_Static_assert(sizeof(((struct dirent *)0)->d_name) <= NAME_MAX + 1, "a name of a folder fits");

/* The next one; false: there is none. */
static bool next_name(struct scan *scan, char name[NAME_MAX + 1])
{
        lock_scope(&scan->mutex);
        for (const struct dirent *e; !load_relaxed(scan->stop) && (e = readdir(scan->dir)) != NULL;)
                if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
                        strcpy(name, e->d_name);
                        return true;
                }
        return false;
}

static void scan_names(struct scan *scan)
{
        char name[NAME_MAX + 1];
        while (next_name(scan, name)) {
                struct disk_found found = {.context = scan->context};
                enum examined is = examine(scan->folder, name, &found);
                if (is == IS_NONE)
                        remove_named(scan->folder, name);
                pthread_mutex_lock(&scan->mutex);
                if (is == IS_ENTRY)
                        scan->take(&found);
                scan->removed += is == IS_NONE;
                scan->unknown += is == IS_UNKNOWN;
                pthread_mutex_unlock(&scan->mutex);
                disk_record_deinit(&found.record);
        }
}

static void *scan_beside(void *arg)
{
        thread_begin("disk-scan");
        scan_names(arg);
        return NULL;
}

/* The threads that cannot be started are not needed. */
static void scan_by_threads(struct scan *scan)
{
        pthread_t threads[SCAN_THREADS];
        size_t n = 0;
        while (n < SCAN_THREADS && thread_start(&threads[n], NULL, scan_beside, scan) == 0)
                n++;
        scan_names(scan);
        while (n > 0)
                pthread_join(threads[--n], NULL);
}

uint64_t disk_folder_scan(const struct disk_folder *folder, disk_found_fn *take, void *context, const bool *stop)
{
        struct scan scan = {.folder = folder, .take = take, .context = context, .stop = stop};
        int fd = openat(folder->objects, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        scan.dir = fd >= 0 ? fdopendir(fd) : NULL;
        if (scan.dir == NULL) {
                log_error("disk cache: %s: cannot be listed: %s", folder->path, strerror(errno));
                close_p(&fd);
                return 0;
        }
        pthread_mutex_init(&scan.mutex, NULL);
        scan_by_threads(&scan);
        pthread_mutex_destroy(&scan.mutex);
        closedir(scan.dir);
        if (scan.unknown > 0)
                log_error("disk cache: %s: no descriptors for %" PRIu64 " of its entries", folder->path, scan.unknown);
        return scan.removed;
}

/* ---- reading ---- */

static int open_file(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE], const char *file, int *fd,
                     struct error *error)
{
        char path[ENTRY_PATH];
        entry_path(path, id, file);
        *fd = openat(folder->objects, path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY);
        if (*fd < 0 && is_lack(errno))
                return error_errno(error, STREAMER_ELIMIT, errno, "disk cache: %s/objects/%s", folder->path, path);
        return *fd >= 0 ? 0 : failed(error, folder, path);
}

int disk_folder_read(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE], int *data,
                     struct disk_record *record, struct error *error)
{
        cleanup_close int entry = -1, fd = -1;
        cleanup_with(text_deinit) struct text text = {0};
        char path[ENTRY_PATH];
        struct stat st;
        *record = (struct disk_record){.size = 0};
        int r = open_file(folder, id, ENTRY, &entry, error)
                        ?: open_file(folder, id, DATA, &fd, error)
                        ?: text_read_fd(&text, entry, RECORD_MAX, entry_path(path, id, ENTRY), error);
        if (r < 0)
                return r;
        if (fstat(fd, &st) < 0)
                return failed(error, folder, entry_path(path, id, DATA));
        if (!disk_record_decode(record, (const unsigned char *)text.data, text.size) ||
            memcmp(record->id, id, DISK_ID_SIZE) != 0 || (uint64_t)st.st_size != record->size) {
                disk_record_deinit(record);
                return error_set(error, STREAMER_EFAILED, "disk cache: %s/objects/%s: its record is damaged",
                                 folder->path, entry_path(path, id, NULL));
        }
        *data = take_fd(&fd);
        return 0;
}

void disk_folder_touch(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE])
{
        char path[ENTRY_PATH];
        utimensat(folder->objects, entry_path(path, id, ENTRY), NULL, AT_SYMLINK_NOFOLLOW);
}

char *disk_folder_data_path(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE])
{
        char path[ENTRY_PATH];
        return format_new("%s/objects/%s", folder->path, entry_path(path, id, DATA));
}

/* ---- sources ---- */

static bool read_source(const struct disk_folder *folder, const char *name, disk_taken_fn *take, void *context)
{
        cleanup_with(text_deinit) struct text text = {0};
        struct error error;
        cleanup_close int fd = openat(folder->sources, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        return is_id(name) && fd >= 0 && text_read_fd(&text, fd, SOURCE_MAX, name, &error) == 0 &&
               take((const unsigned char *)text.data, text.size, context);
}

void disk_folder_each_source(const struct disk_folder *folder, disk_taken_fn *take, void *context)
{
        int fd = openat(folder->sources, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
        if (dir == NULL) {
                log_error("disk cache: %s: its sources cannot be listed: %s", folder->path, strerror(errno));
                close_p(&fd);
                return;
        }
        for (const struct dirent *e; (e = readdir(dir)) != NULL;)
                if (e->d_name[0] != '.' && !read_source(folder, e->d_name, take, context))
                        unlinkat(folder->sources, e->d_name, 0);
        closedir(dir);
}

int disk_folder_put_source(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE],
                           const unsigned char *bytes, size_t size, struct error *error)
{
        static const char new[] = NEW "0"; /* one thread writes them */
        char name[DISK_NAME_SIZE];
        unlinkat(folder->sources, new, 0);
        cleanup_close int fd = openat(folder->sources, new, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
        hex_encode(name, id, DISK_ID_SIZE);
        if (fd < 0 || text_write_fd(fd, bytes, size) < 0 || fsync(fd) < 0 ||
            renameat(folder->sources, new, folder->sources, name) < 0 || fsync(folder->sources) < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "disk cache: %s/sources/%s", folder->path, name);
        return 0;
}

/* ---- writing ---- */

static int failed_new(struct error *error, const struct disk_folder *folder, const struct disk_new *new,
                      const char *what)
{
        char text[64];
        snprintf(text, sizeof(text), "%s: %s", new->name, what);
        return failed(error, folder, text);
}

int disk_new_begin(struct disk_new *new, const struct disk_folder *folder, uint64_t number, uint64_t size,
                   struct error *error)
{
        const int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY;
        *new = (struct disk_new){.dir = -1, .data = -1, .direct = true};
        snprintf(new->name, sizeof(new->name), NEW "%" PRIu64, number);
        if (mkdirat(folder->objects, new->name, 0700) < 0 ||
            (new->dir = openat(folder->objects, new->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
                return failed_new(error, folder, new, "mkdir");
        new->data = openat(new->dir, DATA, flags | O_DIRECT, 0600);
        if (new->data < 0 && errno == EINVAL) { /* the file exists by now */
                new->direct = false;
                new->data = openat(new->dir, DATA, (flags & ~O_EXCL) | O_TRUNC, 0600);
        }
        if (new->data < 0)
                return failed_new(error, folder, new, "create");
        /* At once, so that a lack of space is known before anything is written. */
        if (size > 0 && TEMP_FAILURE_RETRY(fallocate(new->data, 0, 0, (off_t)size)) < 0 && errno != EOPNOTSUPP)
                return failed_new(error, folder, new, "allocate");
        return 0;
}

/* From here on through the page cache, without its alignment. */
static bool stop_direct(struct disk_new *new)
{
        bool was = new->direct;
        new->direct = false;
        return was && fcntl(new->data, F_SETFL, 0) == 0;
}

int disk_new_write(struct disk_new *new, const void *pages, uint64_t offset, uint64_t len, struct error *error)
{
        require(offset % DISK_PAGE == 0 && len % DISK_PAGE == 0 && (uintptr_t)pages % DISK_PAGE == 0);
        for (uint64_t done = 0; done < len;) {
                ssize_t n = TEMP_FAILURE_RETRY(
                        pwrite(new->data, (const char *)pages + done, len - done, (off_t)(offset + done)));
                if (n < 0 && errno == EINVAL && stop_direct(new)) /* it was refused after all */
                        continue;
                if (n <= 0)
                        return error_errno(error, STREAMER_EFAILED, n < 0 ? errno : ENOSPC,
                                           "disk cache: %s: write at offset %" PRIu64, new->name, offset + done);
                done += (uint64_t)n;
        }
        return 0;
}

static int write_entry(const struct disk_new *new, const struct disk_record *record)
{
        size_t size;
        cleanup_free unsigned char *bytes = disk_record_encode(record, &size);
        cleanup_close int fd = openat(new->dir, ENTRY, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        if (bytes == NULL)
                errno = ENOMEM;
        return bytes != NULL && fd >= 0 && text_write_fd(fd, bytes, size) == 0 && fsync(fd) == 0 ? 0 : -1;
}

int disk_new_commit(struct disk_new *new, const struct disk_folder *folder, const struct disk_record *record,
                    struct error *error)
{
        char name[ENTRY_PATH];
        require(new->data >= 0 && new->dir >= 0);
        if (ftruncate(new->data, (off_t)record->size) < 0 || fsync(new->data) < 0)
                return failed_new(error, folder, new, "sync");
        if (write_entry(new, record) < 0 || fsync(new->dir) < 0)
                return failed_new(error, folder, new, "write its record");
        if (renameat(folder->objects, new->name, folder->objects, entry_path(name, record->id, NULL)) < 0)
                return failed_new(error, folder, new, "rename");
        new->name[0] = '\0'; /* it is an entry from here on */
        if (fsync(folder->objects) == 0)
                return 0;
        failed(error, folder, entry_path(name, record->id, NULL));
        disk_folder_remove(folder, record->id);
        return error->code;
}

void disk_new_abort(struct disk_new *new, const struct disk_folder *folder)
{
        close_p(&new->data);
        close_p(&new->dir);
        if (new->name[0] != '\0')
                remove_named(folder, new->name);
        *new = (struct disk_new){.dir = -1, .data = -1};
}
