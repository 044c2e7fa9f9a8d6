/* SPDX-License-Identifier: Apache-2.0
 *
 * Restored models are hashed again: a model with a modified byte fails.
 */
#include "tests/lib/managed_daemon.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

static struct manager m;
static struct model *model;
static const char *file;

static void begin(void)
{
        mkdir(suite_path("root"), 0755);
        mkdir(suite_path("state"), 0700);
        model = model_mixed(80, 2 << 20);
        file = suite_path("root/m.safetensors");
        model_write(model, file);
        manager_init(&m, suite_path("dm"), 64,
                     (const char *const[]){"--device", "host=64MiB", "--root", suite_path("root"), "--state",
                                           suite_path("state"), NULL});
        manager_start(&m);
}

static void end(void)
{
        manager_deinit(&m);
        folder_remove(suite_path("state"));
        folder_remove(suite_path("root"));
}

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

static bool is_failed(void *c)
{
        return strcmp(client_state(c, "m"), "failed") == 0;
}

/* Loads a model, kills the daemon, changes a byte of the stored segment and restarts the daemon. */
static void damage_during_restart(bool pinned)
{
        streamer_client *c = client_open(&m.d);
        client_load(c, file, "m");
        if (pinned)
                client_ok(c, streamer_pin(c, "m", 1), "pin");
        manager_wait(&m, MANAGED_MODELS, 2);
        size_t at = a_byte(c);
        client_wait_leases(c, 0); /* one that is not detached by then outlives the daemon */
        streamer_close(c);
        manager_kill(&m);
        damage(manager_find(&m, MANAGED_MODELS "1.0", 0), at);
        manager_start(&m);
        ck_assert(log_wait_for(m.d.log, "is damaged"));
}

FIXTURE(.each = {begin, end});

TEST(one_wrong_byte_fails_the_model)
{
        damage_during_restart(false);
        streamer_client *c = client_open(&m.d);
        ck_assert(eventually(is_failed, c, 20000));
        streamer_lease *lease;
        ck_assert_int_eq(streamer_attach(c, "m", NULL, &lease), STREAMER_EFAILED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(c), "differ"));
        manager_wait(&m, MANAGED_MODELS, 0);
        client_wait_used(c, 0);
        client_load(c, file, "m");
        client_equals(c, "m", model);
        streamer_close(c);
}

static bool is_ready(void *c)
{
        return strcmp(client_state(c, "m"), "ready") == 0;
}

TEST(a_pinned_model_with_a_wrong_byte_is_reloaded)
{
        damage_during_restart(true);
        streamer_client *c = client_open(&m.d);
        ck_assert(eventually(is_ready, c, 20000));
        client_equals(c, "m", model);
        json_t *list = client_call(c, "list", NULL);
        ck_assert(json_is_true(json_object_get(json_array_get(json_object_get(list, "models"), 0), "pinned")));
        streamer_close(c);
}
