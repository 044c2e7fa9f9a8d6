/* SPDX-License-Identifier: Apache-2.0
 *
 * The element types of safetensors files, by the table in manifest.h.
 */
#include "proto/manifest.h"

#include "streamer/client.h"

#include <string.h>

static const struct dtype_desc {
        const char *name; /* NULL: not assigned */
        size_t len;
        unsigned bits;
} dtypes[DTYPE_END] = {
#define X(name, number, bits) [number] = {#name, sizeof(#name) - 1, bits},
        DTYPES(X)
#undef X
};

#define X(name, number, bits)                                                                                          \
        _Static_assert((int)STREAMER_DTYPE_##name == (number), "numbers of the library and of manifests are the "      \
                                                               "same");
DTYPES(X)
#undef X

const char *dtype_name(unsigned dtype)
{
        return dtype < DTYPE_END ? dtypes[dtype].name : NULL;
}

unsigned dtype_bits(unsigned dtype)
{
        return dtype < DTYPE_END ? dtypes[dtype].bits : 0;
}

int dtype_find(const char *name, size_t len)
{
        for (int i = 0; i < DTYPE_END; i++)
                if (dtypes[i].name && dtypes[i].len == len && memcmp(dtypes[i].name, name, len) == 0)
                        return i;
        return -1;
}

unsigned dtype_align(unsigned dtype)
{
        unsigned bits = dtype_bits(dtype);
        return bits < 8 ? 1 : bits / 8;
}
