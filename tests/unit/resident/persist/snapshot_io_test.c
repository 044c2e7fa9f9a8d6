/* SPDX-License-Identifier: Apache-2.0
 *
 * Snapshots in memory: the next run reads the newest whole one; memory that is no snapshots' is refused.
 */
#include "tests/lib/snapshots.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

static struct snapshot_memory memory;
static struct snapshot snapshot;
static struct error error;
static uint64_t writes;

static void begin(void)
{
        ck_assert_int_eq(snapshot_memory_new(&memory, &error), 0);
}

/* Of as many leases as it has a number. */
static void write_next(void)
{
        static struct lease_record leases[8];
        for (uint64_t i = 0; i < ARRAY_SIZE(leases); i++)
                leases[i] = (struct lease_record){.id = i + 1, .model = 7};
        writes++;
        msgpack_sbuffer bytes = snapshot_bytes(
                &(struct snapshot){.counters = {[SNAPSHOT_WRITES] = writes}, .leases = leases, .n_leases = writes});
        ck_assert_int_eq(snapshot_memory_write(&memory, bytes.data, bytes.size, &error), 0);
}

/* As the next run gets it. */
static int pass_on(void)
{
        int fd = must(dup(memory.fd));
        close(memory.fd);
        snapshot_deinit(&snapshot);
        error = (struct error){0};
        return snapshot_memory_open_consume_fd(&memory, fd, &snapshot, &error);
}

static void is_read(uint64_t n)
{
        ck_assert_int_eq(pass_on(), 0);
        ck_assert_uint_eq(snapshot.counters[SNAPSHOT_WRITES], n);
        ck_assert_uint_eq(snapshot.n_leases, n);
}

static void damage(unsigned buffer, off_t at)
{
        unsigned char byte;
        at += (off_t)(buffer * SNAPSHOT_MAX);
        ck_assert_int_eq(pread(memory.fd, &byte, 1, at), 1);
        byte ^= 128;
        ck_assert_int_eq(pwrite(memory.fd, &byte, 1, at), 1);
}

FIXTURE(.each = {begin, NULL});

TEST(new_memory_has_no_snapshot_and_no_error)
{
        is_read(0);
}

TEST(the_newest_is_read)
{
        for (uint64_t i = 1; i <= 5; i++) {
                write_next();
                is_read(i);
        }
}

/* Each byte: of its size, the leases, the map, the foot. */
TEST(a_torn_one_is_replaced_by_the_one_before_and_written_next)
{
        write_next();
        msgpack_sbuffer bytes = snapshot_bytes(&(struct snapshot){.counters = {9}});
        off_t size = (off_t)(sizeof(uint64_t) + bytes.size + 2 * sizeof(struct lease_record));
        for (off_t at = 0; at < size; at++) {
                write_next();
                unsigned newest = !memory.next;
                damage(newest, at);
                is_read(1);
                ck_assert_uint_eq(memory.next, newest);
                writes--;
        }
        write_next();
        is_read(2);
}

/* ---- changes ---- */

/* One more lease, or the end of one. */
static void append_next(uint64_t lease, uint64_t model)
{
        writes++;
        struct lease_record record = {.id = lease, .model = model};
        msgpack_sbuffer bytes = snapshot_bytes(
                &(struct snapshot){.counters = {[SNAPSHOT_WRITES] = writes}, .leases = &record, .n_leases = 1});
        ck_assert_int_eq(snapshot_memory_append(&memory, bytes.data, bytes.size, &error), 0);
        msgpack_sbuffer_destroy(&bytes);
}

static void begin_empty(void)
{
        msgpack_sbuffer bytes = snapshot_bytes(&(struct snapshot){.counters = {[SNAPSHOT_WRITES] = ++writes}});
        ck_assert_int_eq(snapshot_memory_write(&memory, bytes.data, bytes.size, &error), 0);
}

static void has_leases(uint64_t n)
{
        struct snapshot_memory same = memory;
        must(same.fd = dup(memory.fd));
        snapshot_deinit(&snapshot);
        ck_assert_int_eq(snapshot_memory_open_consume_fd(&same, same.fd, &snapshot, &error), 0);
        ck_assert_uint_eq(snapshot.n_leases, n);
        close(same.fd);
}

TEST(changes_apply_in_their_order)
{
        begin_empty();
        append_next(1, 7);
        append_next(2, 7);
        append_next(1, 8);
        has_leases(2);
        ck_assert_uint_eq(snapshot.leases[0].model, 8);
        append_next(1, 0);
        has_leases(1);
        ck_assert_uint_eq(snapshot.leases[0].id, 2);
        append_next(1, 9);
        has_leases(2);
        ck_assert_uint_eq(snapshot.counters[SNAPSHOT_WRITES], writes);
}

/* At each byte: what was written before it counts, and nothing of it. */
TEST(a_torn_change_ends_the_sequence)
{
        begin_empty();
        append_next(1, 7);
        off_t from = (off_t)memory.extent.all;
        append_next(2, 7);
        off_t to = (off_t)memory.extent.all;
        for (off_t at = from; at < to; at++) {
                damage(!memory.next, at);
                has_leases(1);
                damage(!memory.next, at);
        }
        has_leases(2);
}

