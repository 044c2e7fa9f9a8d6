/* SPDX-License-Identifier: Apache-2.0
 *
 * How large the host cache may be.
 */
#include "daemon/resident/host_cache.h"

#include "daemon/base/machine.h"
#include "daemon/base/util.h"
#include "tests/lib/suite.h"

static const struct {
        uint64_t wanted, cgroup, memory, budget;
} sizes[] = {
        {8 * GiB, MACHINE_UNLIMITED, 64 * GiB, 8 * GiB},   /* as configured */
        {32 * GiB, MACHINE_UNLIMITED, 64 * GiB, 32 * GiB}, /* half of the machine, and not more */
        {33 * GiB, MACHINE_UNLIMITED, 64 * GiB, 32 * GiB},
        {32 * GiB, 16 * GiB, 64 * GiB, 8 * GiB}, /* a pod's limit counts, not its node's memory */
        {4 * GiB, 16 * GiB, 64 * GiB, 4 * GiB},
        {32 * GiB, 128 * GiB, 64 * GiB, 32 * GiB}, /* a limit above what there is */
        {1, 0, 64 * GiB, 0},
};

START_TEST(half_of_what_the_cgroup_or_the_machine_has_is_the_most)
{
        ck_assert_uint_eq(host_cache_budget(sizes[_i].wanted, sizes[_i].cgroup, sizes[_i].memory), sizes[_i].budget);
}
END_TEST

int main(void)
{
        suite_begin("host cache");
        TCase *t = suite_group("its size", NULL, NULL, 30);
        LOOP(t, half_of_what_the_cgroup_or_the_machine_has_is_the_most, sizes);
        return suite_run();
}
