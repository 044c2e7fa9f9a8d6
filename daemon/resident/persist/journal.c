/* SPDX-License-Identifier: Apache-2.0
 *
 * The lowest free row is taken, and no row beyond the last one that was ever marked is read: a page of shared memory
 * is allocated when it is first touched, even by a read, so a journal takes only the memory of its rows.
 *
 * The journal of an earlier run is validated as a whole when it is opened (its size and header); a malformed row is
 * cleared.
 */
#include "daemon/resident/persist/journal.h"

#include "daemon/base/util.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

#define MAGIC "strmbok3"
#define SEALS (F_SEAL_GROW | F_SEAL_SHRINK)

struct head {
        char magic[8];
        uint64_t size;
        uint64_t counters[JOURNAL_COUNTERS];
        uint64_t names_end, leases_end; /* one beyond the last row that was ever marked */
};

struct rows {
        struct head head;
        unsigned char pad[4096 - sizeof(struct head)];
        struct journal_name names[JOURNAL_NAMES];
        struct journal_lease leases[JOURNAL_LEASES];
};

_Static_assert(sizeof(struct journal_name) == 1072 && sizeof(struct journal_lease) == 64,
               "rows are part of the format");

/* Names or leases. A row begins with its mark: 0 where it is free. */
struct row_table {
        unsigned char *rows;
        size_t size; /* of a row */
        uint64_t n, *end;
        uint64_t free; /* no row before it is free */
};

struct journal {
        int fd;
        struct rows *rows;
        struct row_table names, leases;
};

/* ---- lifecycle ---- */

