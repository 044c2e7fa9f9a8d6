/* SPDX-License-Identifier: Apache-2.0
 *
 * Models in a file system whose times and inode numbers say little: an unchanged file is resident, a changed one is
 * loaded again, as its bytes tell.
 */
#include "tests/lib/daemon.h"
#include "tests/lib/fuse_file.h"
#include "tests/lib/model.h"
#include "tests/lib/streamerctl.h"
#include "tests/lib/suite.h"

#define TENSOR 20000000

static struct daemon d;
static struct fuse_file fs;
static char *backing;

static void write_model(uint64_t seed)
{
        struct model *m = model_new(seed);
        model_add(m, "a", "U8", (uint64_t[]){TENSOR}, 1);
        model_write(m, backing);
        model_free(m);
}

static void begin_with(struct fuse_oddities odd)
{
        char *base = suite_path("weak-%d", (int)getpid());
        must(mkdir(base, 0755));
        backing = format_text("%s/backing", base);
        write_model(1);
        fs.odd = odd;
        fuse_file_start(&fs, format_text("%s/fuse", base), "m.safetensors", backing);
        daemon_start_simple(&d, format_text("%s/daemon", base), base, "128MiB");
}

static void begin(void)
{
        begin_with((struct fuse_oddities){.constant_times = true, .unstable_inodes = true});
}

static void end(void)
{
        ck_assert_int_eq(daemon_stop(&d), 0);
        fuse_file_stop(&fs);
}

FIXTURE(.each = {begin, end}, .unavailable = fuse_file_unavailable);

static void assert_serves_the_file(void)
{
        struct ctl r;
        size_t size;
        char *file = file_read(backing, &size);
        ctl(&r, d.socket, "cat", "m", "a", NULL);
        ck_assert_int_eq(r.code, 0);
        ck_assert_uint_eq(r.out_size, TENSOR);
        ck_assert_mem_eq(r.out, file + size - r.out_size, r.out_size);
        ctl_free(&r);
        free(file);
}

TEST(an_unchanged_file_is_resident)
{
        ctl_says(d.socket, 0, "generation 1", "load", fs.path, NULL);
        ctl_says(d.socket, 0, "already resident", "load", fs.path, NULL);
        ctl_says(d.socket, 0, "already resident", "load", fs.path, "--name", "alias", NULL);
        assert_serves_the_file();
}

TEST(a_changed_file_is_loaded_again)
{
        ctl_says(d.socket, 0, "generation 1", "load", fs.path, NULL);
        write_model(2);
        ctl_says(d.socket, 0, "generation 2", "load", fs.path, NULL);
        assert_serves_the_file();
        ctl_says(d.socket, 0, "already resident", "load", fs.path, NULL);
}

/* A store's client behind the file system reads ahead for each open file, and starts anew where a read does not go on.
 */
TEST(a_file_is_read_in_few_sequential_streams)
{
        ctl_says(d.socket, 0, "generation 1", "load", fs.path, NULL);
        assert_serves_the_file();
        uint64_t size = file_size(backing);
        ck_assert_uint_le(fs.counts->handles, 5); /* the one that finds the file, and four that are read */
        ck_assert_uint_ge(fs.counts->handles, 4);
        ck_assert_uint_le(fs.counts->jumps, 24); /* the header, the ends of streams, the sample */
        ck_assert_uint_le(fs.counts->bytes, size + size / 4);
}

/* The second one waits for the first, which has read no sample yet. */
TEST(a_load_joins_one_in_progress)
{
        struct ctl_running first, second;
        struct ctl r;
        fuse_file_hold(&fs, TENSOR / 2);
        ctl_start(&first, d.socket, (const char *const[]){"load", fs.path, NULL});
        fuse_file_wait_held(&fs);
        ctl_start(&second, d.socket, (const char *const[]){"load", fs.path, "--name", "alias", NULL});
        AWAIT(strstr(ctl_says(d.socket, 0, "", "list", NULL), "alias") != NULL);
        fuse_file_release(&fs);
        ctl_finish(&first, &r);
        ck_assert_msg(r.code == 0 && strstr(r.out, "generation 1") != NULL, "%s%s", r.out, r.err);
        ctl_finish(&second, &r);
        ck_assert_msg(r.code == 0 && strstr(r.out, "generation 1") != NULL, "%s%s", r.out, r.err);
}
