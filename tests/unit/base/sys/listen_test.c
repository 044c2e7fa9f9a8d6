/* SPDX-License-Identifier: Apache-2.0
 *
 * A listening socket that another process made: only one with a path is adopted.
 */
#include "daemon/base/sys/listen.h"
#include "tests/lib/suite.h"

static struct listener listener;
static struct error error;

static int bound_socket(const struct sockaddr_un *address, size_t path)
{
        int fd = must(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
        must(bind(fd, (const struct sockaddr *)address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + path)));
        must(listen(fd, 1));
        return fd;
}

TEST(an_adopted_socket_has_its_path)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        strcpy(address.sun_path, suite_path("s-%d", (int)getpid()));
        int fd = bound_socket(&address, strlen(address.sun_path));
        ck_assert_msg(listener_adopt_consume_fd(&listener, fd, &error) == 0, "%s", error.text);
        ck_assert_int_eq(listener.fd, fd);
        ck_assert_str_eq(listener.path, address.sun_path);
        listener_deinit(&listener);
        ck_assert_int_eq(access(address.sun_path, F_OK), 0);
}

static void assert_refused(int fd)
{
        FAILS_SAYING(error, listener_adopt_consume_fd(&listener, fd, &error), STREAMER_EINVAL,
                     "the one that was passed has no path");
}

/* One with an abstract name, and one without any. */
TEST(a_socket_without_a_path_is_not_adopted)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int length = snprintf(address.sun_path + 1, sizeof(address.sun_path) - 1, "streamerd-test-%d", (int)getpid());
        int pair[2];
        assert_refused(bound_socket(&address, 1 + (size_t)length));
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair));
        assert_refused(pair[0]);
}
