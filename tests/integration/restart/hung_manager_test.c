/* SPDX-License-Identifier: Apache-2.0
 *
 * A service manager that does not read its socket delays the daemon, and holds up nothing for ever.
 */
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
