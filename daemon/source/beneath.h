/* SPDX-License-Identifier: Apache-2.0
 *
 * What a name below a folder leads to: links are followed as long as they stay below it.
 *
 * The kernel can do that itself since 5.6. Where it cannot (gVisor, a filter of system calls that does not
 * know openat2) the name is walked here, one component after the other.
 */
#ifndef DAEMON_SOURCE_BENEATH_H
#define DAEMON_SOURCE_BENEATH_H

/* A descriptor (O_PATH) of what the name leads to, or -1 with errno, whichever way alike:
 *
 *   EXDEV          it leads out of `root`, or a link on the way is absolute
 *   ELOOP          more than 40 links, or one of the kernel's own (/proc/PID/root)
 *   ENAMETOOLONG   and walked: where it lies more than BENEATH_DEPTH folders deep
 *   EAGAIN, EINTR  ask again */
typedef int beneath_fn(int root, const char *name);

beneath_fn beneath_by_kernel, beneath_by_walk;

/* Folders that are open at one time, for "..". */
#define BENEATH_DEPTH 128

/* What can be done here; errno is as it was. `root`: any folder. */
beneath_fn *beneath_choose(int root);

#endif
