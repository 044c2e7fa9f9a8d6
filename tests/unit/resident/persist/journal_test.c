/* SPDX-License-Identifier: Apache-2.0
 *
 * The journal of names and leases: the next run reads what this one wrote, row by row; an invalid journal is refused;
 * and it uses memory for its rows, not for its size.
 */
#include "tests/lib/suite.h"

#include "daemon/resident/persist/journal.h"

#include <fcntl.h>

static struct journal *journal;
static struct error error;
static const struct model_settings settings = {
        .keep_alive_ns = 5, .drain_timeout_ns = 6, .priority = 7, .pinned = true};

static void begin(void)
{
        journal = journal_new(&error);
        ck_assert_ptr_nonnull(journal);
}

/* As the next run gets it. */
static void pass_on(void)
{
        int fd = must(dup(journal->fd));
        journal_free(journal);
        journal = journal_open_consume_fd(fd, &error);
        ck_assert_ptr_nonnull(journal);
}

static struct journal_name *add_name(uint64_t model, const char *text)
{
        struct journal_name name = {.model = model, .settings = settings, .owner = 8, .charged = 9};
        snprintf(name.text, sizeof(name.text), "%s", text);
        return journal_add(&journal->names, &name);
}

static struct journal_lease lease_of(uint64_t id)
{
        struct journal_lease lease = {.id = id, .model = 3, .process = 4, .since_ns = 5, .pid = 6, .uid = 7};
        memset(lease.token, (int)id, sizeof(lease.token));
        return lease;
}

static size_t count(const struct journal_table *table)
{
        size_t n = 0;
        for (void *row = NULL; (row = journal_each(table, row)) != NULL;)
                n++;
        return n;
}

FIXTURE(.each = {begin, NULL});

TEST(written_rows_are_present_in_the_next_run)
{
        struct journal_lease lease = lease_of(9);
        ck_assert_ptr_nonnull(add_name(3, "a name/ \xc3\xa4"));
        ck_assert_ptr_nonnull(journal_add(&journal->leases, &lease));
        ck_assert_uint_eq(++journal->counters[JOURNAL_MODEL], 1);
        journal_raise(journal, JOURNAL_GENERATION, 12);
        pass_on();
        struct journal_name *name = journal_each(&journal->names, NULL);
        ck_assert_uint_eq(name->model, 3);
        ck_assert_str_eq(name->text, "a name/ \xc3\xa4");
        ck_assert_int_eq(memcmp(&name->settings, &settings, sizeof(settings)), 0);
        ck_assert_uint_eq(name->owner, 8);
        ck_assert_uint_eq(name->charged, 9);
        ck_assert_ptr_null(journal_each(&journal->names, name));
        ck_assert_int_eq(memcmp(journal_each(&journal->leases, NULL), &lease, sizeof(lease)), 0);
        ck_assert_uint_eq(++journal->counters[JOURNAL_MODEL], 2);
        ck_assert_uint_eq(journal->counters[JOURNAL_GENERATION], 12);
        journal_raise(journal, JOURNAL_GENERATION, 11);
        ck_assert_uint_eq(journal->counters[JOURNAL_GENERATION], 12);
}

TEST(a_dropped_row_is_removed_and_reused)
{
        struct journal_name *names[3];
        struct journal_lease lease = lease_of(1), *row = journal_add(&journal->leases, &lease);
        for (size_t i = 0; i < 3; i++)
                names[i] = add_name(i + 1, "n");
        journal_drop(&journal->names, names[1]);
        journal_drop(&journal->leases, row);
        pass_on();
        ck_assert_uint_eq(count(&journal->names), 2);
        ck_assert_uint_eq(count(&journal->leases), 0);
        ck_assert_ptr_nonnull(add_name(8, "again"));
        const struct journal_name *second = journal_each(&journal->names, journal_each(&journal->names, NULL));
        ck_assert_uint_eq(second->model, 8); /* in between */
}

TEST(the_longest_name_fits)
{
        char name[PROTO_NAME_MAX + 1];
        memset(name, 'x', PROTO_NAME_MAX);
        name[PROTO_NAME_MAX] = '\0';
        ck_assert_str_eq(add_name(1, name)->text, name);
}

TEST(a_full_journal_accepts_only_after_a_row_is_freed, .to = 2)
{
        const struct journal_lease lease = lease_of(1);
        const struct journal_name name = {.model = 1, .settings = settings, .text = "n"};
        struct journal_table *table = _i == 0 ? &journal->names : &journal->leases;
        const void *row = _i == 0 ? (const void *)&name : &lease;
        void *some = NULL;
        for (uint64_t i = 0; i < table->n; i++) {
                void *added = journal_add(table, row);
                ck_assert_ptr_nonnull(added);
                some = i == 1234 ? added : some;
        }
        for (int i = 0; i < 3; i++) {
                ck_assert_ptr_null(journal_add(table, row));
                journal_drop(table, some);
                ck_assert_ptr_eq(journal_add(table, row), some);
        }
        pass_on();
        ck_assert_ptr_null(journal_add(_i == 0 ? &journal->names : &journal->leases, row));
        ck_assert_uint_eq(count(_i == 0 ? &journal->names : &journal->leases),
                          _i == 0 ? JOURNAL_NAMES : JOURNAL_LEASES);
}

TEST(a_journal_uses_only_the_memory_of_its_rows)
{
        struct stat st;
        struct journal_lease lease = lease_of(1);
        for (int i = 0; i < 10000; i++)
                journal_drop(&journal->leases, journal_add(&journal->leases, &lease));
        journal_drop(&journal->names, add_name(1, "n"));
        pass_on();
        ck_assert_uint_eq(count(&journal->names) + count(&journal->leases), 0);
        must(fstat(journal->fd, &st));
        ck_assert_int_le(st.st_blocks * 512, 64 << 10);
}

/* ---- invalid journals ---- */

static void refused(int fd)
{
        error = (struct error){0};
        ck_assert_ptr_null(journal_open_consume_fd(fd, &error));
        ck_assert_int_eq(error.code, STREAMER_ECORRUPT);
        ck_assert_int_eq(fcntl(fd, F_GETFD), -1); /* consumed */
}

TEST(another_size_no_seals_or_no_magic_is_refused)
{
        struct stat st;
        must(fstat(journal->fd, &st));

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
