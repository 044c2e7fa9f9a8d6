/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon on four fake GPUs of 64 MiB, the last of which is limited to 8 MiB. The model is "m".
 */
#ifndef TESTS_LIB_MULTI_GPU_H
#define TESTS_LIB_MULTI_GPU_H

#include "tests/lib/gpu_daemon.h"

#define GPUS 4
#define WAIT_MS 20000

extern struct fake_state *gpus;
extern const char *const names[GPUS];

/* Starts the daemon and connects `client`; fixture_stop() ends both. */
void multi_gpu_begin(void);

char *write_model(const struct model *m, const char *name);

/* On the first n of these; the second waits for the end. */
streamer_op *load_begin(const char *source, const char *const *devices, size_t n, const char *layout);
int load_on(const char *source, const char *const *devices, size_t n, const char *layout);

int attach_code(const char *device);

json_t *list_entry(void);
uint64_t used_on(const char *device);
void wait_until_freed(const char *device); /* its memory */

#endif
