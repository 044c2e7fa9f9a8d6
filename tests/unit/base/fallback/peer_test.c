/* SPDX-License-Identifier: Apache-2.0
 *
 * The process of a connection if the kernel does not report it directly; what counts as an exit where there is no
 * pidfd; its user if the kernel does not know it: the credentials of its first bytes.
 */
#include "daemon/base/fallback/peer.h"
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"
#include "streamer/client.h"
#include "tests/lib/deny_syscalls.h"
#include "tests/lib/fake_daemon.h"
#include "tests/lib/suite.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

#define STRANGER 4711
#define PIDFS 0x50494446 /* pidfds of processes differ from Linux 6.9 on */

/* A tree in which process 4711 has this line; its root. */
static char *tree_with(const char *line)
{
        char *root = suite_path("tree-%d", (int)getpid());
        mkdir(root, 0755);
        file_put(root, format_text("proc/%d/stat", STRANGER), line);
        return root;
}

static char *stat_line(const char *name, uint64_t ticks)
{
        return format_text("%d (%s) S 1 4711 4711 0 -1 4194560 1 0 0 0 7 8 9 10 20 0 1 0 %" PRIu64 " 111 222\n",
                           STRANGER, name, ticks);
}

static bool began_by(const char *root, pid_t pid, uint64_t time)
{
        struct pid_stat stat;
        sysfile_root = root;
        bool began = pid_stat_read(&stat, pid) && pid_stat_began_by(&stat, time);
        sysfile_root = "";
        return began;
}

static uint64_t began; /* set by the last pidfd_of_client() */

static int of_client(int socket, pid_t pid, uint64_t since)
{
        return pidfd_of_client(socket, pid, since, &began);
}

/* The kernel names no process for a descriptor that is no socket, as an old kernel does for every socket. */
static int no_socket(void)
{
        int ends[2];
        must(pipe(ends));
        return ends[0];
}

/* Ends it without reaping it. */
static void make_zombie(pid_t pid)
{
        must(kill(pid, SIGKILL));
        must(waitid(P_PID, (id_t)pid, &(siginfo_t){0}, WEXITED | WNOWAIT));
}

static bool has_ended(int pidfd)
{
        struct pollfd p = {.fd = pidfd, .events = POLLIN};
        return poll(&p, 1, 0) == 1;
}

TEST(start_times_are_compared_in_clock_ticks)
{
        const char *root = tree_with(stat_line("streamer", 5 * (uint64_t)sysconf(_SC_CLK_TCK)));
        ck_assert(began_by(root, STRANGER, 6 * SECOND));
        ck_assert(began_by(root, STRANGER, 5 * SECOND)); /* connected in the tick that it began in */
        ck_assert(!began_by(root, STRANGER, 5 * SECOND - 1));
}

TEST(an_unknown_start_time_is_too_late)
{
        static const char *const bad[] = {"", "4711", "4711 (x)", "4711 (x) S 1 2 3\n", "4711 x S 1\n"};
        for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
                ck_assert_msg(!began_by(tree_with(bad[i]), STRANGER, UINT64_MAX), "'%s'", bad[i]);
        ck_assert(!began_by(suite_folder(), STRANGER, UINT64_MAX));
}

static const struct {
        const char *what;
        struct pid_stat stat;
        bool over; /* of the process that began at 7 */
} states[] = {
        {"runs", {'R', 1, 7}, false},
        {"sleeps", {'S', 9, 7}, false},
        {"is stopped", {'T', 1, 7}, false},
        {"is stuck", {'D', 1, 7}, false},
        {"another of its number", {'S', 1, 8}, true},
        {"another, from before", {'S', 1, 6}, true},
        {"not waited for", {'Z', 1, 7}, true},
        {"without a count of threads", {'Z', 0, 7}, true},
        {"its first thread is done, another runs", {'Z', 2, 7}, false},
        {"another's first thread is done", {'Z', 2, 8}, true},
        {"dead", {'X', 1, 7}, true},
        {"dead, as older kernels have it", {'x', 1, 7}, true},
};

