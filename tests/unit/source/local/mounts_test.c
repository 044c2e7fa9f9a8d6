/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of mounts: which mount holds a path, and changes.
 */
#include "daemon/source/local/mounts.h"
#include "tests/lib/suite.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

static bool own_namespace(void)
{
        return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

/* The device that stat() reports; it touches the file system, as mounts_find() must not. */
static uint64_t device_of(const char *path)
{
        struct stat st;
        must(stat(path, &st));
        return (uint64_t)major(st.st_dev) << 32 | minor(st.st_dev);
}

static char *folder(const char *name)
{
        char *path = suite_path("%s", name);
        if (mkdir(path, 0755) < 0 && errno != EEXIST)
                die_errno("%s", path);
        return path;
}

static void mount_tmpfs(const char *path)
{
        must(mount("none", path, "tmpfs", 0, NULL));
}

FIXTURE();

TEST(a_path_is_held_by_the_mount_of_the_nearest_folder)
{
        if (!own_namespace())
                SKIP("no mount namespace here");
        char *outer = folder("outer"), *beside = folder("outer2"), *spaced = folder("a b\tc\\d");
        mount_tmpfs(outer);
        char *inner = folder("outer/inner");
        mount_tmpfs(inner);
        mount_tmpfs(spaced);
        ck_assert_uint_eq(mounts_find(outer).dev, device_of(outer));
        ck_assert_str_eq(mounts_find(outer).type, "tmpfs");
        ck_assert_uint_eq(mounts_find(format_text("%s/none/such", outer)).dev, device_of(outer));
        ck_assert_uint_eq(mounts_find(inner).dev, device_of(inner));
        ck_assert_uint_eq(mounts_find(format_text("%s/x", inner)).dev, device_of(inner));
        ck_assert_uint_eq(mounts_find(format_text("%sx", inner)).dev, device_of(outer));
        ck_assert_uint_eq(mounts_find(beside).dev, device_of(beside));
        ck_assert_uint_eq(mounts_find(spaced).dev, device_of(spaced));
        ck_assert_uint_eq(mounts_find("/").dev, device_of("/"));
}

TEST(changes_of_the_mounts_are_seen)
{
        if (!own_namespace())
                SKIP("no mount namespace here");
        char *path = folder("point");
        uint64_t below = device_of(path);
        ck_assert_uint_eq(mounts_find(path).dev, below);
        for (int i = 0; i < 3; i++) {
                mount_tmpfs(path);
                uint64_t first = device_of(path);
                ck_assert_uint_eq(mounts_find(path).dev, first);
                mount_tmpfs(path); /* on top */
                ck_assert_uint_ne(device_of(path), first);
                ck_assert_uint_eq(mounts_find(path).dev, device_of(path));
                must(umount(path));
                ck_assert_uint_eq(mounts_find(path).dev, first);
                must(umount(path));
                ck_assert_uint_eq(mounts_find(path).dev, below);
        }
}
