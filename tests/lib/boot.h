/* SPDX-License-Identifier: Apache-2.0
 *
 * A real systemd as PID 1 of a container, on a throw-away overlay of this machine's own root: what
 * is written in it is gone with it. Needs root and systemd-nspawn.
 *
 * The container sees this machine's files (as they were when it booted), its own /run, /tmp and
 * /dev, no network but this machine's, and ends with the process that booted it.
 */
#ifndef TESTS_LIB_BOOT_H
#define TESTS_LIB_BOOT_H

#include "tests/lib/base.h"

#include <sys/types.h>

struct boot {
        pid_t nspawn, init;
        char folder[PATH_SIZE];
};

/* False where containers cannot be booted here: not root, no systemd-nspawn, or one that is refused
 * what it needs. Boots in `folder`, up to basic.target. */
bool boot_start(struct boot *boot, const char *folder);
void boot_stop(struct boot *boot);

/* Runs a shell script in it: its exit status, and what it printed, both outputs together (the caller
 * frees). */
int boot_shell(const struct boot *boot, char **out, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
