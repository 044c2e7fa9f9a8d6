/* SPDX-License-Identifier: Apache-2.0
 *
 * The host device's spare: memory that is made ready while nothing is loaded. Private to daemon/device.
 *
 * Zeroing fresh pages is most of what a load into host memory costs (and where the machine is a virtual
 * one, waiting for them is, too). Here a thread of the lowest nice value does that ahead of need, in one
 * memfd that nobody else has ever seen, which the next segment is made of.
 *
 * A spare counts against no budget: it goes when a segment needs its room. All calls accept NULL, a
 * device without one.
 *
 * One that nobody has asked for is modest: it must cost nobody anything. It takes huge pages that were set
 * aside and lie idle, leaves as many of them as it takes, and gives some back when others come for those.
 * Nobody has said how large the next segment is: the largest of the last few tells, once there were some.
 */
#ifndef DAEMON_DEVICE_HOST_SPARE_H
#define DAEMON_DEVICE_HOST_SPARE_H

#include "daemon/base/util.h"
#include "daemon/device/device.h"

struct host_spare;

#define HOST_SPARE_RECENT 8u /* segments, whose largest a modest spare is made for */

struct host_spare_opts {
        uint64_t most;   /* bytes that are made ready; whole huge pages of it */
        uint64_t budget; /* of segments and spare together */
        enum page_kind kinds[2];
        unsigned n_kinds; /* in order; the first that the system grants is taken */
        bool modest;      /* of huge pages that were set aside alone, with regard to who else needs them */
        const char *root; /* of the kernel's files: sysfile.h */
};

/* NULL where there is no memory, or none for its thread. It fills nothing yet. */
struct host_spare *host_spare_new(const struct host_spare_opts *opts);
/* Ends the thread, which takes a moment, and gives the memory back. NULL. */
struct host_spare *host_spare_free(struct host_spare *spare);

/* ---- from any thread, without waiting ---- */

/* May it be filled? The answer holds until the next one; false takes effect within a piece. */
void host_spare_fill(struct host_spare *spare, bool fill);
uint64_t host_spare_bytes(const struct host_spare *spare);

/* Segments take so many bytes more, or less. */
void host_spare_hold(struct host_spare *spare, uint64_t bytes);
void host_spare_release(struct host_spare *spare, uint64_t bytes);

/* ---- from the device's thread; may wait for the piece under way ---- */

/* For a segment of `size` bytes, which is held already: a memfd that is the caller's, of any size, of which
 * the first *ready bytes are there and zero. -1 where there is none, or it stays for a larger one. */
int host_spare_take(struct host_spare *spare, uint64_t size, uint64_t *ready, enum page_kind *pages);
/* Memory is short: gives it back. False: there was none. */
bool host_spare_drop(struct host_spare *spare);

#endif
