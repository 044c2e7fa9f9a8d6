/* SPDX-License-Identifier: Apache-2.0
 *
 * Models and names survive a restart and a crash; damaged entries of the fd store are dropped. Each test has its own
 * service manager.
 */
#include "tests/integration/users_fixture.h"
#include "tests/lib/managed_daemon.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/wire.h"

#include "daemon/resident/persist/journal.h"

#include <fcntl.h>

/* ---- models: _i 0, over a restart; 1, over a crash ---- */

FIXTURE(.each = {managed_begin, managed_end});

TEST(a_model_survives_with_its_bytes_digest_and_number_and_is_not_read, .to = 2)
{
        managed_load("m");
        uint64_t used = client_used(client);
        file_uncache(managed_file());
        for (int runs = 0; runs < 3; runs++) {
                managed_restart_and_reconnect(_i);
                client_equals(client, "m", managed.model);
                ck_assert_uint_eq(client_used(client), used);
                ck_assert(process_read_no_model(managed.m.d.pid, 0)); /* since its start */
                ck_assert_uint_eq(json_number(client_show(client, "m"), "generation"), 1);
                ck_assert_str_eq(json_text(client_show(client, "m"), "source"), managed_file());
        }
        ck_assert_uint_eq(file_cached_bytes(managed_file()), 0);
        client_unload(client, "m");
        ck_assert_uint_eq(client_used(client), 0);
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

/* Until then it could still pass the memory to a next run. */
TEST(an_unload_waits_until_the_manager_has_closed_the_memory)
{
        struct wire w;
        managed_load("m");
        wire_connect(&w, &managed.m.d);
        pthread_mutex_lock(&managed.m.mutex); /* it reads no message */
        wire_verb(&w, "unload", 2, "model", "m");
        struct pollfd reply = {.fd = w.fd, .events = POLLIN};
        ck_assert_int_eq(poll(&reply, 1, 300), 0);
        ck_assert_uint_gt(client_used(client), 0);
        pthread_mutex_unlock(&managed.m.mutex);
        wire_read_ok(&w);
        ck_assert_uint_eq(client_used(client), 0);
}

/* ---- incomplete sets ---- */

static void lose_segment(void)
{
        manager_drop(&managed.m, managed_segment());
}

static void lose_record(void)
{
        manager_drop(&managed.m, managed_record());
}

static void lose_journal(void)
{
        manager_drop(&managed.m, manager_find(&managed.m, MANAGED_JOURNAL, 0));
}

static void segment_twice(void)
{
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "1.0", must(dup(managed_segment()->fd)));
}

static void segment_too_many(void)
{
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "1.1", must(dup(managed_segment()->fd)));
}

/* The daemon's own journal, which the manager stores: the test writes it while the daemon does not. */
static struct journal *open_journal(void)
{
        struct error error;
        int fd = must(dup(manager_find(&managed.m, MANAGED_JOURNAL, 0)->fd));
        struct journal *book = journal_open_consume_fd(fd, &error);
        ck_assert_ptr_nonnull(book);
        return book;
}

/* It has a name of its own. */
static void record_of_another(void)
{
        struct journal *book = open_journal();
        ck_assert_ptr_nonnull(journal_add(&book->names, &(struct journal_name){.model = 2, .text = "other"}));
        journal_free(book);
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "2.r", must(dup(managed_record()->fd)));
        manager_drop(&managed.m, managed_record());
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "2.0", must(dup(managed_segment()->fd)));
        manager_drop(&managed.m, managed_segment());
}

/* Replaces a descriptor by one of this size, unsealed if `seals` is 0. */
static void replace(struct stored *stored, off_t size, int seals)
{
        int fd = must(memfd_create("other", MFD_ALLOW_SEALING | MFD_CLOEXEC));
        must(ftruncate(fd, size));
        if (seals)
                must(fcntl(fd, F_ADD_SEALS, seals));
        close(stored->fd);
        stored->fd = fd;
}

