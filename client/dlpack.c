/* SPDX-License-Identifier: Apache-2.0
 *
 * A segment as a DLPack capsule, for frameworks that build tensors over memory of others. The
 * structs below are the ABI of DLPack 0.8, as far as it is needed here. It has no flag for
 * read-only memory: a host segment that was attached without STREAMER_ATTACH_PRIVATE faults when it
 * is written to, so the framework's tensor must be treated as constant.
 */
#include "client/lease.h"
#include "client/util.h"

struct dl_device {
        int32_t type; /* 1: CPU, 2: CUDA */
        int32_t id;
};

struct dl_data_type {
        uint8_t code; /* 1: unsigned integer */
        uint8_t bits;
        uint16_t lanes;
};

struct dl_tensor {
        void *data;
        struct dl_device device;
        int32_t ndim;
        struct dl_data_type dtype;
        int64_t *shape;
        int64_t *strides; /* NULL: compact, row-major */
        uint64_t byte_offset;
};

struct dl_managed_tensor {
        struct dl_tensor tensor;
        void *manager_ctx;
        void (*deleter)(struct dl_managed_tensor *self);
};

struct capsule {
        struct dl_managed_tensor managed;
        struct streamer_lease *lease;
        int64_t shape;
};

/* Frameworks call this from a garbage collector, so it does not wait for the daemon. */
static void delete_capsule(struct dl_managed_tensor *self)
{
        struct capsule *capsule = self->manager_ctx;
        lease_unref(capsule->lease, false);
        free(capsule);
}

int streamer_segment_dlpack(streamer_lease *lease, size_t segment, void **dlmanaged)
{
        int rc = lease_check(lease);
        if (rc != 0)
                return rc;
        if (segment >= lease->n_segments || !dlmanaged)
                return fail(lease->client, STREAMER_ENOENT, "the lease has no segment %zu", segment);
        struct capsule *capsule = calloc(1, sizeof(*capsule));
        if (!capsule)
                return fail(lease->client, STREAMER_ENOMEM, "no memory for a capsule");

        const struct mapping *m = &lease->segments[segment];
        capsule->lease = lease_ref(lease);
        capsule->shape = (int64_t)m->size;
        capsule->managed = (struct dl_managed_tensor){
                .tensor = {.data = (void *)(uintptr_t)m->data,
                           .device = {.type = m->kind->dl_device_type, .id = lease->device_index},
                           .ndim = 1,
                           .dtype = {.code = 1, .bits = 8, .lanes = 1},
                           .shape = &capsule->shape},
                .manager_ctx = capsule,
                .deleter = delete_capsule,
        };
        *dlmanaged = &capsule->managed;
        return 0;
}
