/* SPDX-License-Identifier: Apache-2.0
 *
 * The entries of the disk cache: what is found, what is evicted for what, and what is protected.
 */
#include "daemon/io/disk/disk_cache.h"
#include "daemon/base/util.h"
#include "tests/lib/suite.h"

#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>

#define SIZE (UINT64_C(64) << 10)

static struct disk_cache *cache;
static struct error error;
static bool never;
static uint64_t number;

static void open_cache(uint64_t budget)
{
        const struct disk_limits limits = {.budget = budget};
        ck_assert_msg(disk_cache_new(&cache, suite_path("cache-%d", (int)getpid()), 1, &limits, &error) == 0, "%s",
                      error.text);
        disk_cache_scan(cache, &never);
}

static void begin(void)
{
        open_cache(4 * (SIZE + (20 << 10)));
}

static struct object_label label(unsigned char i)
{
        struct object_label l = {.settled = true};
        memset(l.id, i, sizeof(l.id));
        memset(l.place, i, sizeof(l.place));
        return l;
}

/* Stores an object of one text, named "s3://b/I". */
static enum disk_reserved store(unsigned char i)
{
        const struct object_label l = label(i);
        struct disk_entry *entry;
        enum disk_reserved r = disk_cache_reserve(cache, &l, SIZE, NULL, &entry, &error);
        if (r != DISK_RESERVED)
                return r;
        struct disk_new new;
        unsigned char *bytes = aligned_alloc(DISK_PAGE, SIZE);
        memset(bytes, i, SIZE);
        struct disk_record record = {.size = SIZE, .header = SIZE, .etag = strdup("e"), .modified = strdup("")};
        record.shown = strdup(format_text("s3://b/%u", i));
        memcpy(record.id, l.id, sizeof(l.id));
        memcpy(record.place, l.place, sizeof(l.place));
        hash_bytes(bytes, SIZE, record.header_sum);
        ck_assert_int_eq(disk_new_begin(&new, &cache->folder, number++, SIZE, &error), 0);
        ck_assert_int_eq(disk_new_write(&new, bytes, 0, SIZE, &error), 0);
        ck_assert_int_eq(disk_new_commit(&new, &cache->folder, &record, &error), 0);
        disk_new_abort(&new, &cache->folder);
        disk_cache_add(cache, entry, &record);
        disk_record_deinit(&record);
        free(bytes);
        return r;
}

static struct object_copy *open_copy(unsigned char i)
{
        const struct object_label l = label(i);
        return disk_cache_open(cache, l.id, SIZE, NULL);
}

static bool has(unsigned char i)
{
        const struct object_label l = label(i);
        return disk_cache_has(cache, l.place);
}

FIXTURE(.each = {begin, NULL});

TEST(a_copy_has_what_was_stored)
{
        ck_assert_int_eq(store(1), DISK_RESERVED);
        struct object_copy *copy = open_copy(1);
        ck_assert_ptr_nonnull(copy);
        ck_assert_uint_eq(copy->header, SIZE);
        for (uint64_t i = 0; i < SIZE; i++)
                ck_assert_uint_eq(copy->first[i], 1);
        ck_assert_str_eq(copy->etag, "e");
        copy->close(copy);
        const struct object_label l = label(1);
        ck_assert_ptr_null(disk_cache_open(cache, l.id, SIZE + 1, NULL));
        ck_assert_ptr_null(open_copy(2));
        ck_assert(has(1) && !has(2));
}

TEST(what_is_stored_or_being_written_is_not_reserved_again)
{
        struct disk_entry *entry;
        ck_assert_int_eq(store(1), DISK_RESERVED);
        ck_assert_int_eq(store(1), DISK_KNOWN);
        const struct object_label l = label(2);
        ck_assert_int_eq(disk_cache_reserve(cache, &l, SIZE, NULL, &entry, &error), DISK_RESERVED);
        ck_assert_int_eq(store(2), DISK_BUSY);
        ck_assert_ptr_null(open_copy(2));
        disk_cache_give_up(cache, entry);
        ck_assert_int_eq(store(2), DISK_RESERVED);
}

