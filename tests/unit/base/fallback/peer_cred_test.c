/* SPDX-License-Identifier: Apache-2.0
 *
 * The user of a connection if the kernel does not know it: the credentials of its first bytes.
 */
#include "daemon/base/fallback/peer_cred.h"
#include "streamer/client.h"
#include "tests/lib/base.h"
#include "tests/lib/fake_daemon.h"
#include "tests/lib/suite.h"

#include <fcntl.h>

#define SOMEBODY 4321
#define GROUP 1234

static int ours, theirs;

static struct ucred cred;

static void begin(void)
{
        int ends[2];
        must(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends));
        ours = ends[0];
        theirs = ends[1];
}

/* Sends its bytes as another process, with the descriptors (n of them). */
static pid_t send_as(uid_t uid, gid_t gid, const char *text, const int *fds, size_t n)
{
        pid_t pid = must(fork());
        if (pid == 0) {
                char control[CMSG_SPACE(sizeof(int) * 8)] = {0};
                struct iovec all = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
                struct msghdr message = {.msg_iov = &all, .msg_iovlen = 1};
                if (n > 0) {
                        message.msg_control = control;
                        message.msg_controllen = CMSG_SPACE(sizeof(int) * n);
                        struct cmsghdr *rights = CMSG_FIRSTHDR(&message);
                        *rights = (struct cmsghdr){CMSG_LEN(sizeof(int) * n), SOL_SOCKET, SCM_RIGHTS};
                        memcpy(CMSG_DATA(rights), fds, sizeof(int) * n);
                }
                if (uid != geteuid())
                        must(setresgid(gid, gid, gid) + setresuid(uid, uid, uid));
                must((int)sendmsg(theirs, &message, 0));
                _exit(0);
        }
        return pid;
}

FIXTURE(.each = {begin, NULL});

TEST(linux_reports_the_credentials_of_a_connection)
{
        ck_assert(peer_cred_get(ours, &cred)); /* this process's own, in truth */
        ck_assert_int_eq(cred.pid, getpid());
        ck_assert_uint_eq(cred.uid, geteuid());
}

TEST(the_first_bytes_carry_the_credentials_of_their_sender)
{
        bool root = geteuid() == 0;
        char text[8];
        peer_cred_enable(ours);
        pid_t pid = send_as(root ? SOMEBODY : geteuid(), root ? GROUP : getegid(), "hello", NULL, 0);
        ck_assert_int_eq(peer_cred_receive(ours, text, sizeof(text), &cred), 5);
        ck_assert_int_eq(cred.pid, pid); /* it has not been reaped */
        ck_assert_uint_eq(cred.uid, root ? SOMEBODY : geteuid());
        ck_assert_uint_eq(cred.gid, root ? GROUP : getegid());
}

TEST(bytes_before_the_first_request_are_dropped)
{
        char text[8];
        must(waitpid(send_as(geteuid(), getegid(), "hello", NULL, 0), NULL, 0));
        peer_cred_enable(ours);
        ck_assert_int_eq(peer_cred_receive(ours, text, sizeof(text), &cred), 5);
        ck_assert_int_eq(cred.pid, 0);
        ck_assert_uint_eq(cred.uid, (uid_t)-1);
        ck_assert_uint_eq(cred.gid, (gid_t)-1);
}

TEST(no_descriptor_is_accepted)
{
        char text[8];
        unsigned before = count_open_fds();
        peer_cred_enable(ours);
        send_as(geteuid(), getegid(), "hello", (const int[]){0, 1, 2}, 3);
        ck_assert_int_eq(peer_cred_receive(ours, text, sizeof(text), &cred), 5);
        ck_assert_int_gt(cred.pid, 0);
        ck_assert_uint_eq(count_open_fds(), before);
}

TEST(end_of_stream_and_errors_are_those_of_recv)
{
        char text[8];
        peer_cred_enable(ours);
        must(fcntl(ours, F_SETFL, O_NONBLOCK));
        ck_assert_int_lt(peer_cred_receive(ours, text, sizeof(text), &cred), 0);
        ck_assert_int_eq(errno, EAGAIN);
        close(theirs);
        ck_assert_int_eq(peer_cred_receive(ours, text, sizeof(text), &cred), 0);
}

/* ---- the library ---- */

static void accept_and_check(struct fake_daemon *f)
{
        char first;
        fake_say(f, "accept\n");
        must((int)recv(f->fd, &first, 1, MSG_PEEK)); /* it has been sent before the first read */
        peer_cred_enable(f->fd);
        ck_assert_int_eq(peer_cred_receive(f->fd, &first, 1, &cred), 1);
        ck_assert_int_eq(cred.pid, getpid());
        ck_assert_uint_eq(cred.uid, geteuid());
        ck_assert_uint_eq(cred.gid, getegid());
        fake_say(f, "close\n");
}

TEST(the_library_names_itself_with_its_first_bytes)
{
        struct fake_daemon f = {0};
        streamer_client *client;
        fake_start_script(&f, accept_and_check);
        streamer_connect_opts opts = {.struct_size = sizeof(opts), .socket = f.socket};
        ck_assert_int_lt(streamer_connect(&opts, &client), 0);
        fake_finish(&f);
}
