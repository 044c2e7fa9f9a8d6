/* SPDX-License-Identifier: Apache-2.0
 *
 * The capacity of the service manager's fd store, limited so that the next run can start. restart_test tests its
 * descriptors.
 */
#include "daemon/base/sys/systemd.h"
#include "daemon/base/util.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>
#include <sys/un.h>

static uint64_t end_ns;

static void begin(void)
{
        setenv("NOTIFY_SOCKET", suite_path("nobody"), 1);
        end_ns = UINT64_MAX;
}

static struct fdstore_limit within(uint64_t ns)
{
        return (struct fdstore_limit){now_ns() + ns, &end_ns};
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
        const struct fdstore_limit limit = within(1);
        ck_assert_int_eq(fdstore_add("0123456789abcdef", 0, &limit), -ENAMETOOLONG);
        ck_assert_int_ne(fdstore_add("0123456789abcde", 0, &limit), -ENAMETOOLONG);
}

/* ---- a manager that does not read ---- */

#define SECONDS UINT64_C(1000000000)

/* Its socket, which is now $NOTIFY_SOCKET. */
static int manager_socket(void)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = must(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        snprintf(address.sun_path, sizeof(address.sun_path), "%s", suite_path("manager-%d", (int)getpid()));
        must(bind(fd, (const struct sockaddr *)&address, sizeof(address)));
        setenv("NOTIFY_SOCKET", address.sun_path, 1);
        return fd;
}

static void fill_queue(void)
{
        while (notify_state("STATUS=x"))
                ;
}

TEST(a_message_is_not_waited_for_beyond_its_limit)
{
        manager_socket();
        fill_queue();
        uint64_t before = now_ns();
        const struct fdstore_limit none = within(0), limit = within(SECONDS / 10);
        ck_assert_int_eq(fdstore_remove("a", &none), -ETIMEDOUT);
        ck_assert_int_eq(fdstore_add("a", 0, &limit), -ETIMEDOUT);
        ck_assert_int_eq(fdstore_sync(&limit), -ETIMEDOUT);
        ck_assert_uint_ge(now_ns() - before, SECONDS / 10);
}

TEST(a_barrier_that_is_not_read_is_not_waited_for_beyond_its_limit)
{
        manager_socket();
        const struct fdstore_limit limit = within(SECONDS / 10);
        ck_assert_int_eq(fdstore_sync(&limit), -ETIMEDOUT);
}

static void *lower_limit(void *arg)
{
        store_relaxed(&end_ns, now_ns());
        return NULL;
}

/* As at the end of the daemon. */
TEST(a_wait_ends_when_another_thread_lowers_the_limit)
{
        pthread_t thread;
        manager_socket();
        fill_queue();
        const struct fdstore_limit limit = within(3600 * SECONDS);
        ck_assert_int_eq(pthread_create(&thread, NULL, lower_limit, NULL), 0);
        ck_assert_int_eq(fdstore_remove("a", &limit), -ETIMEDOUT);
        pthread_join(thread, NULL);
}

/* Reads one message, which makes room for the next. */
static void *read_one(void *arg)
{
        char text[100];
        must(recv(*(const int *)arg, text, sizeof(text), 0));
        return NULL;
}

TEST(a_message_is_sent_once_the_manager_reads)
{
        pthread_t thread;
        int fd = manager_socket();
        fill_queue();
        const struct fdstore_limit limit = within(3600 * SECONDS);
        ck_assert_int_eq(pthread_create(&thread, NULL, read_one, &fd), 0);
        ck_assert_int_eq(fdstore_remove("a", &limit), 0);
        pthread_join(thread, NULL);
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
