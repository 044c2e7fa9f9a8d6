/* SPDX-License-Identifier: Apache-2.0
 *
 * Sealing a memfd that is mapped once for writing: the seals, and a memfd that cannot be sealed.
 */
#include "daemon/device/host/host_private.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

#define SIZE (1u << 16)

static const struct {
        bool lent;
        int seals;
} kinds[] = {
        {false, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_SEAL | F_SEAL_FUTURE_WRITE},
        {true, F_SEAL_GROW | F_SEAL_SHRINK},
};

static bool is_open(int fd)
{
        return fcntl(fd, F_GETFD) >= 0;
}

TEST(a_segment_is_sealed_and_mapped, EACH(kinds))
{
        void *map = NULL;
        int fd = host_memfd_seal_consume_fd(must(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING)), SIZE,
                                            kinds[_i].lent, &map);
        ck_assert_int_ge(fd, 0);
        ck_assert_int_eq(fcntl(fd, F_GET_SEALS), kinds[_i].seals);
        ((char *)map)[SIZE - 1] = 1;
        ck_assert_int_eq(ftruncate(fd, SIZE + 1), -1);
}

/* Sealing is forbidden unless the memfd was created for it. */
TEST(a_memfd_that_cannot_be_sealed_is_closed, EACH(kinds))
{
        void *map = NULL;
        int fd = must(memfd_create("test", MFD_CLOEXEC));
        ck_assert_int_eq(host_memfd_seal_consume_fd(fd, SIZE, kinds[_i].lent, &map), -1);
        ck_assert_int_eq(errno, EPERM);
        ck_assert_ptr_null(map);
        ck_assert(!is_open(fd));
}

TEST(a_memfd_that_cannot_have_the_size_is_closed)
{
        void *map = NULL;
        int fd = must(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
        ck_assert_int_eq(host_memfd_seal_consume_fd(fd, UINT64_C(1) << 63, false, &map), -1);
        ck_assert_ptr_null(map);
        ck_assert(!is_open(fd));
        ck_assert_int_eq(host_memfd_seal_consume_fd(-1, SIZE, false, &map), -1);
}
