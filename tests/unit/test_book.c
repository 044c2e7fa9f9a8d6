/* SPDX-License-Identifier: Apache-2.0
 *
 * The book of names and leases: what a run wrote is what the next one reads, row by row; a book that
 * is not one is refused; and it takes the memory of its rows, not of its size.
 */
#include "tests/lib/suite.h"

#include "daemon/resident/keep_rows.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static struct book *book;
static struct error error;
static const struct book_wish wish = {
        .keep_alive_ns = 5, .drain_timeout_ns = 6, .priority = 7, .pinned = 1, .owner = 8, .charged = 9};

static void begin(void)
{
        book = book_new(&error);
        ck_assert_ptr_nonnull(book);
}

static void end(void)
{
        book = book_free(book);
}

/* As the next run gets it. */
static void pass_on(void)
{
        int fd = must(dup(book_fd(book)));

        book_free(book);
        book = book_open_consume_fd(fd, &error);
        ck_assert_ptr_nonnull(book);
}

static struct book_lease lease_of(uint64_t id)
{
        struct book_lease lease = {.id = id, .model = 3, .process = 4, .since_ns = 5, .pid = 6, .uid = 7};

        memset(lease.token, (int)id, sizeof(lease.token));
        return lease;
}

static size_t count_names(void)
{
        size_t n = 0;

        for (struct book_name *row = NULL; (row = book_each_name(book, row)) != NULL;)
                n++;
        return n;
}

static size_t count_leases(void)
{
        size_t n = 0;

        for (struct book_lease *row = NULL; (row = book_each_lease(book, row)) != NULL;)
                n++;
        return n;
}

START_TEST(what_was_written_is_there_in_the_next_run)
{
        struct book_lease lease = lease_of(9);

        ck_assert_ptr_nonnull(book_add_name(book, 3, "a name/ \xc3\xa4", &wish));
        ck_assert_ptr_nonnull(book_add_lease(book, &lease));
        ck_assert_uint_eq(book_next(book, BOOK_MODEL), 1);
        book_raise(book, BOOK_GENERATION, 12);
        pass_on();
        struct book_name *name = book_each_name(book, NULL);
        ck_assert_uint_eq(name->model, 3);
        ck_assert_str_eq(name->text, "a name/ \xc3\xa4");
        ck_assert_int_eq(memcmp(&name->wish, &wish, sizeof(wish)), 0);
        ck_assert_ptr_null(book_each_name(book, name));
        ck_assert_int_eq(memcmp(book_each_lease(book, NULL), &lease, sizeof(lease)), 0);
        ck_assert_uint_eq(book_next(book, BOOK_MODEL), 2);
        ck_assert_uint_eq(book_last(book, BOOK_GENERATION), 12);
        book_raise(book, BOOK_GENERATION, 11);
        ck_assert_uint_eq(book_last(book, BOOK_GENERATION), 12);
}
END_TEST

START_TEST(a_row_that_was_dropped_is_gone_and_is_used_again)
{
        struct book_name *names[3];
        struct book_lease lease = lease_of(1), *row = book_add_lease(book, &lease);

        for (size_t i = 0; i < 3; i++)
                names[i] = book_add_name(book, i + 1, "n", &wish);
        book_drop_name(book, names[1]);
        book_drop_lease(book, row);
        pass_on();
        ck_assert_uint_eq(count_names(), 2);
        ck_assert_uint_eq(count_leases(), 0);
        ck_assert_ptr_nonnull(book_add_name(book, 8, "again", &wish));
        ck_assert_uint_eq(book_each_name(book, book_each_name(book, NULL))->model, 8); /* in between */
}
END_TEST

START_TEST(the_longest_name_has_room)
{
        char name[PROTO_NAME_MAX + 1];

        memset(name, 'x', PROTO_NAME_MAX);
        name[PROTO_NAME_MAX] = '\0';
        ck_assert_str_eq(book_add_name(book, 1, name, &wish)->text, name);
}
END_TEST

START_TEST(a_full_book_takes_no_more_and_a_freed_row_again)
{
        struct book_name *some = NULL;

        for (unsigned i = 0; i < BOOK_NAMES; i++) {
                struct book_name *row = book_add_name(book, i + 1, "n", &wish);
                ck_assert_ptr_nonnull(row);
                if (i == 1234)
                        some = row;
        }
        ck_assert_ptr_null(book_add_name(book, 1, "n", &wish));
        book_drop_name(book, some);
        ck_assert_ptr_eq(book_add_name(book, 1, "n", &wish), some);
        ck_assert_ptr_null(book_add_name(book, 1, "n", &wish));
}
END_TEST

START_TEST(leases_fill_it_and_a_freed_row_is_taken_again)
{
        struct book_lease *some = NULL, lease = lease_of(1);

        for (unsigned i = 0; i < BOOK_LEASES; i++) {
                struct book_lease *row = book_add_lease(book, &lease);
                ck_assert_ptr_nonnull(row);
                if (i == 1234)
                        some = row;
        }
        for (int i = 0; i < 3; i++) {
                ck_assert_ptr_null(book_add_lease(book, &lease));
                book_drop_lease(book, some);
                ck_assert_ptr_eq(book_add_lease(book, &lease), some);
        }
        pass_on();
        ck_assert_ptr_null(book_add_lease(book, &lease));
        ck_assert_uint_eq(count_leases(), BOOK_LEASES);
}
END_TEST

