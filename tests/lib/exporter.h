/* SPDX-License-Identifier: Apache-2.0
 *
 * A process that owns memory of a GPU and hands out a handle to it, as the daemon does: CUDA's
 * handles do not open in the process that exported them. Runs on the stand-ins; the parent must
 * not have used them before it starts one.
 */
#ifndef TESTS_LIB_EXPORTER_H
#define TESTS_LIB_EXPORTER_H

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

/* Memory of the GPU that is `ordinal` under the environment of now; with `vmm` as a descriptor. */
void exporter_start(struct exporter *e, int ordinal, size_t size, bool vmm);
void exporter_free(struct exporter *e); /* its memory; the process goes on */
void exporter_stop(struct exporter *e);

#endif
