/* SPDX-License-Identifier: Apache-2.0
 *
 * The folder of the disk cache: entries appear whole, and what is none is removed.
 */
#include "daemon/io/disk/disk_folder.h"
#include "daemon/base/log/log.h"
#include "daemon/base/util.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

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

/* How many were removed. */
static uint64_t scan(void)
{
        uint64_t unknown;
        return disk_folder_scan(&folder, count_found, NULL, &never, &unknown);
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
        ck_assert_uint_eq(scan(), 0);
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
        ck_assert_uint_eq(scan(), 1);
        ck_assert_uint_eq(n_found, 0);
        ck_assert_uint_eq(scan(), 0);
}

TEST(what_was_given_up_leaves_nothing)
{
        struct disk_new new;
        ck_assert_int_eq(disk_new_begin(&new, &folder, 1, record.size, &error), 0);
        disk_new_abort(&new, &folder);
        disk_new_abort(&new, &folder);
        ck_assert_uint_eq(scan(), 0);
}

TEST(space_that_there_is_not_is_an_error_before_anything_is_written)
{
        struct disk_new new;
        FAILS_WITH(error, disk_new_begin(&new, &folder, 1, UINT64_C(1) << 60, &error), STREAMER_EFAILED,
                   "new.1: allocate: ");
        disk_new_abort(&new, &folder);
        ck_assert_uint_eq(scan(), 0);
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
        ck_assert_uint_eq(scan(), 0);
        ck_assert_uint_eq(n_found, 0);
}

static void remove_as_another(void)
{
        log_set_level(LOG_LEVEL_WARN);
        must(seteuid(65534));
        disk_folder_remove(&folder, record.id);
        must(seteuid(0));
}

/* By a sticky folder, as by the attribute "immutable": not because it would be a folder. */
TEST(an_entry_that_cannot_be_removed_says_why)
{
        char id[DISK_NAME_SIZE];
        if (geteuid() != 0)
                SKIP("not root");
        store();
        hex_encode(id, record.id, DISK_ID_SIZE);
        must(chmod(format_text("%s/objects", path()), 0711));
        must(chmod(format_text("%s/objects/%s", path(), id), 01777));
        char *text = suite_stderr(remove_as_another);
        ck_assert_msg(strstr(text, format_text("/objects/%s: cannot be removed: Operation not permitted\n", id)) !=
                              NULL,
                      "%s", text);
}

/* So many files can be opened, and no more; UINT_MAX: as many as before. */
static void allow_files(unsigned n)
{
        static struct rlimit before;
        if (before.rlim_cur == 0)
                must(getrlimit(RLIMIT_NOFILE, &before));
        if (n == UINT_MAX) {
                must(setrlimit(RLIMIT_NOFILE, &before));
                return;
        }
        int next[4];
        require(n < ARRAY_SIZE(next));
        for (unsigned i = 0; i <= n; i++)
                next[i] = must(open("/dev/null", O_RDONLY));
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = (rlim_t)next[n], .rlim_max = before.rlim_max}));
        for (unsigned i = 0; i <= n; i++)
                close(next[i]);
}

