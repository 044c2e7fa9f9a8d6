/* SPDX-License-Identifier: Apache-2.0
 *
 * A service manager that does not read its socket, or reads it slowly, delays the daemon, and holds up nothing for
 * ever.
 */
#include "daemon/base/util.h"

#include "tests/lib/managed_daemon.h"
#include "tests/lib/suite.h"

#include <sys/socket.h>
#include <sys/un.h>

#define NAMES 12u

static char *path_of(unsigned i)
{
        return suite_path("root/%u.safetensors", i);
}

/* Until it reads again, which is when the mutex is unlocked, no message fits its queue. */
static void hang(void)
{
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        int fd = must(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
        pthread_mutex_lock(&managed.m.mutex);
        size_t size = offsetof(struct sockaddr_un, sun_path) + strlen(managed.m.notify);
        memcpy(address.sun_path, managed.m.notify, strlen(managed.m.notify));
        if (address.sun_path[0] == '@')
                address.sun_path[0] = '\0';
        while (sendto(fd, "STATUS=x", 8, 0, (const struct sockaddr *)&address, (socklen_t)size) >= 0)
                ;
        ck_assert_int_eq(errno, EAGAIN);
        close(fd);
}

static void attach_in_child(void)
{
        client_attach(client_open(&managed.m.d), "m");
}

FIXTURE(.each = {managed_begin, managed_end});

TEST(unloads_are_answered_and_the_daemon_ends_while_the_manager_hangs)
{
        managed_load("m");
        for (unsigned i = 0; i < NAMES; i++)
                model_write(model_mixed(100 + i, 4096), path_of(i));
        hang();
        for (unsigned i = 0; i < NAMES; i++)
                client_load(client, path_of(i), format_text("n%u", i));
        for (unsigned i = 0; i < 4; i++) {
                pid_t pid = child_start(attach_in_child);
                client_wait_leases(client, 1);
                child_kill(pid);
                client_wait_leases(client, 0);
        }
        for (unsigned i = 0; i < NAMES; i++)
                client_unload(client, format_text("n%u", i));
        client_unload(client, "m");
        client_wait_used(client, 0);
        ck_assert(log_wait_for(managed.m.d.log, "the service manager does not answer"));
        ck_assert_int_eq(daemon_stop(&managed.m.d), 0);
        pthread_mutex_unlock(&managed.m.mutex);
        const char *log = file_read(managed.m.d.log, NULL);
        ck_assert_msg(strstr(log, "ending without") == NULL, "%s", log);
}

/* The messages that were not sent are not repeated: later models are stored. */
TEST(a_manager_that_reads_again_is_used_again)
{
        managed_load("m");
        hang();
        model_write(model_mixed(100, 4096), path_of(0));
        client_load(client, path_of(0), "n");
        ck_assert(log_wait_for(managed.m.d.log, "n: will not survive a restart"));
        pthread_mutex_unlock(&managed.m.mutex);
        model_write(model_mixed(101, 4096), path_of(1));
        client_load(client, path_of(1), "o");
        manager_wait(&managed.m, MANAGED_MODELS "3.", 2);
        managed_restart_and_reconnect(1);
        client_equals(client, "o", model_mixed(101, 4096));
}

/* ---- a manager that reads slowly ---- */

#define BEHIND 16u /* models: of two messages and a barrier to store each, and as many to remove it */
#define AT_MOST_NS (UINT64_C(30) * 1000000000)

static bool at_pace; /* atomic */

/* Reads a message a second. */
static void *read_slowly(void *arg)
{
        char byte;
        while (__atomic_load_n(&at_pace, __ATOMIC_ACQUIRE)) {
                (void)!recv(managed.m.socket, &byte, 1, MSG_DONTWAIT);
                nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
        }
        return arg;
}

/* Each message is read in time, those before the first unload's in three quarters of a minute. */
TEST(an_unload_waits_for_a_slow_manager_no_longer_than_for_one_that_hangs)
{
        pthread_t reader;
        managed_load("m");
        for (unsigned i = 0; i < BEHIND; i++)
                model_write(model_mixed(100 + i, 4096), path_of(i));
        manager_wait(&managed.m, MANAGED_MODELS, 2);
        pthread_mutex_lock(&managed.m.mutex);
        at_pace = true;
        ck_assert_int_eq(pthread_create(&reader, NULL, read_slowly, NULL), 0);
        for (unsigned i = 0; i < BEHIND; i++)
                client_load(client, path_of(i), format_text("n%u", i));
        uint64_t before = now_ns();
        for (unsigned i = 0; i < BEHIND; i++)
                client_unload(client, format_text("n%u", i));
        client_unload(client, "m");
        uint64_t took = now_ns() - before;
        ck_assert_msg(took < AT_MOST_NS, "%.1f s", (double)took / 1e9);
        client_wait_used(client, 0);
        ck_assert_int_eq(daemon_stop(&managed.m.d), 0);
        __atomic_store_n(&at_pace, false, __ATOMIC_RELEASE);
        pthread_join(reader, NULL);
        pthread_mutex_unlock(&managed.m.mutex);
}
