/* SPDX-License-Identifier: Apache-2.0
 *
 * What survives the daemon: models, names and leases, over a restart and over a crash, and what of
 * them does not come back where the store is not whole. Each test has a service manager of its own.
 */
#include "tests/lib/manager.h"
#include "tests/lib/stage.h"
#include "tests/lib/storage.h"
#include "tests/lib/suite.h"
#include "tests/lib/wire.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define MODELS "streamerd-model-"
#define PROCESSES "streamerd-process-"
#define STORE 64
#define NOBODY 65534

static struct manager m;
static struct model *model;
static streamer_client *client;

static void begin_sized(size_t max)
{
        mkdir(suite_path("root"), 0755);
        model = model_mixed(70, 4 << 20);
        model_write(model, suite_path("root/m.safetensors"));
        manager_init(&m, suite_path("d"), max,
                     (const char *const[]){"--device", "host=64MiB", "--root", suite_path("root"), NULL});
        manager_start(&m);
        client = client_open(&m.d);
}

static void begin(void)
{
        begin_sized(STORE);
}

static void end(void)
{
        streamer_close(client);
        manager_deinit(&m);
}

/* Loads it, and waits until it is kept: a segment and a record. */
static void load(const char *name)
{
        client_load(client, suite_path("root/m.safetensors"), name);
        manager_wait(&m, MODELS, 2);
}

static void reconnect(void)
{
        streamer_close(client);
        client = client_open(&m.d);
}

static bool log_says(const char *text)
{
        return strstr(file_read(m.d.log, NULL), text) != NULL;
}

/* ---- models ---- */

static void restart(int crash)
{
        if (crash)
                manager_kill(&m);
        else
                manager_stop(&m);
        manager_start(&m);
        reconnect();
}

/* Each of these: _i 0, over a restart; 1, over a crash. */
static void restart_keeping_client(int crash)
{
        if (crash)
                manager_kill(&m);
        else
                manager_stop(&m);
        manager_start(&m);
}

START_TEST(a_model_survives_with_its_bytes_digest_and_number)
{
        load("m");
        for (int runs = 0; runs < 3; runs++) {
                restart(_i);
                client_equals(client, "m", model);
                json_t *shown = client_call(client, "show", "{\"model\":\"m\"}");
                json_t *it = json_array_get(json_object_get(shown, "models"), 0);
                ck_assert_int_eq(json_integer_value(json_object_get(it, "generation")), 1);
                ck_assert_str_eq(json_string_value(json_object_get(it, "source")), suite_path("root/m.safetensors"));
                json_decref(shown);
        }
}
END_TEST

START_TEST(nothing_is_read_from_storage)
{
        load("m");
        restart(_i);
        unlink(suite_path("root/m.safetensors"));
        uint64_t before = process_read_bytes(m.d.pid);
        client_equals(client, "m", model);
        ck_assert_uint_eq(process_read_bytes(m.d.pid), before);
}
END_TEST

START_TEST(its_bytes_are_accounted_and_come_back)
{
        load("m");
        uint64_t used = client_used(client);
        restart(_i);
        ck_assert_uint_eq(client_used(client), used);
        client_unload(client, "m");
        ck_assert_uint_eq(client_used(client), 0);
        manager_wait(&m, MODELS, 0);
        restart(_i);
        ck_assert_str_eq(client_state(client, "m"), "");
}
END_TEST

START_TEST(every_name_survives)
{
        load("m");
        client_load(client, suite_path("root/m.safetensors"), "other/ name");
        restart(_i);
        client_equals(client, "m", model);
        client_equals(client, "other/ name", model);
        client_unload(client, "m");
        restart(_i);
        ck_assert_str_eq(client_state(client, "m"), "");
        client_equals(client, "other/ name", model);
}
END_TEST

START_TEST(a_name_leads_to_the_newest_generation)
{
        struct model *newer = model_mixed(71, 2 << 20);

        load("m");
        model_write(newer, suite_path("root/m.safetensors"));
        client_load(client, suite_path("root/m.safetensors"), "m");
        manager_wait(&m, MODELS "2-", 2);
        manager_wait(&m, MODELS "1-", 0);
        restart(_i);
        client_equals(client, "m", newer);
        /* Numbers go on from where they were. */
        model_write(model, suite_path("root/m.safetensors"));
        client_load(client, suite_path("root/m.safetensors"), "m");
        streamer_lease *lease = client_attach(client, "m");
        ck_assert_uint_eq(streamer_generation(lease), 3);
        streamer_detach(lease);
}
END_TEST