TEST(the_least_recently_used_entry_is_evicted_first)
{
        for (unsigned char i = 1; i <= 4; i++)
                ck_assert_int_eq(store(i), DISK_RESERVED);
        struct object_copy *copy = open_copy(1);
        copy->close(copy);
        ck_assert_int_eq(store(5), DISK_RESERVED);
        ck_assert(has(1) && !has(2) && has(3) && has(4) && has(5));
}

TEST(what_is_examined_does_not_count_as_used)
{
        struct object_copy *copy;
        const struct object_label l = label(1), absent = label(9);
        for (unsigned char i = 1; i <= 4; i++)
                store(i);
        ck_assert_int_eq(disk_cache_examine(cache, l.id, &copy, &error), 0);
        ck_assert_int_eq(store(5), DISK_RESERVED); /* it is open */
        ck_assert(has(1) && !has(2));
        copy->close(copy);
        ck_assert_int_eq(store(6), DISK_RESERVED);
        ck_assert(!has(1) && has(3));
        FAILS_SAYING(error, disk_cache_examine(cache, absent.id, &copy, &error), STREAMER_ENOENT,
                     "it is not in the disk cache any more");
}

TEST(a_copy_that_is_open_is_not_evicted)
{
        for (unsigned char i = 1; i <= 4; i++)
                store(i);
        struct object_copy *copies[4];
        for (unsigned char i = 0; i < 4; i++)
                copies[i] = open_copy((unsigned char)(i + 1));
        ck_assert_int_eq(store(5), DISK_FULL);
        copies[2]->close(copies[2]);
        ck_assert_int_eq(store(5), DISK_RESERVED);
        ck_assert(has(1) && has(2) && !has(3) && has(4));
}

TEST(entries_of_pinned_models_are_not_evicted)
{
        for (unsigned char i = 1; i <= 4; i++)
                store(i);
        char **pins = calloc(3, sizeof(*pins));
        pins[0] = strdup("s3://b/1");
        pins[1] = strdup("s3://b/2");
        pins[2] = strdup("s3://other/");
        disk_cache_set_pins(cache, pins, 3);
        ck_assert_int_eq(store(5), DISK_RESERVED);
        ck_assert_int_eq(store(6), DISK_RESERVED);
        ck_assert(has(1) && has(2) && !has(3) && !has(4));
}

static void set_pin(const char *prefix)
{
        char **pins = calloc(1, sizeof(*pins));
        pins[0] = prefix != NULL ? strdup(prefix) : NULL;
        disk_cache_set_pins(cache, pins, prefix != NULL ? 1 : 0);
}

static void set_budget(unsigned entries)
{
        disk_cache_configure(cache, &(struct disk_limits){.budget = entries * (SIZE + (20 << 10))});
}

/* As a load that calls it so. */
static void use_as(unsigned char i, const char *name)
{
        const struct object_label l = label(i);
        struct object_copy *copy = disk_cache_open(cache, l.id, SIZE, name);
        ck_assert_ptr_nonnull(copy);
        copy->close(copy);
}

TEST(a_pin_of_another_name_of_the_object_counts)
{
        struct disk_entry *entry;
        for (unsigned char i = 1; i <= 4; i++)
                store(i);
        const struct object_label l = label(2);
        use_as(1, "/other/1");
        ck_assert_int_eq(disk_cache_reserve(cache, &l, SIZE, "/other/2", &entry, &error), DISK_KNOWN);
        use_as(3, "/more/3");
        set_pin("/other/");
        use_as(1, "/more/1"); /* the name that is pinned stays */
        use_as(2, "/more/2");
        for (unsigned char i = 5; i <= 8; i++)
                ck_assert_int_eq(store(i), DISK_RESERVED);
        ck_assert(has(1) && has(2) && !has(3) && !has(4));
        set_pin("/more/");
        use_as(1, "/more/1");
        for (unsigned char i = 9; i <= 11; i++)
                ck_assert_int_eq(store(i), DISK_RESERVED);
        ck_assert(has(1) && !has(2));
}