static void segment_truncated(void)
{
        replace(managed_segment(), 4096, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

static void segment_unsealed(void)
{
        struct stat st;
        must(fstat(managed_segment()->fd, &st));
        replace(managed_segment(), st.st_size, 0);
}

static void record_zero(void)
{
        replace(managed_record(), 8192, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL);
}

static void journal_twice(void)
{
        int fd = must(fcntl(manager_find(&managed.m, MANAGED_JOURNAL, 0)->fd, F_DUPFD_CLOEXEC, 0));
        manager_add_consume_fd(&managed.m, MANAGED_JOURNAL, fd);
}

static const struct damage {
        void (*fn)(void);
        const char *log;
} damages[] = {
        {lose_segment, "0 of 1 segments are there"},
        {lose_record, "it has no commit record"},
        {lose_journal, "no name and no lease"},
        {segment_twice, "two descriptors have one name"},
        {segment_too_many, "2 of 1 segments are there"},
        {record_of_another, "the record is another's"},
        {segment_truncated, "not a sealed segment"},
        {segment_unsealed, "not a sealed segment"},
        {record_zero, "its record is damaged: wrong magic"},
        {journal_twice, "the journal of leases: there are 2"},
};

/* It is dropped, also from the store; no bytes stay charged, and the same file loads again. */
TEST(a_set_that_is_not_whole_is_dropped, EACH(damages))
{
        managed_load("m");
        manager_kill(&managed.m);
        damages[_i].fn();
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert_msg(log_wait_for(managed.m.d.log, damages[_i].log), "the log does not say '%s':\n%s", damages[_i].log,
                      file_read(managed.m.d.log, NULL));
        manager_wait(&managed.m, MANAGED_MODELS, 0);
        client_wait_used(client, 0);
        ck_assert_uint_eq(process_fds_named(managed.m.d.pid, "streamerd-journal"), 1);
        client_load(client, managed_file(), "m");
        manager_wait(&managed.m, MANAGED_MODELS, 2);
        managed_restart_and_reconnect(1);
        client_equals(client, "m", managed.model);
}

TEST(foreign_entries_of_the_fd_store_are_dropped)
{
        managed_load("m");
        manager_kill(&managed.m);
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "x", must(memfd_create("x", MFD_CLOEXEC)));
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "0.r", must(memfd_create("x", MFD_CLOEXEC)));
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "7.64", must(memfd_create("x", MFD_CLOEXEC)));
        manager_start(&managed.m);
        managed_reconnect();
        client_equals(client, "m", managed.model);
        manager_wait(&managed.m, MANAGED_MODELS, 2);
}

