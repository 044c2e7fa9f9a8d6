/* SPDX-License-Identifier: Apache-2.0
 *
 * GPU segments in an application: opened where they are, once, in the context that it has, and
 * given back whole whatever fails. An exporter is the daemon; the driver is the stand-in.
 */
#include "client/cuda_driver.h"
#include "client/fault.h"
#include "streamer/client.h"
#include "tests/lib/exporter.h"
#include "tests/lib/fake/world.h"
#include "tests/lib/fake_model.h"
#include "tests/lib/suite.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define SERIAL 1    /* of the texts */
#define ELSEWHERE 1 /* a daemon_pid that tells nothing: init listens for it */

static struct exporter exporter;
static struct fake_state *state;
static struct mapping mapping;

/* ---- the stage ---- */

static void use_stand_in(void)
{
        char path[PATH_SIZE];
        fake_library("libcuda.so.1", path, sizeof(path));
        setenv("STREAMER_CUDA_LIBRARY", path, 1);
        setenv("FAKECUDA_STATE", suite_path("state.%d", (int)getpid()), 1);
        state = fake_state_map(getenv("FAKECUDA_STATE"));
        setenv("FAKECUDA_DEVICES", "2", 1);
}

static void export_memory(int gpu, bool vmm)
{
        use_stand_in();
        exporter_start(&exporter, gpu, 2 * MIB, vmm);
        /* The exporter's context is its own; what is counted from here on is the application's. */
        state->contexts[0] = state->contexts[1] = 0;
}

static struct handle handle_of(const struct exporter *e)
{
        return (struct handle){.fd = e->fd,
                               .bytes = e->handle.bytes,
                               .n_bytes = sizeof(e->handle.bytes),
                               .size = e->size,
                               .uuid = e->uuid,
                               .uuid_len = strlen(e->uuid),
                               .daemon_pid = ELSEWHERE};
}

static int map(const struct handle_kind *kind, struct mapping *m)
{
        struct handle handle = handle_of(&exporter);
        return kind->map(m, &handle, false, SERIAL);
}

static void assert_map(const struct handle_kind *kind, struct mapping *m)
{
        int rc = map(kind, m);
        ck_assert_msg(rc == 0, "%d: %s", rc, fault_text(SERIAL));
}

static void unmap(struct mapping *m)
{
        m->kind->unmap(m);
}

static void assert_bytes(const struct mapping *m, int gpu)
{
        const unsigned char *p = m->data;
        ck_assert_uint_eq(p[0], exporter_byte(gpu, 0));
        ck_assert_uint_eq(p[m->size - 1], exporter_byte(gpu, m->size - 1));
}

/* The text of the last failure has this in it. */
static void assert_told(const char *part)
{
        ck_assert_msg(strstr(fault_text(SERIAL), part) != NULL, "'%s' is not in: %s", part, fault_text(SERIAL));
}

static void assert_refused(const struct handle_kind *kind, int code, const char *part)
{
        ck_assert_int_eq(map(kind, &mapping), code);
        assert_told(part);
}

/* ---- the application's own use of CUDA ---- */

struct application {
        const struct cuda_driver *driver;
        enum cu_result (*create)(struct CUctx_st **, unsigned, cu_device);
        enum cu_result (*destroy)(struct CUctx_st *);
        enum cu_result (*set_current)(struct CUctx_st *);
        struct fake_held *(*held)(void);
};

static void application_start(struct application *app)
{
        struct handle handle = handle_of(&exporter);
        ck_assert_int_eq(cuda_driver_get(&app->driver, &handle, SERIAL), 0);
        *(void **)&app->create = dlsym(app->driver->library, "cuCtxCreate_v2");
        *(void **)&app->destroy = dlsym(app->driver->library, "cuCtxDestroy_v2");
        *(void **)&app->set_current = dlsym(app->driver->library, "cuCtxSetCurrent");
        *(void **)&app->held = dlsym(app->driver->library, "fake_held");
}

static struct CUctx_st *current(const struct application *app)
{
        struct CUctx_st *c = NULL;
        ck_assert_int_eq(app->driver->cuCtxGetCurrent(&c), CU_OK);
        return c;
}

