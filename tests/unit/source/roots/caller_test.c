/* SPDX-License-Identifier: Apache-2.0
 *
 * A thread that opens files as a caller has the caller's ids and groups meanwhile, and its own afterwards. Needs root.
 */
#include "daemon/source/roots/caller.h"

#include "tests/lib/run_as.h"

#include <grp.h>
#include <sys/fsuid.h>

static const gid_t own[] = {60301, 60302, 60303};
static const struct caller caller = {.uid = 60304, .gid = 60305, .groups = {60306, 60307}, .n_groups = 2};

static void assert_groups(const gid_t *groups, size_t n)
{
        gid_t have[16];
        int got = must(getgroups(16, have));
        ck_assert_uint_eq((size_t)got, n);
        ck_assert_int_eq(memcmp(have, groups, n * sizeof(*groups)), 0);
}

static uid_t fsuid(void)
{
        return (uid_t)setfsuid((uid_t)-1);
}

/* Loop: the number of the thread's own groups. */
TEST(the_ids_and_groups_of_the_thread_are_restored, .to = 4)
{
        struct assumed assumed;
        struct error error = {0};
        ROOT_ONLY();
        must(setgroups((size_t)_i, own));
        for (int i = 0; i < 2; i++) {
                ck_assert_int_eq(caller_assume(&caller, &assumed, &error), 0);
                assert_groups(caller.groups, caller.n_groups);
                ck_assert_uint_eq(fsuid(), caller.uid);
                caller_drop(&assumed);
                assert_groups(own, (size_t)_i);
                ck_assert_uint_eq(fsuid(), 0);
                ck_assert_uint_eq(geteuid(), 0);
        }
}

TEST(nothing_changes_for_root)
{
        const struct caller root = {.uid = 0, .groups = {60306}, .n_groups = 1};
        struct assumed assumed;
        struct error error = {0};
        ROOT_ONLY();
        must(setgroups(3, own));
        ck_assert_int_eq(caller_assume(&root, &assumed, &error), 0);
        assert_groups(own, 3);
        caller_drop(&assumed);
        assert_groups(own, 3);
}
