/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of the disk cache: entries appear whole, and what is none is removed.
 */
#include "daemon/io/disk/disk_folder.h"
#include "daemon/base/util.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

static struct disk_folder folder;
static struct error error;
static unsigned char *page;
static char shown[] = "s3://b/m", empty[] = "";
static struct disk_record record = {.size = 5000, .shown = shown, .etag = empty, .modified = empty};
static bool never;

static const char *path(void)
{
        return suite_path("cache-%d", (int)getpid());
}

static void begin(void)
{
        ck_assert_msg(disk_folder_init(&folder, path(), &error) == 0, "%s", error.text);
        memset(record.id, 0xab, sizeof(record.id));
        page = aligned_alloc(DISK_PAGE, 2 * DISK_PAGE);
        memset(page, 7, 2 * DISK_PAGE);
}

FIXTURE(.each = {begin, NULL});

static unsigned n_found;

static void count_found(struct disk_found *found)
{
        ck_assert_mem_eq(found->record.id, record.id, sizeof(record.id));
        ck_assert_uint_eq(found->record.size, 5000);
        ck_assert_str_eq(found->record.shown, shown);
        n_found++;
}

static void store(void)
{
        struct disk_new new;
        ck_assert_msg(disk_new_begin(&new, &folder, 1, record.size, &error) == 0, "%s", error.text);
        ck_assert_int_eq(disk_new_write(&new, page, 0, 2 * DISK_PAGE, &error), 0);
        ck_assert_msg(disk_new_commit(&new, &folder, &record, &error) == 0, "%s", error.text);
        disk_new_abort(&new, &folder);
}

TEST(an_entry_is_found_and_read_as_it_was_stored)
{
        struct disk_record out;
        struct stat st;
        int fd;
        store();
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 0);
        ck_assert_uint_eq(n_found, 1);
        ck_assert_int_eq(disk_folder_read(&folder, record.id, &fd, &out, &error), 0);
        ck_assert_int_eq(fstat(fd, &st), 0);
        ck_assert_int_eq(st.st_size, 5000);
        unsigned char bytes[5000];
        ck_assert_int_eq(pread(fd, bytes, sizeof(bytes), 0), sizeof(bytes));
        ck_assert_mem_eq(bytes, page, sizeof(bytes));
        disk_record_deinit(&out);
}

TEST(what_was_not_committed_is_no_entry)
{
        struct disk_new new;
        ck_assert_int_eq(disk_new_begin(&new, &folder, 1, record.size, &error), 0);
        ck_assert_int_eq(disk_new_write(&new, page, 0, 2 * DISK_PAGE, &error), 0);
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 1);
        ck_assert_uint_eq(n_found, 0);
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 0);
}

TEST(what_was_given_up_leaves_nothing)
{
        struct disk_new new;
        ck_assert_int_eq(disk_new_begin(&new, &folder, 1, record.size, &error), 0);
        disk_new_abort(&new, &folder);
        disk_new_abort(&new, &folder);
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 0);
}

TEST(space_that_there_is_not_is_an_error_before_anything_is_written)
{
        struct disk_new new;
        FAILS_WITH(error, disk_new_begin(&new, &folder, 1, UINT64_C(1) << 60, &error), STREAMER_EFAILED,
                   "new.1: allocate: ");
        disk_new_abort(&new, &folder);
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 0);
}

TEST(a_write_that_fails_says_where)
{
        struct disk_new new;
        ck_assert_int_eq(disk_new_begin(&new, &folder, 1, record.size, &error), 0);
        close(new.data);
        new.data = open("/dev/null", O_RDONLY);
        FAILS_WITH(error, disk_new_write(&new, page, DISK_PAGE, DISK_PAGE, &error), STREAMER_EFAILED,
                   "disk cache: new.1: write at offset 4096: Bad file descriptor");
        disk_new_abort(&new, &folder);
}

TEST(a_folder_of_another_user_is_refused)
{
        struct disk_folder other;
        const char *of = suite_path("other-%d", (int)getpid());
        if (geteuid() != 0)
                SKIP("not root");
        ck_assert_int_eq(mkdir(of, 0700), 0);
        ck_assert_int_eq(chown(of, 12345, 12345), 0);
        FAILS_WITH(error, disk_folder_init(&other, of, &error), STREAMER_EFAILED,
                   "belongs to uid 12345, not to this daemon's");
        disk_folder_deinit(&other);
}

TEST(an_entry_that_is_removed_is_not_found)
{
        struct disk_record out;
        int fd;
        store();
        disk_folder_remove(&folder, record.id);
        disk_folder_remove(&folder, record.id);
        FAILS_WITH(error, disk_folder_read(&folder, record.id, &fd, &out, &error), STREAMER_EFAILED,
                   "/objects/abababababababababababababababababababababababababababababababab/entry: No such file");
        ck_assert(strncmp(error.text, "disk cache: ", 12) == 0);
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 0);
        ck_assert_uint_eq(n_found, 0);
}

/* So many files can be opened, and no more; UINT_MAX: as many as before. */
static void allow_files(unsigned n)
{
        static struct rlimit before;
        if (before.rlim_cur == 0)
                must(getrlimit(RLIMIT_NOFILE, &before));
        int next = must(open("/dev/null", O_RDONLY));
        close(next);
        struct rlimit limit = {.rlim_cur = (rlim_t)next + n, .rlim_max = before.rlim_max};
        must(setrlimit(RLIMIT_NOFILE, n == UINT_MAX ? &before : &limit));
}

TEST(an_entry_that_there_is_no_descriptor_for_stays)
{
        struct disk_record out;
        int fd;
        store();
        allow_files(1); /* for the folder */
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 0);
        ck_assert_uint_eq(n_found, 0);
        FAILS_WITH(error, disk_folder_read(&folder, record.id, &fd, &out, &error), STREAMER_ELIMIT,
                   "/data: Too many open files");
        allow_files(UINT_MAX);
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 0);
        ck_assert_uint_eq(n_found, 1);
}

static void truncate_file(const char *file)
{
        char id[DISK_NAME_SIZE];
        hex_encode(id, record.id, sizeof(record.id));
        ck_assert_int_eq(truncate(format_text("%s/objects/%s/%s", path(), id, file), 17), 0);
}

TEST(an_entry_of_another_size_is_removed_by_a_scan)
{
        store();
        truncate_file("data");
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 1);
        store();
        truncate_file("entry");
        ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never), 1);
        ck_assert_uint_eq(n_found, 0);
}

TEST(what_is_no_folder_is_refused)
{
        struct disk_folder other;
        const char *file = suite_file(format_text("file-%d", (int)getpid()), "x");
        FAILS_WITH(error, disk_folder_init(&other, file, &error), STREAMER_EFAILED, "cannot be opened");
        disk_folder_deinit(&other);
        const char *link = suite_path("link-%d", (int)getpid());
        ck_assert_int_eq(symlink(path(), link), 0);
        FAILS_WITH(error, disk_folder_init(&other, link, &error), STREAMER_EFAILED, "cannot be opened");
        disk_folder_deinit(&other);
        FAILS_WITH(error, disk_folder_init(&other, path(), &error), STREAMER_EBUSY, "another daemon uses it");
        disk_folder_deinit(&other);
}
