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