static struct CUctx_st *take_primary(const struct application *app, int device)
{
        struct CUctx_st *c;
        ck_assert_int_eq(app->driver->cuDevicePrimaryCtxRetain(&c, device), CU_OK);
        ck_assert_int_eq(app->set_current(c), CU_OK);
        return c;
}

/* Nothing of the driver's is left in this process. */
static void assert_nothing_held(const struct application *app)
{
        const struct fake_held *h = app->held();
        ck_assert_int_eq(h->opened, 0);
        ck_assert_int_eq(h->handles, 0);
        ck_assert_int_eq(h->reserved, 0);
        ck_assert_int_eq(h->mapped, 0);
        ck_assert_int_eq(h->retained, 0);
        ck_assert_ptr_null(current(app));
}

/* ---- cuda-ipc ---- */

START_TEST(a_segment_of_the_daemon_is_read_in_place)
{
        export_memory(0, false);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_uint_eq(mapping.size, 2 * MIB);
        ck_assert_int_eq(mapping.device_index, 0);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(the_gpu_is_found_whatever_its_number_is_here)
{
        export_memory(1, false);
        setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(mapping.device_index, 0);
        assert_bytes(&mapping, 1);
        ck_assert_uint_eq(state->contexts[0], 0);
        unmap(&mapping);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(the_gpu_is_found_where_it_is_named_by_uuid)
{
        export_memory(1, false);
        setenv("CUDA_VISIBLE_DEVICES", exporter.uuid, 1);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(mapping.device_index, 0);
        unmap(&mapping);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_gpu_that_is_not_visible_is_named)
{
        export_memory(1, false);
        setenv("CUDA_VISIBLE_DEVICES", "0", 1);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_EUNSUPPORTED, exporter.uuid);
        assert_told("CUDA_VISIBLE_DEVICES=0");
        ck_assert_uint_eq(state->contexts[0] + state->contexts[1], 0);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_process_without_the_driver_is_told_what_is_missing)
{
        export_memory(0, false);
        setenv("STREAMER_CUDA_LIBRARY", "/nowhere/libcuda.so.1", 1);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_EUNSUPPORTED, "/nowhere/libcuda.so.1");
        assert_told(exporter.uuid);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_segment_is_opened_once_however_often_it_is_attached)
{
        struct application app;
        struct mapping second;
        export_memory(0, false);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        assert_map(&handle_kind_cuda_ipc, &second);
        application_start(&app);
        ck_assert_ptr_eq(mapping.data, second.data);
        ck_assert_uint_eq(state->opens, 1);
        unmap(&mapping);
        assert_bytes(&second, 0);
        unmap(&second);
        assert_nothing_held(&app);

        /* From here on it is opened anew. */
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_uint_eq(state->opens, 2);
        unmap(&mapping);
        exporter_stop(&exporter);
}
END_TEST

static void *attach_and_detach(void *arg)
{
        (void)arg;
        for (int i = 0; i < 50; i++) {
                struct mapping m;
                assert_map(&handle_kind_cuda_ipc, &m);
                assert_bytes(&m, 0);
                unmap(&m);
        }
        return NULL;
}

START_TEST(threads_attach_and_detach_at_once)
{
        struct application app;
        pthread_t threads[4];
        export_memory(0, false);
        for (int i = 0; i < 4; i++)
                ck_assert_int_eq(pthread_create(&threads[i], NULL, attach_and_detach, NULL), 0);
        for (int i = 0; i < 4; i++)
                pthread_join(threads[i], NULL);
        application_start(&app);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_segment_may_begin_inside_its_allocation)
{
        export_memory(0, false);
        struct handle handle = handle_of(&exporter);
        handle.offset = 4096;
        handle.size = 100;
        ck_assert_int_eq(handle_kind_cuda_ipc.map(&mapping, &handle, false, SERIAL), 0);
        ck_assert_uint_eq(*(const unsigned char *)mapping.data, exporter_byte(0, 4096));
        ck_assert_uint_eq(mapping.size, 100);
        unmap(&mapping);
        exporter_stop(&exporter);
}
END_TEST

