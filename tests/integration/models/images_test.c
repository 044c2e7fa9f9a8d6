/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in file systems that are mounted, unmounted and replaced: another image at the same place and device is
 * another model, whatever its files' times say; an unchanged file of an ordinary file system is not read again.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/model.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

#include <sched.h>
#include <sys/mount.h>

static struct daemon d;
static char *base;

static void sh(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void sh(const char *format, ...)
{
        char text[8192], *out;
        FORMAT_ARGS(text, format);
        int r = shell(&out, "cd '%s' && { %s; }", base, text);
        ck_assert_msg(r == 0, "%s: exit %d: %s", text, r, out);
        free(out);
}

static const char *no_mounts(void)
{
        pid_t pid = must(fork());
        if (pid == 0)
                _exit(unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
        return child_wait(pid) ? "no mount namespace here" : NULL;
}

/* A loop device that this test may have for itself. */
static const char *no_images(void)
{
        static const char *const tools[] = {"mksquashfs", "mkfs.erofs", "mkfs.ext4", "losetup"};
        for (size_t i = 0; i < sizeof(tools) / sizeof(tools[0]); i++)
                if (!command_exists(tools[i]))
                        return "no tools to make images";
        if (access("/dev/loop-control", R_OK | W_OK) < 0)
                return "no loop devices";
        return no_mounts();
}

/* Two versions of one model: the same size, other bytes, the times that tools of reproducible images give. */
static void make_version(const char *folder, uint64_t seed)
{
        struct model *m = model_new(seed);
        model_add(m, "a", "U8", (uint64_t[]){100000}, 1);
        must(mkdir(format_text("%s/%s", base, folder), 0755));
        model_write(m, format_text("%s/%s/model.safetensors", base, folder));
        sh("touch -d @1700000000 %s/model.safetensors %s", folder, folder);
        model_free(m);
}

static void begin(void)
{
        must(unshare(CLONE_NEWNS));
        must(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
        base = suite_path("images-%d", (int)getpid());
        must(mkdir(base, 0755));
        sh("mkdir daemon models models/img models/other");
        make_version("v1", 1);
        make_version("v2", 2);
        daemon_start_simple(&d, format_text("%s/daemon", base), format_text("%s/models", base), "64MiB");
}

static void end(void)
{
        ck_assert_int_eq(daemon_stop(&d), 0);
}

FIXTURE(.each = {begin, end}, .unavailable = no_images);

static void load(const char *at, const char *says)
{
        ctl_says(d.socket, 0, says, "load", format_text("%s/models/%s", base, at), "--name", "m", NULL);
}

/* The daemon answers before it closes the files that it compared. */
static void unmount(const char *at)
{
        AWAIT(umount(format_text("%s/%s", base, at)) == 0);
}

/* What is resident is what safetensors would read from the file. */
static void assert_serves(const char *version)
{
        struct ctl r;
        size_t size;
        char *file = file_read(format_text("%s/%s/model.safetensors", base, version), &size);
        ctl(&r, d.socket, "cat", "m", "a", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_uint_eq(r.out_size, 100000);
        ck_assert_mem_eq(r.out, file + size - r.out_size, r.out_size);
        ctl_free(&r);
        free(file);
}

static const struct {
        const char *make; /* of the folder $v the file $v.img */
} images[] = {
        {"mksquashfs $v $v.img -all-time 0 -mkfs-time 0 -quiet -no-progress"},
        {"mkfs.erofs -T0 -U 00000000-0000-0000-0000-000000000001 $v.img $v"},
};

static void make_images(const char *make)
{
        sh("for v in v1 v2; do %s; done >log 2>&1 || { cat log; exit 1; }", make);
}

/* On the same loop device, which is the first that is free. */
static void mount_image(const char *image, const char *at)
{
        sh("mount -o loop,ro %s models/%s", image, at);
}

TEST(another_image_at_the_same_place_is_another_model, EACH(images))
{
        make_images(images[_i].make);
        mount_image("v1.img", "img");
        load("img", "generation");
        assert_serves("v1");
        load("img", "already resident");
        unmount("models/img");
        mount_image("v2.img", "img");
        load("img", "generation");
        assert_serves("v2");
        unmount("models/img");
}

TEST(another_image_elsewhere_is_no_alias, EACH(images))
{
        make_images(images[_i].make);
        mount_image("v1.img", "img");
        load("img", "generation");
        unmount("models/img");
        mount_image("v2.img", "other");
        load("other", "generation");
        assert_serves("v2");
        unmount("models/other");
}

/* Of both versions: the times are whole seconds, and not equal to each other. */
static const struct {
        const char *make; /* as above */
} whole_seconds[] = {
        {"mksquashfs $v $v.img -all-time 0 -mkfs-time 0 -quiet -no-progress"},
        {"mkfs.erofs -T0 -U 00000000-0000-0000-0000-000000000001 $v.img $v"},
        {"truncate -s 4M $v.img && mkfs.ext4 -q -F -O ^has_journal -U 00000000-0000-0000-0000-000000000001 -d $v "
         "$v.img "
         "&& debugfs -w -R 'set_inode_field model.safetensors ctime @1700000009' $v.img "
         "&& debugfs -w -R 'set_inode_field model.safetensors ctime_extra 0' $v.img"},
};

/* As partitions are updated: the disk stays the same, and its number too. */
TEST(another_image_that_is_written_to_the_disk_between_two_mounts_is_another_model, EACH(whole_seconds))
{
        make_images(whole_seconds[_i].make);
        sh("cp v1.img disk && truncate -s 4M disk && losetup -f --show disk >dev && mount -o ro $(cat dev) models/img");
        load("img", "generation");
        load("img", "already resident");
        unmount("models/img");
        sh("dd if=v2.img of=$(cat dev) bs=64K conv=notrunc,fsync status=none && blockdev --flushbufs $(cat dev)");
        sh("mount -o ro $(cat dev) models/img");
        load("img", "generation");
        assert_serves("v2");
        load("img", "already resident");
        unmount("models/img");
        sh("losetup -d $(cat dev)");
}

/* The same with another attachment, at another place and by another name. */
TEST(another_image_with_times_in_whole_seconds_is_no_alias, EACH(whole_seconds))
{
        make_images(whole_seconds[_i].make);
        mount_image("v1.img", "img");
        ctl_says(d.socket, 0, "generation", "load", format_text("%s/models/img", base), "--name", "first", NULL);
        unmount("models/img");
        mount_image("v2.img", "other");
        load("other", "generation");
        assert_serves("v2");
        unmount("models/other");
}

/* As container runtimes mount them. */
TEST(another_image_below_an_overlay_is_another_model, EACH(images))
{
        make_images(images[_i].make);
        sh("mkdir lower empty");
        for (int v = 1; v <= 2; v++) {
                sh("mount -o loop,ro v%d.img lower && mount -t overlay o -o lowerdir=lower:empty models/img", v);
                load("img", "generation");
                assert_serves(v == 1 ? "v1" : "v2");
                load("img", "already resident");
                unmount("models/img");
                unmount("lower");
        }
}

/* The pages of an overlay's file are those of the layer's, which not every call shows. */
TEST(a_cached_file_below_an_overlay_is_not_read_from_its_disk)
{
        sh("mkdir empty && mount -t overlay o -o lowerdir=v1:empty models/img && cat models/img/* >/dev/null");
        sh("sync v1/model.safetensors");
        uint64_t before = process_read_bytes(d.pid);
        load("img", "generation");
        assert_serves("v1");
        ck_assert_uint_eq(process_read_bytes(d.pid), before);
        unmount("models/img");
}

TEST(an_unchanged_file_is_resident_after_a_remount)
{
        sh("truncate -s 16M ext4.img && mkfs.ext4 -q -F ext4.img");
        sh("dev=$(losetup -f --show ext4.img) && echo $dev >dev && mount $dev models/img");
        sh("cp v1/model.safetensors models/img");
        load("img", "generation");
        unmount("models/img");
        sh("mount $(cat dev) models/img");
        load("img", "already resident");
        sh("cp v2/model.safetensors models/img");
        load("img", "generation");
        assert_serves("v2");
        unmount("models/img");
        sh("losetup -d $(cat dev)");
}

/* ---- volumes of OCI images, which are overlays of folders ---- */

FIXTURE(.each = {begin, end}, .unavailable = no_mounts);

/* The upper layer first; the last one has the image's other files. */
static void mount_volume(const char *layers)
{
        sh("mount -t overlay o -o ro,lowerdir=%s models/img", layers);
}

TEST(a_volume_has_the_files_of_its_upper_layers)
{
        sh("mkdir base && echo {} >base/config.json");
        mount_volume("v2:v1:base");
        load("img", "generation");
        assert_serves("v2");
        load("img", "already resident");
        unmount("models/img");
}

/* Another tag at the same place, whose file has the same size and times. */
TEST(another_volume_at_the_same_place_is_another_generation)
{
        sh("mkdir base");
        mount_volume("v1:base");
        load("img", "generation 1");
        assert_serves("v1");
        unmount("models/img");
        mount_volume("v2:v1:base");
        load("img", "generation 2");
        assert_serves("v2");
        unmount("models/img");
}

/* What is resident needs no volume. */
TEST(a_model_outlives_its_volume)
{
        sh("mkdir base");
        mount_volume("v1:base");
        load("img", "generation");
        unmount("models/img");
        assert_serves("v1");
}