static struct journal *journal_map(int fd, struct error *error)
{
        struct journal *journal = calloc(1, sizeof(*journal));
        void *map = mmap(NULL, sizeof(struct rows), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (journal == NULL || map == MAP_FAILED) {
                error_errno(error, STREAMER_ENOMEM, errno, "the journal of leases");
                free(journal);
                if (map != MAP_FAILED)
                        munmap(map, sizeof(struct rows));
                return NULL;
        }
        struct rows *rows = map;
        *journal = (struct journal){
                .fd = fd,
                .rows = rows,
                .names = {(unsigned char *)rows->names, sizeof(rows->names[0]), JOURNAL_NAMES, &rows->head.names_end},
                .leases = {(unsigned char *)rows->leases, sizeof(rows->leases[0]), JOURNAL_LEASES,
                           &rows->head.leases_end},
        };
        return journal;
}

struct journal *journal_new(struct error *error)
{
        cleanup_close int fd = memfd_create("streamerd-book", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0 || ftruncate(fd, sizeof(struct rows)) < 0 || fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
                error_errno(error, STREAMER_ENOMEM, errno, "the journal of leases");
                return NULL;
        }
        struct journal *journal = journal_map(fd, error);
        if (journal == NULL)
                return NULL;
        take_fd(&fd);
        memcpy(journal->rows->head.magic, MAGIC, sizeof(journal->rows->head.magic));
        journal->rows->head.size = sizeof(struct rows);
        return journal;
}

static bool is_valid(const struct journal_name *row)
{
        const unsigned char *pinned = (const unsigned char *)&row->settings.pinned;
        return row->text[0] != '\0' && memchr(row->text, '\0', sizeof(row->text)) != NULL &&
               row->settings.priority <= PROTO_PRIORITY_MAX && *pinned <= 1;
}

struct journal *journal_open_consume_fd(int fd, struct error *error)
{
        cleanup_close int journal_fd = fd;
        struct stat st;
        int seals = fcntl(fd, F_GET_SEALS);
        if (fstat(fd, &st) < 0 || st.st_size != sizeof(struct rows) || seals < 0 || (seals & SEALS) != SEALS) {
                error_set(error, STREAMER_ECORRUPT, "the journal of leases: not one of this version");
                return NULL;
        }
        struct journal *journal = journal_map(fd, error);
        if (journal == NULL)
                return NULL;
        take_fd(&journal_fd);
        const struct head *head = &journal->rows->head;
        if (memcmp(head->magic, MAGIC, sizeof(head->magic)) != 0 || head->size != sizeof(struct rows) ||
            head->names_end > JOURNAL_NAMES || head->leases_end > JOURNAL_LEASES) {
                error_set(error, STREAMER_ECORRUPT, "the journal of leases: not one of this version");
                return journal_free(journal);
        }
        for (struct journal_name *row = NULL; (row = journal_each_name(journal, row)) != NULL;)
                if (!is_valid(row))
                        row->model = 0;
        for (struct journal_lease *row = NULL; (row = journal_each_lease(journal, row)) != NULL;)
                if (row->model == 0)
                        row->id = 0;
        return journal;
}

struct journal *journal_free(struct journal *journal)
{
        if (journal == NULL)
                return NULL;
        munmap(journal->rows, sizeof(struct rows));
        close(journal->fd);
        free(journal);
        return NULL;
}

int journal_fd(const struct journal *journal)
{
        return journal->fd;
}

/* ---- counters ---- */

uint64_t journal_next(struct journal *journal, enum journal_counter counter)
{
        return ++journal->rows->head.counters[counter];
}

uint64_t journal_last(const struct journal *journal, enum journal_counter counter)
{
        return journal->rows->head.counters[counter];
}

void journal_raise(struct journal *journal, enum journal_counter counter, uint64_t at_least)
{
        if (journal->rows->head.counters[counter] < at_least)
                journal->rows->head.counters[counter] = at_least;
}

/* ---- rows ---- */

static bool is_marked(const void *row)
{
        return *(const uint64_t *)row != 0;
}

static void *table_add(struct row_table *table, const void *row)
{
        for (uint64_t i = table->free; i < table->n; i++) {
                unsigned char *to = table->rows + i * table->size;
                if (i < *table->end && is_marked(to))
                        continue;
                memcpy(to + sizeof(uint64_t), (const uint64_t *)row + 1, table->size - sizeof(uint64_t));
                if (*table->end <= i)
                        *table->end = i + 1;
                __atomic_store_n((uint64_t *)to, *(const uint64_t *)row, __ATOMIC_RELEASE);
                table->free = i + 1;
                return to;
        }
        table->free = table->n;
        return NULL;
}

static void table_drop_row(struct row_table *table, void *row)
{
        uint64_t i = (uint64_t)((unsigned char *)row - table->rows) / table->size;
        __atomic_store_n((uint64_t *)row, 0, __ATOMIC_RELEASE);
        if (i < table->free)
                table->free = i;
}

static void *table_each(const struct row_table *table, const void *row)
{
        size_t at = row == NULL ? 0 : (size_t)((const unsigned char *)row - table->rows) + table->size;
        for (; at < *table->end * table->size; at += table->size)
                if (is_marked(table->rows + at))
                        return table->rows + at;
        return NULL;
}

struct journal_name *journal_add_name(struct journal *journal, const struct journal_name *name)
{
        return table_add(&journal->names, name);
}

void journal_drop_name(struct journal *journal, struct journal_name *row)
{
        table_drop_row(&journal->names, row);
}

struct journal_name *journal_each_name(const struct journal *journal, const struct journal_name *row)
{
        return table_each(&journal->names, row);
}

struct journal_lease *journal_add_lease(struct journal *journal, const struct journal_lease *lease)
{
        return table_add(&journal->leases, lease);
}

void journal_drop_lease(struct journal *journal, struct journal_lease *row)
{
        table_drop_row(&journal->leases, row);
}

struct journal_lease *journal_each_lease(const struct journal *journal, const struct journal_lease *row)
{
        return table_each(&journal->leases, row);
}

/* ---- rows by the model or process they belong to ---- */

static void add_row(struct rows_of *rows, uint64_t of, void *row)
{
        struct row_of *room = array_grow(rows->rows, rows->n, sizeof(*room));
        require(room != NULL); /* at the start; some megabytes at most */
        rows->rows = room;
        rows->rows[rows->n++] = (struct row_of){of, row};
}

static int by_of(const void *a, const void *b)
{
        const struct row_of *x = a, *y = b;
        int r = ORDER(x->of, y->of);
        return r != 0 ? r : ORDER(x->row, y->row);
}

static void sort(struct rows_of *rows)
{
        if (rows->n > 0)
                qsort(rows->rows, rows->n, sizeof(*rows->rows), by_of);
}

void journal_rows_init(struct journal_rows *rows, const struct journal *journal)
{
        *rows = (struct journal_rows){.names = {0}};
        for (struct journal_name *row = NULL; (row = journal_each_name(journal, row)) != NULL;)
                add_row(&rows->names, row->model, row);
        for (struct journal_lease *row = NULL; (row = journal_each_lease(journal, row)) != NULL;) {
                add_row(&rows->leases, row->model, row);
                add_row(&rows->held, row->process, row);
        }
        sort(&rows->names);
        sort(&rows->leases);
        sort(&rows->held);
}

void journal_rows_deinit(struct journal_rows *rows)
{
        free(rows->names.rows);
        free(rows->leases.rows);
        free(rows->held.rows);
}

static size_t first_of(const struct rows_of *rows, uint64_t of)
{
        size_t from = 0, to = rows->n;
        while (from < to) {
                size_t middle = from + (to - from) / 2;
                if (rows->rows[middle].of < of)
                        from = middle + 1;
                else
                        to = middle;
        }
        return from;
}

void *journal_rows_next(const struct rows_of *rows, uint64_t of, size_t *at)
{
        for (size_t i = *at > 0 ? *at : first_of(rows, of); i < rows->n && rows->rows[i].of == of; i++) {
                *at = i + 1; /* beyond the one that is returned */
                if (is_marked(rows->rows[i].row))
                        return rows->rows[i].row;
        }
        return NULL;
}