START_TEST(it_takes_the_memory_of_its_rows)
{
        struct stat st;
        struct book_lease lease = lease_of(1);

        for (int i = 0; i < 10000; i++)
                book_drop_lease(book, book_add_lease(book, &lease));
        book_drop_name(book, book_add_name(book, 1, "n", &wish));
        pass_on();
        ck_assert_uint_eq(count_names() + count_leases(), 0);
        must(fstat(book_fd(book), &st));
        ck_assert_int_le(st.st_blocks * 512, 64 << 10);
}
END_TEST

/* ---- what is no book ---- */

static void refused(int fd)
{
        error = (struct error){0};
        ck_assert_ptr_null(book_open_consume_fd(fd, &error));
        ck_assert_int_eq(error.code, STREAMER_ECORRUPT);
        ck_assert_int_eq(fcntl(fd, F_GETFD), -1); /* taken over, and closed */
}

START_TEST(another_size_no_seals_or_no_magic_is_refused)
{
        struct stat st;
        must(fstat(book_fd(book), &st));

        refused(must(memfd_create("x", MFD_ALLOW_SEALING)));
        int fd = must(memfd_create("x", MFD_ALLOW_SEALING));
        must(ftruncate(fd, st.st_size));
        refused(fd);
        fd = must(memfd_create("x", MFD_ALLOW_SEALING));
        must(ftruncate(fd, st.st_size));
        must(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
        refused(fd);
        refused(must(open("/dev/null", O_RDWR)));
}
END_TEST

START_TEST(rows_that_do_not_hold_together_are_cleared)
{
        struct book_lease lease = lease_of(1);
        struct book_name *name = book_add_name(book, 1, "n", &wish), *endless = book_add_name(book, 2, "n", &wish);

        book_add_name(book, 3, "kept", &wish);
        name->text[0] = '\0';
        memset(endless->text, 'x', sizeof(endless->text));
        book_add_lease(book, &lease)->model = 0;
        pass_on();
        ck_assert_uint_eq(count_names(), 1);
        ck_assert_str_eq(book_each_name(book, NULL)->text, "kept");
        ck_assert_uint_eq(count_leases(), 0);
}
END_TEST

/* ---- rows by what they are of ---- */

/* The texts of a model's names, in the order of the book: "a c ". */
static const char *names_of(const struct keep_rows *rows, uint64_t model)
{
        static char text[64];
        size_t at = 0, used = 0;

        text[0] = '\0';
        for (struct book_name *row; (row = rows_next_name(&rows->names, model, &at)) != NULL;)
                used += (size_t)snprintf(text + used, sizeof(text) - used, "%s ", row->text);
        return text;
}

static size_t count_of(const struct rows_of *leases, uint64_t of)
{
        size_t n = 0, at = 0;

        while (rows_next_lease(leases, of, &at) != NULL)
                n++;
        return n;
}

START_TEST(rows_are_found_by_what_they_are_of)
{
        struct keep_rows rows;

        keep_rows_init(&rows, book);
        ck_assert_str_eq(names_of(&rows, 1), "");
        ck_assert_uint_eq(count_of(&rows.leases, 3), 0);
        keep_rows_deinit(&rows);
        book_add_name(book, 5, "a", &wish);
        struct book_name *b = book_add_name(book, 3, "b", &wish);
        book_add_name(book, 5, "c", &wish);
        book_add_name(book, 3, "d", &wish);
        for (uint64_t i = 1; i <= 10; i++) {
                struct book_lease lease = lease_of(i);
                lease.model = i % 2;
                lease.process = i % 5;
                book_add_lease(book, &lease);
        }
        keep_rows_init(&rows, book);
        ck_assert_str_eq(names_of(&rows, 5), "a c ");
        ck_assert_str_eq(names_of(&rows, 3), "b d ");
        ck_assert_str_eq(names_of(&rows, 4), "");
        ck_assert_str_eq(names_of(&rows, 6), "");
        book_drop_name(book, b);
        ck_assert_str_eq(names_of(&rows, 3), "d ");
        ck_assert_uint_eq(count_of(&rows.leases, 0), 5);
        ck_assert_uint_eq(count_of(&rows.held, 4), 2);
        size_t at = 0;
        struct book_lease *row = rows_next_lease(&rows.held, 4, &at);
        ck_assert_uint_eq(row->id, 4);
        book_drop_lease(book, row);
        ck_assert_uint_eq(count_of(&rows.held, 4), 1);
        ck_assert_uint_eq(count_of(&rows.leases, 0), 4);
        keep_rows_deinit(&rows);
}
END_TEST

int main(void)
{
        suite_begin("book");
        TCase *rows = suite_group("rows", NULL, NULL, 30);
        tcase_add_checked_fixture(rows, begin, end);
        tcase_add_test(rows, what_was_written_is_there_in_the_next_run);
        tcase_add_test(rows, a_row_that_was_dropped_is_gone_and_is_used_again);
        tcase_add_test(rows, the_longest_name_has_room);
        tcase_add_test(rows, a_full_book_takes_no_more_and_a_freed_row_again);
        tcase_add_test(rows, leases_fill_it_and_a_freed_row_is_taken_again);
        tcase_add_test(rows, it_takes_the_memory_of_its_rows);
        tcase_add_test(rows, rows_are_found_by_what_they_are_of);
        TCase *damage = suite_group("damage", NULL, NULL, 30);
        tcase_add_checked_fixture(damage, begin, end);
        tcase_add_test(damage, another_size_no_seals_or_no_magic_is_refused);
        tcase_add_test(damage, rows_that_do_not_hold_together_are_cleared);
        return suite_run();
}