TEST(what_is_not_stored_for_the_budget_says_how_much_it_leaves)
{
        struct disk_entry *entry;
        const struct object_label l = label(9);
        for (unsigned char i = 1; i <= 3; i++)
                store(i);
        set_pin("s3://b/1");
        set_budget(2);
        ck_assert_int_eq(disk_cache_reserve(cache, &l, 3 * SIZE, NULL, &entry, &error), DISK_FULL);
        ck_assert_str_eq(error.text, "the budget (168.0 KiB) leaves 92.0 KiB, it needs 204.0 KiB");
        set_budget(4);
        ck_assert_int_eq(disk_cache_reserve(cache, &l, 3 * SIZE, NULL, &entry, &error), DISK_RESERVED);
        disk_cache_give_up(cache, entry);
}

TEST(a_damaged_copy_is_dropped_and_stored_again)
{
        store(1);
        struct object_copy *copy = open_copy(1), *other = open_copy(1);
        disk_copy_drop(copy, "a test");
        disk_copy_drop(other, "a test");
        ck_assert(copy->damaged && !has(1));
        ck_assert_int_eq(store(1), DISK_RESERVED);
        copy->close(copy);
        other->close(other);
        ck_assert(has(1));
        struct disk_usage usage;
        disk_cache_usage(cache, &usage);
        ck_assert_uint_eq(usage.entries, 1);
}

TEST(a_smaller_budget_is_observed_by_the_next_object)
{
        for (unsigned char i = 1; i <= 4; i++)
                store(i);
        disk_cache_configure(cache, &(struct disk_limits){.budget = 2 * (SIZE + (20 << 10))});
        ck_assert_int_eq(store(5), DISK_RESERVED);
        ck_assert(!has(1) && !has(2) && !has(3) && has(4) && has(5));
        disk_cache_configure(cache, &(struct disk_limits){.budget = SIZE});
        ck_assert_int_eq(store(6), DISK_FULL);
        ck_assert(has(4) && has(5));
}

TEST(a_trim_evicts_what_is_beyond_the_budget_least_recently_used_first)
{
        for (unsigned char i = 1; i <= 4; i++)
                store(i);
        set_pin(NULL);
        ck_assert(!disk_cache_trim(cache));
        ck_assert(has(1));
        set_budget(2);
        ck_assert(!disk_cache_trim(cache));
        ck_assert(!has(1) && !has(2) && has(3) && has(4));
        set_budget(0);
        ck_assert(!disk_cache_trim(cache));
        ck_assert(!has(3) && !has(4));
}

TEST(a_trim_waits_until_the_pins_are_known)
{
        for (unsigned char i = 1; i <= 4; i++)
                store(i);
        set_budget(1);
        ck_assert(!disk_cache_trim(cache));
        ck_assert(has(1) && has(2) && has(3) && has(4));
        set_pin("s3://b/1");
        ck_assert(!disk_cache_trim(cache));
        ck_assert(has(1) && !has(2) && !has(3) && !has(4));
}

TEST(a_trim_leaves_what_is_pinned_or_in_use_and_says_what_may_go_later)
{
        struct disk_entry *entry;
        for (unsigned char i = 1; i <= 3; i++)
                store(i);
        struct object_copy *copy = open_copy(2);
        const struct object_label l = label(4);
        ck_assert_int_eq(disk_cache_reserve(cache, &l, SIZE, NULL, &entry, &error), DISK_RESERVED);
        set_pin("s3://b/1");
        set_budget(0);
        ck_assert(disk_cache_trim(cache));
        ck_assert(has(1) && has(2) && !has(3));
        copy->close(copy);
        ck_assert(disk_cache_trim(cache)); /* one is being written */
        ck_assert(has(1) && !has(2));
        disk_cache_give_up(cache, entry);
        ck_assert(!disk_cache_trim(cache));
        set_pin(NULL);
        ck_assert(!disk_cache_trim(cache));
        ck_assert(!has(1));
}

TEST(a_trim_evicts_nothing_for_the_space_that_the_file_system_is_to_keep)
{
        struct disk_space space;
        store(1);
        set_pin(NULL);
        disk_cache_space(cache, &space);
        const uint64_t min_free[] = {space.free + 1, space.total};
        for (size_t i = 0; i < ARRAY_SIZE(min_free); i++) {
                disk_cache_configure(cache, &(struct disk_limits){.budget = UINT64_MAX, .min_free = min_free[i]});
                ck_assert(!disk_cache_trim(cache));
                ck_assert(has(1));
        }
}

