/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the samples of a load are taken: the first and the last leaf, one of each interval, and three at least.
 */
#include "tests/lib/core.h"

#include "daemon/load/content/spot_check.h"

static const uint64_t sizes[] = {1, 2, 3, 4095, MiB, 64 * MiB, 64 * MiB + 1, 255 * MiB, GiB, 70 * GiB + 12345};

static struct samples of(uint64_t bytes, uint64_t seed)
{
        struct samples samples;
        samples_init(&samples, bytes, 64 * MiB, seed);
        return samples;
}

TEST(the_first_and_the_last_byte_are_sampled, EACH(sizes))
{
        struct samples samples = of(sizes[_i], 1);
        uint64_t position, last = UINT64_MAX;
        ck_assert(samples_next(&samples, &position));
        ck_assert_uint_eq(position, 0);
        do
                last = position;
        while (samples_next(&samples, &position));
        ck_assert_uint_eq(last, sizes[_i] - 1);
}

TEST(no_interval_is_without_a_sample, EACH(sizes))
{
        struct samples samples = of(sizes[_i], 7);
        uint64_t position, n = 0, end = 0;
        while (samples_next(&samples, &position)) {
                ck_assert(n == 0 || position >= end);
                ck_assert_uint_lt(position, sizes[_i]);
                ck_assert_uint_lt(position - end, 2 * 64 * MiB);
                end = position + 1;
                n++;
        }
        uint64_t intervals = (sizes[_i] + 64 * MiB - 1) / (64 * MiB), least = sizes[_i] < 3 ? sizes[_i] : 3;
        ck_assert_uint_eq(n, intervals > least ? intervals : least);
}

TEST(two_loads_sample_different_bytes)
{
        struct samples a = of(70 * GiB, 1), b = of(70 * GiB, 2);
        uint64_t x, y, same = 0, n = 0;
        while (samples_next(&a, &x) && samples_next(&b, &y)) {
                same += x == y;
                n++;
        }
        ck_assert_uint_gt(n, 1000);
        ck_assert_uint_lt(same, 10);
}

TEST(nothing_is_sampled_of_no_bytes_or_without_an_interval)
{
        struct samples none = of(0, 1), off;
        uint64_t position;
        ck_assert(!samples_next(&none, &position));
        samples_init(&off, GiB, 0, 1);
        ck_assert(!samples_next(&off, &position));
}
