/* SPDX-License-Identifier: Apache-2.0
 *
 * Attach to a ready model, against a scripted daemon: tensors, the lease's properties, and its lifetime.
 */
#include "client/attach.h"
#include "client/channel.h"
#include "client/fault.h"
#include "tests/lib/dlpack.h"
#include "tests/unit/client_fixture.h"

#include <fcntl.h>

/* ---- a ready model ---- */

CLIENT_FIXTURE();

TEST(parts_of_a_tensor_are_copied_out)
{
        char bytes[8] = "";
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_tensor_find(lease, "b", &t), 0);
        m.segment[17] = 'x';
        ck_assert_int_eq(streamer_tensor_read(lease, &t, 1, bytes, 3), 0);
        ck_assert_mem_eq(bytes, "xBB", 4);
        ck_assert_int_eq(streamer_tensor_read(lease, &t, 8, bytes, 0), 0);
        ck_assert_int_eq(streamer_tensor_read(lease, &t, 1, bytes, 8), STREAMER_EINVAL);
        FAILS(client, streamer_tensor_read(lease, &t, UINT64_MAX, bytes, 2), STREAMER_EINVAL,
              "tensor_read: 2 bytes from offset 18446744073709551615 are not all inside 'b'");
}

/* A descriptor that is closed, and one that is not open for reading. */
TEST(a_segment_that_the_kernel_does_not_map_is_an_error_of_the_system)
{
        void *map;
        int closed = must(dup(0)), writing = must(open(format_text("/proc/self/fd/%d", m.fds[1]), O_WRONLY));
        close(closed);
        ck_assert_int_eq(map_fd(&map, closed, 1, 0, PROT_READ, MAP_SHARED, "segment", NULL), STREAMER_EOS);
        ck_assert_str_eq(fault_text(NULL), "segment: cannot map 1 bytes: Bad file descriptor");
        ck_assert_int_eq(map_fd(&map, writing, 1, 0, PROT_READ, MAP_SHARED, "segment", NULL), STREAMER_EOS);
        ck_assert_str_eq(fault_text(NULL), "segment: cannot map 1 bytes: Permission denied");
}

TEST(a_missing_tensor_is_not_found)
{
        const char *key, *value;
        streamer_segment s = STREAMER_SEGMENT_INIT;
        attach(SERVE, 0);
        FAILS(client, streamer_tensor_find(lease, "c", &t), STREAMER_ENOENT, "no such tensor: 'c'");
        ck_assert_int_eq(streamer_tensor_get(lease, 3, &t), STREAMER_ENOENT);
        ck_assert_int_eq(streamer_segment_get(lease, 1, &s), STREAMER_ENOENT);
        ck_assert_ptr_null(streamer_metadata(lease, "x"));
        FAILS(client, streamer_metadata_get(lease, 1, &key, &value), STREAMER_ENOENT, "there is no pair of metadata 1");
}

TEST(a_lease_describes_its_model)
{
        streamer_segment s = STREAMER_SEGMENT_INIT;
        attach(SERVE, 0);
        ck_assert_str_eq(streamer_digest(lease), FAKE_DIGEST);
        ck_assert_uint_eq(streamer_generation(lease), 42);
        ck_assert_str_eq(streamer_metadata(lease, "format"), "pt");
        ck_assert_uint_eq(streamer_segment_count(lease), 1);
        ck_assert_int_eq(streamer_segment_get(lease, 0, &s), 0);
        ck_assert_uint_eq(s.size, FAKE_SEGMENT);
        ck_assert_mem_eq(s.data, "AAAA", 4);
}

TEST(next_gives_each_tensor_once_in_order_of_names)
{
        attach(SERVE, 0);
        for (int i = 0; i < 3; i++) {
                ck_assert_int_eq(streamer_tensor_next(lease, 0, &t), 0);
                ck_assert_int_eq(t.name[0], "abe"[i]);
        }
        FAILS(client, streamer_tensor_next(lease, 0, &t), STREAMER_EEND, "no more tensors");
}

TEST(a_draining_model_is_whole)
{
        m.state = "draining";
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 1, &t), 0);
}

TEST(a_private_attach_may_be_written_and_changes_nothing)
{
        attach(SERVE, STREAMER_ATTACH_PRIVATE);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        *(char *)(uintptr_t)t.data = 'Z';
        ck_assert_int_eq(m.segment[0], 'A');
}

TEST(a_shared_attach_cannot_be_written)
{
        int zeros = must(open("/dev/zero", O_RDONLY | O_CLOEXEC));
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        ck_assert_int_eq(read(zeros, (void *)(uintptr_t)t.data, 1), -1);
        ck_assert_int_eq(errno, EFAULT);
        ck_assert_int_eq(m.segment[0], 'A');
}

TEST(a_lease_outlives_its_client)
{
        attach("hello\n" FAKE_ATTACH "end\n", 0);
        disconnect();
        ck_assert_int_eq(streamer_tensor_get(lease, 1, &t), 0);
        ck_assert_mem_eq(t.data, "BBBBBBBB", 8);
        ck_assert_str_eq(streamer_digest(lease), FAKE_DIGEST);
}

