/* SPDX-License-Identifier: Apache-2.0
 *
 * The record of an entry: what was encoded is decoded, and nothing else is.
 */
#include "daemon/io/disk/disk_record.h"
#include "daemon/base/error.h"
#include "daemon/base/util.h"
#include "tests/lib/suite.h"

static unsigned char sums[3][DIGEST_SIZE];
static char shown[] = "s3://b/m.safetensors", etag[] = "\"e\"", modified[] = "";
static struct disk_record record = {
        .size = 1000, .header = 100, .stored_s = 7, .shown = shown, .etag = etag, .modified = modified, .n_sums = 3};

static unsigned char *bytes;
static size_t size;

static void encode(void)
{
        memset(record.id, 1, sizeof(record.id));
        memset(record.place, 2, sizeof(record.place));
        memset(record.header_sum, 3, sizeof(record.header_sum));
        for (unsigned char i = 0; i < 3; i++)
                memset(sums[i], 10 + i, DIGEST_SIZE);
        record.sums = sums;
        bytes = disk_record_encode(&record, &size);
        ck_assert_ptr_nonnull(bytes);
        ck_assert_uint_eq(size, disk_record_size(&record));
}

FIXTURE(.each = {encode, NULL});

TEST(a_record_is_decoded_as_it_was_encoded)
{
        struct disk_record out;
        ck_assert_int_eq(disk_record_decode(&out, bytes, size), 0);
        ck_assert_mem_eq(out.id, record.id, sizeof(out.id));
        ck_assert_mem_eq(out.place, record.place, sizeof(out.place));
        ck_assert_mem_eq(out.header_sum, record.header_sum, sizeof(out.header_sum));
        ck_assert_uint_eq(out.size, 1000);
        ck_assert_uint_eq(out.header, 100);
        ck_assert_uint_eq(out.stored_s, 7);
        ck_assert_str_eq(out.shown, shown);
        ck_assert_str_eq(out.etag, etag);
        ck_assert_str_eq(out.modified, "");
        ck_assert_uint_eq(out.n_sums, 3);
        ck_assert_mem_eq(out.sums, sums, sizeof(sums));
        disk_record_deinit(&out);
        disk_record_deinit(&out);
}

TEST(the_head_is_decoded_without_the_rest)
{
        struct disk_record out;
        size_t head = size - sizeof(sums);
        ck_assert_int_eq(disk_record_decode_head(&out, bytes, head), 0);
        ck_assert_str_eq(out.shown, shown);
        ck_assert_ptr_null(out.sums);
        disk_record_deinit(&out);
        ck_assert_int_eq(disk_record_decode_head(&out, bytes, head - 1), STREAMER_EFAILED);
        disk_record_deinit(&out);
}

TEST(a_record_of_which_any_bit_was_changed_is_refused)
{
        for (size_t i = 0; i < size * 8; i++) {
                struct disk_record out;
                bytes[i / 8] ^= (unsigned char)(1u << i % 8);
                ck_assert_msg(disk_record_decode(&out, bytes, size) == STREAMER_EFAILED, "bit %zu", i);
                disk_record_deinit(&out);
                bytes[i / 8] ^= (unsigned char)(1u << i % 8);
        }
}

TEST(a_record_that_is_shorter_or_longer_is_refused)
{
        unsigned char *more = calloc(1, size + 16);
        memcpy(more, bytes, size);
        for (size_t n = 0; n <= size + 16; n++) {
                struct disk_record out;
                ck_assert_int_eq(disk_record_decode(&out, more, n), n == size ? 0 : STREAMER_EFAILED);
                disk_record_deinit(&out);
        }
}

TEST(a_text_that_is_too_long_is_not_encoded)
{
        size_t n;
        record.shown = memset(calloc(1, DISK_RECORD_TEXT + 1), 'x', DISK_RECORD_TEXT);
        ck_assert_ptr_null(disk_record_encode(&record, &n));
        ck_assert_uint_eq(n, 0);
        record.shown[DISK_RECORD_TEXT - 1] = '\0';
        ck_assert_ptr_nonnull(disk_record_encode(&record, &n));
}
