/* SPDX-License-Identifier: Apache-2.0
 *
 * A test model of the daemon's own: a safetensors file in memory, loaded like any other. It has tensors of several
 * dtypes and odd sizes, including an empty one.
 *
 * Its bytes follow from a seed, so a reader needs no copy to compare them: in tensor "probe.N" the 64-bit little-endian
 * word k is splitmix64(seed + (N << 32) + k). docs/protocol.md has the function.
 */
#include "daemon/base/util.h"
#include "daemon/io/file/file_object.h"
#include "daemon/source/source.h"

#include <endian.h>
#include <errno.h>
#include <sys/mman.h>

static const char header[] = "{\"probe.0\":{\"dtype\":\"BF16\",\"shape\":[640,1024],\"data_offsets\":[0,1310720]},"
                             "\"probe.1\":{\"dtype\":\"F32\",\"shape\":[64,1024],\"data_offsets\":[1310720,1572864]},"
                             "\"probe.2\":{\"dtype\":\"U8\",\"shape\":[4097],\"data_offsets\":[1572864,1576961]},"
                             "\"probe.3\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[1576961,1576969]},"
                             "\"probe.4\":{\"dtype\":\"F16\",\"shape\":[0,3],\"data_offsets\":[1576969,1576969]}}";

/* One leaf and more than one, one byte over a page, an element that its file misaligns, nothing. */
static const uint64_t tensors[] = {640 * 1024 * 2, 64 * 1024 * 4, 4097, 8, 0};

/* ---- contents ---- */

static uint64_t splitmix64(uint64_t x)
{
        x += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return x ^ (x >> 31);
}

/* `bytes` of tensor `n`. */
static void fill_tensor(unsigned char *to, uint64_t bytes, uint64_t seed, uint64_t n)
{
        for (uint64_t k = 0; 8 * k < bytes; k++) {
                uint64_t word = htole64(splitmix64(seed + (n << 32) + k));
                uint64_t left = bytes - 8 * k;
                memcpy(to + 8 * k, &word, left < 8 ? left : 8);
        }
}

static int make_file(uint64_t seed, int *out, struct error *error)
{
        uint64_t header_len = round_up(strlen(header), 8), size = sizeof(uint64_t) + header_len;
        for (size_t i = 0; i < ARRAY_SIZE(tensors); i++)
                size += tensors[i];
        cleanup_free unsigned char *bytes = malloc(size);
        if (bytes == NULL)
                return error_no_memory(error);
        uint64_t prefix = htole64(header_len);
        memcpy(bytes, &prefix, sizeof(prefix));
        memset(bytes + sizeof(prefix), ' ', header_len);
        memcpy(bytes + sizeof(prefix), header, strlen(header));
        unsigned char *at = bytes + sizeof(prefix) + header_len;
        for (size_t i = 0; i < ARRAY_SIZE(tensors); at += tensors[i++])
                fill_tensor(at, tensors[i], seed, i);
        cleanup_close int fd = memfd_create("streamerd-probe", MFD_CLOEXEC);
        if (fd < 0 || text_write_fd(fd, bytes, size) < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "probe");
        *out = take_fd(&fd);
        return 0;
}

/* ---- the source "probe:SEED" ---- */

static int probe_canonical(const char *source, char **out, struct error *error)
{
        return error_set(error, STREAMER_EINVAL, "%s: only the daemon makes models of this kind", source);
}

static int probe_open(const struct sources *sources, const char *canonical, bool want_sha256, struct source_set *set,
                      struct error *error)
{
        int fd = -1;
        return source_set_reserve(set, 1, error)
                       ?: make_file(strtoull(canonical + strlen(PROBE_SCHEME), NULL, 10), &fd, error)
                       ?: object_init_consume_fd(&set->objects[0], fd, PROBE_SCHEME, error);
}

static char *probe_default_name(const char *canonical, unsigned n)
{
        return strdup(canonical);
}

const struct source_ops source_probe = {
        .schemes = (const char *const[]){PROBE_SCHEME, NULL},
        .canonical = probe_canonical,
        .default_name = probe_default_name,
        .fixed_lane = WORK_LANE_PROBE,
        .open = probe_open,
};
