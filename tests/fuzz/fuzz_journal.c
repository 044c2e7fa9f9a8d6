/* SPDX-License-Identifier: Apache-2.0
 *
 * A journal of an earlier run with any rows: one byte each is the number of names and of leases in its head, then
 * follow rows. Valid rows are consistent, and new ones can be added.
 */
#include "daemon/resident/persist/journal.h"
#include "tests/fuzz/fuzz.h"

#include <sys/mman.h>
#include <unistd.h>

/* The layout of the file: the head is a page, and all names precede all leases. */
#define PAGE 4096
#define COUNTERS (8 + 8)
#define NAMES_END (COUNTERS + 8 * JOURNAL_COUNTERS)
#define LEASES (PAGE + JOURNAL_NAMES * sizeof(struct journal_name))
#define SIZE (LEASES + JOURNAL_LEASES * sizeof(struct journal_lease))

/* One file serves all runs, because allocating and freeing its pages would take most of a run's time. */
static struct {
        int fd;
        unsigned char *map;   /* of the file, beside that of the journal */
        size_t names, leases; /* bytes of rows that were written */
} file;

static void file_make(void)
{
        struct error error = {0};
        struct journal *fresh = journal_new(&error);
        holds(fresh != NULL);
        file.fd = dup(fresh->fd);
        journal_free(fresh);
        file.map = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd, 0);
        holds(file.fd >= 0 && file.map != MAP_FAILED);
}

/* As created: write_into() has cleared its own rows. */
static void file_clear(void)
{
        memset(file.map + COUNTERS, 0, PAGE - COUNTERS);
        memset(file.map + PAGE, 0, file.names);
        memset(file.map + LEASES, 0, file.leases);
}

static int journal_of_bytes(const uint8_t *data, size_t size)
{
        if (file.map == NULL)
                file_make();
        uint64_t ends[2] = {data[0], data[1]};
        size_t names = ends[0] * sizeof(struct journal_name);
        file.names = names < size - 2 ? names : size - 2;
        file.leases = size - 2 - file.names;
        memcpy(file.map + NAMES_END, ends, sizeof(ends));
        memcpy(file.map + PAGE, data + 2, file.names);
        memcpy(file.map + LEASES, data + 2 + file.names, file.leases);
        return dup(file.fd);
}

static size_t check_rows(struct journal *journal)
{
        size_t n = 0;
        for (struct journal_name *row = NULL; (row = journal_each(&journal->names, row)) != NULL; n++)
                holds(row->model != 0 && row->text[0] != '\0' && memchr(row->text, '\0', sizeof(row->text)) != NULL &&
                      row->settings.priority <= PROTO_PRIORITY_MAX &&
                      *(const unsigned char *)&row->settings.pinned <= 1);
        for (struct journal_lease *row = NULL; (row = journal_each(&journal->leases, row)) != NULL; n++)
                holds(row->id != 0 && row->model != 0);
        return n;
}

static void write_into(struct journal *journal)
{
        const struct journal_name added = {.model = 3, .settings = {.priority = 7}, .text = "name"};
        struct journal_lease lease = {.id = ++journal->counters[JOURNAL_LEASE] | 1, .model = 3};
        size_t n = check_rows(journal);
        struct journal_name *name = journal_add(&journal->names, &added);
        struct journal_lease *row = journal_add(&journal->leases, &lease);
        holds(name != NULL && row != NULL && check_rows(journal) == n + 2);
        journal_drop(&journal->names, name);
        journal_drop(&journal->leases, row);
        holds(check_rows(journal) == n);
        memset(name, 0, sizeof(*name));
        memset(row, 0, sizeof(*row));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        struct error error = {0};
        if (size < 2)
                return 0;
        struct journal *journal = journal_open_consume_fd(journal_of_bytes(data, size), &error);
        holds(journal != NULL);
        write_into(journal);
        journal_free(journal);
        file_clear();
        return 0;
}
