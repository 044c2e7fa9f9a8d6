/* SPDX-License-Identifier: Apache-2.0
 *
 * A kernel, or a container's filter, that does not know the newer system calls: from now on, in this process and
 * in all that it starts. For a process that ends with the test.
 */
#ifndef TESTS_LIB_REFUSE_H
#define TESTS_LIB_REFUSE_H

/* openat2 answers `error`. */
void refuse_openat2(int error);

/* No descriptor of a process is to be had: pidfd_open answers `error`, and sockets have no SO_PEERPIDFD. */
void refuse_pidfds(int error);

/* A thread may not change whom it opens files as without becoming him: setfsuid and setfsgid answer `error`. */
void refuse_fsids(int error);

#endif
