/* SPDX-License-Identifier: Apache-2.0
 *
 * The lowest free row is taken, and no row beyond the last one that was ever marked is read: a page of shared memory
 * is allocated when it is first touched, even by a read, so a journal takes only the memory of its rows.
 *
 * The journal of an earlier run is validated as a whole when it is opened (its size and header); a malformed row is
 * cleared.
 */
#include "daemon/resident/persist/journal.h"

#include "daemon/base/text/text.h"
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

struct journal_file {
        struct head head;
        unsigned char pad[4096 - sizeof(struct head)];
        struct journal_name names[JOURNAL_NAMES];
        struct journal_lease leases[JOURNAL_LEASES];
};

_Static_assert(sizeof(struct journal_name) == 1072 && sizeof(struct journal_lease) == 64,
               "rows are part of the format");

/* ---- lifecycle ---- */

struct journal *journal_new(struct error *error)
{
        const struct head head = {.magic = MAGIC, .size = sizeof(struct journal_file)};
        cleanup_close int fd = memfd_create("streamerd-journal", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        if (fd < 0 || text_write_fd(fd, &head, sizeof(head)) < 0 || ftruncate(fd, sizeof(struct journal_file)) < 0 ||
            fcntl(fd, F_ADD_SEALS, SEALS) < 0) {
                error_errno(error, STREAMER_ENOMEM, errno, "the journal of leases");
                return NULL;
        }
        return journal_open_consume_fd(take_fd(&fd), error);
}

static bool is_journal(int fd)
{
        struct stat st;
        struct head head;
        int seals = fcntl(fd, F_GET_SEALS);
        return fstat(fd, &st) == 0 && st.st_size == sizeof(struct journal_file) && seals >= 0 &&
               (seals & SEALS) == SEALS && pread(fd, &head, sizeof(head), 0) == sizeof(head) &&
               memcmp(head.magic, MAGIC, sizeof(head.magic)) == 0 && head.size == sizeof(struct journal_file) &&
               head.names_end <= JOURNAL_NAMES && head.leases_end <= JOURNAL_LEASES;
}

static bool is_valid(const struct journal_name *row)
{
        const unsigned char *pinned = (const unsigned char *)&row->settings.pinned;
        return row->text[0] != '\0' && memchr(row->text, '\0', sizeof(row->text)) != NULL &&
               row->settings.priority <= PROTO_PRIORITY_MAX && *pinned <= 1;
}

struct journal *journal_open_consume_fd(int fd, struct error *error)
{
        cleanup_close int own = fd;
        if (!is_journal(fd)) {
                error_set(error, STREAMER_ECORRUPT, "the journal of leases: not one of this version");
                return NULL;
        }
        struct journal *journal = malloc(sizeof(*journal));
        struct journal_file *file = MAP_FAILED;
        if (journal != NULL)
                file = mmap(NULL, sizeof(*file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (file == MAP_FAILED) {
                error_errno(error, STREAMER_ENOMEM, errno, "the journal of leases");
                free(journal);
                return NULL;
        }
        *journal = (struct journal){
                .fd = take_fd(&own),
                .file = file,
                .counters = file->head.counters,
                .names = {(unsigned char *)file->names, sizeof(file->names[0]), JOURNAL_NAMES, &file->head.names_end,
                          0},
                .leases = {(unsigned char *)file->leases, sizeof(file->leases[0]), JOURNAL_LEASES,
                           &file->head.leases_end, 0},
        };
        for (struct journal_name *row = NULL; (row = journal_each(&journal->names, row)) != NULL;)
                if (!is_valid(row))
                        row->model = 0;
        for (struct journal_lease *row = NULL; (row = journal_each(&journal->leases, row)) != NULL;)
                if (row->model == 0)
                        row->id = 0;
        return journal;
}

struct journal *journal_free(struct journal *journal)
{
        if (journal == NULL)
                return NULL;
        munmap(journal->file, sizeof(struct journal_file));
        close(journal->fd);
        free(journal);
        return NULL;
}

/* ---- counters ---- */

void journal_raise(struct journal *journal, enum journal_counter counter, uint64_t at_least)
{
        if (journal->counters[counter] < at_least)
                journal->counters[counter] = at_least;
}

/* ---- rows ---- */

static bool is_marked(const void *row)
{
        return *(const uint64_t *)row != 0;
}

void *journal_add(struct journal_table *table, const void *row)
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

void journal_drop(struct journal_table *table, void *row)
{
        uint64_t i = (uint64_t)((unsigned char *)row - table->rows) / table->size;
        __atomic_store_n((uint64_t *)row, 0, __ATOMIC_RELEASE);
        if (i < table->free)
                table->free = i;
}

void *journal_each(const struct journal_table *table, const void *row)
{
        size_t at = row == NULL ? 0 : (size_t)((const unsigned char *)row - table->rows) + table->size;
        for (; at < *table->end * table->size; at += table->size)
                if (is_marked(table->rows + at))
                        return table->rows + at;
        return NULL;
}
