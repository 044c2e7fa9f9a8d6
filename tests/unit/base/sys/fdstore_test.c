/* SPDX-License-Identifier: Apache-2.0
 *
 * The capacity of the service manager's fd store, limited so that the next run can start. restart_test tests its
 * descriptors.
 */
#include "daemon/base/sys/systemd.h"
#include "tests/lib/suite.h"

static void begin(void)
{
        setenv("NOTIFY_SOCKET", suite_path("nobody"), 1);
}

FIXTURE(.each = {begin, NULL});

TEST(the_size_of_the_fd_store_is_what_the_manager_reports)
{
        setenv("FDSTORE", "512", 1);
        ck_assert_uint_eq(fdstore_max(), 512);
        unsetenv("NOTIFY_SOCKET");
        ck_assert_uint_eq(fdstore_max(), 0);
}

TEST(the_fd_store_is_bounded_by_its_names)
{
        setenv("FDSTORE", "1000000", 1);
        ck_assert_uint_eq(fdstore_max(), FDSTORE_NAMES);
}

TEST(a_name_that_is_too_long_is_refused)
{
        ck_assert_int_eq(fdstore_add("0123456789abcdef", 0), -ENAMETOOLONG);
        ck_assert_int_ne(fdstore_add("0123456789abcde", 0), -ENAMETOOLONG);
}

/* A program that begins with so many names as a manager hands them over; 0 or why it cannot be started. */
static int start_with(size_t names)
{
        static const char sockets[] = "LISTEN_FDNAMES=streamerd.socket";
        char *list = must_alloc(sizeof(sockets) + names * FDSTORE_NAME_MAX);
        char *end = stpcpy(list, sockets);
        for (size_t i = 0; i < names; i++)
                end += sprintf(end, ":%0*zu", FDSTORE_NAME_MAX - 1, i);
        pid_t pid = must(fork());
        if (pid == 0) {
                execve("/bin/true", (char *[]){"true", NULL}, (char *[]){list, NULL});
                _exit(errno);
        }
        return child_wait(pid);
}

TEST(a_full_fd_store_passes_to_the_next_run)
{
        ck_assert_int_eq(start_with(FDSTORE_NAMES), 0);
        ck_assert_int_eq(start_with(2 * FDSTORE_NAMES), E2BIG);
}
