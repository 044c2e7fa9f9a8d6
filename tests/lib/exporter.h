/* SPDX-License-Identifier: Apache-2.0
 *
 * A process that owns GPU memory and exports a handle, as the daemon does: CUDA handles do not open in the process
 * that exported them. Uses the fake CUDA libraries; the parent must not have used them before it starts
 * an exporter.
 */
#pragma once

#include "proto/cuda.h"

#include <stdbool.h>
#include <sys/types.h>

struct exporter {
        pid_t pid;
        int socket;
        size_t size;
        struct cuda_ipc_handle handle;
        int fd; /* of VMM memory, else -1 */
        char uuid[CUDA_UUID_TEXT];
};

/* The byte that an exporter of that GPU wrote at an offset. */
unsigned char exporter_byte(int ordinal, size_t offset);

/* Allocates memory on the GPU with this ordinal in the current environment; with `vmm`, exports a descriptor. */
void exporter_start(struct exporter *e, int ordinal, size_t size, bool vmm);
