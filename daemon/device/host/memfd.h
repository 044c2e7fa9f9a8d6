/* SPDX-License-Identifier: Apache-2.0
 *
 * The memfds of segments, prefaulted memory and tables. Private to daemon/device; calls for tables are in device.h.
 *
 * Sealing. A file is mapped writable once, here, and then sealed against growing, shrinking, more seals
 * and future writing, before another process can open it: F_SEAL_FUTURE_WRITE leaves the map made before it
 * writable and refuses every later one. So a client that attaches during the load can only read.
 */
#pragma once

#include "daemon/base/util.h"
#include "daemon/device/device.h"

#define HOST_HUGE_PAGE (2 * MiB)

/* An empty memfd that can be sealed; -1 with errno. */
int host_memfd_new(enum page_kind pages);

/* Maps `size` bytes at a multiple of HOST_HUGE_PAGE: elsewhere the kernel maps small pages, whatever the memory has.
 * MAP_FAILED with errno. */
void *host_memfd_map(int fd, uint64_t size, int prot);

/* `size` bytes of a memfd that no other process has, sealed, with the only writable map it will ever have. -1 with
 * errno. `lent`: sealed against growing and shrinking alone. */
int host_memfd_seal_consume_fd(int memfd, uint64_t size, bool lent, void **map);
/* Seals one that was lent, once no writable map is left: EBUSY. -1 with errno. */
int host_memfd_seal_lent(int fd);
/* Another descriptor, for reading alone. -1 with errno. */
int host_memfd_reopen(int fd);
bool host_memfd_sealed(int fd);