TEST(an_entry_that_there_is_no_descriptor_for_stays)
{
        struct disk_record out;
        int fd;
        store();
        for (unsigned n = 1; n <= 2; n++) { /* for the folders */
                uint64_t unknown;
                allow_files(n);
                ck_assert_uint_eq(disk_folder_scan(&folder, count_found, NULL, &never, &unknown), 0);
                ck_assert_uint_eq(n_found, 0);
                ck_assert_uint_eq(unknown, 1);
                FAILS_WITH(error, disk_folder_read(&folder, record.id, &fd, &out, &error), STREAMER_ELIMIT,
                           n == 1 ? "/entry: Too many open files" : "/data: Too many open files");
                allow_files(UINT_MAX);
        }
        ck_assert_uint_eq(scan(), 0);
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
        ck_assert_uint_eq(scan(), 1);
        store();
        truncate_file("entry");
        ck_assert_uint_eq(scan(), 1);
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

/* ---- what no daemon has made ---- */

static const char *name_of_entry(void)
{
        char id[DISK_NAME_SIZE];
        hex_encode(id, record.id, sizeof(record.id));
        return format_text("%s/objects/%s", path(), id);
}

/* Which nothing may change. */
static const char *outside(void)
{
        const char *to = suite_path("outside-%d", (int)getpid());
        if (mkdir(to, 0700) == 0)
                suite_file(format_text("outside-%d/file", (int)getpid()), "theirs");
        return to;
}

static void assert_outside_is_whole(void)
{
        size_t size;
        char *bytes = file_read(format_text("%s/file", outside()), &size);
        ck_assert_str_eq(bytes, "theirs");
        free(bytes);
}

static void make_file(const char *at)
{
        file_write(at, "stray", 5);
}

static void make_folder(const char *at)
{
        must(mkdir(at, 0700));
        must(mkdir(format_text("%s/y", at), 0700));
        file_write(format_text("%s/y/f", at), "stray", 5);
        must(symlink(outside(), format_text("%s/y/link", at)));
        must(mkfifo(format_text("%s/y/fifo", at), 0600));
}

static void make_fifo(const char *at)
{
        must(mkfifo(at, 0600));
}

static void make_socket(const char *at)
{
        /* Its name may be too long for an address: it is bound beside, and renamed. */
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = must(socket(AF_UNIX, SOCK_STREAM, 0));
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", suite_path("s-%d", (int)getpid()));
        must(bind(fd, (struct sockaddr *)&address, sizeof(address)));
        must(rename(address.sun_path, at));
        close(fd);
}

static void make_link(const char *at)
{
        must(symlink(outside(), at));
}

static void make_link_to_file(const char *at)
{
        must(symlink(format_text("%s/file", outside()), at));
}

static void make_link_to_nothing(const char *at)
{
        must(symlink("nowhere", at));
}

static void (*const strays[])(const char *at) = {make_file, make_folder,       make_fifo,           make_socket,
                                                 make_link, make_link_to_file, make_link_to_nothing};

static bool exists(const char *at)
{
        struct stat st;
        return lstat(at, &st) == 0;
}

TEST(a_scan_removes_what_is_no_entry_and_follows_no_link, EACH(strays))
{
        const char *at = format_text("%s/objects/.stray", path());
        store();
        strays[_i](at);
        ck_assert_uint_eq(scan(), 1);
        ck_assert_uint_eq(n_found, 1);
        ck_assert(!exists(at));
        assert_outside_is_whole();
}

TEST(a_scan_removes_an_entry_whose_place_is_taken, EACH(strays))
{
        strays[_i](name_of_entry());
        ck_assert_uint_eq(scan(), 1);
        ck_assert_uint_eq(n_found, 0);
        ck_assert(!exists(name_of_entry()));
        assert_outside_is_whole();
}

TEST(an_entry_takes_the_place_of_what_is_none, EACH(strays))
{
        strays[_i](name_of_entry());
        strays[_i](format_text("%s/objects/new.1", path()));
        store();
        ck_assert_uint_eq(scan(), 0);
        ck_assert_uint_eq(n_found, 1);
        assert_outside_is_whole();
}

/* Of an entry that was found. */
static void replace(const char *file, void (*make)(const char *at))
{
        const char *at = format_text("%s/%s", name_of_entry(), file);
        store();
        ck_assert_uint_eq(scan(), 0);
        must(unlink(at));
        make(at);
}

static const char *const files[] = {"data", "entry"};

TEST(a_file_of_an_entry_that_is_none_is_neither_read_nor_waited_for, EACH(strays))
{
        for (size_t i = 0; i < ARRAY_SIZE(files); i++) {
                struct disk_record out;
                int fd = -1;
                replace(files[i], strays[_i]);
                ck_assert_int_eq(disk_folder_read(&folder, record.id, &fd, &out, &error), STREAMER_EFAILED);
                ck_assert_int_eq(fd, -1);
                if (strays[_i] == make_fifo)
                        ck_assert(strstr(error.text, "is no regular file") != NULL);
                disk_folder_touch(&folder, record.id);
                disk_folder_remove(&folder, record.id);
                ck_assert(!exists(name_of_entry()));
                replace(files[i], strays[_i]);
                ck_assert_uint_eq(scan(), 1);
                ck_assert(!exists(name_of_entry()));
        }
        assert_outside_is_whole();
}

TEST(an_entrys_folder_that_is_a_link_is_not_followed)
{
        struct disk_record out;
        int fd;
        const char *moved = suite_path("moved-%d", (int)getpid());
        store();
        must(rename(name_of_entry(), moved));
        must(symlink(moved, name_of_entry()));
        ck_assert_int_eq(disk_folder_read(&folder, record.id, &fd, &out, &error), STREAMER_EFAILED);
        ck_assert_uint_eq(scan(), 1);
        ck_assert_uint_eq(n_found, 0);
        ck_assert(!exists(name_of_entry()));
        ck_assert(exists(format_text("%s/data", moved)) && exists(format_text("%s/entry", moved)));
}

static void make_folders(unsigned depth)
{
        int at = must(open(format_text("%s/objects", path()), O_RDONLY | O_DIRECTORY));
        for (unsigned i = 0; i < depth; i++) {
                must(mkdirat(at, "d", 0700));
                int next = must(openat(at, "d", O_RDONLY | O_DIRECTORY));
                close(at);
                at = next;
        }
        close(at);
}

TEST(folders_in_folders_are_removed_up_to_a_limit)
{
        make_folders(60);
        ck_assert_uint_eq(scan(), 1);
        ck_assert(!exists(format_text("%s/objects/d", path())));
        make_folders(200);
        scan();
        ck_assert(exists(format_text("%s/objects/d", path()))); /* it is reported, and nothing else fails */
        store();
        scan();
        ck_assert_uint_eq(n_found, 1);
        char *said;
        shell(&said, "rm -rf %s/objects/d", path());
}

/* ---- notes of sources ---- */

static unsigned n_taken;

static bool take_note(const unsigned char *bytes, size_t size, uint64_t noted_ns, void *context)
{
        n_taken++;
        ck_assert(size == 4 && memcmp(bytes, "note", 4) == 0);
        return true;
}

TEST(a_note_takes_the_place_of_what_is_none_and_the_rest_is_removed, EACH(strays))
{
        char id[DISK_NAME_SIZE];
        hex_encode(id, record.id, sizeof(record.id));
        strays[_i](format_text("%s/sources/%s", path(), id));
        strays[_i](format_text("%s/sources/new.0", path()));
        strays[_i](format_text("%s/sources/.stray", path()));
        ck_assert_msg(disk_folder_put_source(&folder, record.id, (const unsigned char *)"note", 4, &error) == 0, "%s",
                      error.text);
        disk_folder_each_source(&folder, take_note, NULL);
        ck_assert_uint_eq(n_taken, 1);
        ck_assert(!exists(format_text("%s/sources/.stray", path())));
        assert_outside_is_whole();
}

/* ---- folders of others ---- */

static const unsigned modes[] = {0755, 0750, 0701, 0777, 01777, 0770};

TEST(a_folder_that_is_open_to_others_is_refused_and_stays_as_it_is, EACH(modes))
{
        struct disk_folder other;
        struct stat st;
        const char *of = suite_path("open-%d", (int)getpid());
        must(mkdir(of, 0700));
        must(chmod(of, modes[_i]));
        FAILS_WITH(error, disk_folder_init(&other, of, &error), STREAMER_EFAILED,
                   format_text("is open to other users (mode %04o)", modes[_i]));
        disk_folder_deinit(&other);
        must(stat(of, &st));
        ck_assert_uint_eq(st.st_mode & 07777, modes[_i]);
        ck_assert(!exists(format_text("%s/lock", of)));
}

static const char *const foreign[] = {"weights.bin", ".hidden", "objects", "sources", "lock.old"};

TEST(a_folder_that_has_anything_else_is_refused_and_stays_as_it_is, EACH(foreign))
{
        struct disk_folder other;
        const char *of = suite_path("used-%d", (int)getpid()), *file = format_text("%s/%s/f", of, foreign[_i]);
        must(mkdir(of, 0700));
        must(mkdir(format_text("%s/%s", of, foreign[_i]), 0700));
        file_write(file, "x", 1);
        FAILS_WITH(error, disk_folder_init(&other, of, &error), STREAMER_EFAILED,
                   format_text("has '%s', which is no disk cache's", foreign[_i]));
        disk_folder_deinit(&other);
        ck_assert(exists(file) && !exists(format_text("%s/lock", of)));
}

TEST(an_empty_folder_and_the_root_of_a_file_system_are_used)
{
        struct disk_folder other;
        const char *of = suite_path("empty-%d", (int)getpid());
        must(mkdir(of, 0700));
        must(mkdir(format_text("%s/lost+found", of), 0700));
        for (int turn = 0; turn < 2; turn++) { /* and what an earlier daemon has made of it */
                ck_assert_msg(disk_folder_init(&other, of, &error) == 0, "%s", error.text);
                disk_folder_deinit(&other);
        }
        ck_assert(exists(format_text("%s/lost+found", of)) && exists(format_text("%s/objects", of)));
}
