/* SPDX-License-Identifier: Apache-2.0
 *
 * What the tests of the daemon rely on in the fake CUDA libraries to see a fault, and would not miss: stale handles
 * that abort, and leaks. What a real driver answers, too, is in tests/bench/gpu/streamer_gpu/calls.py.
 */
#include "daemon/device/cuda/api.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/suite.h"

static struct cuda_api *api;

static void start(void)
{
        char path[PATH_SIZE];
        struct error error;
        fake_library("libcudart.so.13", path, sizeof(path));
        ck_assert_msg(cuda_api_open(path, &api, &error) == 0, "%s", error.text);
}

struct pipe {
        unsigned char *device, host[1 << 16]; /* whole pages, whatever their size */
        struct CUstream_st *stream;
        struct CUevent_st *event;
};

static void pipe_begin(struct pipe *p)
{
        ck_assert_int_eq(api->cudaMalloc((void **)&p->device, sizeof(p->host)), CUDA_OK);
        memset(p->host, 'x', sizeof(p->host));
        ck_assert_int_eq(api->cudaHostRegister(p->host, sizeof(p->host), CUDA_HOST_REGISTER_PORTABLE), CUDA_OK);
        ck_assert_int_eq(api->cudaStreamCreateWithFlags(&p->stream, CUDA_STREAM_NON_BLOCKING), CUDA_OK);
        ck_assert_int_eq(api->cudaEventCreateWithFlags(&p->event, CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_BLOCKING_SYNC),
                         CUDA_OK);
}

static void use_stale(struct pipe *p, int call)
{
        if (call == 0)
                api->cudaMemcpyAsync(p->device, p->host, sizeof(p->host), CUDA_COPY_HOST_TO_DEVICE, p->stream);
        else if (call == 1)
                api->cudaStreamSynchronize(p->stream);
        else if (call == 2)
                api->cudaStreamDestroy(p->stream);
        else if (call == 3)
                api->cudaEventRecord(p->event, p->stream);
        else if (call == 4)
                api->cudaEventQuery(p->event);
        else if (call == 5)
                api->cudaEventSynchronize(p->event);
        else
                api->cudaEventDestroy(p->event);
}

TEST(streams_and_events_of_a_destroyed_context_abort, .signal = SIGABRT, .to = 7)
{
        struct pipe p;
        start();
        pipe_begin(&p);
        ck_assert_int_eq(api->cudaDeviceReset(), CUDA_OK);
        ck_assert_int_eq(api->cudaMalloc((void **)&p.device, sizeof(p.host)), CUDA_OK);
        use_stale(&p, _i);
}

TEST(the_report_lists_leaks)
{
        static struct pipe p;
        char *path = suite_path("report.%d", (int)getpid());
        setenv("FAKECUDA_REPORT", path, 1);
        pid_t pid = must(fork()); /* it writes the report when it exits */
        if (pid == 0) {
                start();
                pipe_begin(&p);
                exit(0);
        }
        must(waitpid(pid, NULL, 0));
        char *text = file_read(path, NULL);
        ck_assert_ptr_nonnull(strstr(text, " allocations=1 opened=0 handles=0 reserved=0 mapped=0 "
                                           "streams=1 events=1 registered=1 retained=0\n"));
}
