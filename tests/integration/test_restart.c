/* SPDX-License-Identifier: Apache-2.0
 *
 * What survives the daemon: models and names, over a restart and over a crash, and what of them does
 * not come back where the store is not whole. Each test has a service manager of its own.
 */
#include "tests/lib/kept.h"
#include "tests/lib/person.h"
#include "tests/lib/storage.h"
#include "tests/lib/suite.h"

#include "daemon/resident/book.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- models: _i 0, over a restart; 1, over a crash ---- */

START_TEST(a_model_survives_with_its_bytes_digest_and_number)
{
        kept_load("m");
        for (int runs = 0; runs < 3; runs++) {
                kept_restart_and_reconnect(_i);
                client_equals(kept.client, "m", kept.model);
                json_t *shown = client_call(kept.client, "show", "{\"model\":\"m\"}");
                json_t *it = json_array_get(json_object_get(shown, "models"), 0);
                ck_assert_int_eq(json_integer_value(json_object_get(it, "generation")), 1);
                ck_assert_str_eq(json_string_value(json_object_get(it, "source")), kept_file());
                json_decref(shown);
        }
}
END_TEST

START_TEST(nothing_is_read_from_storage)
{
        kept_load("m");
        kept_restart_and_reconnect(_i);
        unlink(kept_file());
        uint64_t before = process_read_bytes(kept.m.d.pid);
        client_equals(kept.client, "m", kept.model);
        ck_assert(process_read_no_model(kept.m.d.pid, before));
}
END_TEST

START_TEST(its_bytes_are_accounted_and_come_back)
{
        kept_load("m");
        uint64_t used = client_used(kept.client);
        kept_restart_and_reconnect(_i);
        ck_assert_uint_eq(client_used(kept.client), used);
        client_unload(kept.client, "m");
        ck_assert_uint_eq(client_used(kept.client), 0);
        manager_wait(&kept.m, KEPT_MODELS, 0);
        kept_restart_and_reconnect(_i);
        ck_assert_str_eq(client_state(kept.client, "m"), "");
}
END_TEST

START_TEST(every_name_survives)
{
        kept_load("m");
        client_load(kept.client, kept_file(), "other/ name");
        kept_restart_and_reconnect(_i);
        client_equals(kept.client, "m", kept.model);
        client_equals(kept.client, "other/ name", kept.model);
        client_unload(kept.client, "m");
        kept_restart_and_reconnect(_i);
        ck_assert_str_eq(client_state(kept.client, "m"), "");
        client_equals(kept.client, "other/ name", kept.model);
}
END_TEST

START_TEST(a_name_leads_to_the_newest_generation)
{
        struct model *newer = model_mixed(71, 2 << 20);

        kept_load("m");
        model_write(newer, kept_file());
        client_load(kept.client, kept_file(), "m");
        manager_wait(&kept.m, KEPT_MODELS "2.", 2);
        manager_wait(&kept.m, KEPT_MODELS "1.", 0);
        kept_restart_and_reconnect(_i);
        client_equals(kept.client, "m", newer);
        /* Numbers go on from where they were. */
        model_write(kept.model, kept_file());
        client_load(kept.client, kept_file(), "m");
        streamer_lease *lease = client_attach(kept.client, "m");
        ck_assert_uint_eq(streamer_generation(lease), 3);
        streamer_detach(lease);
}
END_TEST

START_TEST(a_model_without_tensors_survives)
{
        struct model *empty = model_new(72);

        model_write(empty, suite_path("root/empty.safetensors"));
        client_load(kept.client, suite_path("root/empty.safetensors"), "empty");
        manager_wait(&kept.m, KEPT_MODELS, 1);
        kept_restart_and_reconnect(_i);
        client_equals(kept.client, "empty", empty);
}
END_TEST

/* ---- sets that are not whole ---- */

static void lose_segment(void)
{
        manager_drop(&kept.m, kept_segment());
}

static void lose_record(void)
{
        manager_drop(&kept.m, kept_record());
}

static void lose_book(void)
{
        manager_drop(&kept.m, manager_find(&kept.m, KEPT_BOOK, 0));
}

static void segment_twice(void)
{
        manager_add_consume_fd(&kept.m, KEPT_MODELS "1.0", must(dup(kept_segment()->fd)));
}

static void record_twice(void)
{
        manager_add_consume_fd(&kept.m, KEPT_MODELS "1.r", must(dup(kept_record()->fd)));
}

static void segment_too_many(void)
{
        manager_add_consume_fd(&kept.m, KEPT_MODELS "1.1", must(dup(kept_segment()->fd)));
}

