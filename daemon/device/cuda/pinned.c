/* SPDX-License-Identifier: Apache-2.0
 *
 * Host memory that GPUs copy from and to: registered with CUDA, in pieces, since drivers from 580 on refuse to
 * register more than 512 GiB in one call.
 */
#include "daemon/device/cuda/device_private.h"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>

#define PIECE_MAX (256 * GiB)

/* No copy crosses two pieces: a piece ends at a multiple of `unit`. */
static uint64_t piece_size(uint64_t unit)
{
        require(unit > 0 && unit <= PIECE_MAX);
        return round_down(PIECE_MAX, unit);
}

enum cuda_error cuda_host_register(const struct cuda_api *api, void *base, uint64_t size, uint64_t unit)
{
        const uint64_t piece = piece_size(unit);
        for (uint64_t at = 0; at < size; at += piece) {
                uint64_t n = size - at < piece ? size - at : piece;
                enum cuda_error e = api->cudaHostRegister((unsigned char *)base + at, n, CUDA_HOST_REGISTER_PORTABLE);
                if (e == CUDA_OK)
                        continue;
                while (at > 0) {
                        at -= piece;
                        api->cudaHostUnregister((unsigned char *)base + at);
                }
                return e;
        }
        return CUDA_OK;
}

void cuda_host_unregister(struct cuda_device *d, void *base, uint64_t size, uint64_t unit)
{
        const uint64_t piece = piece_size(unit);
        for (uint64_t at = 0; at < size; at += piece)
                CUDA_RELEASE(d, cudaHostUnregister, (unsigned char *)base + at);
}

int cuda_host_alloc(struct device *device, uint64_t size, void **base, struct error *error)
{
        struct cuda_device *d = cuda_of(device);
        int r = cuda_context_hold(d, error);
        if (r < 0)
                return r;
        void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (map == MAP_FAILED) {
                r = error_errno(error, STREAMER_ENOMEM, errno, "%" PRIu64 " bytes of host memory", size);
        } else {
                madvise(map, size, MADV_HUGEPAGE);
                enum cuda_error e = cuda_host_register(d->cuda->api, map, size, CUDA_GRANULARITY);
                if (e == CUDA_OK) {
                        *base = map;
                        return 0;
                }
                r = cuda_failed(d, "cudaHostRegister", e, error);
                munmap(map, size);
        }
        cuda_context_release(d);
        return r;
}

void cuda_host_free(struct device *device, void *base, uint64_t size)
{
        struct cuda_device *d = cuda_of(device);
        d->cuda->api->cudaSetDevice(d->ordinal);
        cuda_host_unregister(d, base, size, CUDA_GRANULARITY);
        munmap(base, size);
        cuda_context_release(d);
}
