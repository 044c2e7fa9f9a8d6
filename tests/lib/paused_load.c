/* SPDX-License-Identifier: Apache-2.0
 *
 * A load paused after half of its bytes: see paused_load.h.
 */
#include "tests/lib/paused_load.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

struct paused_load paused;

void paused_load_begin(void)
{
        uint64_t bytes = MIB;
        paused.model = model_new(77);
        for (int i = 0; i < PAUSED_N; i++)
                model_add(paused.model, format_text("t%02d", i), "U8", &bytes, 1);
        /* The halves share no page: a page that is being read for one stream holds the others up. */
        model_place_data(paused.model, 4096, 0);
        paused.backing = suite_path("backing");
        model_write(paused.model, paused.backing);
        mkdir(suite_path("root"), 0755);
        paused.hang.odd.keep_cache = true;
        paused.hang.odd.no_readahead = true; /* a read ahead of the second half would hold the end of the first */
        fuse_file_start(&paused.hang, suite_path("root/mnt"), "m.safetensors", paused.backing);
        daemon_init(&test_daemon, suite_path("d"));
        daemon_start(&test_daemon, (const char *const[]){"--device", "host=64MiB", "--root", suite_path("root"),
                                                         "--block-size", "1MiB", NULL});
        fuse_file_hold(&paused.hang, model_data_offset(paused.model) + PAUSED_HALF * MIB);
        client = client_open(&test_daemon);
        paused.empty = client_used(client);
}

void paused_load_end(void)
{
        client_wait_leases(client, 0);
        fixture_stop();
        fuse_file_stop(&paused.hang);
        folder_remove(suite_path("d"));
        unlink(paused.backing);
        model_free(paused.model);
}

streamer_op *paused_load_start(const char *name)
{
        streamer_op *op = client_load_begin(client, paused.hang.path, name);
        fuse_file_wait_held(&paused.hang);
        return op;
}

void paused_load_fails(streamer_op *op, const char *text)
{
        int r = streamer_op_wait(op, PATIENCE_MS, NULL);
        ck_assert_msg(r == STREAMER_EFAILED, "%s", streamer_strerror(r));
        ck_assert_msg(!text || strstr(streamer_last_error(client), text), "\"%s\" does not say \"%s\"",
                      streamer_last_error(client), text);
        ck_assert_str_eq(client_state(client, "m"), "failed");
        streamer_op_free(op);
}

void paused_load_rewrite(off_t at, size_t size)
{
        int fd = must(open(paused.backing, O_WRONLY | O_CLOEXEC));
        cleanup_free unsigned char *data = must_alloc(size);
        ck_assert_int_eq(pwrite(fd, data, size, at), (ssize_t)size);
        close(fd);
}

void paused_load_take(streamer_lease *lease, size_t n, bool seen[PAUSED_N])
{
        for (size_t k = 0; k < n; k++) {
                streamer_tensor t = STREAMER_TENSOR_INIT;
                int r = streamer_tensor_next(lease, PATIENCE_MS, &t);
                ck_assert_msg(r == 0, "tensor %zu: %s", k, streamer_strerror(r));
                size_t i = model_index(paused.model, t.name);
                unsigned char digest[16];
                ck_assert_uint_lt(i, PAUSED_N);
                ck_assert(!seen[i]);
                seen[i] = true;
                ck_assert(model_check(paused.model, i, t.data));
                model_tensor_digest(paused.model, i, digest);
                ck_assert_mem_eq(t.digest, digest, 16);
        }
}