TEST(a_process_exit_is_detected_by_state_and_start_time, EACH(states))
{
        ck_assert_msg(pid_stat_exited(&states[_i].stat, 7) == states[_i].over, "%s", states[_i].what);
}

TEST(a_line_is_read_after_the_name)
{
        struct pid_stat stat;
        sysfile_root = tree_with(stat_line(") Z 0 0 (", 1234));
        ck_assert(pid_stat_read(&stat, STRANGER));
        sysfile_root = "";
        ck_assert_int_eq(stat.state, 'S');
        ck_assert_uint_eq(stat.threads, 1);
        ck_assert_uint_eq(stat.start, 1234);
}

static sem_t looked;

static void *thread_main(void *tid)
{
        *(pid_t *)tid = (pid_t)syscall(SYS_gettid);
        sem_post(&looked);
        pause();
        return NULL;
}

TEST(a_thread_is_of_its_process)
{
        pthread_t thread;
        pid_t tid, gone = child_start(NULL);
        sem_init(&looked, 0, 0);
        pthread_create(&thread, NULL, thread_main, &tid);
        sem_wait(&looked);
        ck_assert_int_ne(tid, getpid());
        ck_assert_int_eq(pid_of_thread(tid), getpid());
        ck_assert_int_eq(pid_of_thread(getpid()), getpid());
        child_kill(gone);
        ck_assert_int_eq(pid_of_thread(gone), 0);
}

TEST(a_socket_names_its_process)
{
        int ends[2];
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        int fd = of_client(ends[0], getpid(), read_clock_ns(CLOCK_BOOTTIME));
        ck_assert_int_ge(fd, 0);
        ck_assert(!has_ended(fd));
}

TEST(without_a_pidfd_the_process_is_found_by_its_pid)
{
        pid_t pid = child_start(NULL);
        int fd = of_client(no_socket(), pid, read_clock_ns(CLOCK_BOOTTIME));
        ck_assert_int_ge(fd, 0);
        ck_assert(!has_ended(fd));
        child_kill(pid);
        ck_assert(has_ended(fd));
}

TEST(a_process_that_began_after_the_connection_is_another)
{
        uint64_t long_ago = read_clock_ns(CLOCK_BOOTTIME) - SECOND;
        pid_t pid = child_start(NULL);
        ck_assert_int_lt(of_client(no_socket(), pid, long_ago), 0);
        ck_assert_int_eq(errno, ESRCH);
        child_kill(pid);
}

TEST(an_unused_pid_is_no_process)
{
        pid_t pid = child_start(NULL);
        child_kill(pid);
        ck_assert_int_lt(of_client(no_socket(), pid, read_clock_ns(CLOCK_BOOTTIME)), 0);
        ck_assert_int_lt(of_client(no_socket(), 0, read_clock_ns(CLOCK_BOOTTIME)), 0); /* of another PID namespace */
        ck_assert_int_eq(errno, ESRCH);
}

TEST(descriptors_of_processes_are_distinguished)
{
        pid_t first = child_start(NULL), second = child_start(NULL);
        int a = must((int)syscall(SYS_pidfd_open, first, 0)), b = must((int)syscall(SYS_pidfd_open, first, 0));
        int other = must((int)syscall(SYS_pidfd_open, second, 0)), no_process = no_socket();
        struct statfs fs;
        must(fstatfs(a, &fs));
        child_kill(first); /* an exited process is still itself */
        ck_assert_uint_eq(pidfd_inode(a), pidfd_inode(b));
        ck_assert_uint_eq(pidfd_inode(no_process), 0);
        if (fs.f_type == PIDFS)
                ck_assert_uint_ne(pidfd_inode(a), pidfd_inode(other));
        else
                ck_assert_uint_eq(pidfd_inode(a), 0);
        child_kill(second);
}

