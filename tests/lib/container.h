/* SPDX-License-Identifier: Apache-2.0
 *
 * A container with a real systemd as PID 1, on a temporary overlay of this machine's root, or of another system's.
 * Needs root and systemd-nspawn.
 *
 * The container sees the files as of its boot, has its own /run, /tmp and /dev, shares the machine's network, and ends
 * with the process that booted it.
 */
#pragma once

#include "tests/lib/base.h"

struct container {
        pid_t nspawn, init;
        char folder[PATH_SIZE];
};

/* Boots the system at `root` ("/": this machine's) in `folder`, up to basic.target. False if containers cannot be
 * booted here: not root, no systemd-nspawn, or missing privileges. */
bool container_start(struct container *boot, const char *root, const char *folder);
void container_stop(struct container *boot);

/* Runs a shell script in it. Returns its exit status, and both outputs together in a text that the caller frees. */
int container_shell(const struct container *boot, char **out, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
