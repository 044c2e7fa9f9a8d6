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

#define LOCK "lock"
#define OBJECTS "objects"
#define SOURCES "sources"
#define SOURCE_MAX (16 * MiB) /* bytes of one */
#define DATA "data"
#define ENTRY "entry"
#define NEW "new."
#define STRAY_DEPTH 64u /* of folders in each other that are removed: each takes a descriptor meanwhile */
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

static uint64_t time_of(const struct stat *st)
{
        return (uint64_t)st->st_mtim.tv_sec * SECOND + (uint64_t)st->st_mtim.tv_nsec;
}

static bool is_dots(const char *name)
{
        return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* Never through a link. NULL, with errno. */
static DIR *open_dir(int at, const char *name)
{
        int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
        if (dir == NULL && fd >= 0) {
                int why = errno;
                close(fd);
                errno = why;
        }
        return dir;
}

/* ---- the folder ---- */

static int failed_folder(struct error *error, const char *path, const char *what)
{
        return error_errno(error, STREAMER_EFAILED, errno, "disk_cache: %s: %s", path, what);
}

/* A folder of this user, which no other can look into. One that exists may be another program's: it stays as it is. */
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
        if ((st.st_mode & 0077) != 0)
                return error_set(
                        error, STREAMER_EFAILED,
                        "disk_cache: %s: is open to other users (mode %04o): name a folder of mode 0700, or one "
                        "that does not exist",
                        shown, (unsigned)st.st_mode & 07777);
        return 0;
}

/* Entries are made and removed in a folder that has a lock, which is the first thing made in it. */
static bool is_own_name(const char *name, bool has_lock)
{
        static const char *const own[] = {OBJECTS, SOURCES, LOCK};
        if (is_dots(name) || strcmp(name, "lost+found") == 0)
                return true;
        for (size_t i = 0; has_lock && i < ARRAY_SIZE(own); i++)
                if (strcmp(name, own[i]) == 0)
                        return true;
        return false;
}

