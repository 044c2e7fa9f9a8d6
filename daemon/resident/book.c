/* SPDX-License-Identifier: Apache-2.0
 *
 * The lowest free row is taken, and none behind the last that was ever marked is looked at: a page of
 * shared memory is there once it was touched, be it to read, so a book takes the memory of its rows.
 *
 * A book of an earlier run is looked at as a whole when it is opened: its size and what its head says
 * of it. A row that does not hold together is cleared.
 */
#include "daemon/resident/book.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC "strmbok2"
#define SEALS (F_SEAL_GROW | F_SEAL_SHRINK)

struct head {
        char magic[8];
        uint64_t size;
        uint64_t counters[BOOK_COUNTERS];
        uint64_t names_end, leases_end; /* behind the last row that was ever marked */
};

struct rows {
        struct head head;
        unsigned char pad[4096 - sizeof(struct head)];
        struct book_name names[BOOK_NAMES];
        struct book_lease leases[BOOK_LEASES];
};

_Static_assert(sizeof(struct book_name) == 1072 && sizeof(struct book_lease) == 64, "rows are part of the format");

struct book {
        int fd;
        struct rows *rows;
        uint64_t name_free, lease_free; /* no row before these is free */
};

/* ---- lifecycle ---- */

static struct book *book_map(int fd, struct error *error)
{
        struct book *book = calloc(1, sizeof(*book));
        void *map = mmap(NULL, sizeof(struct rows), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (book == NULL || map == MAP_FAILED) {
                error_errno(error, STREAMER_ENOMEM, errno, "the book of leases");
                free(book);
                if (map != MAP_FAILED)
                        munmap(map, sizeof(struct rows));
                return NULL;
        }
        book->fd = fd;
        book->rows = map;
        return book;
}

struct book *book_new(struct error *error)
{
        cleanup_close int fd = memfd_create("streamerd-book", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0 || ftruncate(fd, sizeof(struct rows)) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
                error_errno(error, STREAMER_ENOMEM, errno, "the book of leases");
                return NULL;
        }
        struct book *book = book_map(fd, error);
        if (book == NULL)
                return NULL;
        take_fd(&fd);
        memcpy(book->rows->head.magic, MAGIC, sizeof(book->rows->head.magic));
        book->rows->head.size = sizeof(struct rows);
        return book;
}

static void clear_broken(struct book *book)
{
        for (struct book_name *row = NULL; (row = book_each_name(book, row)) != NULL;)
                if (row->text[0] == '\0' || memchr(row->text, '\0', sizeof(row->text)) == NULL)
                        row->model = 0;
        for (struct book_lease *row = NULL; (row = book_each_lease(book, row)) != NULL;)
                if (row->model == 0)
                        row->id = 0;
}

struct book *book_open_consume_fd(int fd, struct error *error)
{
        cleanup_close int book_fd = fd;
        struct stat st;
        int seals = fcntl(fd, F_GET_SEALS);
        if (fstat(fd, &st) < 0 || st.st_size != sizeof(struct rows) || seals < 0 || (seals & SEALS) != SEALS) {
                error_set(error, STREAMER_ECORRUPT, "the book of leases: not one of this version");
                return NULL;
        }
        struct book *book = book_map(fd, error);
        if (book == NULL)
                return NULL;
        take_fd(&book_fd);
        if (memcmp(book->rows->head.magic, MAGIC, sizeof(book->rows->head.magic)) != 0 ||
            book->rows->head.size != sizeof(struct rows) || book->rows->head.names_end > BOOK_NAMES ||
            book->rows->head.leases_end > BOOK_LEASES) {
                error_set(error, STREAMER_ECORRUPT, "the book of leases: not one of this version");
                return book_free(book);
        }
        clear_broken(book);
        return book;
}

struct book *book_free(struct book *book)
{
        if (book == NULL)
                return NULL;
        munmap(book->rows, sizeof(struct rows));
        close(book->fd);
        free(book);
        return NULL;
}

int book_fd(const struct book *book)
{
        return book->fd;
}

/* ---- counters ---- */

uint64_t book_next(struct book *book, enum book_counter counter)
{
        return ++book->rows->head.counters[counter];
}

uint64_t book_last(const struct book *book, enum book_counter counter)
{
        return book->rows->head.counters[counter];
}

void book_raise(struct book *book, enum book_counter counter, uint64_t at_least)
{
        if (book->rows->head.counters[counter] < at_least)
                book->rows->head.counters[counter] = at_least;
}

/* ---- rows ---- */

struct book_name *book_add_name(struct book *book, uint64_t model, const char *text, const struct book_wish *wish)
{
        struct head *head = &book->rows->head;
        for (uint64_t i = book->name_free; i < BOOK_NAMES; i++) {
                struct book_name *row = &book->rows->names[i];
                if (i < head->names_end && row->model != 0)
                        continue;
                snprintf(row->text, sizeof(row->text), "%s", text);
                row->wish = *wish;
                if (head->names_end <= i)
                        head->names_end = i + 1;
                __atomic_store_n(&row->model, model, __ATOMIC_RELEASE);
                book->name_free = i + 1;
                return row;
        }
        book->name_free = BOOK_NAMES; /* who asks again, a few times a second, is not to look at all of them */
        return NULL;
}

void book_drop_name(struct book *book, struct book_name *row)
{
        uint64_t i = (uint64_t)(row - book->rows->names);
        __atomic_store_n(&row->model, 0, __ATOMIC_RELEASE);
        if (i < book->name_free)
                book->name_free = i;
}

struct book_lease *book_add_lease(struct book *book, const struct book_lease *lease)
{
        struct head *head = &book->rows->head;
        for (uint64_t i = book->lease_free; i < BOOK_LEASES; i++) {
                struct book_lease *row = &book->rows->leases[i];
                if (i < head->leases_end && row->id != 0)
                        continue;
                memcpy((char *)row + sizeof(row->id), (const char *)lease + sizeof(row->id),
                       sizeof(*row) - sizeof(row->id));
                if (head->leases_end <= i)
                        head->leases_end = i + 1;
                __atomic_store_n(&row->id, lease->id, __ATOMIC_RELEASE);
                book->lease_free = i + 1;
                return row;
        }
        book->lease_free = BOOK_LEASES;
        return NULL;
}

void book_drop_lease(struct book *book, struct book_lease *row)
{
        uint64_t i = (uint64_t)(row - book->rows->leases);
        __atomic_store_n(&row->id, 0, __ATOMIC_RELEASE);
        if (i < book->lease_free)
                book->lease_free = i;
}

struct book_name *book_each_name(struct book *book, const struct book_name *row)
{
        for (uint64_t i = row == NULL ? 0 : (uint64_t)(row - book->rows->names) + 1; i < book->rows->head.names_end;
             i++)
                if (book->rows->names[i].model != 0)
                        return &book->rows->names[i];
        return NULL;
}

struct book_lease *book_each_lease(struct book *book, const struct book_lease *row)
{
        for (uint64_t i = row == NULL ? 0 : (uint64_t)(row - book->rows->leases) + 1; i < book->rows->head.leases_end;
             i++)
                if (book->rows->leases[i].id != 0)
                        return &book->rows->leases[i];
        return NULL;
}
