/* SPDX-License-Identifier: Apache-2.0
 *
 * The disk cache on a disk that becomes full: ext4 on a loop device, whose blocks others take while an entry is
 * written. Mounts are in a namespace of the test's process.
 */
#include "tests/integration/disk_fixture.h"

#include <sys/statvfs.h>

#define DISK_BYTES (24 << 20)
#define BLOCK 4096
#define FIRST_BYTES (1 << 20) /* the header, and a little more */
#define SOURCE "s3://b/one/model.safetensors"

static struct model *model;
static _Atomic bool rest_is_held; /* the store does not send what is behind the first bytes of the object */

static const char *disks_unavailable(void)
{
        if (!command_exists("mkfs.ext4"))
                return "no tools to make images";
        if (access("/dev/loop-control", R_OK | W_OK) < 0)
                return "no loop devices";
        return mounts_unavailable();
}

static void answer_when_released(struct endpoint *e, const struct endpoint_request *request,
                                 struct endpoint_reply *reply)
{
        const char *range = endpoint_header(request, "Range");
        if (range && strtoull(range + strlen("bytes="), NULL, 10) >= FIRST_BYTES)
                AWAIT(!rest_is_held);
        answer_store(e, request, reply);
}

static void begin(void)
{
        const char *image = suite_path("disk-%d.img", (int)getpid());
        char *said;
        begin_mounts();
        must(mkdir(cache_path(), 0700));
        int status = shell(&said, "truncate -s %d %s && mkfs.ext4 -q -b %d -m 0 %s && mount -o loop %s %s", DISK_BYTES,
                           image, BLOCK, image, image, cache_path());
        ck_assert_msg(status == 0, "%s", said);
        must(chmod(cache_path(), 0700));
        begin_store();
        store.answer = answer_when_released;
        model = model_mixed(91, 9 << 20);
        put(model, "one/model.safetensors");
        start();
}

FIXTURE(.each = {begin, NULL}, .unavailable = disks_unavailable);

#define FILES                                                                                                          \
        16 /* of others: one takes what free space lies in a few pieces, and may need a block for a list of them */

static const char *filler(unsigned i)
{
        return format_text("%s/lost+found/others-%u", cache_path(), i);
}

/* Others take all blocks of the disk but so many. */
static void fill(unsigned blocks)
{
        struct statvfs fs;
        for (unsigned i = 0; i < FILES; i++) {
                int fd = must(open(filler(i), O_CREAT | O_WRONLY, 0600));
                off_t size = 0, more;
                do {
                        must(fstatvfs(fd, &fs));
                        more = ((off_t)fs.f_bavail - (off_t)blocks) * BLOCK;
                        size += more;
                } while (more > 0 && posix_fallocate(fd, size - more, more) == 0);
                close(fd);
        }
        must(statvfs(cache_path(), &fs));
        ck_assert_uint_le(fs.f_bavail, blocks);
}

static bool is_begun(void)
{
        const char *path = format_text("%s/objects/new.0/data", cache_path());
        return access(path, F_OK) == 0 && file_size(path) > 0;
}

static double not_stored(void)
{
        return client_metric(client, "streamerd_disk_cache_not_stored_total{reason=\"io\"}");
}

/* None: not even the record fits. */
static const unsigned free_blocks[] = {0, 1, 2, 8};

TEST(a_disk_that_becomes_full_meanwhile_costs_the_entry_and_not_the_load, EACH(free_blocks))
{
        rest_is_held = true;
        streamer_op *op = client_load_begin(client, SOURCE, "m");
        AWAIT(is_begun());
        fill(free_blocks[_i]);
        rest_is_held = false;
        ck_assert_int_eq(client_load_end(op), 0);
        AWAIT(disk_number("entries") == 1 || not_stored() == 1);
        uint64_t entries = disk_number("entries");
        if (free_blocks[_i] == 0)
                ck_assert_uint_eq(entries, 0);
        if (entries == 0)
                ck_assert(log_wait_for(disk_daemon.log, "No space left on device"));
        client_equals(client, "m", model);
        restart(); /* on a disk that is full */
        ck_assert(log_wait_for(disk_daemon.log, format_text("%u entries, ", (unsigned)entries)));
        check_entries(entries);
        ck_assert_str_eq(load_from(SOURCE, model), entries > 0 ? "disk" : "store");
        for (unsigned i = 0; i < FILES; i++)
                must(unlink(filler(i)));
        store_behind(SOURCE, model, 1);
        ck_assert_str_eq(load_from(SOURCE, model), "disk");
        check_entries(1);
        stop();
}
