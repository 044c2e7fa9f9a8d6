/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of the fake CUDA libraries: the runtime, opened as the daemon opens it.
 */
#ifndef TESTS_UNIT_FAKE_CUDA_FIXTURE_H
#define TESTS_UNIT_FAKE_CUDA_FIXTURE_H

#include "daemon/device/cuda/api.h"
#include "tests/lib/exporter.h"
#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/suite.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#define MIB ((size_t)1 << 20)
#define UUID_0 "GPU-fa4eda00-5eed-4000-8000-000000000000"
#define UUID_2 "GPU-fa4eda00-5eed-4000-8000-000000000002"

static struct cuda_api *api;

/* The fake of the runtime of that major version, under the environment of now. */
static void start_version(int major)
{
        char name[32], path[PATH_SIZE], why[1024];
        snprintf(name, sizeof(name), "libcudart.so.%d", major);
        fake_library(name, path, sizeof(path));
        ck_assert_msg(cuda_api_open(path, &api, why, sizeof(why)) == 0, "%s", why);
}

static void start(void)
{
        start_version(13);
}

static struct fake_state *share_state(void)
{
        char *path = suite_path("state.%d", (int)getpid());
        setenv("FAKECUDA_STATE", path, 1);
        return fake_state_map(path);
}

static void *device_memory(size_t size)
{
        void *p = NULL;
        ck_assert_int_eq(api->cudaMalloc(&p, size), CUDA_OK);
        return p;
}

struct pipe {
        unsigned char *device, host[4096];
        struct CUstream_st *stream;
        struct CUevent_st *event;
};

static inline void pipe_begin(struct pipe *p)
{
        p->device = device_memory(sizeof(p->host));
        memset(p->host, 'x', sizeof(p->host));
        ck_assert_int_eq(api->cudaHostRegister(p->host, sizeof(p->host), CUDA_HOST_REGISTER_PORTABLE), CUDA_OK);
        ck_assert_int_eq(api->cudaStreamCreateWithFlags(&p->stream, CUDA_STREAM_NON_BLOCKING), CUDA_OK);
        ck_assert_int_eq(api->cudaEventCreateWithFlags(&p->event, CUDA_EVENT_DISABLE_TIMING | CUDA_EVENT_BLOCKING_SYNC),
                         CUDA_OK);
}

static inline void pipe_copy(struct pipe *p)
{
        ck_assert_int_eq(api->cudaMemcpyAsync(p->device, p->host, sizeof(p->host), CUDA_COPY_HOST_TO_DEVICE, p->stream),
                         CUDA_OK);
}

static inline void pipe_end(struct pipe *p)
{
        ck_assert_int_eq(api->cudaEventDestroy(p->event), CUDA_OK);
        ck_assert_int_eq(api->cudaStreamDestroy(p->stream), CUDA_OK);
        ck_assert_int_eq(api->cudaHostUnregister(p->host), CUDA_OK);
        ck_assert_int_eq(api->cudaFree(p->device), CUDA_OK);
}

#endif
