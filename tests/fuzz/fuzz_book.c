/* SPDX-License-Identifier: Apache-2.0
 *
 * A book of an earlier run with any rows: a byte each says how many names and leases its head tells of, then come
 * rows. Whatever is in them, those that are left hold together, and new ones find their place.
 */
#include "daemon/resident/book.h"
#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* As it lies in the file: the head is a page, and all names come before all leases. */
#define PAGE 4096
#define NAMES_END (8 + 8 + 8 * BOOK_COUNTERS)
#define LEASES (PAGE + BOOK_NAMES * sizeof(struct book_name))

static void put(int fd, const void *data, size_t size, size_t at)
{
        holds(pwrite(fd, data, size, (off_t)at) == (ssize_t)size);
}

static int book_of_bytes(const uint8_t *data, size_t size)
{
        struct error error = {0};
        struct book *fresh = book_new(&error);
        holds(fresh != NULL);
        int fd = dup(book_fd(fresh));
        holds(fd >= 0);
        book_free(fresh);
        uint64_t ends[2] = {data[0], data[1]};
        size_t names = ends[0] * sizeof(struct book_name);
        names = names < size - 2 ? names : size - 2;
        put(fd, ends, sizeof(ends), NAMES_END);
        put(fd, data + 2, names, PAGE);
        put(fd, data + 2 + names, size - 2 - names, LEASES);
        return fd;
}

static size_t check_rows(struct book *book)
{
        size_t n = 0;
        for (struct book_name *row = NULL; (row = book_each_name(book, row)) != NULL; n++)
                holds(row->model != 0 && row->text[0] != '\0' && memchr(row->text, '\0', sizeof(row->text)) != NULL);
        for (struct book_lease *row = NULL; (row = book_each_lease(book, row)) != NULL; n++)
                holds(row->id != 0 && row->model != 0);
        return n;
}

static void write_into(struct book *book)
{
        struct book_wish wish = {.priority = 7};
        struct book_lease lease = {.id = book_next(book, BOOK_LEASE) | 1, .model = 3};
        size_t n = check_rows(book);
        struct book_name *name = book_add_name(book, 3, "name", &wish);
        struct book_lease *row = book_add_lease(book, &lease);
        holds(name != NULL && row != NULL && check_rows(book) == n + 2);
        book_drop_name(book, name);
        book_drop_lease(book, row);
        holds(check_rows(book) == n);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct error error = {0};
        if (size < 2)
                return 0;
        struct book *book = book_open_consume_fd(book_of_bytes(data, size), &error);
        holds(book != NULL);
        write_into(book);
        book_free(book);
        return 0;
}
