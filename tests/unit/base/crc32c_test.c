/* SPDX-License-Identifier: Apache-2.0 */
#include "tests/lib/suite.h"

#include "daemon/base/crc32c.h"

/* The last four are of RFC 3720, B.4. */
static const struct {
        unsigned char byte, step;
        size_t n;
        uint32_t crc;
} vectors[] = {{0, 0, 0, 0},           {'a', 0, 1, 0xc1d04330},  {0, 0, 32, 0x8a9136aa}, {0xff, 0, 32, 0x62a8ab43},
               {0, 1, 32, 0x46dd794e}, {31, 255, 32, 0x113fdb5c}};

TEST(the_sum_of_known_bytes, EACH(vectors))
{
        unsigned char bytes[32];
        for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (unsigned char)(vectors[_i].byte + i * vectors[_i].step);
        ck_assert_uint_eq(crc32c(0, bytes, vectors[_i].n), vectors[_i].crc);
}

TEST(pieces_of_any_size_have_the_sum_of_the_whole)
{
        unsigned char bytes[257];
        uint64_t state = 1;
        for (size_t i = 0; i < sizeof(bytes); i++)
                bytes[i] = (unsigned char)draw_below(&state, 256);
        uint32_t whole = crc32c(0, bytes, sizeof(bytes));
        for (size_t cut = 0; cut <= sizeof(bytes); cut++)
                ck_assert_uint_eq(crc32c(crc32c(0, bytes, cut), bytes + cut, sizeof(bytes) - cut), whole);
}
