/* SPDX-License-Identifier: Apache-2.0
 *
 * A book of an earlier run with any rows: a byte each says how many names and leases its head tells of, then come
 * rows. Whatever is in them, those that are left hold together, and new ones find their place.
 */
#include "daemon/resident/book.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* As it lies in the file: the head is a page, and all names come before all leases. */
#define PAGE 4096
#define COUNTERS (8 + 8)
#define NAMES_END (COUNTERS + 8 * BOOK_COUNTERS)
#define LEASES (PAGE + BOOK_NAMES * sizeof(struct book_name))
#define SIZE (LEASES + BOOK_LEASES * sizeof(struct book_lease))

/* One file serves all runs, since making and giving back its pages is most of what a run of its own would take. */
static struct {
        int fd;
        unsigned char *map;   /* of it, beside that of the book */
        size_t names, leases; /* bytes of rows that were put there */
} file;

static void file_make(void)
{
        struct error error = {0};
        struct book *fresh = book_new(&error);
        holds(fresh != NULL);
        file.fd = dup(book_fd(fresh));
        book_free(fresh);
        file.map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
        holds(file.fd >= 0 && file.map != MAP_FAILED);
}

/* As it was when it was made: write_into() has cleared its own rows. */
static void file_clear(void)
{
        memset(file.map + COUNTERS, 0, PAGE - COUNTERS);
        memset(file.map + PAGE, 0, file.names);
        memset(file.map + LEASES, 0, file.leases);
}

static int book_of_bytes(const uint8_t *data, size_t size)
{
        if (file.map == NULL)
                file_make();
        uint64_t ends[2] = {data[0], data[1]};
        size_t names = ends[0] * sizeof(struct book_name);
        file.names = names < size - 2 ? names : size - 2;
        file.leases = size - 2 - file.names;
        memcpy(file.map + NAMES_END, ends, sizeof(ends));
        memcpy(file.map + PAGE, data + 2, file.names);
        memcpy(file.map + LEASES, data + 2 + file.names, file.leases);
        return dup(file.fd);
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
        memset(name, 0, sizeof(*name));
        memset(row, 0, sizeof(*row));
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
        file_clear();
        return 0;
}