/* Loop: it is the first to open the allocation, or finds it open. */
START_TEST(a_segment_that_is_larger_than_its_allocation_is_refused)
{
        struct application app;
        struct mapping first;
        export_memory(0, false);
        struct handle handle = handle_of(&exporter);
        if (_i == 1)
                assert_map(&handle_kind_cuda_ipc, &first);
        handle.offset = 1;
        ck_assert_int_eq(handle_kind_cuda_ipc.map(&mapping, &handle, false, SERIAL), STREAMER_ECORRUPT);
        if (_i == 1)
                unmap(&first);
        application_start(&app);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(what_the_daemon_must_not_leave_out)
{
        export_memory(0, false);
        struct handle handle = handle_of(&exporter);
        handle.n_bytes = 63;
        ck_assert_int_eq(handle_kind_cuda_ipc.map(&mapping, &handle, false, SERIAL), STREAMER_EPROTO);
        handle = handle_of(&exporter);
        handle.uuid = NULL;
        ck_assert_int_eq(handle_kind_cuda_ipc.map(&mapping, &handle, false, SERIAL), STREAMER_EPROTO);
        handle = handle_of(&exporter);
        ck_assert_int_eq(handle_kind_cuda_vmm_fd.map(&mapping, &handle, false, SERIAL), STREAMER_EPROTO);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(there_is_no_private_copy_of_gpu_memory)
{
        export_memory(0, false);
        struct handle handle = handle_of(&exporter);
        ck_assert_int_eq(handle_kind_cuda_ipc.map(&mapping, &handle, true, SERIAL), STREAMER_EUNSUPPORTED);
        ck_assert_int_eq(handle_kind_cuda_vmm_fd.map(&mapping, &handle, true, SERIAL), STREAMER_EUNSUPPORTED);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(memory_that_the_daemon_has_freed_is_refused)
{
        export_memory(0, false);
        exporter_free(&exporter);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_EUNSUPPORTED, "cuIpcOpenMemHandle: INVALID_HANDLE (400");
        exporter_stop(&exporter);
}
END_TEST

/* ---- contexts ---- */

START_TEST(an_application_without_a_context_gets_the_primary_one_while_it_needs_it)
{
        struct application app;
        unsigned flags;
        int active;
        export_memory(1, false);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        application_start(&app);
        ck_assert_ptr_null(current(&app));
        ck_assert_uint_eq(state->contexts[1], 1);
        ck_assert_int_eq(app.held()->retained, 1);
        unmap(&mapping);
        assert_nothing_held(&app);
        app.driver->cuDevicePrimaryCtxGetState(1, &flags, &active);
        ck_assert_int_eq(active, 0);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(the_primary_context_of_the_application_is_used_and_held)
{
        struct application app;
        export_memory(0, false);
        application_start(&app);
        struct CUctx_st *own = take_primary(&app, 0);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_uint_eq(state->contexts[0], 1);
        ck_assert_ptr_eq(current(&app), own);

        /* The application lets go of it; what it attached stays. */
        app.driver->cuDevicePrimaryCtxRelease_v2(0);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        ck_assert_int_eq(app.held()->retained, 0);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_context_that_the_application_made_is_used)
{
        struct application app;
        struct CUctx_st *own;
        export_memory(0, false);
        application_start(&app);
        ck_assert_int_eq(app.create(&own, 0, 0), CU_OK);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_uint_eq(state->contexts[0], 1); /* no primary one beside it */
        ck_assert_ptr_eq(current(&app), own);
        unmap(&mapping);
        ck_assert_ptr_eq(current(&app), own);
        ck_assert_int_eq(app.held()->opened + app.held()->retained, 0);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_context_beside_the_primary_one_holds_no_primary_one)
{
        struct application app;
        struct CUctx_st *own;
        export_memory(0, false);
        application_start(&app);
        take_primary(&app, 0);
        ck_assert_int_eq(app.create(&own, 0, 0), CU_OK);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(app.held()->retained, 1); /* the application's own */
        unmap(&mapping);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_context_on_another_gpu_stays_current_and_is_not_used)
{
        struct application app;
        export_memory(1, false);
        application_start(&app);
        struct CUctx_st *own = take_primary(&app, 0);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(mapping.device_index, 1);
        ck_assert_ptr_eq(current(&app), own);
        unmap(&mapping);
        ck_assert_ptr_eq(current(&app), own);
        ck_assert_int_eq(app.held()->retained, 1);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_segment_whose_context_has_ended_is_opened_anew)
{
        struct application app;
        struct CUctx_st *own;
        struct mapping second;
        export_memory(0, false);
        application_start(&app);
        ck_assert_int_eq(app.create(&own, 0, 0), CU_OK);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        ck_assert_int_eq(app.destroy(own), CU_OK);
        assert_map(&handle_kind_cuda_ipc, &second);
        ck_assert_uint_eq(state->opens, 2);
        assert_bytes(&second, 0);
        unmap(&mapping); /* nothing to close any more, and nothing of the second's */
        assert_bytes(&second, 0);
        unmap(&second);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(in_a_forked_child_nothing_of_the_parents_is_touched)
{
        struct application app;
        int status;
        export_memory(0, false);
        assert_map(&handle_kind_cuda_ipc, &mapping);
        application_start(&app);
        pid_t pid = must(fork());
        if (pid == 0) {
                struct mapping m;
                int rc = map(&handle_kind_cuda_ipc, &m);
                unmap(&mapping);
                bool told = strstr(fault_text(SERIAL), "fork()") != NULL;
                _exit(rc == STREAMER_EUNSUPPORTED && told && app.held()->opened == 1 ? 0 : 1);
        }
        must(waitpid(pid, &status, 0));
        ck_assert_int_eq(status, 0);
        ck_assert_uint_eq(state->after_fork, 0);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}
END_TEST

/* ---- failures ---- */

static const char *const ipc_calls[] = {
        "cuInit",
        "cuDeviceGetCount",
        "cuDeviceGet",
        "cuDeviceGetUuid_v2",
        "cuDevicePrimaryCtxRetain",
        "cuCtxPushCurrent_v2",
        "cuIpcOpenMemHandle_v2",
        "cuMemGetAddressRange_v2",
};

static const char *const vmm_calls[] = {
        "cuMemGetAllocationGranularity",
        "cuMemImportFromShareableHandle",
        "cuMemAddressReserve",
        "cuMemMap",
        "cuMemSetAccess",
};

/* The call fails once: nothing is left of the attempt, and the next one succeeds. */
static void fail_once(const struct handle_kind *kind, const char *call)
{
        struct application app;
        char rule[80];
        snprintf(rule, sizeof(rule), "%s:1:999", call);
        setenv("FAKECUDA_FAIL", rule, 1);
        setenv("CUDA_VISIBLE_DEVICES", "0", 1);
        ck_assert_int_eq(map(kind, &mapping), STREAMER_EUNSUPPORTED);
        application_start(&app);
        assert_nothing_held(&app);
        assert_map(kind, &mapping);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}

START_TEST(a_call_that_fails_leaves_nothing_of_an_ipc_segment)
{
        export_memory(0, false);
        fail_once(&handle_kind_cuda_ipc, ipc_calls[_i]);
}
END_TEST

START_TEST(a_call_that_fails_leaves_nothing_of_a_vmm_segment)
{
        export_memory(0, true);
        fail_once(&handle_kind_cuda_vmm_fd, vmm_calls[_i]);
}
END_TEST

START_TEST(memory_that_is_short_is_called_so)
{
        export_memory(0, false);
        setenv("FAKECUDA_FAIL", "cuDevicePrimaryCtxRetain:1:2", 1);
        assert_refused(&handle_kind_cuda_ipc, STREAMER_ENOMEM, "OUT_OF_MEMORY");
        exporter_stop(&exporter);
}
END_TEST

/* ---- what to do instead ---- */

static void refuse_ipc(pid_t daemon_pid)
{
        setenv("FAKECUDA_FAIL", "cuIpcOpenMemHandle_v2:0:801", 1);
        struct handle handle = handle_of(&exporter);
        handle.daemon_pid = daemon_pid;
        ck_assert_int_eq(handle_kind_cuda_ipc.map(&mapping, &handle, false, SERIAL), STREAMER_EUNSUPPORTED);
        exporter_stop(&exporter);
}

START_TEST(where_ipc_is_not_supported_the_other_kind_is_named)
{
        export_memory(0, false);
        refuse_ipc(ELSEWHERE);
        assert_told("cuda-vmm-fd would work");
}
END_TEST

START_TEST(where_neither_is_supported_the_host_device_is_named)
{
        export_memory(0, false);
        setenv("FAKECUDA_VMM", "0", 1);
        refuse_ipc(ELSEWHERE);
        assert_told("only the host device");
}
END_TEST

START_TEST(another_pid_namespace_is_named)
{
        export_memory(0, false);
        refuse_ipc(0);
        assert_told("PID namespace");
        assert_told("cuda-vmm-fd would work");
}
END_TEST

START_TEST(the_exporting_process_itself_is_named)
{
        export_memory(0, false);
        refuse_ipc(getpid());
        assert_told("the process that exported");
}
END_TEST

START_TEST(a_mig_instance_is_named)
{
        export_memory(0, false);
        setenv("FAKECUDA_NAME", "Stand-in H100 MIG 1g.10gb", 1);
        refuse_ipc(ELSEWHERE);
        assert_told("MIG instance");
}
END_TEST

START_TEST(an_integrated_gpu_is_named)
{
        export_memory(0, false);
        setenv("FAKECUDA_INTEGRATED", "1", 1);
        refuse_ipc(ELSEWHERE);
        assert_told("Tegra");
}
END_TEST

/* Windows' kernel shows itself by a device file. */
START_TEST(wsl_is_named)
{
        if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
            mount("tmpfs", "/dev", "tmpfs", 0, NULL) < 0)
                SKIP("another /dev cannot be mounted here");
        export_memory(0, false);
        close(must(open("/dev/dxg", O_CREAT | O_WRONLY | O_CLOEXEC, 0666)));
        refuse_ipc(ELSEWHERE);
        assert_told("WSL does not share GPU memory");
        assert_told("only the host device would work");
}
END_TEST

START_TEST(where_vmm_is_not_supported_ipc_is_named)
{
        export_memory(0, true);
        setenv("FAKECUDA_FAIL", "cuMemImportFromShareableHandle:1:801", 1);
        assert_refused(&handle_kind_cuda_vmm_fd, STREAMER_EUNSUPPORTED, "cuda-ipc may work");
        exporter_stop(&exporter);
}
END_TEST

/* ---- cuda-vmm-fd ---- */

START_TEST(a_descriptor_is_read_in_place)
{
        struct application app;
        export_memory(1, true);
        assert_map(&handle_kind_cuda_vmm_fd, &mapping);
        ck_assert_int_eq(mapping.device_index, 1);
        assert_bytes(&mapping, 1);
        unmap(&mapping);
        application_start(&app);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_descriptor_cannot_be_written_through)
{
        int zeros = must(open("/dev/zero", O_RDONLY | O_CLOEXEC));
        export_memory(0, true);
        assert_map(&handle_kind_cuda_vmm_fd, &mapping);
        ck_assert_int_eq(read(zeros, (void *)(uintptr_t)mapping.data, 1), -1);
        ck_assert_int_eq(errno, EFAULT);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
        exporter_stop(&exporter);
        close(zeros);
}
END_TEST

START_TEST(what_a_descriptor_mapped_outlives_the_daemon)
{
        export_memory(0, true);
        assert_map(&handle_kind_cuda_vmm_fd, &mapping);
        exporter_stop(&exporter);
        assert_bytes(&mapping, 0);
        unmap(&mapping);
}
END_TEST

START_TEST(a_part_of_a_granule_is_mapped_with_the_rest_of_it)
{
        struct application app;
        export_memory(0, true);
        struct handle handle = handle_of(&exporter);
        handle.offset = 4096;
        handle.size = 100;
        ck_assert_int_eq(handle_kind_cuda_vmm_fd.map(&mapping, &handle, false, SERIAL), 0);
        ck_assert_uint_eq(*(const unsigned char *)mapping.data, exporter_byte(0, 4096));
        unmap(&mapping);
        application_start(&app);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}
END_TEST

START_TEST(a_descriptor_of_less_than_was_announced_is_refused)
{
        struct application app;
        export_memory(0, true);
        struct handle handle = handle_of(&exporter);
        handle.size += 1;
        ck_assert_int_eq(handle_kind_cuda_vmm_fd.map(&mapping, &handle, false, SERIAL), STREAMER_EUNSUPPORTED);
        handle.size = UINT64_MAX;
        ck_assert_int_eq(handle_kind_cuda_vmm_fd.map(&mapping, &handle, false, SERIAL), STREAMER_EUNSUPPORTED);
        application_start(&app);
        assert_nothing_held(&app);
        exporter_stop(&exporter);
}
END_TEST

/* ---- the library's calls ---- */

static struct fake daemon_;
static struct fake_model model;
static streamer_client *client;

static void serve(struct fake *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        fake_model_attach(f, &model, f->request.id);
        fake_model_detach(f);
        ck_assert(fake_ends(f));
}

static void serve_and_see_it_given_back(struct fake *f)
{
        fake_hello(f);
        fake_expect(f, VERB_attach);
        fake_model_attach(f, &model, f->request.id);
        fake_expect(f, VERB_detach);
        ck_assert(fake_ends(f));
}

static int attach(streamer_lease **lease, void (*script)(struct fake *f))
{
        fake_model_init(&model);
        model.kind = "cuda-ipc";
        model.handle = exporter.handle.bytes;
        model.uuid = exporter.uuid;
        fake_start(&daemon_, script);
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = daemon_.socket};
        ck_assert_int_eq(streamer_connect(&opts, &client), 0);
        return streamer_attach(client, "m", NULL, lease);
}

struct dl { /* the ABI of DLPack 0.8 */
        void *data;
        int32_t device_type, device_id, ndim;
        uint8_t code, bits;
        uint16_t lanes;
        int64_t *shape, *strides;
        uint64_t byte_offset;
        void *context;
        void (*deleter)(void *self);
};

START_TEST(an_attach_gives_device_pointers_and_says_where_they_are)
{
        streamer_lease *lease;
        streamer_tensor t;
        void *capsule;
        export_memory(0, false);
        setenv("CUDA_VISIBLE_DEVICES", "1,0", 1);
        int rc = attach(&lease, serve);
        ck_assert_msg(rc == 0, "%s", streamer_last_error(client));
        ck_assert_int_eq(streamer_tensor_find(lease, "b", &t), 0);
        ck_assert_str_eq(t.device_kind, "cuda");
        ck_assert_int_eq(t.device_index, 1);
        ck_assert_uint_eq(*(const unsigned char *)t.data, exporter_byte(0, 16));
        unsigned char copied = 0;
        ck_assert_int_eq(streamer_tensor_read(lease, &t, 1, &copied, 1), 0);
        ck_assert_uint_eq(copied, exporter_byte(0, 17));

        ck_assert_int_eq(streamer_segment_dlpack(lease, 0, &capsule), 0);
        struct dl *dl = capsule;
        ck_assert_int_eq(dl->device_type, 2);
        ck_assert_int_eq(dl->device_id, 1);
        ck_assert_ptr_eq(dl->data, (const char *)t.data - 16);
        dl->deleter(capsule);
        streamer_detach(lease);
        streamer_close(client);
        fake_finish(&daemon_);
        exporter_stop(&exporter);
}
END_TEST

/* The scripted daemon listens in this very process. */
START_TEST(an_attach_that_cannot_open_says_why_and_gives_the_lease_back)
{
        streamer_lease *lease;
        export_memory(0, false);
        setenv("FAKECUDA_FAIL", "cuIpcOpenMemHandle_v2:1:201", 1);
        ck_assert_int_eq(attach(&lease, serve_and_see_it_given_back), STREAMER_EUNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(streamer_last_error(client), "the process that exported"));
        streamer_close(client);
        fake_finish(&daemon_);
        exporter_stop(&exporter);
}
END_TEST

static void add_ipc(void)
{
        TCase *t = suite_group("cuda-ipc", NULL, NULL, 30);
        tcase_add_test(t, a_segment_of_the_daemon_is_read_in_place);
        tcase_add_test(t, the_gpu_is_found_whatever_its_number_is_here);
        tcase_add_test(t, the_gpu_is_found_where_it_is_named_by_uuid);
        tcase_add_test(t, a_gpu_that_is_not_visible_is_named);
        tcase_add_test(t, a_process_without_the_driver_is_told_what_is_missing);
        tcase_add_test(t, a_segment_is_opened_once_however_often_it_is_attached);
        tcase_add_test(t, threads_attach_and_detach_at_once);
        tcase_add_test(t, a_segment_may_begin_inside_its_allocation);
        tcase_add_loop_test(t, a_segment_that_is_larger_than_its_allocation_is_refused, 0, 2);
        tcase_add_test(t, what_the_daemon_must_not_leave_out);
        tcase_add_test(t, there_is_no_private_copy_of_gpu_memory);
        tcase_add_test(t, memory_that_the_daemon_has_freed_is_refused);
}

static void add_contexts(void)
{
        TCase *t = suite_group("contexts", NULL, NULL, 30);
        tcase_add_test(t, an_application_without_a_context_gets_the_primary_one_while_it_needs_it);
        tcase_add_test(t, the_primary_context_of_the_application_is_used_and_held);
        tcase_add_test(t, a_context_that_the_application_made_is_used);
        tcase_add_test(t, a_context_beside_the_primary_one_holds_no_primary_one);
        tcase_add_test(t, a_context_on_another_gpu_stays_current_and_is_not_used);
        tcase_add_test(t, a_segment_whose_context_has_ended_is_opened_anew);
        tcase_add_test(t, in_a_forked_child_nothing_of_the_parents_is_touched);
}

static void add_failures(void)
{
        TCase *t = suite_group("failures", NULL, NULL, 30);
        LOOP(t, a_call_that_fails_leaves_nothing_of_an_ipc_segment, ipc_calls);
        LOOP(t, a_call_that_fails_leaves_nothing_of_a_vmm_segment, vmm_calls);
        tcase_add_test(t, memory_that_is_short_is_called_so);
        tcase_add_test(t, where_ipc_is_not_supported_the_other_kind_is_named);
        tcase_add_test(t, where_neither_is_supported_the_host_device_is_named);
        tcase_add_test(t, another_pid_namespace_is_named);
        tcase_add_test(t, the_exporting_process_itself_is_named);
        tcase_add_test(t, a_mig_instance_is_named);
        tcase_add_test(t, an_integrated_gpu_is_named);
        tcase_add_test(t, wsl_is_named);
        tcase_add_test(t, where_vmm_is_not_supported_ipc_is_named);
}

int main(void)
{
        suite_begin("attach on GPUs");
        add_ipc();
        add_contexts();
        add_failures();
        TCase *t = suite_group("cuda-vmm-fd", NULL, NULL, 30);
        tcase_add_test(t, a_descriptor_is_read_in_place);
        tcase_add_test(t, a_descriptor_cannot_be_written_through);
        tcase_add_test(t, what_a_descriptor_mapped_outlives_the_daemon);
        tcase_add_test(t, a_part_of_a_granule_is_mapped_with_the_rest_of_it);
        tcase_add_test(t, a_descriptor_of_less_than_was_announced_is_refused);
        t = suite_group("the library", NULL, NULL, 30);
        tcase_add_test(t, an_attach_gives_device_pointers_and_says_where_they_are);
        tcase_add_test(t, an_attach_that_cannot_open_says_why_and_gives_the_lease_back);
        return suite_run();
}
