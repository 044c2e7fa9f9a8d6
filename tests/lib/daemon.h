/* SPDX-License-Identifier: Apache-2.0
 *
 * A real daemon ($STREAMERD_BUILD/streamerd, default build/) in a folder of its own.
 *
 * Readiness is the daemon's own READY=1 on a NOTIFY_SOCKET of ours. It dies with the process that
 * started it, so a test that crashes leaves none behind. What it prints goes to FOLDER/log, and is
 * part of the message when it does not start or end as it should.
 */
#ifndef TESTS_LIB_DAEMON_H
#define TESTS_LIB_DAEMON_H

#include "tests/lib/base.h"

#include <sys/types.h>

struct daemon {
        pid_t pid; /* 0 when it does not run */
        int pidfd;
        int notify;
        char folder[PATH_SIZE]; /* socket and log */
        char socket[PATH_SIZE];
        char log[PATH_SIZE];
};

/* STREAMERD_TEST_DEVICE=cuda: wherever a test asks for the host device it gets a stand-in's GPU. What is
 * about host memory alone is left off then. */
bool daemon_on_gpu(void);

/* Called in the process that becomes the daemon, before it does; NULL: nothing. */
extern void (*daemon_before)(void);

/* Where it listens and logs, without starting it: d->socket may then be used in flags. */
void daemon_init(struct daemon *d, const char *folder);

/* Starts it with `--socket d->socket` and these flags (NULL-terminated), and waits until ready. */
void daemon_start(struct daemon *d, const char *const *flags);
/* daemon_init + daemon_start with a host device of `budget` and one root. */
void daemon_start_simple(struct daemon *d, const char *folder, const char *root, const char *budget);
/* As daemon_start, but expects it to end by itself: its exit status. */
int daemon_run(struct daemon *d, const char *const *flags);

/* Starts it, and stops it again where it comes up; its exit status either way. For starts that may
 * fail. */
int daemon_try(struct daemon *d, const char *const *flags);

/* Fails with what the daemon did, and the end of its log: Check's messages are cut at 8 KiB. */
_Noreturn void daemon_die(const struct daemon *d, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* SIGTERM, then its exit status (128 + signal where one ended it); fails after 15 s. */
int daemon_stop(struct daemon *d);
/* SIGTERM without waiting; daemon_wait() collects the exit status. */
void daemon_terminate(struct daemon *d);
int daemon_wait(struct daemon *d, int timeout_ms);
void daemon_kill(struct daemon *d); /* SIGKILL; forgives a dead one */

/* A program of the build folder; never freed. */
const char *build_path(const char *program);

/* A thread of the daemon's writes its log: what it has said is there soon, and at once when it has ended. */
bool log_will_say(const char *log, const char *text);

#endif
