/* SPDX-License-Identifier: Apache-2.0
 *
 * What a resident model costs the daemon: two descriptors, its memory and its table. The log of the tensors that have
 * arrived is freed with the load.
 */
#include "tests/lib/fixture.h"
#include "tests/lib/kernel_counters.h"
#include "tests/lib/suite.h"

#define MODELS 20u

static void end_test(void)
{
        fixture_unload_others();
        fixture_disconnect();
}

FIXTURE(.all = {fixture_begin_default, fixture_end}, .each = {fixture_connect, end_test});

TEST(a_resident_model_takes_two_descriptors)
{
        ABOUT_HOST_MEMORY();
        unsigned before = process_fds(test_daemon.pid), logs = process_fds_named(test_daemon.pid, "streamerd-arrival");
        for (unsigned i = 0; i < MODELS; i++) {
                char file[64];
                struct model *m = model_new(i + 1);
                snprintf(file, sizeof(file), "m%u.safetensors", i);
                model_add_many(m, "w", 2, 512);
                client_load(client, fixture_write(m, file), file);
                model_free(m);
        }
        AWAIT(process_fds(test_daemon.pid) <= before + 2 * MODELS);
        ck_assert_uint_eq(process_fds_named(test_daemon.pid, "streamerd-arrival"), logs);
}

TEST(a_client_that_attached_during_the_load_reads_every_tensor_after_it)
{
        struct model *m = model_new(77);
        model_add_many(m, "w", 100, 4096);
        streamer_op *op = client_load_begin(client, fixture_write(m, "early.safetensors"), "early");
        streamer_lease *lease;
        int r;
        AWAIT((r = streamer_attach(client, "early", NULL, &lease)) != STREAMER_ENOENT);
        client_ok(client, r, "attach");
        ck_assert_int_eq(client_load_end(op), 0);
        AWAIT(process_fds_named(test_daemon.pid, "streamerd-arrival") == 0);
        lease_equals(lease, m);
        streamer_detach(lease);
        model_free(m);
}