START_TEST(a_model_without_tensors_survives)
{
        struct model *empty = model_new(72);

        model_write(empty, suite_path("root/empty.safetensors"));
        client_load(client, suite_path("root/empty.safetensors"), "empty");
        manager_wait(&m, MODELS, 1);
        restart(_i);
        client_equals(client, "empty", empty);
}
END_TEST

/* ---- sets that are not whole ---- */

static struct stored *segment(void)
{
        return manager_find(&m, MODELS "1-segment", 0);
}

static struct stored *record(void)
{
        return manager_find(&m, MODELS "1-record", 0);
}

static void lose_segment(void)
{
        manager_drop(&m, segment());
}

static void lose_record(void)
{
        manager_drop(&m, record());
}

static void lose_book(void)
{
        manager_drop(&m, manager_find(&m, "streamerd-book", 0));
}

static void segment_twice(void)
{
        manager_add_consume_fd(&m, MODELS "1-segment-0", must(dup(segment()->fd)));
}

static void record_twice(void)
{
        manager_add_consume_fd(&m, MODELS "1-record", must(dup(record()->fd)));
}

static void segment_too_many(void)
{
        manager_add_consume_fd(&m, MODELS "1-segment-1", must(dup(segment()->fd)));
}

static void record_of_another(void)
{
        int fd = must(dup(record()->fd));

        manager_drop(&m, record());
        manager_add_consume_fd(&m, MODELS "2-record", fd);
        fd = must(dup(segment()->fd));
        manager_drop(&m, segment());
        manager_add_consume_fd(&m, MODELS "2-segment-0", fd);
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
        replace(segment(), 4096, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL);
}

static void segment_unsealed(void)
{
        struct stat st;

        must(fstat(segment()->fd, &st));
        replace(segment(), st.st_size, 0);
}

static void record_unsealed(void)
{
        struct stat st;

        must(fstat(record()->fd, &st));
        replace(record(), st.st_size, 0);
}

static void record_empty(void)
{
        replace(record(), 0, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL);
}

static void record_zero(void)
{
        replace(record(), 8192, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL);
}

static void book_foreign(void)
{
        replace(manager_find(&m, "streamerd-book", 0), 4096, F_SEAL_GROW | F_SEAL_SHRINK);
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
        load("m");
        manager_kill(&m);
        damages[_i].fn();
        manager_start(&m);
        reconnect();
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert_msg(log_says(damages[_i].log), "the log does not say '%s':\n%s", damages[_i].log,
                      file_read(m.d.log, NULL));
        manager_wait(&m, MODELS, 0);
        client_wait_used(client, 0);
        client_load(client, suite_path("root/m.safetensors"), "m");
        manager_wait(&m, MODELS, 2);
        restart(1);
        client_equals(client, "m", model);
}
END_TEST

START_TEST(what_no_version_of_ours_stored_is_dropped)
{
        load("m");
        manager_kill(&m);
        manager_add_consume_fd(&m, "streamerd-model-x", must(memfd_create("x", MFD_CLOEXEC)));
        manager_add_consume_fd(&m, "streamerd-model-0-record", must(memfd_create("x", MFD_CLOEXEC)));
        manager_add_consume_fd(&m, "streamerd-model-7-segment-64", must(memfd_create("x", MFD_CLOEXEC)));
        manager_start(&m);
        reconnect();
        client_equals(client, "m", model);
        manager_wait(&m, MODELS, 2);
}
END_TEST

START_TEST(a_model_whose_device_is_not_there_any_more_is_dropped)
{
        load("m");
        manager_kill(&m);
        m.flags[1] = "host=2MiB"; /* too small for it */
        manager_start(&m);
        reconnect();
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert(log_says("does not fit"));
        manager_wait(&m, MODELS, 0);
}
END_TEST

/* ---- the store's size ---- */

START_TEST(without_a_store_nothing_is_kept)
{
        begin_sized(0);
        client_load(client, suite_path("root/m.safetensors"), "m");
        client_equals(client, "m", model);
        restart(0);
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert_uint_eq(m.dropped, 0);
        end();
}
END_TEST

START_TEST(a_store_that_is_too_small_is_warned_of_and_never_overfilled)
{
        begin_sized(3); /* the book, and one model */
        ck_assert(log_says("FileDescriptorStoreMax"));
        load("m");
        struct model *other = model_mixed(73, 1 << 20);
        model_write(other, suite_path("root/other.safetensors"));
        client_load(client, suite_path("root/other.safetensors"), "other");
        client_equals(client, "other", other);
        ck_assert(log_says("other: will not survive a restart"));
        restart(1);
        client_equals(client, "m", model);
        ck_assert_str_eq(client_state(client, "other"), "");
        ck_assert_uint_eq(m.dropped, 0);
        end();
}
END_TEST

