/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA devices. One `struct cuda` for the process: the runtime, and the staging ring that it pins.
 */
#ifndef DAEMON_DEVICE_CUDA_H
#define DAEMON_DEVICE_CUDA_H

#include "daemon/device/device.h"

struct cuda;

enum cuda_handles { CUDA_HANDLES_IPC, CUDA_HANDLES_VMM_FD };

struct cuda_opts {
        uint64_t budget; /* bytes; 0: by percent of the device's memory */
        unsigned budget_percent;
        enum cuda_handles handles;
        uint64_t max_segment; /* bytes at which a new segment is begun */
};

/* Opens the runtime (`library` or the usual names). STREAMER_EUNSUPPORTED says why CUDA is off. */
int cuda_new(struct cuda **cuda, const char *library, struct error *error);
struct cuda *cuda_free(struct cuda *cuda); /* after its devices */

/* A ring that is not pinned is copied from all the same, through memory of the driver's own. */
enum ring_pinned { RING_NOT_PINNED, RING_PINNED, RING_PIN_REFUSED };

/* The ring, to be pinned when a device first needs it: before any load. *pinned is kept up to date (atomic). */
void cuda_set_ring(struct cuda *cuda, void *base, uint64_t bytes, unsigned *pinned);

/* Devices that a name stands for: "cuda:N", "cuda:GPU-<uuid>" or "cuda:MIG-<uuid>" (one), "cuda:all". Ordinals into
 * *ordinals (n at most); the number of them, or a STREAMER_E*. */
int cuda_find(const struct cuda *cuda, const char *name, int *ordinals, int n, struct error *error);

/* What there is of CUDA here, whether the daemon uses it or not. */
struct cuda_facts {
        bool on;
        char why[400]; /* it is off */
        char library[256];
        int runtime, driver; /* 13000: 13.0 */
        int gpus;            /* visible */
};

/* `cuda` may be NULL: then the runtime is opened for the look and closed again. May take a second. */
void cuda_look(const struct cuda *cuda, const char *library, struct cuda_facts *facts);

/* No context is made until a model needs one: a GPU that holds nothing costs nothing. */
int cuda_device_new(struct device **device, struct cuda *cuda, int ordinal, const struct cuda_opts *opts,
                    struct wake *wake, struct error *error);

#endif