/* Lost right after the attach; the next daemon gives the lease another number. */
#define RECLAIM "hello\n> reclaim generation=42\n< lease=8 state=ready\n"
#define DETACH_RECLAIMED "> ping\n<\n> detach lease=8\n<\n"

TEST(a_lease_revoked_right_after_its_claim_is_reported)
{
        attach("hello\n" FAKE_ATTACH "close\n" RECLAIM
               "* lease lease=8 state=revoked code=revoked text='it was taken'\n" DETACH_RECLAIMED,
               0);
        FAILS(client, streamer_lease_check(lease), STREAMER_EREVOKED, "it was taken");
}

/* ---- a lease claimed before its attach has read the reply ---- */

static sem_t asked, held, closed, unblock_signal;

static void block_signal(int signum)
{
        sem_post(&held);
        while (sem_wait(&unblock_signal) < 0)
                ;
}

static void await(sem_t *sem)
{
        while (sem_wait(sem) < 0)
                ;
}

/* The first call reads the socket; the second finds the connection closed before it sends its request. */
static void *ping_twice(void *arg)
{
        ck_assert_int_eq(streamer_call(client, "ping", NULL, NULL), 0);
        await(&closed);
        ck_assert_int_eq(streamer_call(client, "ping", NULL, NULL), 0);
        return NULL;
}

static void *attach_aside(void *arg)
{
        ck_assert_int_eq(streamer_attach(client, "m", NULL, &lease), 0);
        return NULL;
}

static void serve_and_claim_at_once(struct fake_daemon *f)
{
        fake_say(f, "hello\n> ping\n");
        sem_post(&asked);
        fake_say(f, "> attach\n");
        sem_post(&asked);
        fake_say(f, "pause\n< model\n");
        fake_say(f, "<1\nclose\n");
        sem_post(&closed);
        fake_say(f, RECLAIM DETACH_RECLAIMED);
}

TEST(a_lease_can_be_claimed_as_soon_as_it_exists)
{
        pthread_t pings, attaches;
        struct sigaction action = {.sa_handler = block_signal};
        sem_init(&asked, 0, 0);
        sem_init(&held, 0, 0);
        sem_init(&closed, 0, 0);
        sem_init(&unblock_signal, 0, 0);
        must(sigaction(SIGUSR1, &action, NULL));
        client = fake_connect_script(&fake, serve_and_claim_at_once);
        pthread_create(&pings, NULL, ping_twice, NULL);
        await(&asked);
        pthread_create(&attaches, NULL, attach_aside, NULL);
        await(&asked);
        /* The lock is given up when it waits for its reply. */
        pthread_mutex_lock(&client->lock);
        pthread_mutex_unlock(&client->lock);
        pthread_kill(attaches, SIGUSR1);
        await(&held);
        fake_resume(&fake);
        pthread_join(pings, NULL);
        sem_post(&unblock_signal);
        pthread_join(attaches, NULL);
        ck_assert_uint_eq(streamer_generation(lease), FAKE_GENERATION);
}

TEST(in_a_forked_child_the_memory_stays_readable_and_calls_fail)
{
        streamer_tensor u = STREAMER_TENSOR_INIT;
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        pid_t pid = must(fork());
        if (pid == 0) {
                bool good = memcmp(t.data, "AAAA", 4) == 0 && streamer_tensor_get(lease, 0, &u) == STREAMER_EFORK &&
                            streamer_segment_count(lease) == 0;
                streamer_detach(lease);
                _exit(good ? 0 : 1);
        }
        ck_assert_int_eq(child_wait(pid), 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &u), 0);
}

/* ---- DLPack ---- */

TEST(a_capsule_has_whole_pairs_of_4_bit_elements)
{
        static const uint64_t shape[] = {2, 3};
        void *capsule;
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_tensor_get(lease, 0, &t), 0);
        t.dtype = STREAMER_DTYPE_F4;
        t.dtype_name = "F4";
        t.rank = 2;
        t.shape = shape;
        FAILS(client, streamer_tensor_dlpack(lease, &t, 0, &capsule), STREAMER_EUNSUPPORTED,
              "tensor_dlpack: the last dimension of F4 must be a multiple of 2");
}

TEST(a_capsule_holds_the_segment_and_the_lease)
{
        void *capsule;
        attach(SERVE, 0);
        ck_assert_int_eq(streamer_segment_dlpack(lease, 1, STREAMER_DLPACK_UNVERSIONED, &capsule), STREAMER_ENOENT);
        ck_assert_int_eq(streamer_segment_dlpack(lease, 0, STREAMER_DLPACK_UNVERSIONED, &capsule), 0);
        streamer_detach(lease);
        lease = NULL;
        struct dl *d = capsule;
        ck_assert_int_eq(d->device_type, 1);
        ck_assert_int_eq(d->ndim, 1);
        ck_assert_int_eq(d->code, 1);
        ck_assert_int_eq(d->bits, 8);
        ck_assert_int_eq(d->lanes, 1);
        ck_assert_int_eq(d->shape[0], FAKE_SEGMENT);
        ck_assert_int_eq(d->strides[0], 1);
        ck_assert_mem_eq((char *)d->data + d->byte_offset, "AAAA", 4);
        d->deleter(d); /* the detach is sent only now; the script waits for it */
}
