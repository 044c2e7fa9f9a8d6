/* SPDX-License-Identifier: Apache-2.0
 *
 * Restored models are hashed again: a model with a modified byte fails.
 */
#include "tests/lib/managed_daemon.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

/* Sealed as a segment, and its bytes but one. */
static void damage(struct stored *segment, size_t at)
{
        struct stat st;
        must(fstat(segment->fd, &st));
        size_t size = (size_t)st.st_size;
        int fd = must(memfd_create("damaged", MFD_ALLOW_SEALING | MFD_CLOEXEC));
        must(ftruncate(fd, st.st_size));
        char *from = mmap(NULL, size, PROT_READ, MAP_SHARED, segment->fd, 0);
        char *to = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (from == MAP_FAILED || to == MAP_FAILED)
                die_errno("mmap");
        memcpy(to, from, size);
        to[at] = (char)(to[at] ^ 1);
        munmap(from, size);
        munmap(to, size);
        must(fcntl(fd, F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | 0x10 | F_SEAL_SEAL));
        close(segment->fd);
        segment->fd = fd;
}

/* The offset of a tensor's byte in the segment. */
static size_t a_byte(streamer_client *c)
{
        streamer_tensor t = STREAMER_TENSOR_INIT;
        streamer_lease *lease = client_attach(c, "m");
        for (size_t i = 0; streamer_tensor_get(lease, i, &t) == 0; i++)
                if (t.bytes > 0)
                        break;
        streamer_detach(lease);
        return t.offset;
}

/* Loads a model, kills the daemon, changes a byte of the stored segment and restarts the daemon. */
static void damage_during_restart(bool pinned)
{
        managed_load("m");
        if (pinned)
                client_ok(client, streamer_pin(client, "m", 1), "pin");
        size_t at = a_byte(client);
        client_wait_leases(client, 0); /* one that is not detached by then outlives the daemon */
        manager_kill(&managed.m);
        damage(managed_segment(), at);
        manager_start(&managed.m);
        managed_reconnect();
        ck_assert(log_wait_for(managed.m.d.log, "is damaged"));
}

FIXTURE(.each = {managed_begin, managed_end});

TEST(one_wrong_byte_fails_the_model)
{
        streamer_lease *lease;
        damage_during_restart(false);
        AWAIT(strcmp(client_state(client, "m"), "failed") == 0);
        client_fails(client, streamer_attach(client, "m", NULL, &lease), STREAMER_EFAILED, "differ");
        manager_wait(&managed.m, MANAGED_MODELS, 0);
        client_wait_used(client, 0);
        client_load(client, managed_file(), "m");
        client_equals(client, "m", managed.model);
}

TEST(a_pinned_model_with_a_wrong_byte_is_reloaded)
{
        damage_during_restart(true);
        AWAIT(strcmp(client_state(client, "m"), "ready") == 0);
        client_equals(client, "m", managed.model);
        ck_assert(json_is_true(json_at(client_call(client, "list", NULL), "models.0.pinned")));
}
