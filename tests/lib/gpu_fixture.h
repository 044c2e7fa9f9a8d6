/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests with fake GPUs (tests/lib/fake_cuda): a daemon on them, whose root is the program's directory,
 * loads on some of them, and what the daemon says of them.
 */
#pragma once

#include "tests/lib/fake_cuda/state.h"
#include "tests/lib/fixture.h"

#define GPUS 4

struct gpu_daemon {
        unsigned n, mib;        /* number of GPUs and memory of each; 0: one, 1 GiB */
        const char *runtime;    /* "libcudart.so.12"; NULL: 13 */
        const char *cuda;       /* further settings of cuda, "segment_size: 8MiB"; NULL: none */
        const char *io;         /* settings of io, "concurrency: 1"; NULL: a ring of 64 MiB, as in daemon.c */
        const char *more;       /* lines of other settings, each with its end; NULL: none */
        const char *devices[5]; /* entries of the list: "'cuda:0', budget: 64MiB"; ends with NULL */
};

extern struct fake_state *gpus;
extern const char *const cuda_devices[GPUS]; /* "cuda:0", ... */

/* Writes the settings to FOLDER/NAME.yaml, whose path it returns, and sets the environment of the fake libraries and
 * `gpus`, which all processes share. Set other variables of the fake libraries before. */
char *gpu_prepare(const struct gpu_daemon *daemon, const char *folder, const char *name);
/* The same, and starts `test_daemon`; returns the settings' path. */
char *gpu_start(const struct gpu_daemon *daemon);
/* The same, and connects `client`; fixture_stop() ends both. */
void gpu_begin(const struct gpu_daemon *daemon);
/* On four GPUs of 64 MiB, the second with descriptors; the last is limited to 8 MiB. */
void gpu_begin_four(void);

char *write_model(const struct model *m, const char *name);

/* On the first n of these devices; the others wait for the end, and return the outcome. */
streamer_op *load_begin(const char *source, const char *name, const char *const *devices, size_t n, const char *layout);
int load_on(const char *source, const char *name, const char *const *devices, size_t n, const char *layout);
int load_to(const char *source, const char *name, const char *device);

/* Of the model "m". */
int attach_code(const char *device);

uint64_t used_on(const char *device);
void wait_until_freed(const char *device); /* its memory */

/* The daemon with this pid, which has exited, has freed all of its memory, streams, ... of the GPUs. FAKECUDA_REPORT
 * must have named the file. */
void gpu_check_freed(const char *report, pid_t pid);