TEST(entries_and_their_use_outlive_the_cache)
{
        struct disk_usage before, after;
        for (unsigned char i = 1; i <= 3; i++)
                store(i);
        disk_cache_usage(cache, &before);
        cache = disk_cache_free(cache);
        open_cache(4 * (SIZE + (20 << 10)));
        disk_cache_usage(cache, &after);
        ck_assert_uint_eq(after.entries, 3);
        ck_assert_uint_eq(after.used, before.used);
        ck_assert(has(1) && has(2) && has(3));
        disk_cache_free(cache);
}

TEST(a_copy_that_there_is_no_descriptor_for_stays)
{
        struct rlimit before;
        ck_assert_int_eq(store(1), DISK_RESERVED);
        must(getrlimit(RLIMIT_NOFILE, &before));
        int next = must(open("/dev/null", O_RDONLY));
        close(next);
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){.rlim_cur = (rlim_t)next, .rlim_max = before.rlim_max}));
        ck_assert_ptr_null(open_copy(1));
        must(setrlimit(RLIMIT_NOFILE, &before));
        ck_assert(has(1));
        ck_assert_ptr_nonnull(open_copy(1));
}

/* ---- notes of sources ---- */

/* Of one object, in this version; `alone`: the source of this number is the object alone. */
static void note(unsigned char of, unsigned char version, unsigned char alone)
{
        static char url[] = "http://s/b/m", path[] = "s3://b/m";
        unsigned char id[DISK_ID_SIZE];
        struct disk_member member = {.url = url, .path = path};
        memset(id, of, sizeof(id));
        memset(member.id, version, sizeof(member.id));
        if (alone != 0)
                memset(member.alone, alone, sizeof(member.alone));
        struct disk_source *source = disk_source_new(id, 1);
        ck_assert(disk_source_add(source, &member));
        disk_cache_note_source(cache, source);
}

/* The version of what is known as this source; 0: none. */
static unsigned char noted(unsigned char of)
{
        unsigned char id[DISK_ID_SIZE], version = 0;
        memset(id, of, sizeof(id));
        struct disk_source *source = disk_cache_find_source(cache, id);
        if (source != NULL) {
                ck_assert_mem_eq(source->id, id, sizeof(id));
                ck_assert_uint_eq(source->n, 1);
                version = source->members[0].id[0];
        }
        disk_cache_put_source(cache, source);
        return version;
}

static void set_time(unsigned char of, time_t at)
{
        unsigned char id[DISK_ID_SIZE];
        char name[DISK_NAME_SIZE];
        memset(id, of, sizeof(id));
        hex_encode(name, id, DISK_ID_SIZE);
        const struct timespec times[2] = {{.tv_sec = at}, {.tv_sec = at}};
        must(utimensat(AT_FDCWD, suite_path("cache-%d/sources/%s", (int)getpid(), name), times, 0));
}

static void reopen(void)
{
        cache = disk_cache_free(cache);
        open_cache(4 * (SIZE + (20 << 10)));
}

#define FOLDER 101
#define FILE_OF_IT 102

TEST(an_object_of_a_source_that_is_stored_is_known_by_its_own_name)
{
        store(1);
        note(FOLDER, 1, FILE_OF_IT);
        ck_assert_uint_eq(noted(FOLDER), 1);
        ck_assert_uint_eq(noted(FILE_OF_IT), 1);
        ck_assert_uint_eq(noted(103), 0);
        reopen();
        ck_assert_uint_eq(noted(FILE_OF_IT), 1);
        const struct object_label l = label(1);
        ck_assert(disk_cache_remove(cache, l.id));
        ck_assert_uint_eq(noted(FILE_OF_IT), 0);
}

