/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU segments in an application, with both kinds of handle: opened once on the right GPU, and closed completely. An
 * exporter process replaces the daemon; the driver is a fake.
 */
#include "tests/lib/dlpack.h"
#include "tests/lib/fake_daemon.h"
#include "tests/lib/fake_model.h"
#include "tests/unit/attach_cuda_fixture.h"

/* ---- cuda-ipc ---- */

TEST(the_gpu_is_found_whatever_its_number_is_here)
{
        export_memory(1, false);
        setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(mapping.device_index, 0);
        assert_bytes(&mapping, 1);
        ck_assert_uint_eq(state->contexts[0], 0);
}

TEST(a_gpu_that_is_not_visible_is_named)
{
        export_memory(1, false);
        setenv("CUDA_VISIBLE_DEVICES", "0", 1);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_EUNSUPPORTED, exporter.uuid);
        assert_error_has("CUDA_VISIBLE_DEVICES=0");
        ck_assert_uint_eq(state->contexts[0] + state->contexts[1], 0);
}

TEST(a_process_without_the_driver_gets_an_explanation)
{
        export_memory(0, false);
        setenv("STREAMER_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_EUNSUPPORTED, "/nowhere/libcuda.so.1");
        assert_error_has(exporter.uuid);
}

TEST(a_segment_is_opened_once_however_often_it_is_attached)
{
        struct mapping second;
        export_memory(0, false);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        assert_map(&handle_kind_cuda_ipc, &second);
        application_start();
        ck_assert_ptr_eq(mapping.data, second.data);
        ck_assert_uint_eq(state->opens, 1);
        unmap(&mapping);
        assert_bytes(&second, 0);
        unmap(&second);
        assert_nothing_leaked();

        /* From here on it is opened again. */
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_uint_eq(state->opens, 2);
}

/* Loop: a handle of another daemon, or a later one. The fake's own table would find it too, so opening fails here. */
TEST(a_handle_of_the_same_bytes_is_not_the_same_segment, .to = 2)
{
        export_memory(0, false);
        setenv("FAKECUDA_FAIL", "cuIpcOpenMemHandle_v2:2:400", 1);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        struct mapping other;
        if (_i == 0)
                handle.daemon_pid = getppid();
        else
                mapping.kind->forget(&mapping);
        ck_assert_int_eq(map(&handle_kind_cuda_ipc, &other), STREAMER_EUNSUPPORTED);
        assert_error_has("INVALID_HANDLE");
        assert_bytes(&mapping, 0);
}

static void *attach_and_detach(void *arg)
{
        for (int i = 0; i < 50; i++) {
                struct mapping m;
                assert_map(&handle_kind_cuda_ipc, &m);
                assert_bytes(&m, 0);
                unmap(&m);
        }
        return NULL;
}

TEST(threads_attach_and_detach_at_once)
{
        pthread_t threads[4];
        export_memory(0, false);
        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, attach_and_detach, NULL), 0);
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        assert_nothing_leaked();
}

TEST(a_segment_may_begin_inside_its_allocation)
{
        export_memory(0, false);
        handle.offset = 4096;
        handle.size = 100;
        ck_assert_int_eq(map(&handle_kind_cuda_ipc, &mapping), 0);
        ck_assert_uint_eq(*(const unsigned char *)mapping.data, exporter_byte(0, 4096));
        ck_assert_uint_eq(mapping.size, 100);
}

/* Loop: it opens the allocation first, or finds it open. */
TEST(a_segment_that_is_larger_than_its_allocation_is_refused, .to = 2)
{
        struct mapping first;
        export_memory(0, false);
        if (_i == 1)
                assert_map(&handle_kind_cuda_ipc, &first);
        handle.offset = 1;
        ck_assert_int_eq(map(&handle_kind_cuda_ipc, &mapping), STREAMER_ECORRUPT);
        if (_i == 1)
                unmap(&first);
        assert_nothing_leaked();
}

TEST(an_unknown_allocation_size_is_the_announced_size)
{
        struct mapping second;
        export_memory(0, false);
        setenv("FAKECUDA_FAIL", "cuMemGetAddressRange_v2:0:1", 1);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        assert_map(&handle_kind_cuda_ipc, &second);
        ck_assert_ptr_eq(mapping.data, second.data);
        ck_assert_uint_eq(mapping.size, 2 * MIB);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        unmap(&second);
        assert_nothing_leaked();
}

TEST(a_reply_without_a_required_field_is_refused)
{
        export_memory(0, false);
        handle.n_bytes = 63;
        ck_assert_int_eq(map(&handle_kind_cuda_ipc, &mapping), STREAMER_EPROTO);
        handle.n_bytes = 64;
        handle.uuid = NULL;
        ck_assert_int_eq(map(&handle_kind_cuda_ipc, &mapping), STREAMER_EPROTO);
        handle.uuid = exporter.uuid;
        ck_assert_int_eq(map(&handle_kind_cuda_vmm_fd, &mapping), STREAMER_EPROTO);
}

