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
#include <inttypes.h>
#include <sys/mman.h>

#define HEADER_MAX 2048

/* One leaf and more than one, one byte over a page, an element that its file misaligns, nothing. */
static const struct {
        const char *dtype, *shape;
        uint64_t bytes;
} tensors[] = {
        {"BF16", "[640,1024]", 640 * 1024 * 2},
        {"F32", "[64,1024]", 64 * 1024 * 4},
        {"U8", "[4097]", 4097},
        {"I64", "[]", 8},
        {"F16", "[0,3]", 0},
};

/* ---- contents ---- */

static uint64_t splitmix64(uint64_t x)
{
        x += UINT64_C(0x9e3779b97f4a7c15);
        x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
        return x ^ (x >> 31);
}

void probe_fill(unsigned char *to, uint64_t bytes, uint64_t seed, uint64_t n)
{
        for (uint64_t k = 0; 8 * k < bytes; k++) {
                uint64_t word = htole64(splitmix64(seed + (n << 32) + k));
                uint64_t left = bytes - 8 * k;
                memcpy(to + 8 * k, &word, left < 8 ? left : 8);
        }
}

/* The padded header; its length. */
static size_t write_header(char *text, uint64_t *data_bytes)
{
        size_t used = 0;
        *data_bytes = 0;
        for (size_t i = 0; i < ARRAY_SIZE(tensors); i++) {
                used += (size_t)snprintf(text + used, HEADER_MAX - used,
                                         "%c\"probe.%zu\":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64
                                         ",%" PRIu64 "]}",
                                         i > 0 ? ',' : '{', i, tensors[i].dtype, tensors[i].shape, *data_bytes,
                                         *data_bytes + tensors[i].bytes);
                *data_bytes += tensors[i].bytes;
        }
        text[used++] = '}';
        require(used <= HEADER_MAX - 8);
        while (used % 8 != 0)
                text[used++] = ' ';
        return used;
}

static int make_file(uint64_t seed, int *out, struct error *error)
{
        char header[HEADER_MAX];
        uint64_t data_bytes, header_len = write_header(header, &data_bytes);
        uint64_t size = sizeof(uint64_t) + header_len + data_bytes;
        cleanup_close int fd = memfd_create("streamerd-probe", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, (off_t)size) < 0)
                return error_errno(error, STREAMER_EFAILED, errno, "probe");
        void *map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED)
                return error_errno(error, STREAMER_ENOMEM, errno, "probe");
        uint64_t prefix = htole64(header_len);
        memcpy(map, &prefix, sizeof(prefix));
        memcpy(map + sizeof(prefix), header, header_len);
        unsigned char *at = map + sizeof(prefix) + header_len;
        for (size_t i = 0; i < ARRAY_SIZE(tensors); at += tensors[i++].bytes)
                probe_fill(at, tensors[i].bytes, seed, i);
        munmap(map, size);
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
