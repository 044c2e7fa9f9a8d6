/* SPDX-License-Identifier: Apache-2.0
 *
 * The record of an entry of the disk cache, with valid digests: two bytes are the number of leaves' digests, then
 * follow the head, the texts and these digests. An accepted record is encoded to the same bytes. Without valid digests
 * nothing is accepted but by chance.
 */
#include "daemon/io/disk/disk_record.h"
#include "tests/fuzz/fuzz.h"

#define HEAD 144u /* the fields before the texts */
#define N 8u      /* where the number of bytes before the digest is */
#define N_SUMS 104u
#define SUMS_SUM 128u

static void put64(unsigned char *to, uint64_t value)
{
        for (unsigned i = 0; i < 8; i++)
                to[i] = (unsigned char)(value >> 8 * i);
}

static void check(const unsigned char *bytes, size_t n)
{
        struct disk_record record;
        if (disk_record_decode(&record, bytes, n) == 0) {
                size_t size;
                unsigned char *again = disk_record_encode(&record, &size);
                holds(record.header <= record.size && disk_record_size(&record) == n);
                holds(again != NULL && size == n && memcmp(again, bytes, n) == 0);
                free(again);
        }
        disk_record_deinit(&record);
        disk_record_decode_head(&record, bytes, n);
        disk_record_deinit(&record);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
        unsigned char *raw = fuzz_copy(data, size, 0);
        check(raw, size);
        free(raw);
        if (size < 2 + HEAD)
                return 0;
        size_t n = size - 2, sums = ((size_t)data[0] | (size_t)data[1] << 8) * DIGEST_SIZE;
        if (sums > n - HEAD)
                sums = (n - HEAD) / DIGEST_SIZE * DIGEST_SIZE;
        size_t head = n - sums;
        unsigned char *bytes = malloc(n + DIGEST_SIZE);
        holds(bytes != NULL);
        memcpy(bytes, data + 2, head);
        memcpy(bytes, "strmdsk1", 8);
        memcpy(bytes + head + DIGEST_SIZE, data + 2 + head, sums);
        put64(bytes + N, head);
        put64(bytes + N_SUMS, sums / DIGEST_SIZE);
        hash_bytes(bytes + head + DIGEST_SIZE, sums, bytes + SUMS_SUM);
        hash_bytes(bytes, head, bytes + head);
        check(bytes, n + DIGEST_SIZE);
        free(bytes);
        return 0;
}