TEST(a_model_of_a_removed_device_is_dropped)
{
        managed_load("m");
        manager_kill(&managed.m);
        managed.m.flags[1] = "host=2MiB"; /* too small for it */
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert(log_wait_for(managed.m.d.log, "does not fit"));
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

/* ---- a full journal ---- */

#define NO_MODEL 999999

static void fill_names(struct journal *book)
{
        while (journal_add(&book->names, &(struct journal_name){.model = NO_MODEL, .text = "of nobody"}))
                ;
}

static void fill_leases(struct journal *book)
{
        while (journal_add(&book->leases, &(struct journal_lease){.id = 1, .model = NO_MODEL, .process = NO_MODEL}))
                ;
}

static bool is_in_journal(struct journal *book, const char *name)
{
        for (struct journal_name *row = NULL; (row = journal_each(&book->names, row));)
                if (strcmp(row->text, name) == 0)
                        return true;
        return false;
}

/* A name without a row serves, but survives only if a row is freed before. _i & 1: over a crash; _i & 2: another name
 * is removed. */
TEST(a_name_without_a_journal_row_is_stored_when_a_row_is_free, .to = 4)
{
        managed_load("m");
        client_load(client, managed_file(), "early");
        struct journal *book = open_journal();
        fill_names(book);
        client_load(client, managed_file(), "late");
        ck_assert(log_wait_for(managed.m.d.log, "full: further names"));
        client_equals(client, "late", managed.model);
        if (_i & 2) {
                client_unload(client, "early");
                AWAIT(is_in_journal(book, "late"));
        }
        journal_free(book);
        managed_restart_and_reconnect(_i & 1);
        client_equals(client, "m", managed.model);
        ck_assert_str_eq(client_state(client, "early"), _i & 2 ? "" : "ready");
        ck_assert_str_eq(client_state(client, "late"), _i & 2 ? "ready" : "");
        client_load(client, managed_file(), "later"); /* rows that lead nowhere were cleared */
        managed_restart_and_reconnect(_i & 1);
        client_equals(client, "later", managed.model);
}

TEST(only_a_lease_without_a_journal_row_is_lost, .to = 2)
{
        managed_load("m");
        streamer_lease *early = managed_attach();
        struct journal *book = open_journal();
        fill_leases(book);
        journal_free(book);
        streamer_lease *late = client_attach(client, "m");
        ck_assert(log_wait_for(managed.m.d.log, "full: further leases"));
        lease_equals(late, managed.model);
        managed_restart(_i);
        client_ok(client, streamer_lease_check(early), "check");
        ck_assert_int_eq(streamer_lease_check(late), STREAMER_ELOST);
        lease_equals(late, managed.model); /* its maps are its own */
        ck_assert_uint_eq(client_leases(client), 1);
        streamer_detach(late);
        streamer_detach(early);
}

/* ---- owners of names ---- */

enum { OWNER = 60301, GUEST = 60302 };

/* Also if another user loaded its generation, whose record has that owner. */
TEST(a_name_keeps_its_owner, .to = 2)
{
        ROOT_ONLY();
        struct model *newer = model_mixed(75, 2 << 20);
        must(chmod(suite_folder(), 0755));
        test_daemon = managed.m.d;
        ck_assert_int_eq(load_as(OWNER, managed_file(), "owned", NULL), 0);
        model_write(newer, managed_file());
        ck_assert_int_eq(load_as(GUEST, managed_file(), "owned", NULL), 0);
        ck_assert_int_eq(load_as(GUEST, managed_file(), "further", NULL), 0);
        manager_wait(&managed.m, MANAGED_MODELS "2.", 2);
        manager_wait(&managed.m, MANAGED_MODELS "1.", 0);
        for (int runs = 0; runs < 2; runs++) {
                managed_restart_and_reconnect(_i);
                client_equals(client, "owned", newer);
                ck_assert_int_eq(model_call_as(GUEST, "pin", "owned", NULL), STREAMER_EPERM);
                ck_assert_int_eq(model_call_as(GUEST, "unload", "owned", NULL), STREAMER_EPERM);
                ck_assert_int_eq(model_call_as(OWNER, "unload", "further", NULL), STREAMER_EPERM);
                ck_assert_int_eq(call_as(OWNER, "set_priority", "{\"model\":\"owned\",\"priority\":9}", NULL), 0);
        }
        ck_assert_int_eq(model_call_as(GUEST, "unload", "further", NULL), 0);
        ck_assert_int_eq(model_call_as(OWNER, "unload", "owned", NULL), 0);
        client_wait_used(client, 0);
}

/* ---- the store's size ---- */

FIXTURE();

static char *write_as(const struct model *model, const char *name)
{
        char *path = suite_path("root/%s.safetensors", name);
        model_write(model, path);
        return path;
}

/* The model that was loaded first and stored last took a name from one that was stored with that name. */
TEST(a_lost_name_is_not_restored, .to = 2)
{
        struct model *large = model_mixed(74, 1 << 20), *empty = model_new(75);
        managed_begin_sized(4); /* the journal, and two of these three, of which the second waits for a free entry */
        managed_load("filler");
        char *path = write_as(large, "large");
        client_load(client, path, "x");
        ck_assert(log_wait_for(managed.m.d.log, "raise FileDescriptorStoreMax="));
        ck_assert(log_wait_for(managed.m.d.log, "x: will not survive a restart"));
        char *other = write_as(empty, "empty");
        client_load(client, other, "m");
        manager_wait(&managed.m, MANAGED_MODELS "2.", 1);
        client_load(client, other, "z");
        client_load(client, path, "m");
        client_unload(client, "filler");
        manager_wait(&managed.m, MANAGED_MODELS "3.", 2);
        ck_assert_uint_eq(managed.m.dropped, 0);
        managed_restart_and_reconnect(_i);
        client_equals(client, "m", large);
        client_equals(client, "x", large);
        client_equals(client, "z", empty);
        managed_end();
}
