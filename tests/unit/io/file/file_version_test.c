/* SPDX-License-Identifier: Apache-2.0
 *
 * What identifies a version of a file: which differences are noticed on which file systems.
 */
#include "tests/lib/fuse_file.h"
#include "tests/lib/suite.h"

#include "daemon/base/hash.h"
#include "daemon/io/file/file_object.h"
#include "daemon/io/file/file_version.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mount.h>
#include <sys/vfs.h>

static struct error error;

static struct object open_object(const char *path)
{
        struct object object;
        ck_assert_msg(object_init_consume_fd(&object, must(open(path, O_RDONLY)), path, &error) == 0, "%s", error.text);
        return object;
}

struct identity {
        unsigned char digest[DIGEST_SIZE];
};

/* With the sample, as a source's. */
static struct identity identity_of(const struct object *object)
{
        struct identity identity;
        struct hash hash;
        hash_init(&hash);
        file_version_identify(object, &hash);
        if (object->version.is_weak)
                ck_assert_msg(file_version_sample(object, 1, &hash, &error) == 0, "%s", error.text);
        hash_final(&hash, identity.digest);
        return identity;
}

static struct identity identity_at(const char *path)
{
        struct object object = open_object(path);
        struct identity identity = identity_of(&object);
        object_deinit(&object);
        return identity;
}

static bool same(struct identity a, struct identity b)
{
        return memcmp(&a, &b, sizeof(a)) == 0;
}

/* ---- kinds of file systems ---- */

static const struct {
        uint64_t f_type;
        enum file_times times;
} kinds[] = {
        {EXT4_SUPER_MAGIC, TIMES_CHANGE},      {XFS_SUPER_MAGIC, TIMES_CHANGE},  {BTRFS_SUPER_MAGIC, TIMES_CHANGE},
        {TMPFS_MAGIC, TIMES_CHANGE},           {NFS_SUPER_MAGIC, TIMES_CHANGE},  {SQUASHFS_MAGIC, TIMES_IMAGE},
        {EROFS_SUPER_MAGIC_V1, TIMES_IMAGE},   {ISOFS_SUPER_MAGIC, TIMES_IMAGE}, {OVERLAYFS_SUPER_MAGIC, TIMES_IMAGE},
        {0x65735546 /* FUSE */, TIMES_WEAK},   {MSDOS_SUPER_MAGIC, TIMES_WEAK},  {0x2011bab0 /* exfat */, TIMES_WEAK},
        {0x12345678 /* unknown */, TIMES_WEAK}};

TEST(a_file_system_is_trusted_only_if_it_is_known, EACH(kinds))
{
        ck_assert_int_eq(file_times_of(kinds[_i].f_type), kinds[_i].times);
}

static const struct {
        uint64_t ctime_ns;
        bool unique;
} ctimes[] = {
        {0, false},
        {SECOND, false},
        {SECOND + 123456789, false},
        {5 * SECOND, false}, /* as images have it, whatever mtime is */
        {5 * SECOND + 123456789, true},
};

TEST(a_ctime_in_whole_seconds_may_be_that_of_another_image, EACH(ctimes))
{
        ck_assert_int_eq(file_ctime_is_unique(ctimes[_i].ctime_ns), ctimes[_i].unique);
}

/* ---- volumes ---- */

/* A file as its file system describes it, at an attachment of its disk and in a mount. */
struct described {
        uint64_t f_type, ctime_ns;
        struct file_volume volume;
};

static struct identity identity_described(const struct described *file, bool *is_weak)
{
        struct object object = {.version = {.dev = 0x700,
                                            .ino = 12,
                                            .size = 100080,
                                            .mtime_ns = 1600000000 * SECOND,
                                            .ctime_ns = file->ctime_ns}};
        struct identity identity;
        struct hash hash;
        if (file_version_needs_volume(&object.version, file->f_type))
                file_version_add_volume(&object.version, file->f_type, &file->volume);
        *is_weak = object.version.is_weak;
        hash_init(&hash);
        file_version_identify(&object, &hash);
        hash_final(&hash, identity.digest);
        return identity;
}

#define BUILT (1700000000 * SECOND)       /* when both images were made: not when the file got its mtime */
#define CHANGED (1700000000 * SECOND + 5) /* in nanoseconds, by a kernel */