static int check_contents(int folder, const char *path, struct error *error)
{
        struct stat st;
        bool has_lock = fstatat(folder, LOCK, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
        DIR *dir = open_dir(folder, ".");
        const struct dirent *e = NULL;
        if (dir == NULL)
                return failed_folder(error, path, "cannot be listed");
        errno = 0;
        while ((e = readdir(dir)) != NULL && is_own_name(e->d_name, has_lock))
                ;
        int r = 0;
        if (e != NULL)
                r = error_set(
                        error, STREAMER_EFAILED,
                        "disk_cache: %s: has '%s', which is no disk cache's: name an empty folder, or one that does "
                        "not exist",
                        path, e->d_name);
        else if (errno != 0)
                r = failed_folder(error, path, "cannot be listed");
        closedir(dir);
        return r;
}

int disk_folder_init(struct disk_folder *folder, const char *path, struct error *error)
{
        cleanup_close int fd = -1;
        *folder = (struct disk_folder){.path = strdup(path), .lock = -1, .objects = -1, .sources = -1};
        if (folder->path == NULL)
                return error_no_memory(error);
        int r = make_folder(AT_FDCWD, path, path, &fd, error) ?: check_contents(fd, path, error);
        if (r < 0)
                return r;
        folder->lock = openat(fd, LOCK, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
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

static int remove_tree(int at, const char *name, dev_t device, unsigned depth);

/* What a folder has. */
static int remove_contents(DIR *dir, dev_t device, unsigned depth)
{
        struct stat st;
        int r = fstat(dirfd(dir), &st);
        if (r == 0 && (st.st_dev != device || depth == STRAY_DEPTH)) {
                errno = st.st_dev != device ? EXDEV : ENAMETOOLONG;
                r = -1;
        }
        for (const struct dirent *e; r == 0 && (errno = 0, e = readdir(dir)) != NULL;)
                r = is_dots(e->d_name) ? 0 : remove_tree(dirfd(dir), e->d_name, device, depth + 1);
        return r < 0 || errno != 0 ? -1 : 0;
}

/* A file of any kind, which is not opened, or a folder with what it has, on this file system and so deep at most. 0
 * also if there is none; -1, with errno. */
static int remove_tree(int at, const char *name, dev_t device, unsigned depth)
{
        if (unlinkat(at, name, 0) == 0 || errno == ENOENT)
                return 0;
        int why = errno;
        if (why != EISDIR && why != EPERM)
                return -1;
        DIR *dir = open_dir(at, name);
        if (dir == NULL) {
                errno = errno == ENOTDIR ? why : errno;
                return -1;
        }
        int r = remove_contents(dir, device, depth);
        why = errno;
        closedir(dir);
        errno = why;
        return r < 0 ? r : unlinkat(at, name, AT_REMOVEDIR);
}

/* Of objects or sources. An entry's record first: without it there is no entry. */
static void remove_named(const struct disk_folder *folder, int at, const char *name)
{
        struct stat st;
        cleanup_close int dir = openat(at, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
        int r = fstat(at, &st);
        if (r == 0 && dir >= 0)
                r = remove_tree(dir, ENTRY, st.st_dev, 1);
        if (r == 0)
                r = remove_tree(at, name, st.st_dev, 0);
        if (r < 0)
                log_warn("disk cache: %s/%s/%s: cannot be removed: %s", folder->path,
                         at == folder->objects ? OBJECTS : SOURCES, name, strerror(errno));
}

void disk_folder_remove(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE])
{
        char name[ENTRY_PATH];
        remove_named(folder, folder->objects, entry_path(name, id, NULL));
}

/* ---- an entry's files ---- */

static int open_folder(const struct disk_folder *folder, const char *name)
{
        return openat(folder->objects, name, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

/* A regular file of an entry's folder, which is open, or the error of that. */
static int open_file(const struct disk_folder *folder, int dir, const char *name, const char *file, int *fd,
                     struct stat *st, struct error *error)
{
        char path[ENTRY_PATH];
        named_path(path, name, file);
        *fd = dir >= 0 ? openat(dir, file, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK) : -1;
        if (*fd < 0 || fstat(*fd, st) < 0)
                return failed(error, folder, path);
        return S_ISREG(st->st_mode) ? 0
                                    : error_set(error, STREAMER_EFAILED,
                                                "disk cache: %s/objects/%s: is no regular file", folder->path, path);
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
        char id[DISK_NAME_SIZE];
        struct stat entry, data;
        struct error error;
        struct disk_record *record = &found->record;
        *record = (struct disk_record){.size = 0};
        if (!is_id(name))
                return IS_NONE;
        cleanup_close int dir = open_folder(folder, name), fd = -1;
        int r = open_file(folder, dir, name, ENTRY, &fd, &entry, &error);
        ssize_t n = r == 0 ? TEMP_FAILURE_RETRY(pread(fd, head, sizeof(head), 0)) : -1;
        if (r == 0)
                r = n >= 0 ? disk_record_decode_head(record, head, (size_t)n) : STREAMER_EFAILED;
        if (r < 0)
                return error_is_lack(r) ? IS_UNKNOWN : IS_NONE;
        hex_encode(id, record->id, DISK_ID_SIZE);
        found->used_ns = time_of(&entry);
        bool whole = strcmp(id, name) == 0 && (uint64_t)entry.st_size == disk_record_size(record) &&
                     fstatat(dir, DATA, &data, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(data.st_mode) &&
                     (uint64_t)data.st_size == record->size;
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
                if (!is_dots(e->d_name)) {
                        strcpy(name, e->d_name);
                        return true;
                }
        return false;
}

static void scan_names(void *arg)
{
        struct scan *scan = arg;
        char name[NAME_MAX + 1];
        while (next_name(scan, name)) {
                struct disk_found found = {.context = scan->context};
                enum examined is = examine(scan->folder, name, &found);
                if (is == IS_NONE)
                        remove_named(scan->folder, scan->folder->objects, name);
                pthread_mutex_lock(&scan->mutex);
                if (is == IS_ENTRY)
                        scan->take(&found);
                scan->removed += is == IS_NONE;
                scan->unknown += is == IS_UNKNOWN;
                pthread_mutex_unlock(&scan->mutex);
                disk_record_deinit(&found.record);
        }
}

uint64_t disk_folder_scan(const struct disk_folder *folder, disk_found_fn *take, void *context, const bool *stop,
                          uint64_t *unknown)
{
        struct scan scan = {.folder = folder,
                            .take = take,
                            .context = context,
                            .stop = stop,
                            .dir = open_dir(folder->objects, ".")};
        *unknown = 0;
        if (scan.dir == NULL) {
                log_error("disk cache: %s: cannot be listed: %s", folder->path, strerror(errno));
                return 0;
        }
        pthread_mutex_init(&scan.mutex, NULL);
        threads_run(SCAN_THREADS, "disk-scan", scan_names, &scan);
        pthread_mutex_destroy(&scan.mutex);
        closedir(scan.dir);
        if (scan.unknown > 0)
                log_error("disk cache: %s: no descriptors or memory for %" PRIu64 " of its entries", folder->path,
                          scan.unknown);
        *unknown = scan.unknown;
        return scan.removed;
}

/* ---- reading ---- */

int disk_folder_read(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE], int *data,
                     struct disk_record *record, struct error *error)
{
        cleanup_with(text_deinit) struct text text = {0};
        char name[ENTRY_PATH], path[ENTRY_PATH];
        struct stat st;
        *record = (struct disk_record){.size = 0};
        entry_path(name, id, NULL);
        cleanup_close int dir = open_folder(folder, name), entry = -1, fd = -1;
        int r = open_file(folder, dir, name, ENTRY, &entry, &st, error)
                        ?: text_read_fd(&text, entry, RECORD_MAX, entry_path(path, id, ENTRY), error)
                        ?: open_file(folder, dir, name, DATA, &fd, &st, error);
        if (r < 0)
                return r;
        r = disk_record_decode(record, (const unsigned char *)text.data, text.size);
        if (r == STREAMER_ENOMEM) {
                disk_record_deinit(record);
                return error_no_memory(error);
        }
        if (r < 0 || memcmp(record->id, id, DISK_ID_SIZE) != 0 || (uint64_t)st.st_size != record->size) {
                disk_record_deinit(record);
                return error_set(error, STREAMER_EFAILED, "disk cache: %s/objects/%s: its record is damaged",
                                 folder->path, name);
        }
        *data = take_fd(&fd);
        return 0;
}

void disk_folder_touch(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE])
{
        char name[ENTRY_PATH];
        cleanup_close int dir = open_folder(folder, entry_path(name, id, NULL));
        if (dir >= 0)
                utimensat(dir, ENTRY, NULL, AT_SYMLINK_NOFOLLOW);
}

char *disk_folder_data_path(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE])
{
        char path[ENTRY_PATH];
        return format_new("%s/objects/%s", folder->path, entry_path(path, id, DATA));
}

/* ---- sources ---- */

/* False: it is to be removed. */
static bool read_source(const struct disk_folder *folder, const char *name, disk_taken_fn *take, void *context)
{
        cleanup_with(text_deinit) struct text text = {0};
        struct error error;
        struct stat st;
        if (!is_id(name))
                return false;
        cleanup_close int fd = openat(folder->sources, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
        int r = fd >= 0 ? text_read_fd(&text, fd, SOURCE_MAX, name, &error)
                        : error_errno(&error, STREAMER_EFAILED, errno, "%s", name);
        if (r < 0 || fstat(fd, &st) < 0)
                return error_is_lack(r);
        return take((const unsigned char *)text.data, text.size, time_of(&st), context);
}

void disk_folder_each_source(const struct disk_folder *folder, disk_taken_fn *take, void *context)
{
        DIR *dir = open_dir(folder->sources, ".");
        if (dir == NULL) {
                log_error("disk cache: %s: its sources cannot be listed: %s", folder->path, strerror(errno));
                return;
        }
        for (const struct dirent *e; (e = readdir(dir)) != NULL;)
                if (!is_dots(e->d_name) && !read_source(folder, e->d_name, take, context))
                        remove_named(folder, folder->sources, e->d_name);
        closedir(dir);
}

void disk_folder_touch_source(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE], uint64_t noted_ns)
{
        char name[DISK_NAME_SIZE];
        const struct timespec at = timespec_of(noted_ns), times[] = {at, at};
        hex_encode(name, id, DISK_ID_SIZE);
        utimensat(folder->sources, name, times, AT_SYMLINK_NOFOLLOW);
}

void disk_folder_remove_source(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE])
{
        char name[DISK_NAME_SIZE];
        hex_encode(name, id, DISK_ID_SIZE);
        remove_named(folder, folder->sources, name);
}

/* In place of a file, or of what no daemon has made. */
static int rename_over(const struct disk_folder *folder, int at, const char *from, const char *to)
{
        if (renameat(at, from, at, to) == 0)
                return 0;
        if (errno != ENOTEMPTY && errno != EEXIST && errno != ENOTDIR && errno != EISDIR)
                return -1;
        remove_named(folder, at, to);
        return renameat(at, from, at, to);
}

int disk_folder_put_source(const struct disk_folder *folder, const unsigned char id[DISK_ID_SIZE],
                           const unsigned char *bytes, size_t size, struct error *error)
{
        static const char new[] = NEW "0"; /* one thread writes them */
        char name[DISK_NAME_SIZE];
        remove_named(folder, folder->sources, new);
        cleanup_close int fd = openat(folder->sources, new, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0600);
        hex_encode(name, id, DISK_ID_SIZE);
        if (fd < 0 || text_write_fd(fd, bytes, size) < 0 || fsync(fd) < 0 ||
            rename_over(folder, folder->sources, new, name) < 0 || fsync(folder->sources) < 0)
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
        remove_named(folder, folder->objects, new->name);
        if (mkdirat(folder->objects, new->name, 0700) < 0 ||
            (new->dir = openat(folder->objects, new->name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)) < 0)
                return failed_new(error, folder, new, "mkdir");
        new->data = openat(new->dir, DATA, flags | O_DIRECT, 0600);
        if (new->data < 0 && errno == EINVAL) { /* the file exists by now */
                new->direct = false;
                new->data = openat(new->dir, DATA, (flags & ~O_EXCL) | O_TRUNC | O_NOFOLLOW, 0600);
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
        if (rename_over(folder, folder->objects, new->name, entry_path(name, record->id, NULL)) < 0)
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
                remove_named(folder, folder->objects, new->name);
        *new = (struct disk_new){.dir = -1, .data = -1};
}
