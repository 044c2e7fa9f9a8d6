/* SPDX-License-Identifier: Apache-2.0
 *
 * Models and names survive a restart and a crash; damaged entries of the fd store are dropped. Each test has its own
 * service manager.
 */
#include "tests/integration/users_fixture.h"
#include "tests/lib/gpu_fixture.h"
#include "tests/lib/managed_daemon.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/snapshots.h"
#include "tests/lib/wire.h"

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
        ck_assert_ptr_null(strstr(file_read(managed.m.d.log, NULL), "m: generation 1 has freed its memory"));
        client_unload(client, "m");
        ck_assert(log_wait_for(managed.m.d.log, "m: generation 1 has freed its memory"));
        ck_assert_uint_eq(client_used(client), 0);
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

TEST(the_log_tells_memory_that_is_kept_from_memory_that_is_freed)
{
        managed_load("m");
        managed_restart_and_reconnect(0);
        ck_assert(log_wait_for(managed.m.d.log, "m: generation 1 stays in the fd store"));
}

/* The daemon is killed right after it has replied. */
static const struct {
        const char *verb, *args, *left, *json, *gone;
} acknowledged[] = {
        {"pin", "{\"model\":\"m\"}", "m", "\"pinned\": true", NULL},
        {"set_priority", "{\"model\":\"m\",\"priority\":77}", "m", "\"priority\": 77", NULL},
        {"keep_alive", "{\"model\":\"m\",\"keep_alive_ms\":99000}", "m", "\"keep_alive_ns\": 99000000000", NULL},
        {"unload", "{\"model\":\"alias\"}", "m", "\"name\": \"m\"", "alias"},
        {"unload", "{\"model\":\"m\"}", "alias", "\"name\": \"alias\"", "m"},
};

TEST(an_acknowledged_change_survives_a_crash, EACH(acknowledged))
{
        managed_load("m");
        client_load(client, managed_file(), "alias");
        ck_assert_int_eq(client_call_code(client, acknowledged[_i].verb, acknowledged[_i].args), 0);
        managed_restart_and_reconnect(1);
        char *shown = json_dumps(client_show(client, acknowledged[_i].left), 0);
        ck_assert_msg(strstr(shown, acknowledged[_i].json) != NULL, "%s", shown);
        if (acknowledged[_i].gone != NULL)
                ck_assert_str_eq(client_state(client, acknowledged[_i].gone), "");
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

static struct stored *managed_snapshot(void)
{
        return manager_find(&managed.m, MANAGED_SNAPSHOT, 0);
}

static void lose_snapshot(void)
{
        manager_drop(&managed.m, managed_snapshot());
}

/* One byte of each buffer. */
static void snapshots_damaged(void)
{
        for (unsigned i = 0; i < 2; i++) {
                off_t at = (off_t)(i * SNAPSHOT_MAX) + 20;
                char byte;
                ck_assert_int_eq(pread(managed_snapshot()->fd, &byte, 1, at), 1);
                byte ^= 4;
                ck_assert_int_eq(pwrite(managed_snapshot()->fd, &byte, 1, at), 1);
        }
}

static void segment_twice(void)
{
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "1.0", must(dup(managed_segment()->fd)));
}

static void segment_too_many(void)
{
        manager_add_consume_fd(&managed.m, MANAGED_MODELS "1.1", must(dup(managed_segment()->fd)));
}