enum told { TOLD_SAME, TOLD_ANOTHER, TOLD_BY_SAMPLE };
static const struct {
        uint64_t f_type, ctime_ns;
        struct file_volume before, after;
        enum told told;
} mounts[] = {
        /* The disk stays attached, and other bytes are written to it between two mounts. */
        {SQUASHFS_MAGIC, 0, {.mount = 1, .diskseq = 7}, {.mount = 2, .diskseq = 7}, TOLD_ANOTHER},
        {EROFS_SUPER_MAGIC_V1, CHANGED, {.mount = 1, .diskseq = 7}, {.mount = 2, .diskseq = 7}, TOLD_ANOTHER},
        {EXT4_SUPER_MAGIC, BUILT, {.mount = 1, .diskseq = 7}, {.mount = 2, .diskseq = 7}, TOLD_ANOTHER},
        /* Another image is attached below a mount. */
        {SQUASHFS_MAGIC, 0, {.mount = 1, .diskseq = 7}, {.mount = 1, .diskseq = 8}, TOLD_ANOTHER},
        /* Without a disk, as btrfs and overlays. */
        {BTRFS_SUPER_MAGIC, BUILT, {.mount = 1}, {.mount = 2}, TOLD_ANOTHER},
        {OVERLAYFS_SUPER_MAGIC, CHANGED, {.mount = 1}, {.mount = 2}, TOLD_ANOTHER},
        /* A kernel that does not name mounts. */
        {SQUASHFS_MAGIC, 0, {.diskseq = 7}, {.diskseq = 7}, TOLD_BY_SAMPLE},
        {EXT4_SUPER_MAGIC, BUILT, {.diskseq = 7}, {.diskseq = 7}, TOLD_BY_SAMPLE},
        {EXT4_SUPER_MAGIC, BUILT, {.diskseq = 7}, {.diskseq = 8}, TOLD_ANOTHER},
        {BTRFS_SUPER_MAGIC, BUILT, {0}, {0}, TOLD_BY_SAMPLE},
        /* The same mount. */
        {SQUASHFS_MAGIC, 0, {.mount = 1, .diskseq = 7}, {.mount = 1, .diskseq = 7}, TOLD_SAME},
        {EXT4_SUPER_MAGIC, BUILT, {.mount = 1, .diskseq = 7}, {.mount = 1, .diskseq = 7}, TOLD_SAME},
        /* The kernel's times tell versions apart in every mount: the file is not read again. */
        {EXT4_SUPER_MAGIC, CHANGED, {.mount = 1, .diskseq = 7}, {.mount = 2, .diskseq = 8}, TOLD_SAME},
        {NFS_SUPER_MAGIC, CHANGED, {.mount = 1}, {.mount = 2}, TOLD_SAME},
};

TEST(equal_times_are_trusted_in_one_mount_alone_unless_a_kernel_made_them, EACH(mounts))
{
        struct described before = {mounts[_i].f_type, mounts[_i].ctime_ns, mounts[_i].before}, after = before;
        bool was_weak, is_weak;
        after.volume = mounts[_i].after;
        struct identity was = identity_described(&before, &was_weak), is = identity_described(&after, &is_weak);
        ck_assert_int_eq(was_weak, is_weak);
        ck_assert_int_eq(!same(was, is) ? TOLD_ANOTHER : is_weak ? TOLD_BY_SAMPLE : TOLD_SAME, mounts[_i].told);
}

TEST(times_of_whole_seconds_have_a_grain_of_seconds)
{
        ck_assert_uint_eq(file_times_grain(EXT4_SUPER_MAGIC, 7 * SECOND + 4000000, 4000000), 4000000);
        ck_assert_uint_eq(file_times_grain(EXT4_SUPER_MAGIC, 7 * SECOND, 4000000), SECOND);
        ck_assert_uint_eq(file_times_grain(MSDOS_SUPER_MAGIC, 7 * SECOND, 4000000), 2 * SECOND);
}

/* ---- an ordinary file system ---- */

static char *make_file(const char *contents)
{
        char *path = suite_path("file-%d", (int)getpid());
        file_write(path, contents, strlen(contents));
        return path;
}

/* A file that was changed in the present tick could be changed again without another time. */
TEST(a_version_is_settled_when_it_is_read)
{
        char *path = make_file("0123456789");
        struct identity before = identity_at(path);
        for (char c = 'a'; c < 'a' + 20; c++) {
                int fd = must(open(path, O_WRONLY));
                ck_assert_int_eq(pwrite(fd, &c, 1, 0), 1);
                close(fd);
                struct identity after = identity_at(path);
                ck_assert(!same(before, after));
                ck_assert(same(after, identity_at(path)));
                before = after;
        }
}

/* The first store makes the page dirty, and moves the times; the next ones would not, unless it was written back. */
TEST(stores_through_a_dirty_mapping_are_noticed)
{
        char *path = make_file("0123456789");
        int fd = must(open(path, O_RDWR));
        volatile char *map = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        ck_assert_ptr_ne((void *)(uintptr_t)map, MAP_FAILED);
        struct statfs fs;
        must(fstatfs(fd, &fs));
        if (file_system_of((uint64_t)fs.f_type & UINT32_MAX) != FILE_SYSTEM_OTHER || fs.f_type == TMPFS_MAGIC)
                SKIP("a store through a mapping cannot be noticed on an overlay, FUSE or tmpfs");
        map[0] = 'a';
        struct identity before = identity_at(path);
        for (char c = 'b'; c < 'b' + 10; c++) {
                map[0] = c;
                struct identity after = identity_at(path);
                ck_assert_msg(!same(before, after), "'%c' was not noticed", c);
                before = after;
        }
}

