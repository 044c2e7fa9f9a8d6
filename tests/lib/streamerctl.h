/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs streamerctl as a user does, and returns its exit code, output and errors.
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

struct ctl {
        int code;
        char *out, *err; /* NUL-terminated; see ctl_free */
        size_t out_size;
};

/* Runs `streamerctl ARGS...` (NULL ends them) against `socket` (NULL: no flag, no environment). */
void ctl(struct ctl *result, const char *socket, ...) __attribute__((sentinel));
void ctl_v(struct ctl *result, const char *socket, const char *const *args);
void ctl_free(struct ctl *result);
/* Runs it; it must exit with this code, and its output (its errors, if the code is not 0) contain the text. Returns
 * that output; never freed. */
char *ctl_says(const char *socket, int code, const char *text, ...) __attribute__((sentinel));

/* Starts it and returns at once; ctl_finish() returns the same results. */
struct ctl_running {
        pid_t pid;
        int out, err;
};
void ctl_start(struct ctl_running *running, const char *socket, const char *const *args);
void ctl_finish(struct ctl_running *running, struct ctl *result);
