/* SPDX-License-Identifier: Apache-2.0
 *
 * Memory in files that nobody else has: of segments, of the spare and of tables. Private to daemon/device; calls for
 * tables are in device.h.
 *
 * Sealing. A file is mapped writable once, here, and then sealed against growing, shrinking, more seals
 * and future writing, before anyone else can see it: F_SEAL_FUTURE_WRITE leaves the map made before it
 * writable and refuses every later one. So a client that attaches during the load can still only read.
 */
#ifndef DAEMON_DEVICE_HOST_MEMFD_H
#define DAEMON_DEVICE_HOST_MEMFD_H

#include "daemon/base/util.h"
#include "daemon/device/device.h"

#define HOST_HUGE_PAGE (2 * MiB)

/* An empty memfd that can be sealed; -1 with errno. */
int host_memfd_new(enum page_kind pages);

/* `size` bytes of a memfd that nobody else has, sealed, with the only writable map it will ever have. -1 with
 * errno. */
int host_memfd_seal_consume_fd(int memfd, uint64_t size, void **map);
bool host_memfd_sealed(int fd);

#endif
