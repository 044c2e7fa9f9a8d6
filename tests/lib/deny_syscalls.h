/* SPDX-License-Identifier: Apache-2.0
 *
 * Denies newer system calls, as an older kernel or a container's filter does, in this process and all its children,
 * permanently.
 */
#pragma once

/* openat2 fails with `error`. */
void deny_openat2(int error);

/* pidfd_open fails with `error`, and sockets have no SO_PEERPIDFD. */
void deny_pidfds(int error);

/* madvise(MADV_COLLAPSE) finds no huge page: ENOMEM. */
void deny_collapse(void);

/* setfsuid and setfsgid fail with `error`, so a thread that opens files as a user must change its effective ids. */
void deny_fsids(int error);