/* ---- without pidfds ---- */

static const int refusals[] = {ENOSYS, EPERM};

TEST(without_pidfds_the_start_time_is_reported, EACH(refusals))
{
        int ends[2];
        deny_pidfds(refusals[_i]);
        must(socketpair(AF_UNIX, SOCK_STREAM, 0, ends));
        pid_t pid = child_start(NULL);
        ck_assert_int_lt(of_client(ends[0], pid, read_clock_ns(CLOCK_BOOTTIME)), 0);
        ck_assert_uint_gt(began, 0);
        ck_assert(!pid_exited(pid, began));
        child_kill(pid);
        ck_assert(pid_exited(pid, began));
}

TEST(a_process_without_a_pidfd_must_be_known)
{
        deny_pidfds(ENOSYS);
        uint64_t long_ago = read_clock_ns(CLOCK_BOOTTIME) - SECOND;
        pid_t pid = child_start(NULL);
        ck_assert_int_lt(of_client(no_socket(), pid, long_ago), 0);
        ck_assert_int_eq(errno, ESRCH);
        make_zombie(pid);
        ck_assert_int_lt(of_client(no_socket(), pid, read_clock_ns(CLOCK_BOOTTIME)), 0); /* it has not been reaped */
        ck_assert_int_eq(errno, ESRCH);
        ck_assert_uint_eq(began, 0);
        must(waitpid(pid, NULL, 0));
        ck_assert_int_lt(of_client(no_socket(), pid, read_clock_ns(CLOCK_BOOTTIME)), 0);
        ck_assert_int_eq(errno, ENOSYS);
        ck_assert_int_lt(of_client(no_socket(), 0, read_clock_ns(CLOCK_BOOTTIME)), 0); /* of another PID namespace */
        ck_assert_int_eq(errno, ESRCH);
        ck_assert_uint_eq(began, 0);
}

/* ---- exits ---- */

static uint64_t start_of(pid_t pid)
{
        struct pid_stat stat;
        ck_assert(pid_stat_read(&stat, pid));
        return stat.start;
}

TEST(a_zombie_process_has_exited_and_another_of_its_number)
{
        pid_t pid = child_start(NULL);
        uint64_t start = start_of(pid);
        ck_assert(!pid_exited(pid, start));
        ck_assert(pid_exited(pid, start - 1));
        make_zombie(pid);
        ck_assert(pid_exited(pid, start));
        must(waitpid(pid, NULL, 0));
        ck_assert(pid_exited(pid, start));
}

static void *wait_for_the_end(void *arg)
{
        pause();
        return arg;
}

TEST(a_process_lives_while_any_of_its_threads_does)
{
        struct pid_stat stat;
        pid_t pid = must(fork());
        if (pid == 0) {
                pthread_t thread;
                pthread_create(&thread, NULL, wait_for_the_end, NULL);
                pthread_exit(NULL);
        }
        uint64_t start = start_of(pid);
        AWAIT(pid_stat_read(&stat, pid) && stat.state == 'Z');
        ck_assert(!pid_exited(pid, start));
        make_zombie(pid);
        ck_assert(pid_exited(pid, start));
}

/* No descriptor is available for /proc, as if /proc hid the process. */
TEST(an_unreadable_process_has_not_exited)
{
        pid_t pid = child_start(NULL), gone = child_start(NULL);
        uint64_t start = start_of(pid), gone_start = start_of(gone);
        struct rlimit limit;
        child_kill(gone);
        make_zombie(pid);
        must(getrlimit(RLIMIT_NOFILE, &limit));
        must(setrlimit(RLIMIT_NOFILE, &(struct rlimit){1, limit.rlim_max}));
        ck_assert(pid_exited(gone, gone_start)); /* the pid is unused */
        ck_assert(!pid_exited(pid, start));
        must(setrlimit(RLIMIT_NOFILE, &limit));
        ck_assert(pid_exited(pid, start));
}

/* ---- credentials ---- */

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