TEST(a_private_attach_to_gpu_memory_is_refused)
{
        export_memory(0, false);
        ck_assert_int_eq(handle_kind_cuda_ipc.map(&mapping, &handle, true, NULL), STREAMER_EUNSUPPORTED);
        ck_assert_int_eq(handle_kind_cuda_vmm_fd.map(&mapping, &handle, true, NULL), STREAMER_EUNSUPPORTED);
}

/* ---- cuda-vmm-fd ---- */

TEST(a_descriptor_cannot_be_written_through)
{
        int zeros = must(open("/dev/zero", O_RDONLY | O_CLOEXEC));
        export_memory(0, true);
        assert_map(&handle_kind_cuda_vmm_fd, &mapping);
        ck_assert_int_eq(read(zeros, (void *)(uintptr_t)mapping.data, 1), -1);
        ck_assert_int_eq(errno, EFAULT);
        assert_bytes(&mapping, 0);
}

TEST(a_mapped_descriptor_outlives_the_daemon)
{
        export_memory(0, true);
        assert_map(&handle_kind_cuda_vmm_fd, &mapping);
        close(exporter.socket);
        close(exporter.fd);
        must(waitpid(exporter.pid, NULL, 0));
        assert_bytes(&mapping, 0);
        unmap(&mapping);
}

TEST(a_part_of_a_granule_is_mapped_with_the_rest_of_it)
{
        export_memory(1, true);
        handle.offset = 4096;
        handle.size = 100;
        ck_assert_int_eq(map(&handle_kind_cuda_vmm_fd, &mapping), 0);
        ck_assert_uint_eq(*(const unsigned char *)mapping.data, exporter_byte(1, 4096));
        ck_assert_int_eq(mapping.device_index, 1);
        unmap(&mapping);
        assert_nothing_leaked();
}

TEST(a_descriptor_smaller_than_announced_is_refused)
{
        export_memory(0, true);
        handle.size += 1;
        ck_assert_int_eq(map(&handle_kind_cuda_vmm_fd, &mapping), STREAMER_EUNSUPPORTED);
        handle.size = UINT64_MAX;
        ck_assert_int_eq(map(&handle_kind_cuda_vmm_fd, &mapping), STREAMER_EUNSUPPORTED);
        assert_nothing_leaked();
}

/* ---- the library's calls ---- */

static struct fake_daemon daemon_;
static struct fake_model model;
static streamer_client *client;

static int attach(streamer_lease **lease, const char *text)
{
        fake_model_init(&model);
        model.kind = "cuda-ipc";
        model.handle = exporter.handle.bytes;
        model.uuid = exporter.uuid;
        daemon_.model = &model;
        client = fake_connect(&daemon_, text);
        return streamer_attach(client, "m", NULL, lease);
}

TEST(an_attach_returns_device_pointers_and_their_device)
{
        streamer_lease *lease;
        streamer_tensor t = STREAMER_TENSOR_INIT;
        void *capsule;
        export_memory(0, false);
        setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
        int rc = attach(&lease, "hello\n" FAKE_ATTACH FAKE_DETACH "end\n");
        ck_assert_msg(rc == 0, "%s", streamer_last_error(client));
        ck_assert_int_eq(streamer_tensor_find(lease, "b", &t), 0);
        ck_assert_str_eq(t.device_kind, "cuda");
        ck_assert_int_eq(t.device_index, 1);
        ck_assert_uint_eq(*(const unsigned char *)t.data, exporter_byte(0, 16));
        unsigned char copied = 0;
        ck_assert_int_eq(streamer_tensor_read(lease, &t, 1, &copied, 1), 0);
        ck_assert_uint_eq(copied, exporter_byte(0, 17));

        ck_assert_int_eq(streamer_segment_dlpack(lease, 0, STREAMER_DLPACK_UNVERSIONED, &capsule), 0);
        struct dl *dl = capsule;
        ck_assert_int_eq(dl->device_type, 2);
        ck_assert_int_eq(dl->device_id, 1);
        ck_assert_ptr_eq(dl->data, (const char *)t.data - 16);
        dl->deleter(capsule);
        streamer_detach(lease);
        fake_disconnect(&daemon_, client);
}

/* The scripted daemon listens in this very process. */
TEST(a_failed_open_reports_the_reason_and_releases_the_lease)
{
        streamer_lease *lease;
        export_memory(0, false);
        setenv("FAKECUDA_FAIL", "cuIpcOpenMemHandle_v2:1:201", 1);
        ck_assert_int_eq(attach(&lease, "hello\n" FAKE_ATTACH "> detach\nend\n"), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "the process that exported"));
        fake_disconnect(&daemon_, client);
}

TEST(memory_of_a_daemon_that_has_exited_is_lost)
{
        streamer_lease *lease;
        size_t n;
        export_memory(0, false);
        int rc = attach(&lease, "hello\n" FAKE_ATTACH "close\nhello\n> reclaim\n! lost not held\n> ping\n<\nend\n");
        ck_assert_msg(rc == 0, "%s", streamer_last_error(client));
        FAILS(client, streamer_lease_check(lease), STREAMER_ELOST, "the daemon does not hold this lease any more");
        FAILS(client, streamer_tensor_count(lease, &n), STREAMER_ELOST,
              "the memory was the daemon's, which has exited");
        streamer_detach(lease);
        fake_disconnect(&daemon_, client);
}
