/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon on fake GPUs (tests/lib/fake_cuda): `test_daemon`, whose root is the program's directory.
 */
#ifndef TESTS_LIB_GPU_DAEMON_H
#define TESTS_LIB_GPU_DAEMON_H

#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/fixture.h"

struct gpu_daemon {
        unsigned n, mib;        /* number of GPUs and memory of each; 0: one, 1 GiB */
        const char *runtime;    /* "libcudart.so.12"; NULL: 13 */
        const char *cuda;       /* further settings of cuda, "segment_size: 8MiB"; NULL: none */
        const char *more;       /* lines of other settings, each with its end; NULL: none */
        const char *devices[5]; /* entries of the list: "'cuda:0', budget: 64MiB"; ends with NULL */
};

/* Writes its settings to FOLDER/NAME.yaml and sets the environment of the fake libraries. Returns the state that all
 * processes share. Set other variables of the fake libraries before. */
struct fake_state *gpu_daemon_prepare(const struct gpu_daemon *gpus, const char *folder, const char *name,
                                      char config[PATH_SIZE]);

/* The same, and starts the daemon. */
struct fake_state *gpu_daemon_start(const struct gpu_daemon *gpus);

#endif
