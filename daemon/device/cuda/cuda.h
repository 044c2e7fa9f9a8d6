/* SPDX-License-Identifier: Apache-2.0
 *
 * CUDA devices. One `struct cuda` for the process: the runtime, and the staging ring that is registered with it.
 */
#pragma once

#include "daemon/device/device.h"

struct cuda;

enum cuda_handles { CUDA_HANDLES_IPC, CUDA_HANDLES_VMM_FD };

struct cuda_opts {
        uint64_t budget; /* bytes; 0: by percent of the device's memory */
        unsigned budget_percent;
        enum cuda_handles handles;
        uint64_t max_segment; /* bytes, unless a tensor is larger */
        bool readback;        /* loads compare samples of what they have copied */
};

/* A load asks for a GPU's free memory before it allocates, and uses one context for both. */
#define CUDA_RETENTION_LEAST UINT64_C(1000000000)

/* Of all GPUs. */
struct cuda_settings {
        uint64_t context_retention_ns; /* a GPU's context without a model is destroyed after that, or the least */
        bool poll_copies;              /* how threads wait for copies: by polling; false: by blocking events */
        bool batch_single_copies;      /* single copies by cudaMemcpyBatchAsync, too, where the runtime has it */
};

/* Opens the runtime (`library` or the usual names). STREAMER_EUNSUPPORTED says why CUDA is off. */
int cuda_new(struct cuda **cuda, const char *library, const struct cuda_settings *settings, struct error *error);
struct cuda *cuda_free(struct cuda *cuda); /* after its devices; accepts NULL, returns NULL */

/* Creates the contexts of all devices, each on its device's thread. Contexts last until cuda_close() then. */
void cuda_create_contexts(struct cuda *cuda);

/* Destroys contexts whose retention is over. Returns when it is to be called again; UINT64_MAX: never. Accepts NULL. */
uint64_t cuda_tick(struct cuda *cuda);

/* At the end, to be repeated until it returns true: destroys the contexts that nothing holds, which unregisters the
 * ring, before the ring is freed. False: some are held, or CUDA has not answered. Accepts NULL. */
bool cuda_close(struct cuda *cuda);

/* The ring, to be pinned when a device first has a context: before any load. *pinned (atomic) is its state, enum
 * ring_pinned; unpinned() is called on a device's thread when it is not pinned any more. Drivers from 580 on refuse one
 * of more than 512 GiB. */
void cuda_set_ring(struct cuda *cuda, void *base, uint64_t bytes, unsigned *pinned, void (*unpinned)(void *context),
                   void *context);
/* reader_opts.if_unpinned, of this `struct cuda`. */
void cuda_if_unpinned(void *cuda, void (*give_back)(void *arg), void *arg);

/* The devices of a name: "cuda:N", "cuda:GPU-<uuid>" or "cuda:MIG-<uuid>" (one), "cuda:all". Writes at most n
 * ordinals; returns their number, or a STREAMER_E*. */
int cuda_find(const struct cuda *cuda, const char *name, int *ordinals, int n, struct error *error);

/* CUDA on this host, whether the daemon uses it or not. */
struct cuda_facts {
        bool on;
        struct error error; /* why CUDA is off */
        char library[256];
        int runtime, driver; /* 13000: 13.0 */
        int gpus;            /* visible */
};

/* If `cuda` is NULL, opens the runtime and closes it again. May take a second. */
void cuda_facts_read(const struct cuda *cuda, const char *library, struct cuda_facts *facts);

/* Creates no context: a GPU that has had no model costs nothing. */
int cuda_device_new(struct device **device, struct cuda *cuda, int ordinal, const struct cuda_opts *opts,
                    struct wake *wake, struct error *error);