TEST(of_several_notes_of_an_object_the_last_one_counts)
{
        store(1);
        store(2);
        note(FILE_OF_IT, 1, 0);
        ck_assert_uint_eq(noted(FILE_OF_IT), 1);
        note(FOLDER, 2, FILE_OF_IT);
        ck_assert_uint_eq(noted(FILE_OF_IT), 2);
        note(FILE_OF_IT, 1, 0); /* again */
        ck_assert_uint_eq(noted(FILE_OF_IT), 1);
        ck_assert_uint_eq(noted(FOLDER), 2);
        set_time(FILE_OF_IT, 1000);
        set_time(FOLDER, 2000);
        reopen();
        ck_assert_uint_eq(noted(FILE_OF_IT), 2);
        note(FILE_OF_IT, 1, 0); /* which is written to the disk, too */
        reopen();
        ck_assert_uint_eq(noted(FILE_OF_IT), 1);
        const struct object_label l = label(1);
        ck_assert(disk_cache_remove(cache, l.id));
        ck_assert_uint_eq(noted(FILE_OF_IT), 2);
}

static unsigned count_notes(void)
{
        unsigned n = 0;
        DIR *dir = opendir(suite_path("cache-%d/sources", (int)getpid()));
        for (struct dirent *e; (e = readdir(dir)) != NULL;)
                n += e->d_name[0] != '.';
        closedir(dir);
        return n;
}

TEST(a_pin_of_another_name_counts_after_a_restart)
{
        store(1);
        note(FOLDER, 1, 0); /* "s3://b/m" */
        reopen();
        set_pin("s3://b/m");
        for (unsigned char i = 2; i < 8; i++)
                ck_assert_int_eq(store(i), DISK_RESERVED);
        ck_assert(has(1) && !has(2));
}

TEST(notes_of_what_was_evicted_do_not_become_more_and_more)
{
        for (unsigned char i = 1; i < 250; i++) {
                ck_assert_int_eq(store(i), DISK_RESERVED); /* beside three others */
                note(i, i, 0);
                ck_assert_uint_eq(noted(i), i);
                ck_assert_uint_lt(count_notes(), 100);
        }
        for (unsigned char i = 1; i < 246; i++) /* what is stored is not dropped */
                note(i, 249, 0);
        ck_assert_uint_eq(noted(1), 249);
        ck_assert_uint_eq(noted(245), 249);
}

TEST(after_the_clock_was_set_back_the_last_note_counts_still)
{
        store(1);
        store(2);
        note(FILE_OF_IT, 1, 0);
        set_time(FILE_OF_IT, time(NULL) + 1000000);
        reopen();
        note(FOLDER, 2, FILE_OF_IT);
        ck_assert_uint_eq(noted(FILE_OF_IT), 2);
        reopen();
        ck_assert_uint_eq(noted(FILE_OF_IT), 2);
        note(FILE_OF_IT, 1, 0); /* again */
        ck_assert_uint_eq(noted(FILE_OF_IT), 1);
        reopen();
        ck_assert_uint_eq(noted(FILE_OF_IT), 1);
}

/* ---- many entries ---- */

#define MANY 1000u
#define SMALL 4096u

/* As an earlier daemon has left it; last used at a time that its number decides. */
static void leave_entry(uint32_t n)
{
        unsigned char sums[1][DIGEST_SIZE] = {{7}};
        struct disk_record record = {.size = SMALL, .header = 8, .n_sums = 1, .sums = sums};
        char id[DISK_NAME_SIZE], *folder = suite_path("cache-%d/objects", (int)getpid());
        size_t size;
        memcpy(record.id, &n, sizeof(n));
        memcpy(record.place, &n, sizeof(n));
        record.shown = format_text("s3://b/%u", n);
        record.etag = record.modified = (char[]){""};
        hex_encode(id, record.id, DISK_ID_SIZE);
        unsigned char *bytes = disk_record_encode(&record, &size);
        must(mkdir(format_text("%s/%s", folder, id), 0700));
        file_write(format_text("%s/%s/data", folder, id), (char[SMALL]){0}, SMALL);
        file_write(format_text("%s/%s/entry", folder, id), (char *)bytes, size);
        struct timespec times[2] = {{.tv_sec = 1000000000 + n * 389 % MANY}, {.tv_sec = 1000000000 + n * 389 % MANY}};
        must(utimensat(AT_FDCWD, format_text("%s/%s/entry", folder, id), times, 0));
        free(bytes);
}

