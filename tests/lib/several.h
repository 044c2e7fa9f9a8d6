/* SPDX-License-Identifier: Apache-2.0
 *
 * A daemon on four GPUs of 64 MiB, which are stand-ins; the last may take 8 MiB alone. The model is "m".
 */
#ifndef TESTS_LIB_SEVERAL_H
#define TESTS_LIB_SEVERAL_H

#include "tests/lib/gpus.h"

#define GPUS 4
#define WAIT_MS 20000

extern struct fake_state *gpus;
extern streamer_client *client;
extern const char *const names[GPUS];

/* The fixture of each test. */
void several_begin(void);
void several_end(void);

char *write_model(const struct model *m, const char *name);

/* On the first n of these; the second waits for the end. */
streamer_op *load_begin(const char *source, const char *const *devices, size_t n, const char *layout);
int load_on(const char *source, const char *const *devices, size_t n, const char *layout);

streamer_lease *attach_on(streamer_client *c, const char *device);
int attach_code(const char *device);
void equals_on(const char *device, const struct model *m);

json_t *shown(void);
uint64_t used_on(const char *device);
void comes_back(const char *device); /* its memory */

#endif
