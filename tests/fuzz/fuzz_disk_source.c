/* SPDX-License-Identifier: Apache-2.0
 *
 * What the disk cache notes of a source, with a valid digest. What is accepted is encoded to the same bytes.
 */
#include "daemon/io/disk/disk_source.h"
#include "tests/fuzz/fuzz.h"

static void check(const unsigned char *bytes, size_t n)
{
        size_t size;
        struct disk_source *source, *other = NULL;
        if (disk_source_decode(&source, bytes, n) < 0)
                return;
        unsigned char *again = disk_source_encode(source, &size);
        holds(again != NULL && size == n && memcmp(again, bytes, n) == 0);
        holds(disk_source_decode(&other, again, size) == 0 && disk_source_equal(source, other));
        for (size_t i = 0; i < source->n; i++)
                holds(source->members[i].folder_len <= strlen(source->members[i].path));
        disk_source_free(other);
        disk_source_free(source);
        free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        unsigned char *bytes = fuzz_copy(data, size, DIGEST_SIZE);
        check(bytes, size);
        if (size >= 8)
                memcpy(bytes, "strmsrc2", 8);
        hash_bytes(bytes, size, bytes + size);
        check(bytes, size + DIGEST_SIZE);
        free(bytes);
        return 0;
}