/* It has a name of its own. */
static void record_of_another(void)
{
        struct snapshot_memory memory;
        struct snapshot snapshot;
        struct error error;
        ck_assert_int_eq(snapshot_memory_open_consume_fd(&memory, must(dup(managed_snapshot()->fd)), &snapshot, &error),
                         0);
        ck_assert_uint_eq(snapshot.n_rows, 1);
        snapshot.rows[0].models[0] = 2;
        snapshot.counters[SNAPSHOT_WRITES]++;
        msgpack_sbuffer bytes = snapshot_bytes(&snapshot);
        ck_assert_int_eq(snapshot_memory_write(&memory, bytes.data, bytes.size, &error), 0);
        close(memory.fd);
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

static void snapshot_twice(void)
{
        manager_add_consume_fd(&managed.m, MANAGED_SNAPSHOT, must(fcntl(managed_snapshot()->fd, F_DUPFD_CLOEXEC, 0)));
}

static const struct damage {
        void (*fn)(void);
        const char *log;
} damages[] = {
        {lose_segment, "0 of 1 segments are there"},
        {lose_record, "it has no commit record"},
        {lose_snapshot, "no name and no lease"},
        {snapshots_damaged, "the snapshot is damaged: wrong checksum"},
        {segment_twice, "two descriptors have one name"},
        {segment_too_many, "2 of 1 segments are there"},
        {record_of_another, "the record is another's"},
        {segment_truncated, "not a sealed segment"},
        {segment_unsealed, "not a sealed segment"},
        {record_zero, "its record is damaged: wrong magic"},
        {snapshot_twice, "the snapshots: there are 2"},
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
        ck_assert_uint_eq(process_fds_named(managed.m.d.pid, "streamerd-snapshot"), 1);
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

static void use_small_device(void)
{
        managed.m.flags[1] = "host=2MiB";
}

static void use_gpu_only(void)
{
        static const struct gpu_daemon gpu = {.n = 1, .devices = {"'cuda:0'"}};
        managed.m.flags[0] = "--config";
        managed.m.flags[1] = gpu_prepare(&gpu, suite_folder(), "gpu");
}

static const struct {
        void (*configure)(void);
        const char *log;
} devices[] = {{use_small_device, "does not fit"}, {use_gpu_only, "is not configured"}};

TEST(a_model_whose_device_is_too_small_or_removed_is_dropped, EACH(devices))
{
        managed_load("m");
        manager_kill(&managed.m);
        devices[_i].configure();
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert_str_eq(client_state(client, "m"), "");
        ck_assert(log_wait_for(managed.m.d.log, devices[_i].log));
        manager_wait(&managed.m, MANAGED_MODELS, 0);
}

/* ---- the snapshot ---- */

/* The daemon was killed while it wrote one: the one before it serves. */
TEST(a_torn_snapshot_is_replaced_by_the_one_before, .to = 2)
{
        struct snapshot_memory memory;
        struct snapshot snapshot;
        struct error error;
        managed_load("m");
        streamer_lease *lease = managed_attach();
        client_load(client, managed_file(), "early");
        manager_kill(&managed.m);
        ck_assert_int_eq(snapshot_memory_open_consume_fd(&memory, must(dup(managed_snapshot()->fd)), &snapshot, &error),
                         0);
        /* Its size and its counter: the newer one's. */
        uint64_t head[] = {_i ? 1000 : UINT64_MAX, snapshot.counters[SNAPSHOT_WRITES] + 1};
        ck_assert_int_eq(pwrite(memory.fd, head, sizeof(head), (off_t)(memory.next * SNAPSHOT_MAX)), sizeof(head));
        close(memory.fd);
        manager_start(&managed.m);
        client_ok(client, streamer_lease_check(lease), "check");
        client_equals(client, "m", managed.model);
        client_equals(client, "early", managed.model);
        streamer_detach(lease);
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
        managed_begin_sized(4); /* the snapshots, and two of these three, of which the second waits for a free entry */
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

/* The daemon is killed right after it has told the second number. */
TEST(a_generation_number_is_never_given_twice)
{
        managed_begin();
        managed_load("m");
        client_load(client, write_as(model_new(76), "second"), "second");
        ck_assert_uint_eq(json_number(client_show(client, "second"), "generation"), 2);
        managed_restart_and_reconnect(1);
        client_load(client, write_as(model_new(77), "third"), "third");
        ck_assert_uint_eq(json_number(client_show(client, "third"), "generation"), 3);
        managed_end();
}
