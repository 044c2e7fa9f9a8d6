/* SPDX-License-Identifier: Apache-2.0
 *
 * Resolves a name below a folder; links are followed as long as they stay below it.
 *
 * The kernel does this since 5.6 (openat2). Where it cannot (gVisor, a system call filter without openat2) the name is
 * walked here, component by component.
 */
#pragma once

/* A descriptor (O_PATH) of what the name leads to, or -1 with errno, whichever way alike:
 *
 *   EXDEV          it leads out of `root`, or a link on the way is absolute
 *   ELOOP          more than 40 links, or one of the kernel's own (/proc/PID/root)
 *   ENAMETOOLONG   and walked: where it lies more than OPENAT_BENEATH_DEPTH folders deep
 *   EAGAIN, EINTR  ask again */
typedef int openat_beneath_fn(int root, const char *name);

openat_beneath_fn openat_beneath;
openat_beneath_fn openat_beneath_by_kernel, openat_beneath_by_walk; /* its two parts */

/* Folders that are open at one time, for "..". */
#define OPENAT_BENEATH_DEPTH 128
