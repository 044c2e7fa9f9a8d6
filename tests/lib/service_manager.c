/* SPDX-License-Identifier: Apache-2.0
 *
 * The manager's thread and its store: see service_manager.h.
 */
#include "tests/lib/service_manager.h"
#include "proto/frame.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#define START_MS 20000
#define MESSAGE_FDS 16

/* ---- the store; mutex held ---- */

static void store_drop(struct manager *m, size_t i)
{
        close(m->store[i].fd);
        m->store[i] = m->store[--m->n];
}

static void store_add(struct manager *m, const char *name, int fd)
{
        if (m->n >= m->max) {
                m->dropped++;
                close(fd);
                return;
        }
        snprintf(m->store[m->n].name, sizeof(m->store[0].name), "%s", name);
        m->store[m->n++].fd = fd;
}

static void store_remove(struct manager *m, const char *name)
{
        for (size_t i = m->n; i-- > 0;)
                if (strcmp(m->store[i].name, name) == 0)
                        store_drop(m, i);
}

/* ---- messages ---- */

struct message_in {
        char text[4096];
        int fds[MESSAGE_FDS];
        size_t n_fds;
};

static void take(struct manager *m, struct message_in *in)
{
        char name[128] = "";
        const char *named = strstr(in->text, "FDNAME=");
        if (named != NULL)
                sscanf(named, "FDNAME=%127[^\n]", name);
        m->ready |= strstr(in->text, "READY=1") != NULL;
        if (strstr(in->text, "FDSTOREREMOVE=1") != NULL)
                store_remove(m, name);
        for (size_t i = 0; i < in->n_fds; i++) {
                if (strstr(in->text, "FDSTORE=1") != NULL && name[0] != '\0')
                        store_add(m, name, in->fds[i]);
                else
                        close(in->fds[i]); /* the barrier waits for this close */
        }
}

static bool receive(int fd, struct message_in *in)
{
        bool lost = false;
        in->n_fds = 0;
        ssize_t n = frame_recv_fds(fd, in->text, sizeof(in->text) - 1, in->fds, &in->n_fds, MESSAGE_FDS, &lost);
        in->text[n < 0 ? 0 : n] = '\0';
        return n >= 0;
}

/* A process that is forked while the descriptor of a barrier is open here would keep it open. */
static pthread_mutex_t receiving = PTHREAD_MUTEX_INITIALIZER;

static void lock_receiving(void)
{
        pthread_mutex_lock(&receiving);
}

static void unlock_receiving(void)
{
        pthread_mutex_unlock(&receiving);
}

static void guard_forks(void)
{
        pthread_atfork(lock_receiving, unlock_receiving, unlock_receiving);
}

/* Reads all messages that were sent; under the mutex. */
static void drain(struct manager *m)
{
        struct message_in in;
        lock_scope(&receiving);
        while (receive(m->socket, &in))
                take(m, &in);
}

static void *run(void *arg)
{
        struct manager *m = arg;
        struct pollfd fds[] = {{.fd = m->socket, .events = POLLIN}, {.fd = m->stop, .events = POLLIN}};
        for (;;) {
                poll(fds, 2, -1);
                if (fds[1].revents)
                        return NULL;
                pthread_mutex_lock(&m->mutex);
                drain(m);
                pthread_mutex_unlock(&m->mutex);
        }
}

/* ---- the daemon ---- */

/* Moves the descriptors to 3 and up, as the protocol requires; first to higher numbers, so that none is overwritten. */
static void pass_fds(const struct manager *m, char *names, size_t size)
{
        int first = 3 + (int)m->n, moved[MANAGER_FDS];
        size_t used = 0;
        for (size_t i = 0; i < m->n; i++)
                moved[i] = must(fcntl(m->store[i].fd, F_DUPFD_CLOEXEC, first));
        for (size_t i = 0; i < m->n; i++) {
                must(dup2(moved[i], 3 + (int)i));
                used += (size_t)snprintf(names + used, size - used, "%s%s", i ? ":" : "", m->store[i].name);
        }
}