/* The buffer had a longer sequence before. */
TEST(what_an_older_sequence_has_left_is_not_read)
{
        begin_empty();
        for (uint64_t i = 1; i <= 9; i++)
                append_next(i, 7);
        begin_empty();
        append_next(1, 7);
        begin_empty(); /* as long as the first one */
        has_leases(0);
        append_next(1, 7);
        has_leases(1);
}

static void compact(void (*meanwhile)(void))
{
        struct snapshot_memory from = memory;
        uint64_t whole;
        ck_assert_int_eq(snapshot_memory_compact(&from, &whole, &error), 0);
        if (meanwhile != NULL)
                meanwhile();
        ck_assert_int_eq(snapshot_memory_switch(&memory, &from, whole, &error), 0);
        ck_assert_uint_eq(memory.next, !from.next);
}

static void change_meanwhile(void)
{
        has_leases(1); /* what is being written does not count */
        append_next(3, 7);
        append_next(2, 0);
        has_leases(1);
}

TEST(a_worker_writes_the_sequence_as_a_whole_while_it_goes_on, .to = 2)
{
        begin_empty();
        append_next(1, 7);
        append_next(2, 7);
        append_next(1, 0);
        uint64_t before = memory.extent.all;
        compact(_i ? change_meanwhile : NULL);
        ck_assert_uint_lt(memory.extent.whole, before);
        has_leases(1);
        ck_assert_uint_eq(snapshot.leases[0].id, _i ? 3 : 2);
        append_next(4, 7);
        has_leases(2);
        compact(NULL);
        has_leases(2);
}

TEST(changes_outgrow_a_small_whole_and_a_large_one)
{
        struct snapshot_extent small = {.whole = 1000, .all = 1000 + SNAPSHOT_CHANGES};
        struct snapshot_extent large = {.whole = 10 * MiB, .all = 20 * MiB};
        struct snapshot_extent largest = {.whole = 60 * MiB, .all = 62 * MiB};
        ck_assert(!snapshot_outgrown(&small) && !snapshot_outgrown(&large) && !snapshot_outgrown(&largest));
        small.all++;
        large.all++;
        largest.all++;
        ck_assert(snapshot_outgrown(&small) && snapshot_outgrown(&large) && snapshot_outgrown(&largest));
}

TEST(a_change_that_does_not_fit_is_refused)
{
        static char data[1];
        begin_empty();
        append_next(1, 7);
        FAILS_SAYING(error, snapshot_memory_append(&memory, data, SNAPSHOT_MAX - memory.extent.all - 7, &error),
                     STREAMER_ENOMEM, "the snapshot: it is larger than 64 MiB");
        has_leases(1);
}

TEST(two_torn_ones_are_refused, .to = 2)
{
        off_t at = _i ? 20 : 7; /* in the sizes */
        write_next();
        write_next();
        damage(0, at);
        damage(1, at);
        FAILS_SAYING(error, pass_on(), STREAMER_ECORRUPT,
                     _i ? "the snapshot is damaged: wrong checksum" : "the snapshot is damaged: wrong sizes");
        ck_assert_int_eq(memory.fd, -1);
        ck_assert_uint_eq(snapshot.n_leases, 0);
}

/* The one before is still read. */
TEST(one_larger_than_its_buffer_is_refused)
{
        static char data[1];
        write_next();
        FAILS_SAYING(error, snapshot_memory_write(&memory, data, SNAPSHOT_MAX - 7, &error), STREAMER_ENOMEM,
                     "the snapshot: it is larger than 64 MiB");
        is_read(1);
}

TEST(only_the_memory_of_what_is_written_is_used)
{
        struct stat st;
        for (int i = 0; i < 8; i++)
                write_next();
        ck_assert_int_eq(pass_on(), 0);
        must(fstat(memory.fd, &st));
        ck_assert_int_le(st.st_blocks * 512, 64 << 10);
}

/* ---- invalid memory ---- */

static void refused(int fd)
{
        struct snapshot_memory other;
        FAILS_SAYING(error, snapshot_memory_open_consume_fd(&other, fd, &snapshot, &error), STREAMER_ECORRUPT,
                     "the snapshots: not one of this version");
        ck_assert_int_eq(other.fd, -1);
        ck_assert_int_eq(fcntl(fd, F_GETFD), -1); /* consumed */
}

TEST(another_size_or_no_seals_is_refused)
{
        refused(must(memfd_create("x", MFD_ALLOW_SEALING)));
        int fd = must(memfd_create("x", MFD_ALLOW_SEALING));
        must(ftruncate(fd, 2 * SNAPSHOT_MAX));
        refused(fd);
        fd = must(memfd_create("x", MFD_ALLOW_SEALING));
        must(ftruncate(fd, 2 * SNAPSHOT_MAX - 1));
        must(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK));
        refused(fd);
        refused(must(open("/dev/null", O_RDWR)));
}