TEST(an_unchanged_file_keeps_its_identity)
{
        char *path = make_file("0123456789");
        struct identity before = identity_at(path);
        must(utimensat(AT_FDCWD, path, (struct timespec[]){{.tv_sec = 1000000}, {.tv_sec = 1000000}}, 0));
        struct identity touched = identity_at(path);
        ck_assert(!same(before, touched));
        ck_assert(same(touched, identity_at(path)));
}

/* ---- weak file systems ---- */

FIXTURE(.unavailable = fuse_file_unavailable);

static char *big_file(const char *name, size_t size, char byte)
{
        char *path = suite_path("%s-%d", name, (int)getpid()), *bytes = must_alloc(size);
        memset(bytes, byte, size);
        file_write(path, bytes, size);
        free(bytes);
        return path;
}

static void start(struct fuse_file *fs, struct fuse_oddities odd, const char *backing)
{
        fs->odd = odd;
        fuse_file_start(fs, suite_path("fuse-%d", (int)getpid()), "m.safetensors", backing);
}

TEST(another_mount_with_constant_times_is_another_version)
{
        struct fuse_file fs;
        start(&fs, (struct fuse_oddities){.constant_times = true}, big_file("v1", 10000000, 1));
        struct identity first = identity_at(fs.path);
        fuse_file_stop(&fs);
        start(&fs, (struct fuse_oddities){.constant_times = true}, big_file("v2", 10000000, 2));
        struct identity second = identity_at(fs.path);
        ck_assert(!same(first, second));
        ck_assert(same(second, identity_at(fs.path)));
        fuse_file_stop(&fs);
}

/* The same mount, and the kernel has cached nothing: the bytes tell. */
TEST(a_change_that_the_times_do_not_show_is_found_in_the_bytes)
{
        struct fuse_file fs;
        char *backing = big_file("v", 10000000, 1);
        start(&fs, (struct fuse_oddities){.constant_times = true}, backing);
        struct identity first = identity_at(fs.path);
        ck_assert(same(first, identity_at(fs.path)));
        big_file("v", 10000000, 2);
        ck_assert(!same(first, identity_at(fs.path)));
        fuse_file_stop(&fs);
}

TEST(inode_numbers_that_change_do_not_make_another_version)
{
        struct fuse_file fs;
        start(&fs, (struct fuse_oddities){.unstable_inodes = true}, big_file("v", 100000, 1));
        struct object object = open_object(fs.path);
        ck_assert_int_eq(file_version_compare(&object, &error), 0);
        ck_assert(same(identity_of(&object), identity_at(fs.path)));
        fuse_file_stop(&fs);
}

/* Without inode numbers the path tells two files of the same size and times apart. */
TEST(a_link_to_a_file_of_a_weak_file_system_is_the_same_version)
{
        struct fuse_file fs;
        start(&fs, (struct fuse_oddities){.constant_times = true}, big_file("v", 100000, 1));
        char *link = suite_path("link-%d", (int)getpid());
        must(symlink(fs.path, link));
        ck_assert(same(identity_at(fs.path), identity_at(link)));
        fuse_file_stop(&fs);
}

/* Each piece of the sample, wherever it lies: the header, the middle, the end. */
TEST(a_sample_reaches_from_the_header_to_the_end)
{
        static const size_t at[] = {0, 4999, 9999999};
        struct fuse_file fs;
        char *backing = big_file("v", 10000000, 1);
        start(&fs, (struct fuse_oddities){.constant_times = true}, backing);
        struct identity before = identity_at(fs.path);
        for (size_t i = 0; i < sizeof(at) / sizeof(at[0]); i++) {
                int fd = must(open(backing, O_WRONLY));
                ck_assert_int_eq(pwrite(fd, "x", 1, (off_t)at[i]), 1);
                close(fd);
                struct identity after = identity_at(fs.path);
                ck_assert_msg(!same(before, after), "a change at %zu", at[i]);
                before = after;
        }
        fuse_file_stop(&fs);
}

/* Where times are whole seconds, a file that changed in this one could change again without another time. */
TEST(a_file_that_changed_in_this_second_is_read_when_it_is_over)
{
        struct fuse_file fs;
        char *backing = big_file("v", 100, 1);
        start(&fs, (struct fuse_oddities){.whole_seconds = true}, backing);
        must(utimensat(AT_FDCWD, backing, NULL, 0));
        struct object object = open_object(fs.path);
        struct timespec now;
        must(clock_gettime(CLOCK_REALTIME, &now));
        ck_assert_uint_eq(object.version.mtime_ns % SECOND, 0);
        ck_assert_uint_ge((uint64_t)now.tv_sec, object.version.mtime_ns / SECOND + 1);
        fuse_file_stop(&fs);
}