/* ---- leases ---- */

/* {"leases": [...]} of `ps` for the first lease. */
static bool first_is_orphan(void)
{
        json_t *reply = client_call(client, "ps", NULL);
        json_t *lease = json_array_get(json_object_get(reply, "leases"), 0);
        bool orphan = json_is_true(json_object_get(lease, "orphan"));

        ck_assert_ptr_nonnull(lease);
        json_decref(reply);
        return orphan;
}

static streamer_lease *attach_kept(void)
{
        streamer_lease *lease = client_attach(client, "m");

        manager_wait(&m, PROCESSES, 1);
        return lease;
}

START_TEST(a_lease_is_reclaimed_by_the_next_call)
{
        load("m");
        streamer_lease *lease = attach_kept();
        int fd = streamer_fd(client);
        for (int runs = 0; runs < 3; runs++) {
                if (_i)
                        manager_kill(&m);
                else
                        manager_stop(&m);
                lease_equals(lease, model); /* while there is no daemon */
                manager_start(&m);
                client_ok(client, streamer_call(client, "ping", NULL, NULL), "ping");
                ck_assert_int_eq(streamer_fd(client), fd);
                client_ok(client, streamer_lease_check(lease), "check");
                ck_assert_uint_eq(client_leases(client), 1);
                lease_equals(lease, model);
                client_equals(client, "m", model); /* a new one, beside it */
        }
        ck_assert_int_eq(streamer_unload(client, "m", 0), STREAMER_EBUSY);
        streamer_detach(lease);
        ck_assert_uint_eq(client_leases(client), 0);
        client_unload(client, "m");
        client_wait_used(client, 0);
        manager_wait(&m, PROCESSES, 0);
}
END_TEST

START_TEST(a_lease_holds_memory_before_it_is_reclaimed)
{
        load("m");
        streamer_lease *lease = attach_kept();
        manager_kill(&m);
        manager_start(&m);
        streamer_client *other = client_open(&m.d);
        ck_assert_uint_eq(client_leases(other), 1);
        ck_assert_int_eq(streamer_unload(other, "m", 0), STREAMER_EBUSY);
        streamer_client *before = client;
        client = other;
        ck_assert(!first_is_orphan()); /* it may still come */
        client = before;
        streamer_detach(lease); /* reclaims, and gives back */
        client_wait_leases(other, 0);
        streamer_close(other);
}
END_TEST

START_TEST(a_drained_model_survives_for_its_leases)
{
        load("m");
        streamer_lease *lease = attach_kept();
        client_ok(client, streamer_unload(client, "m", STREAMER_UNLOAD_DRAIN), "unload");
        restart_keeping_client(_i);
        client_ok(client, streamer_lease_check(lease), "check");
        ck_assert_uint_gt(client_used(client), 0);
        streamer_lease *refused;
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &refused), STREAMER_ENOENT);
        lease_equals(lease, model);
        streamer_detach(lease);
        client_wait_used(client, 0);
        manager_wait(&m, MODELS, 0);
}
END_TEST

/* A process of its own that attaches and then waits to be killed; it may tell the token. */
static pid_t other_process(void)
{
        int ends[2];
        char byte;

        must(pipe(ends));
        pid_t pid = must(fork());
        if (pid == 0) {
                client_attach(client_open(&m.d), "m");
                must(write(ends[1], "", 1));
                pause();
        }
        ck_assert_int_eq(read(ends[0], &byte, 1), 1);
        close(ends[0]);
        close(ends[1]);
        return pid;
}

START_TEST(a_client_that_died_while_there_was_no_daemon_holds_nothing)
{
        load("m");
        pid_t pid = other_process();
        manager_wait(&m, PROCESSES, 1);
        manager_kill(&m);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        manager_start(&m);
        reconnect();
        ck_assert_uint_eq(client_leases(client), 0);
        manager_wait(&m, PROCESSES, 0);
        client_unload(client, "m");
        client_wait_used(client, 0);
}
END_TEST

