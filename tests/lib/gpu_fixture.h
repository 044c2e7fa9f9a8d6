/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests with fake GPUs: a daemon on them, loads on some of them, and what the daemon says of them.
 */
#ifndef TESTS_LIB_GPU_FIXTURE_H
#define TESTS_LIB_GPU_FIXTURE_H

#include "tests/lib/gpu_daemon.h"

#define GPUS 4
#define WAIT_MS 20000

extern struct fake_state *gpus;
extern const char *const cuda_devices[GPUS]; /* "cuda:0", ... */

/* Starts the daemon and connects `client`; fixture_stop() ends both. */
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

#endif
