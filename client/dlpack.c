/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensors and segments as DLPack objects, for frameworks that build tensors over memory of others. Each object
 * holds a reference to the lease, so that the memory stays mapped until the framework calls the deleter.
 */
#include "client/dlpack.h"

#include "client/args.h"
#include "client/lease.h"
#include "client/util.h"

struct dl_object {
        union {
                struct dl_managed_tensor plain;
                struct dl_managed_tensor_versioned versioned;
        } managed;
        struct streamer_lease *lease;
        int64_t dims[]; /* the shape, then the strides */
};

static const struct dl_data_type dtypes[] = {
        [STREAMER_DTYPE_BOOL] = {6, 8, 1},         [STREAMER_DTYPE_U8] = {1, 8, 1},
        [STREAMER_DTYPE_I8] = {0, 8, 1},           [STREAMER_DTYPE_U16] = {1, 16, 1},
        [STREAMER_DTYPE_I16] = {0, 16, 1},         [STREAMER_DTYPE_U32] = {1, 32, 1},
        [STREAMER_DTYPE_I32] = {0, 32, 1},         [STREAMER_DTYPE_U64] = {1, 64, 1},
        [STREAMER_DTYPE_I64] = {0, 64, 1},         [STREAMER_DTYPE_F16] = {2, 16, 1},
        [STREAMER_DTYPE_BF16] = {4, 16, 1},        [STREAMER_DTYPE_F32] = {2, 32, 1},
        [STREAMER_DTYPE_F64] = {2, 64, 1},         [STREAMER_DTYPE_C64] = {5, 64, 1},
        [STREAMER_DTYPE_F8_E4M3] = {10, 8, 1},     [STREAMER_DTYPE_F8_E5M2] = {12, 8, 1},
        [STREAMER_DTYPE_F8_E8M0] = {14, 8, 1},     [STREAMER_DTYPE_F8_E4M3FNUZ] = {11, 8, 1},
        [STREAMER_DTYPE_F8_E5M2FNUZ] = {13, 8, 1}, [STREAMER_DTYPE_F6_E2M3] = {15, 6, 1},
        [STREAMER_DTYPE_F6_E3M2] = {16, 6, 1},     [STREAMER_DTYPE_F4] = {17, 4, 2},
};

/* Frameworks call these from a garbage collector: neither waits for the daemon. */
static void delete_plain(struct dl_managed_tensor *self)
{
        struct dl_object *object = self->manager_ctx;
        lease_unref(object->lease);
        free(object);
}

static void delete_versioned(struct dl_managed_tensor_versioned *self)
{
        struct dl_object *object = self->manager_ctx;
        lease_unref(object->lease);
        free(object);
}

/* Row-major, without gaps. */
static void set_strides(int64_t *strides, const int64_t *shape, uint32_t rank)
{
        int64_t stride = 1;
        for (uint32_t i = rank; i-- > 0;) {
                strides[i] = stride;
                if (shape[i] > 0)
                        stride *= shape[i];
        }
}

/* `t` lacks shape and strides, which are set from `shape`. */
static int make(struct streamer_lease *lease, struct dl_tensor t, const uint64_t *shape, unsigned flags, void **managed)
{
        uint32_t rank = (uint32_t)t.ndim;
        struct dl_object *object = calloc(1, sizeof(*object) + 2 * rank * sizeof(object->dims[0]));
        if (!object)
                return fail(lease->client, STREAMER_ENOMEM, "no memory for a DLPack object");
        object->lease = lease_ref(lease);
        t.device.id = lease->device_index;
        t.shape = object->dims;
        t.strides = object->dims + rank;
        for (uint32_t i = 0; i < rank; i++)
                t.shape[i] = (int64_t)(i + 1 < rank ? shape[i] : shape[i] / t.dtype.lanes);
        set_strides(t.strides, t.shape, rank);
        if (flags & STREAMER_DLPACK_UNVERSIONED)
                object->managed.plain =
                        (struct dl_managed_tensor){.tensor = t, .manager_ctx = object, .deleter = delete_plain};
        else
                object->managed.versioned =
                        (struct dl_managed_tensor_versioned){.major = DLPACK_MAJOR,
                                                             .minor = DLPACK_MINOR,
                                                             .manager_ctx = object,
                                                             .deleter = delete_versioned,
                                                             .flags = lease->writable ? 0 : DLPACK_READ_ONLY,
                                                             .tensor = t};
        *managed = &object->managed;
        return 0;
}

static int32_t device_type(const struct streamer_lease *lease)
{
        return strcmp(lease->device_kind, "host") == 0 ? 1 : 2;
}

int streamer_segment_dlpack(streamer_lease *lease, size_t i, unsigned flags, void **managed)
{
        int rc = args_lease(lease, "segment_dlpack")
                         ?: args_pointer(lease->client, "segment_dlpack", "managed", managed)
                         ?: args_flags(lease->client, "segment_dlpack", flags, STREAMER_DLPACK_UNVERSIONED);
        if (rc != 0)
                return rc;
        if (i >= lease->n_segments)
                return fail(lease->client, STREAMER_ENOENT, "the lease has no segment %zu", i);
        struct dl_tensor t = {.data = (void *)(uintptr_t)lease->segments[i].data,
                              .device = {.type = device_type(lease)},
                              .ndim = 1,
                              .dtype = dtypes[STREAMER_DTYPE_U8]};
        return make(lease, t, &lease->segments[i].size, flags, managed);
}

/* What DLPack can describe: its own table of dtypes, and whole elements of several lanes. */
static int check_dtype(const struct streamer_lease *lease, const streamer_tensor *t)
{
        unsigned dtype = t->dtype;
        if (dtype >= sizeof(dtypes) / sizeof(dtypes[0]) || dtypes[dtype].bits == 0)
                return fail(lease->client, STREAMER_EUNSUPPORTED, "tensor_dlpack: DLPack has no dtype number %u",
                            dtype);
        unsigned lanes = dtypes[dtype].lanes;
        if (lanes > 1 && (t->rank == 0 || t->shape[t->rank - 1] % lanes != 0))
                return fail(lease->client, STREAMER_EUNSUPPORTED,
                            "tensor_dlpack: the last dimension of %s must be a multiple of %u", t->dtype_name, lanes);
        return 0;
}

int streamer_tensor_dlpack(streamer_lease *lease, const streamer_tensor *tensor, unsigned flags, void **managed)
{
        streamer_tensor t;
        int rc = args_lease(lease, "tensor_dlpack")
                         ?: tensor_copy(lease, "tensor_dlpack", &t, tensor)
                         ?: args_pointer(lease->client, "tensor_dlpack", "managed", managed)
                         ?: args_flags(lease->client, "tensor_dlpack", flags, STREAMER_DLPACK_UNVERSIONED);
        if (rc == 0 && t.rank > 0)
                rc = args_pointer(lease->client, "tensor_dlpack", "tensor->shape", t.shape);
        if (rc == 0)
                rc = check_dtype(lease, &t);
        if (rc != 0)
                return rc;
        struct dl_tensor dl = {.data = t.bytes > 0 ? (char *)(uintptr_t)lease->segments[t.segment].data + t.offset
                                                   : NULL,
                               .device = {.type = device_type(lease)},
                               .ndim = (int32_t)t.rank,
                               .dtype = dtypes[t.dtype]};
        return make(lease, dl, t.shape, flags, managed);
}
