/* SPDX-License-Identifier: Apache-2.0
 *
 * The fake CUDA libraries: libcudart.so.13, libcudart.so.12 and libcuda.so.1 in $(BUILD)/tests/fake.
 * Device memory is ordinary shared memory, so tests read through device pointers. Settings
 * from the environment, read by the first call of a process:
 *
 *   FAKECUDA_DEVICES=4         GPUs of the machine (1); CUDA_VISIBLE_DEVICES picks and orders them
 *   FAKECUDA_MEM_MIB=64        MiB of each GPU (1024)
 *   FAKECUDA_OTHERS_MIB=16     MiB of each that other programs use (0)
 *   FAKECUDA_EVENT_MS=5        from a record to its event (0); copies complete with the event, not before
 *   FAKECUDA_VERSION=12040     the driver's CUDA version (13000); 0: no driver
 *   FAKECUDA_NAME=...          name of each GPU ("Fake GPU"; " MIG " in it means MIG)
 *   FAKECUDA_INTEGRATED=1      the GPUs share the host's memory
 *   FAKECUDA_VMM=0             no virtual memory management
 *   FAKECUDA_READ_ONLY=801     mapping memory for reading alone answers this error (0)
 *   FAKECUDA_HOST_POINTERS=0   registered host memory has other addresses on the GPU, as under WSL
 *   FAKECUDA_FAIL=call:n:error,...     the nth call returns error; n = 0: each call
 *   FAKECUDA_DAMAGE=1          copies from a GPU to the host have a wrong last byte; 2: in clients alone
 *   FAKECUDA_DIRTY=1           memory has other contents than zeroes when it is allocated
 *   FAKECUDA_REPORT=file       at the end of a process a line with the resources it has not freed
 *   FAKECUDA_STATE=file        struct fake_state, shared by all processes that name it
 *
 * A gpu is a number on the machine, independent of CUDA_VISIBLE_DEVICES. A call that belongs to none (cuInit) has gpu
 * -1.
 */
#pragma once

#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define FAKE_GPUS 16

struct fake_state {
        /* set by tests, at any time */
        _Atomic uint32_t hold;              /* while set, no event fires and cudaMemcpy does not return */
        _Atomic uint32_t held[FAKE_GPUS];   /* the same, for one GPU */
        _Atomic uint32_t broken[FAKE_GPUS]; /* the error that each call on a GPU returns */
        /* One failure, armed while processes run: the nth call of that name in all of them, once. */
        char fail_call[48];
        _Atomic uint32_t fail_nth, fail_error, fail_seen; /* nth 0: none; the call has failed when seen >= nth */
        /* One call that hangs: while hang_gpus has a GPU's bit, the call of that name does not return on it. */
        char hang_call[48];
        _Atomic uint32_t hang_gpus, hung; /* hung: calls that hang now */
        /* counted over all processes */
        _Atomic uint32_t contexts[FAKE_GPUS]; /* created so far */
        _Atomic uint32_t pageable;            /* the runtime's copies from or to memory that is not registered */
        _Atomic uint32_t after_fork;          /* calls in a child of fork(), but for the start of the driver */
        _Atomic uint32_t opens;               /* of IPC handles: those that mapped */
        _Atomic uint64_t copied[FAKE_GPUS];   /* bytes copied to a GPU */
        _Atomic uint32_t copies;              /* cudaMemcpyAsync */
        _Atomic uint32_t batches, batched;    /* cudaMemcpyBatchAsync, and the copies in them */
        _Atomic uint64_t pinned, pinned_most; /* registered bytes, and their maximum */
};

/* NULL if the file cannot be created. Mapped until the process exits. */
static inline struct fake_state *fake_state_map(const char *path)
{
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
                return NULL;
        void *map = MAP_FAILED;
        if (ftruncate(fd, sizeof(struct fake_state)) == 0)
                map = mmap(NULL, sizeof(struct fake_state), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        return map == MAP_FAILED ? NULL : map;
}

static inline void fake_arm(struct fake_state *state, const char *call, uint32_t nth, uint32_t error)
{
        state->fail_nth = 0;
        snprintf(state->fail_call, sizeof(state->fail_call), "%s", call);
        state->fail_error = error;
        state->fail_seen = 0;
        state->fail_nth = nth;
}

/* The bit of a GPU, or of none (-1), in hang_gpus. */
static inline uint32_t fake_hang_bit(int gpu)
{
        return 1u << (gpu < 0 ? 31 : gpu);
}

/* This call hangs on this GPU from now on, until fake_unhang(); -1: a call that belongs to none. */
static inline void fake_hang(struct fake_state *state, const char *call, int gpu)
{
        state->hang_gpus = 0;
        snprintf(state->hang_call, sizeof(state->hang_call), "%s", call);
        state->hang_gpus = fake_hang_bit(gpu);
}

static inline void fake_unhang(struct fake_state *state)
{
        state->hang_gpus = 0;
}

/* Disarms it; returns whether the call has failed. */
static inline int fake_disarm(struct fake_state *state)
{
        uint32_t nth = state->fail_nth;
        state->fail_nth = 0;
        return nth != 0 && state->fail_seen >= nth;
}

/* The path of a fake library: "libcudart.so.13" and so on. */
static inline void fake_library(const char *name, char *path, size_t size)
{
        const char *build = getenv("STREAMERD_BUILD");
        snprintf(path, size, "%s/tests/fake/%s", build && *build ? build : "build", name);
}

static inline void fake_gpu_uuid(int gpu, char text[41])
{
        snprintf(text, 41, "GPU-fa4eda00-5eed-4000-8000-0000000000%02x", (unsigned)gpu & 0xff);
}
