/* SPDX-License-Identifier: Apache-2.0
 *
 * A real daemon ($STREAMERD_BUILD/streamerd, default build/) in its own directory.
 *
 * It is ready when it sends READY=1 to our NOTIFY_SOCKET. It dies with the process that started it. Its output goes
 * to DIRECTORY/log, which is part of the message if it does not start or exit as expected.
 */
#pragma once

#include "tests/lib/base.h"

struct daemon {
        pid_t pid; /* 0: not running */
        int pidfd;
        int notify;
        char folder[PATH_SIZE]; /* socket and log */
        char socket[PATH_SIZE];
        char log[PATH_SIZE];
};

/* STREAMERD_TEST_DEVICE=cuda: tests get a fake GPU instead of the host device. Tests that need host memory are skipped
 * then. */
bool daemon_on_gpu(void);

/* Called in the child process before exec; NULL: none. */
extern void (*daemon_before)(void);

/* Sets the socket and log paths without starting it, so that flags may use d->socket. */
void daemon_init(struct daemon *d, const char *folder);

/* Starts it with `--socket d->socket` and these flags (NULL-terminated), and waits until ready. */
void daemon_start(struct daemon *d, const char *const *flags);
/* daemon_init + daemon_start with these flags. */
#define DAEMON_START(d, folder, ...)                                                                                   \
        do {                                                                                                           \
                daemon_init((d), (folder));                                                                            \
                daemon_start((d), (const char *const[]){__VA_ARGS__, NULL});                                           \
        } while (0)
/* daemon_init + daemon_start with a host device of `budget` and one root. */
void daemon_start_simple(struct daemon *d, const char *folder, const char *root, const char *budget);
/* The two halves of daemon_start(). False: it exited, and daemon_wait() returns its status. */
void daemon_spawn(struct daemon *d, const char *const *flags);
bool daemon_wait_ready(struct daemon *d);
/* For other managers: a socket that receives what a daemon tells its manager, and its name; and the daemon in a child
 * process. */
int daemon_notify_socket(char name[108]);
_Noreturn void daemon_exec(const struct daemon *d, const char *notify, const char *const *flags);
/* As daemon_start(), but expects it to exit by itself; returns its exit status. */
int daemon_run(struct daemon *d, const char *const *flags);

/* Starts it and stops it when ready; returns its exit status either way. For starts that may fail. */
int daemon_try(struct daemon *d, const char *const *flags);

/* Fails with the message and the end of the daemon's log; Check truncates messages at 8 KiB. */
_Noreturn void daemon_die(const struct daemon *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sends SIGTERM and returns the exit status (128 + signal if killed by one); fails after 15 s. */
int daemon_stop(struct daemon *d);
/* Whether the daemon, which has exited, ended without some of its threads. It gives them a second, so one that was
 * stopped for so long does, and has then neither freed its resources nor written its state. */
bool daemon_gave_up(const struct daemon *d);
/* Sends SIGTERM without waiting; daemon_wait() returns the exit status. */
void daemon_terminate(struct daemon *d);
int daemon_wait(struct daemon *d, int timeout_ms);
bool daemon_ends_within(const struct daemon *d, int timeout_ms);
void daemon_kill(struct daemon *d); /* SIGKILL; accepts a dead daemon */

/* The path of a program in the build folder; never freed. */
const char *build_path(const char *program);

/* The log of the daemon. A thread writes it, so a line may be missing for a moment until the daemon has exited. */
bool log_wait_for(const char *log, const char *text);