START_TEST(a_client_that_dies_later_without_coming_back_holds_nothing_more)
{
        load("m");
        pid_t pid = other_process();
        manager_wait(&m, PROCESSES, 1);
        manager_kill(&m);
        manager_start(&m);
        reconnect();
        ck_assert_uint_eq(client_leases(client), 1);
        must(kill(pid, SIGKILL));
        must(waitpid(pid, NULL, 0));
        client_wait_leases(client, 0);
        manager_wait(&m, PROCESSES, 0);
}
END_TEST

/* Its pidfd was not stored, or lost: the row in the book is enough. */
START_TEST(a_lease_is_reclaimed_without_a_pidfd)
{
        load("m");
        streamer_lease *lease = attach_kept();
        manager_kill(&m);
        manager_drop(&m, manager_find(&m, PROCESSES, 0));
        manager_start(&m);
        client_ok(client, streamer_lease_check(lease), "check");
        ck_assert_uint_eq(client_leases(client), 1);
        manager_wait(&m, PROCESSES, 1);
        streamer_detach(lease);
}
END_TEST

static void check_lost(streamer_lease *lease)
{
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_ELOST);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_ELOST);
        lease_equals(lease, model); /* the map is ours */
        ck_assert_uint_eq(client_leases(client), 0);
        streamer_detach(lease);
}

START_TEST(a_lease_of_a_model_that_did_not_survive_is_lost)
{
        load("m");
        streamer_lease *lease = attach_kept();
        manager_kill(&m);
        lose_segment();
        manager_start(&m);
        client_ok(client, streamer_call(client, "ping", NULL, NULL), "other calls go on");
        check_lost(lease);
}
END_TEST

START_TEST(a_lease_is_lost_without_a_store)
{
        begin_sized(0);
        client_load(client, suite_path("root/m.safetensors"), "m");
        streamer_lease *lease = client_attach(client, "m");
        restart_keeping_client(1);
        check_lost(lease);
        end();
}
END_TEST

START_TEST(a_lease_of_the_same_name_and_another_model_is_lost)
{
        begin_sized(0);
        client_load(client, suite_path("root/m.safetensors"), "m");
        streamer_lease *lease = client_attach(client, "m");
        restart_keeping_client(1);
        client_load(client, suite_path("root/m.safetensors"), "m"); /* the same bytes, generation 1 again */
        check_lost(lease);
        end();
}
END_TEST

START_TEST(without_a_daemon_a_call_says_so_and_the_lease_is_kept)
{
        load("m");
        streamer_lease *lease = attach_kept();
        manager_kill(&m);
        ck_assert_int_eq(streamer_lease_check(lease), STREAMER_EUNREACHABLE);
        lease_equals(lease, model);
        manager_start(&m);
        client_ok(client, streamer_lease_check(lease), "check");
        streamer_detach(lease);
}
END_TEST

/* ---- who may reclaim ---- */

/* "token", "generation" and "digest" of an attach. */
static void attach_by_hand(struct wire *w, char token[33], char digest[33])
{
        const char *s;
        size_t len;

        wire_open(w, &m.d);
        wire_hello(w);
        wire_verb(w, "attach", 2, "model", "m");
        ck_assert(wire_read(w));
        ck_assert(object_str(&w->reply.unpacked.data, "token", &s, &len) && len == 32);
        snprintf(token, 33, "%.*s", (int)len, s);
        ck_assert(object_str(&w->reply.unpacked.data, "digest", &s, &len) && len == 32);
        snprintf(digest, 33, "%.*s", (int)len, s);
}

static bool reclaim_says(struct wire *w, const char *token, uint64_t generation, const char *digest, const char *code)
{
        struct request request = {.verb = VERB_reclaim,
                                  .id = 9,
                                  .u.reclaim = {.token = token, .generation = generation, .digest = digest}};

        wire_request(w, &request);
        return wire_read_code(w, code);
}

START_TEST(only_the_right_token_generation_and_digest_are_taken)
{
        struct wire w;
        char token[33], digest[33];

        load("m");
        attach_by_hand(&w, token, digest);
        ck_assert(reclaim_says(&w, "0123", 1, digest, "invalid"));
        ck_assert(reclaim_says(&w, "00000000000000000000000000000000", 1, digest, "lost"));
        ck_assert(reclaim_says(&w, token, 2, digest, "lost"));
        ck_assert(reclaim_says(&w, token, 1, "00000000000000000000000000000000", "lost"));
        ck_assert_uint_eq(client_leases(client), 1);
        wire_close(&w);
}
END_TEST

