/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests that open GPU segments: a process that exports memory, and an application that uses CUDA
 * itself. The driver is a fake.
 */
#pragma once

#include "client/attach.h"
#include "client/cuda_driver.h"
#include "client/fault.h"
#include "streamer/client.h"
#include "tests/lib/exporter.h"
#include "tests/lib/fake_cuda/machine.h"
#include "tests/lib/suite.h"

#include <dlfcn.h>

#define MIB ((size_t)1 << 20)
#define ELSEWHERE 1 /* a daemon_pid that identifies no daemon: init's */

static struct exporter exporter;
static struct fake_state *state;
static struct handle handle; /* changed by tests */
static struct mapping mapping;

/* ---- fixture ---- */

static inline void use_fake(void)
{
        char path[PATH_SIZE];
        fake_library("libcuda.so.1", path, sizeof(path));
        setenv("STREAMER_CUDA_LIBRARY", path, 1);
        setenv("FAKECUDA_STATE", suite_path("state.%d", (int)getpid()), 1);
        state = fake_state_map(getenv("FAKECUDA_STATE"));
        setenv("FAKECUDA_DEVICES", "2", 1);
}

/* `handle` is of this memory then. */
static inline void export_memory(int gpu, bool vmm)
{
        use_fake();
        exporter_start(&exporter, gpu, 2 * MIB, vmm);
        handle = (struct handle){.fd = exporter.fd,
                                 .bytes = exporter.handle.bytes,
                                 .n_bytes = sizeof(exporter.handle.bytes),
                                 .size = exporter.size,
                                 .uuid = exporter.uuid,
                                 .uuid_len = strlen(exporter.uuid),
                                 .daemon_pid = ELSEWHERE};
        /* The exporter has its own context; from here on the counts are the application's. */
        state->contexts[0] = state->contexts[1] = 0;
}

static inline int map(const struct handle_kind *kind, struct mapping *m)
{
        return kind->map(m, &handle, false, NULL);
}

static inline void assert_map(const struct handle_kind *kind, struct mapping *m)
{
        int rc = map(kind, m);
        ck_assert_msg(rc == 0, "%d: %s", rc, fault_text(NULL));
}

static inline void unmap(struct mapping *m)
{
        m->kind->unmap(m);
}

static inline void assert_bytes(const struct mapping *m, int gpu)
{
        const unsigned char *p = m->data;
        ck_assert_uint_eq(p[0], exporter_byte(gpu, 0));
        ck_assert_uint_eq(p[m->size - 1], exporter_byte(gpu, m->size - 1));
}

/* The text of the last failure has this in it. */
static inline void assert_error_has(const char *part)
{
        ck_assert_msg(strstr(fault_text(NULL), part) != NULL, "'%s' is not in: %s", part, fault_text(NULL));
}

static inline void assert_refused(const struct handle_kind *kind, int code, const char *part)
{
        ck_assert_int_eq(map(kind, &mapping), code);
        assert_error_has(part);
}

/* ---- the application's own use of CUDA ---- */

struct application {
        const struct cuda_driver *driver;
        enum cu_result (*create)(struct CUctx_st **, unsigned, cu_device);
        enum cu_result (*destroy)(struct CUctx_st *);
        enum cu_result (*set_current)(struct CUctx_st *);
        struct fake_resources *(*held)(void);
};

static struct application app;

static inline void application_start(void)
{
        ck_assert_int_eq(cuda_driver_get(&app.driver, &handle, NULL), 0);
        *(void **)&app.create = dlsym(app.driver->library, "cuCtxCreate_v2");
        *(void **)&app.destroy = dlsym(app.driver->library, "cuCtxDestroy_v2");
        *(void **)&app.set_current = dlsym(app.driver->library, "cuCtxSetCurrent");
        *(void **)&app.held = dlsym(app.driver->library, "fake_resources");
}

static inline struct CUctx_st *current(void)
{
        struct CUctx_st *c = NULL;
        ck_assert_int_eq(app.driver->cuCtxGetCurrent(&c), CU_OK);
        return c;
}

/* Checks that this process has released all driver resources. */
static inline void assert_nothing_leaked(void)
{
        application_start();
        const struct fake_resources *h = app.held();
        ck_assert_int_eq(h->opened, 0);
        ck_assert_int_eq(h->handles, 0);
        ck_assert_int_eq(h->reserved, 0);
        ck_assert_int_eq(h->mapped, 0);
        ck_assert_int_eq(h->retained, 0);
        ck_assert_ptr_null(current());
}