static bool has_number(uint32_t n)
{
        unsigned char place[DISK_ID_SIZE] = {0};
        memcpy(place, &n, sizeof(n));
        return disk_cache_has(cache, place);
}

TEST(of_a_thousand_entries_those_are_evicted_that_were_used_least_recently)
{
        struct disk_usage usage;
        cache = disk_cache_free(cache);
        for (uint32_t n = 0; n < MANY; n++)
                leave_entry(n);
        open_cache(UINT64_MAX);
        disk_cache_usage(cache, &usage);
        ck_assert_uint_eq(usage.entries, MANY);
        uint64_t each = usage.used / MANY;
        /* So that 300 of them have to go. */
        uint64_t entry_of_test = SIZE + 4096 + 8192;
        disk_cache_configure(cache, &(struct disk_limits){.budget = usage.used - 300 * each + entry_of_test});
        ck_assert_int_eq(store(200), DISK_RESERVED);
        for (uint32_t n = 0; n < MANY; n++)
                ck_assert_msg(has_number(n) == (n * 389 % MANY >= 300), "entry %u", n);
        disk_cache_usage(cache, &usage);
        ck_assert_uint_eq(usage.entries, MANY - 300 + 1);
}

/* Whose bytes have another link: none becomes free. */
TEST(what_is_evicted_for_space_is_counted_as_what_it_takes)
{
        const char *folder = suite_path("cache-%d", (int)getpid());
        const uint64_t each = SMALL + DISK_PAGE + 2 * DISK_PAGE, of_test = SIZE + DISK_PAGE + 2 * DISK_PAGE;
        struct disk_usage usage;
        struct disk_space space;
        cache = disk_cache_free(cache);
        if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
                SKIP("no mount namespace here");
        must(mount("disk", folder, "tmpfs", MS_NOSUID | MS_NODEV, "size=1m,mode=700"));
        open_cache(UINT64_MAX);
        cache = disk_cache_free(cache);
        for (uint32_t n = 0; n < 8; n++)
                leave_entry(n);
        open_cache(UINT64_MAX);
        must(chdir(folder));
        must(system("i=0; for f in objects/*/data; do ln $f $((i+=1)); done"));
        disk_cache_usage(cache, &usage);
        ck_assert_uint_eq(usage.used, 8 * each);
        disk_cache_space(cache, &space);
        const struct disk_limits limits = {.budget = UINT64_MAX, .min_free = space.free - of_test + 3 * each};
        disk_cache_configure(cache, &limits);
        ck_assert_int_eq(store(200), DISK_FULL);
        disk_cache_usage(cache, &usage);
        ck_assert_uint_eq(usage.entries, 5);
}

#define SOME 200u

TEST(entries_among_leftovers_are_found_and_the_leftovers_removed)
{
        struct disk_usage usage;
        cache = disk_cache_free(cache);
        for (uint32_t n = 0; n < SOME; n++) {
                leave_entry(n);
                if (n % 3 == 0)
                        must(mkdir(suite_path("cache-%d/objects/new.%u", (int)getpid(), n), 0700));
        }
        for (uint32_t n = 0; n < SOME; n += 4) {
                char id[DISK_NAME_SIZE];
                hex_encode(id, (unsigned char[DISK_ID_SIZE]){(unsigned char)n, (unsigned char)(n >> 8)}, DISK_ID_SIZE);
                must(unlink(suite_path("cache-%d/objects/%s/entry", (int)getpid(), id)));
        }
        open_cache(UINT64_MAX);
        disk_cache_usage(cache, &usage);
        ck_assert_uint_eq(usage.entries, SOME - SOME / 4);
        for (uint32_t n = 0; n < SOME; n++)
                ck_assert_msg(has_number(n) == (n % 4 != 0), "entry %u", n);
        unsigned folders = 0;
        DIR *dir = opendir(suite_path("cache-%d/objects", (int)getpid()));
        for (struct dirent *e; (e = readdir(dir)) != NULL;)
                folders += e->d_name[0] != '.';
        closedir(dir);
        ck_assert_uint_eq(folders, usage.entries);
}