/* In a child, with the right token: of another process, and of another user. */
static void reclaim_in_child(const char *token, const char *digest, uid_t uid, const char *code)
{
        int status;
        pid_t pid = must(fork());

        if (pid == 0) {
                struct wire w;
                wire_open(&w, &m.d);
                if (uid)
                        must(setuid(uid));
                wire_hello(&w);
                _exit(!reclaim_says(&w, token, 1, digest, code));
        }
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(status, 0);
}

START_TEST(a_token_is_of_no_use_to_another_process)
{
        struct wire w;
        char token[33], digest[33];

        load("m");
        attach_by_hand(&w, token, digest);
        manager_wait(&m, PROCESSES, 1);
        reclaim_in_child(token, digest, 0, "denied");
        manager_kill(&m);
        manager_start(&m);
        reconnect();
        reclaim_in_child(token, digest, 0, "denied");
        manager_kill(&m);
        manager_drop(&m, manager_find(&m, PROCESSES, 0)); /* the book alone knows it */
        manager_start(&m);
        reconnect();
        reclaim_in_child(token, digest, 0, "denied");
        ck_assert_uint_eq(client_leases(client), 0);
        wire_close(&w);
}
END_TEST

START_TEST(a_token_is_of_no_use_to_another_user)
{
        struct wire w;
        char token[33], digest[33];

        if (geteuid() != 0)
                SKIP("needs root, to become another user");
        load("m");
        attach_by_hand(&w, token, digest);
        must(chmod(suite_folder(), 0755));
        must(chown(m.d.socket, 0, NOBODY)); /* its group may attach; which one is asked at the start */
        reclaim_in_child(token, digest, NOBODY, "denied");
        ck_assert_uint_eq(client_leases(client), 1);
        wire_close(&w);
}
END_TEST

int main(void)
{
        suite_begin("restart");
        TCase *models = suite_group("models", NULL, NULL, 60);
        tcase_add_checked_fixture(models, begin, end);
        tcase_add_loop_test(models, a_model_survives_with_its_bytes_digest_and_number, 0, 2);
        tcase_add_loop_test(models, nothing_is_read_from_storage, 0, 2);
        tcase_add_loop_test(models, its_bytes_are_accounted_and_come_back, 0, 2);
        tcase_add_loop_test(models, every_name_survives, 0, 2);
        tcase_add_loop_test(models, a_name_leads_to_the_newest_generation, 0, 2);
        tcase_add_loop_test(models, a_model_without_tensors_survives, 0, 2);
        TCase *sets = suite_group("sets", NULL, NULL, 60);
        tcase_add_checked_fixture(sets, begin, end);
        tcase_add_loop_test(sets, a_set_that_is_not_whole_is_dropped, 0, (int)(sizeof(damages) / sizeof(damages[0])));
        tcase_add_test(sets, what_no_version_of_ours_stored_is_dropped);
        tcase_add_test(sets, a_model_whose_device_is_not_there_any_more_is_dropped);
        TCase *sizes = suite_group("sizes", NULL, NULL, 60);
        tcase_add_test(sizes, without_a_store_nothing_is_kept);
        tcase_add_test(sizes, a_store_that_is_too_small_is_warned_of_and_never_overfilled);
        TCase *leases = suite_group("leases", NULL, NULL, 60);
        tcase_add_checked_fixture(leases, begin, end);
        tcase_add_loop_test(leases, a_lease_is_reclaimed_by_the_next_call, 0, 2);
        tcase_add_test(leases, a_lease_holds_memory_before_it_is_reclaimed);
        tcase_add_loop_test(leases, a_drained_model_survives_for_its_leases, 0, 2);
        tcase_add_test(leases, a_client_that_died_while_there_was_no_daemon_holds_nothing);
        tcase_add_test(leases, a_client_that_dies_later_without_coming_back_holds_nothing_more);
        tcase_add_test(leases, a_lease_is_reclaimed_without_a_pidfd);
        tcase_add_test(leases, a_lease_of_a_model_that_did_not_survive_is_lost);
        tcase_add_test(leases, without_a_daemon_a_call_says_so_and_the_lease_is_kept);
        tcase_add_test(leases, only_the_right_token_generation_and_digest_are_taken);
        tcase_add_test(leases, a_token_is_of_no_use_to_another_process);
        tcase_add_test(leases, a_token_is_of_no_use_to_another_user);
        TCase *none = suite_group("without a store", NULL, NULL, 60);
        tcase_add_test(none, a_lease_is_lost_without_a_store);
        tcase_add_test(none, a_lease_of_the_same_name_and_another_model_is_lost);
        return suite_run();
}