static void record_of_another(void)
{
        int fd = must(dup(kept_record()->fd));

        manager_drop(&kept.m, kept_record());
        manager_add_consume_fd(&kept.m, KEPT_MODELS "2.r", fd);
        fd = must(dup(kept_segment()->fd));
        manager_drop(&kept.m, kept_segment());
        manager_add_consume_fd(&kept.m, KEPT_MODELS "2.0", fd);
}

/* A descriptor of this size in the place of one, unsealed where `seals` is 0. */
static void replace(struct stored *stored, off_t size, int seals)
{
        int fd = must(memfd_create("other", MFD_ALLOW_SEALING | MFD_CLOEXEC));

        must(ftruncate(fd, size));
        if (seals)
                must(fcntl(fd, F_ADD_SEALS, seals));
        close(stored->fd);
        stored->fd = fd;
}

static void segment_short(void)
{
        replace(kept_segment(), 4096, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

static void segment_unsealed(void)
{
        struct stat st;

        must(fstat(kept_segment()->fd, &st));
        replace(kept_segment(), st.st_size, 0);
}

static void record_unsealed(void)
{
        struct stat st;

        must(fstat(kept_record()->fd, &st));
        replace(kept_record(), st.st_size, 0);
}

static void record_empty(void)
{
        replace(kept_record(), 0, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL);
}

static void record_zero(void)
{
        replace(kept_record(), 8192, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL);
}

static void book_foreign(void)
{
        replace(manager_find(&kept.m, KEPT_BOOK, 0), 4096, F_SEAL_GROW | F_SEAL_SHRINK);
}

static const struct damage {
        void (*fn)(void);
        const char *log;
} damages[] = {
        {lose_segment, "0 of 1 segments"},
        {lose_record, "there is no record"},
        {lose_book, "no name and no lease"},
        {segment_twice, "two descriptors have one name"},
        {record_twice, "two descriptors have one name"},
        {segment_too_many, "2 of 1 segments"},
        {record_of_another, "no name and no lease"},
        {segment_short, "not a sealed segment"},
        {segment_unsealed, "not a sealed segment"},
        {record_unsealed, "it is not sealed"},
        {record_empty, "it is too short"},
        {record_zero, "wrong magic"},
        {book_foreign, "not one of this version"},
};

/* It is dropped, from the store too; nothing stays accounted, and the same file loads again. */
START_TEST(a_set_that_is_not_whole_is_dropped)
{
        kept_load("m");
        manager_kill(&kept.m);
        damages[_i].fn();
        manager_start(&kept.m);
        kept_reconnect();
        ck_assert_str_eq(client_state(kept.client, "m"), "");
        ck_assert_msg(kept_log_says(damages[_i].log), "the log does not say '%s':\n%s", damages[_i].log,
                      file_read(kept.m.d.log, NULL));
        manager_wait(&kept.m, KEPT_MODELS, 0);
        client_wait_used(kept.client, 0);
        client_load(kept.client, kept_file(), "m");
        manager_wait(&kept.m, KEPT_MODELS, 2);
        kept_restart_and_reconnect(1);
        client_equals(kept.client, "m", kept.model);
}
END_TEST

START_TEST(what_no_version_of_ours_stored_is_dropped)
{
        kept_load("m");
        manager_kill(&kept.m);
        manager_add_consume_fd(&kept.m, KEPT_MODELS "x", must(memfd_create("x", MFD_CLOEXEC)));
        manager_add_consume_fd(&kept.m, KEPT_MODELS "0.r", must(memfd_create("x", MFD_CLOEXEC)));
        manager_add_consume_fd(&kept.m, KEPT_MODELS "7.64", must(memfd_create("x", MFD_CLOEXEC)));
        manager_start(&kept.m);
        kept_reconnect();
        client_equals(kept.client, "m", kept.model);
        manager_wait(&kept.m, KEPT_MODELS, 2);
}
END_TEST

START_TEST(a_model_whose_device_is_not_there_any_more_is_dropped)
{
        kept_load("m");
        manager_kill(&kept.m);
        kept.m.flags[1] = "host=2MiB"; /* too small for it */
        manager_start(&kept.m);
        kept_reconnect();
        ck_assert_str_eq(client_state(kept.client, "m"), "");
        ck_assert(kept_log_says("does not fit"));
        manager_wait(&kept.m, KEPT_MODELS, 0);
}
END_TEST

/* ---- the store's size ---- */

START_TEST(without_a_store_nothing_is_kept)
{
        kept_begin_sized(0);
        ck_assert(kept_log_says("fd store: none"));
        client_load(kept.client, kept_file(), "m");
        client_equals(kept.client, "m", kept.model);
        kept_restart_and_reconnect(0);
        ck_assert_str_eq(client_state(kept.client, "m"), "");
        ck_assert_uint_eq(kept.m.dropped, 0);
        kept_end();
}
END_TEST

START_TEST(a_store_that_is_too_small_is_warned_of_and_never_overfilled)
{
        kept_begin_sized(3); /* the book, and one model */
        ck_assert(kept_log_says("FileDescriptorStoreMax"));
        kept_load("m");
        struct model *other = model_mixed(73, 1 << 20);
        model_write(other, suite_path("root/other.safetensors"));
        client_load(kept.client, suite_path("root/other.safetensors"), "other");
        client_equals(kept.client, "other", other);
        ck_assert(kept_log_says("other: will not survive a restart"));
        kept_restart_and_reconnect(1);
        client_equals(kept.client, "m", kept.model);
        ck_assert_str_eq(client_state(kept.client, "other"), "");
        ck_assert_uint_eq(kept.m.dropped, 0);
        kept_end();
}
END_TEST

static char *write_as(const struct model *model, const char *name)
{
        char *path = suite_path("root/%s.safetensors", name);
        model_write(model, path);
        return path;
}

/* One that was loaded first and stored last took a name from one that was stored as it was called then. */
START_TEST(a_name_that_was_lost_is_not_taken_back)
{
        struct model *large = model_mixed(74, 1 << 20), *empty = model_new(75);
        kept_begin_sized(4); /* the book, and two of these three: whose second has to wait for room */
        kept_load("filler");
        char *path = write_as(large, "large");
        client_load(kept.client, path, "x");
        ck_assert(kept_log_says("x: will not survive a restart"));
        char *other = write_as(empty, "empty");
        client_load(kept.client, other, "m");
        manager_wait(&kept.m, KEPT_MODELS "2.", 1);
        client_load(kept.client, other, "z");
        client_load(kept.client, path, "m");
        client_unload(kept.client, "filler");
        manager_wait(&kept.m, KEPT_MODELS "3.", 2);
        kept_restart_and_reconnect(_i);
        client_equals(kept.client, "m", large);
        client_equals(kept.client, "x", large);
        client_equals(kept.client, "z", empty);
        kept_end();
}
END_TEST

/* ---- a full book ---- */

#define NO_MODEL 999999

/* The daemon's own, as the manager keeps it: both write it while nothing else does. */
static struct book *open_book(void)
{
        struct error error;
        int fd = must(dup(manager_find(&kept.m, KEPT_BOOK, 0)->fd));
        struct book *book = book_open_consume_fd(fd, &error);

        ck_assert_ptr_nonnull(book);
        return book;
}

static void fill_names(struct book *book)
{
        while (book_add_name(book, NO_MODEL, "of nobody", &(struct book_wish){.owner = 0}))
                ;
}

static void fill_leases(struct book *book)
{
        while (book_add_lease(book, &(struct book_lease){.id = 1, .model = NO_MODEL, .process = NO_MODEL}))
                ;
}

struct book_question {
        struct book *book;
        const char *name;
};

static bool is_in_book(void *arg)
{
        const struct book_question *q = arg;

        for (struct book_name *row = NULL; (row = book_each_name(q->book, row));)
                if (strcmp(row->text, q->name) == 0)
                        return true;
        return false;
}

/* What finds no row serves, and does not survive, unless a row is free again in time. _i & 1: over a crash;
 * _i & 2: another name gives way. */
START_TEST(a_name_for_which_the_book_has_no_row_comes_in_when_one_is_free)
{
        kept_load("m");
        client_load(kept.client, kept_file(), "early");
        struct book_question late = {open_book(), "late"};
        fill_names(late.book);
        client_load(kept.client, kept_file(), "late");
        ck_assert(kept_log_says("no room for more names"));
        client_equals(kept.client, "late", kept.model);
        if (_i & 2) {
                client_unload(kept.client, "early");
                ck_assert(eventually(is_in_book, &late, 20000));
        }
        book_free(late.book);
        kept_restart_and_reconnect(_i & 1);
        client_equals(kept.client, "m", kept.model);
        ck_assert_str_eq(client_state(kept.client, "early"), _i & 2 ? "" : "ready");
        ck_assert_str_eq(client_state(kept.client, "late"), _i & 2 ? "ready" : "");
        client_load(kept.client, kept_file(), "later"); /* rows that lead nowhere were cleared */
        kept_restart_and_reconnect(_i & 1);
        client_equals(kept.client, "later", kept.model);
}
END_TEST

START_TEST(a_lease_for_which_the_book_has_no_row_is_lost_and_no_other)
{
        kept_load("m");
        streamer_lease *early = kept_attach();
        struct book *book = open_book();
        fill_leases(book);
        book_free(book);
        streamer_lease *late = client_attach(kept.client, "m");
        ck_assert(kept_log_says("no room for more leases"));
        lease_equals(late, kept.model);
        kept_restart(_i);
        client_ok(kept.client, streamer_lease_check(early), "check");
        ck_assert_int_eq(streamer_lease_check(late), STREAMER_ELOST);
        lease_equals(late, kept.model); /* its maps are its own */
        ck_assert_uint_eq(client_leases(kept.client), 1);
        streamer_detach(late);
        streamer_detach(early);
}
END_TEST

/* ---- whose a name is ---- */

enum { OWNER = 60301, GUEST = 60302 };
#define SOCKET_GROUP 0

static const char *the_name, *the_verb, *the_args;

static int do_load(void)
{
        char text[1024];

        return client_load_result(client_open(&kept.m.d), kept_file(), the_name, text);
}

static int load_as(uid_t uid, const char *name)
{
        the_name = name;
        return person_does(uid, SOCKET_GROUP, do_load);
}

static int do_call(void)
{
        return client_call_code(client_open(&kept.m.d), the_verb, the_args);
}

static int call_as(uid_t uid, const char *verb, const char *args)
{
        the_verb = verb;
        the_args = args;
        return person_does(uid, SOCKET_GROUP, do_call);
}

/* Also where somebody else has brought its generation, whose record says who that was. */
START_TEST(a_name_stays_its_owners)
{
        ROOT_ONLY();
        struct model *newer = model_mixed(75, 2 << 20);
        must(chmod(suite_folder(), 0755));
        ck_assert_int_eq(load_as(OWNER, "owned"), 0);
        model_write(newer, kept_file());
        ck_assert_int_eq(load_as(GUEST, "owned"), 0);
        ck_assert_int_eq(load_as(GUEST, "further"), 0);
        manager_wait(&kept.m, KEPT_MODELS "2.", 2);
        manager_wait(&kept.m, KEPT_MODELS "1.", 0);
        for (int runs = 0; runs < 2; runs++) {
                kept_restart_and_reconnect(_i);
                client_equals(kept.client, "owned", newer);
                ck_assert_int_eq(call_as(GUEST, "pin", "{\"model\":\"owned\"}"), STREAMER_EPERM);
                ck_assert_int_eq(call_as(GUEST, "unload", "{\"model\":\"owned\"}"), STREAMER_EPERM);
                ck_assert_int_eq(call_as(OWNER, "unload", "{\"model\":\"further\"}"), STREAMER_EPERM);
                ck_assert_int_eq(call_as(OWNER, "set_priority", "{\"model\":\"owned\",\"priority\":9}"), 0);
        }
        ck_assert_int_eq(call_as(GUEST, "unload", "{\"model\":\"further\"}"), 0);
        ck_assert_int_eq(call_as(OWNER, "unload", "{\"model\":\"owned\"}"), 0);
        client_wait_used(kept.client, 0);
}
END_TEST

int main(void)
{
        suite_begin("restart");
        TCase *models = suite_group("models", NULL, NULL, 60);
        tcase_add_checked_fixture(models, kept_begin, kept_end);
        tcase_add_loop_test(models, a_model_survives_with_its_bytes_digest_and_number, 0, 2);
        tcase_add_loop_test(models, nothing_is_read_from_storage, 0, 2);
        tcase_add_loop_test(models, its_bytes_are_accounted_and_come_back, 0, 2);
        tcase_add_loop_test(models, every_name_survives, 0, 2);
        tcase_add_loop_test(models, a_name_leads_to_the_newest_generation, 0, 2);
        tcase_add_loop_test(models, a_model_without_tensors_survives, 0, 2);
        TCase *sets = suite_group("sets", NULL, NULL, 60);
        tcase_add_checked_fixture(sets, kept_begin, kept_end);
        LOOP(sets, a_set_that_is_not_whole_is_dropped, damages);
        tcase_add_test(sets, what_no_version_of_ours_stored_is_dropped);
        tcase_add_test(sets, a_model_whose_device_is_not_there_any_more_is_dropped);
        TCase *sizes = suite_group("sizes", NULL, NULL, 60);
        tcase_add_test(sizes, without_a_store_nothing_is_kept);
        tcase_add_test(sizes, a_store_that_is_too_small_is_warned_of_and_never_overfilled);
        tcase_add_loop_test(sizes, a_name_that_was_lost_is_not_taken_back, 0, 2);
        TCase *book = suite_group("the book", NULL, NULL, 60);
        tcase_add_checked_fixture(book, kept_begin, kept_end);
        tcase_add_loop_test(book, a_name_for_which_the_book_has_no_row_comes_in_when_one_is_free, 0, 4);
        tcase_add_loop_test(book, a_lease_for_which_the_book_has_no_row_is_lost_and_no_other, 0, 2);
        TCase *owners = suite_group("owners", NULL, NULL, 60);
        tcase_add_checked_fixture(owners, kept_begin, kept_end);
        tcase_add_loop_test(owners, a_name_stays_its_owners, 0, 2);
        return suite_run();
}