static _Noreturn void exec_daemon(const struct manager *m)
{
        static char names[MANAGER_FDS * 128];
        pass_fds(m, names, sizeof(names));
        setenv("FDSTORE", format_text("%zu", m->max), 1);
        if (m->n > 0) {
                setenv("LISTEN_FDS", format_text("%zu", m->n), 1);
                setenv("LISTEN_FDNAMES", names, 1);
                setenv("LISTEN_PID", format_text("%d", (int)getpid()), 1);
        }
        daemon_exec(&m->d, m->notify, m->flags);
}

void manager_spawn(struct manager *m)
{
        pthread_mutex_lock(&m->mutex);
        drain(m);
        m->ready = false;
        m->d.pid = must(fork());
        if (m->d.pid == 0)
                exec_daemon(m);
        pthread_mutex_unlock(&m->mutex);
        m->d.pidfd = must((int)syscall(SYS_pidfd_open, m->d.pid, 0));
}

static bool has_sent_ready(struct manager *m)
{
        lock_scope(&m->mutex);
        return m->ready;
}

static bool is_ready_or_gone(struct manager *m)
{
        struct pollfd exited = {.fd = m->d.pidfd, .events = POLLIN};
        return has_sent_ready(m) || poll(&exited, 1, 0) > 0;
}

void manager_start(struct manager *m)
{
        manager_spawn(m);
        if (!WITHIN(START_MS, is_ready_or_gone(m)) || !has_sent_ready(m))
                daemon_die(&m->d, "did not become ready");
}

void manager_kill(struct manager *m)
{
        daemon_kill(&m->d);
}

void manager_stop(struct manager *m)
{
        int status = daemon_stop(&m->d);
        if (status)
                daemon_die(&m->d, "ended with %d", status);
}

/* ---- queries ---- */

static int by_name(const void *a, const void *b)
{
        return strcmp(((const struct stored *)a)->name, ((const struct stored *)b)->name);
}

struct stored *manager_find(struct manager *m, const char *prefix, size_t n)
{
        struct stored *found = NULL;
        lock_scope(&m->mutex);
        drain(m);
        qsort(m->store, m->n, sizeof(m->store[0]), by_name);
        for (size_t i = 0; i < m->n && !found; i++)
                if (strncmp(m->store[i].name, prefix, strlen(prefix)) == 0 && n-- == 0)
                        found = &m->store[i];
        return found;
}

size_t manager_count(struct manager *m, const char *prefix)
{
        size_t n = 0;
        while (manager_find(m, prefix, n))
                n++;
        return n;
}

void manager_wait(struct manager *m, const char *prefix, size_t n)
{
        size_t have;
        if (!WITHIN(START_MS, (have = manager_count(m, prefix)) == n))
                daemon_die(&m->d, "has stored %zu descriptors '%s...' instead of %zu", have, prefix, n);
}

void manager_drop(struct manager *m, struct stored *stored)
{
        lock_scope(&m->mutex);
        store_drop(m, (size_t)(stored - m->store));
}

void manager_add_consume_fd(struct manager *m, const char *name, int fd)
{
        lock_scope(&m->mutex);
        store_add(m, name, fd);
}

/* ---- life ---- */

void manager_init(struct manager *m, const char *folder, size_t max, const char *const *flags)
{
        static pthread_once_t once = PTHREAD_ONCE_INIT;
        *m = (struct manager){.max = max, .stop = must(eventfd(0, EFD_CLOEXEC))};
        for (size_t i = 0; flags[i] && i < 31; i++)
                m->flags[i] = flags[i];
        daemon_init(&m->d, folder);
        m->socket = daemon_notify_socket(m->notify);
        must(fcntl(m->socket, F_SETFL, O_NONBLOCK));
        pthread_mutex_init(&m->mutex, NULL);
        pthread_once(&once, guard_forks);
        if (pthread_create(&m->thread, NULL, run, m))
                die("no thread");
}

void manager_deinit(struct manager *m)
{
        daemon_kill(&m->d);
        must(eventfd_write(m->stop, 1));
        pthread_join(m->thread, NULL);
        while (m->n > 0)
                store_drop(m, 0);
        close(m->socket);
        close(m->stop);
}
