/* SPDX-License-Identifier: Apache-2.0
 *
 * What the machine, the container and the kernel grant this process, for `streamerctl doctor`. Limits are read again
 * each time, since an operator may change it while the daemon runs.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 /* Linux 6.5 */
#endif

#ifndef SYS_CACHESTAT
#define SYS_CACHESTAT 451 /* Linux 6.5; the same number on every architecture */
#endif

#define MACHINE_UNLIMITED UINT64_MAX

/* Bytes of a page and of a huge page, powers of two: 4 KiB and 2 MiB, 16 KiB and 32 MiB, or 64 KiB and 512 MiB, as the
 * kernel is built. A huge page is what an entry of the second level of the page tables maps; a pool of huge pages of
 * another size is not used. Constant from the program's start. */
struct machine_pages {
        uint64_t small, huge;
};
extern struct machine_pages machine_pages;
/* Before main(). */
void machine_pages_read(void);
/* Of a test: other sizes, multiples of the machine's. */
void machine_pages_set(uint64_t small, uint64_t huge);

struct machine {
        char kernel[64];                       /* its release */
        uint64_t pid_namespace, net_namespace; /* inodes; 0: not known */
        uint64_t memlock, files;               /* limits in force */
        uint64_t memory;                       /* of the machine */
        uint64_t cgroup_memory;                /* the tightest limit from here to the root */
        uint64_t cgroup_huge_pages;            /* likewise, of huge pages */
        int64_t hugepages;                     /* set aside, and vm.nr_overcommit_hugepages on top; -1: unknown */
        int64_t hugepages_overcommit;          /* -1: unknown */
        char shmem_enabled[16];                /* transparent huge pages for shared memory; "": unknown */
        bool openat2;                          /* 5.6 */
        bool pidfd, peerpidfd, cachestat;      /* pidfd_open 5.3, SO_PEERPIDFD 6.5, cachestat 6.5 */
};

/* May block on the kernel's files. Limits and system calls are this process's. */
void machine_read(struct machine *machine);

/* The tightest memory limit of this process's cgroup, of either version. */
uint64_t machine_cgroup_memory(void);

/* What the tightest limit of its cgroup on huge pages leaves to this process, which holds `held` bytes of
 * them; MACHINE_UNLIMITED where none is known. A page is charged when it is first touched, and where the limit is
 * reached then, the toucher gets SIGBUS (EFAULT in a system call): what was mapped is not promised. *limited: there is
 * such a limit, or may be one, as the group's files are not to be seen. */
uint64_t machine_huge_pages_left(uint64_t held, bool *limited);

/* What this process can still take, cached files given up: of the machine, and of its cgroup. */
uint64_t machine_available_memory(void);

/* Bytes of huge pages that were set aside (vm.nr_hugepages) and are neither used nor promised. */
uint64_t machine_pool_left(void);
/* Bytes of such pages that the kernel makes on request beyond them (vm.nr_overcommit_hugepages), of `available` bytes
 * of memory. */
uint64_t machine_pool_surplus(uint64_t available);
