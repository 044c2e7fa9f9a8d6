/* SPDX-License-Identifier: Apache-2.0
 *
 * A load that is held half-way: see held.h.
 */
#include "tests/lib/held.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct held held;

void held_begin_named(const char *file)
{
        uint64_t bytes = MIB;

        held.model = model_new(77);
        for (int i = 0; i < HELD_N; i++)
                model_add(held.model, format_text("t%02d", i), "U8", &bytes, 1);
        held.backing = suite_path("backing");
        model_write(held.model, held.backing);
        mkdir(suite_path("root"), 0755);
        hang_start(&held.hang, suite_path("root/mnt"), file, held.backing);
        daemon_init(&held.d, suite_path("d"));
        daemon_start(&held.d, (const char *const[]){"--device", "host=64MiB", "--root", suite_path("root"),
                                                    "--block-size", "1MiB", NULL});
        /* Direct reads are made of whole pages: the last block of the first half may touch one more. */
        hang_hold(&held.hang, model_data_offset(held.model) + HELD_HALF * MIB + 4096);
        held.client = client_open(&held.d);
        held.empty = client_used(held.client);
}

void held_begin(void)
{
        held_begin_named("m.safetensors");
}

void held_end(void)
{
        client_wait_leases(held.client, 0);
        streamer_close(held.client);
        ck_assert_int_eq(daemon_stop(&held.d), 0);
        hang_stop(&held.hang);
        folder_remove(suite_path("d"));
        unlink(held.backing);
        model_free(held.model);
}

streamer_op *held_load(const char *name)
{
        streamer_op *op = client_load_begin(held.client, held.hang.path, name);

        hang_wait_held(&held.hang);
        return op;
}

void held_fails(streamer_op *op, const char *text)
{
        int r = streamer_op_wait(op, 20000, NULL);

        ck_assert_msg(r == STREAMER_EFAILED, "%s", streamer_strerror(r));
        ck_assert_msg(!text || strstr(streamer_last_error(held.client), text), "\"%s\" does not say \"%s\"",
                      streamer_last_error(held.client), text);
        ck_assert_str_eq(client_state(held.client, "m"), "failed");
        streamer_op_free(op);
}

void held_rewrite(off_t at, size_t size)
{
        int fd = must(open(held.backing, O_WRONLY | O_CLOEXEC));
        unsigned char *data = must_alloc(size);

        ck_assert_int_eq(pwrite(fd, data, size, at), (ssize_t)size);
        close(fd);
        free(data);
}

void held_take(streamer_lease *lease, size_t n, bool seen[HELD_N])
{
        for (size_t k = 0; k < n; k++) {
                streamer_tensor t;
                int r = streamer_tensor_next(lease, 20000, &t);
                ck_assert_msg(r == 0, "tensor %zu: %s", k, streamer_strerror(r));
                size_t i = model_index(held.model, t.name);
                unsigned char digest[16];
                ck_assert_uint_lt(i, HELD_N);
                ck_assert(!seen[i]);
                seen[i] = true;
                ck_assert(model_check(held.model, i, t.data));
                model_tensor_digest(held.model, i, digest);
                ck_assert_mem_eq(t.digest, digest, 16);
        }
}
