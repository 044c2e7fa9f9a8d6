/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells the disk cache which of its entries belong to pinned models: of those that are resident, and of those that are
 * to be loaded. By their sources: an entry may be stored before its model is loaded.
 */
#pragma once

#include "daemon/serve/desired/desired.h"

/* What they were made of last; UINT64_MAX: of nothing yet. */
struct disk_pins {
        uint64_t resident, desired; /* their `n_changes` */
};

/* About once a second, and when the stores change. Does nothing without a disk cache, or a change; where there is no
 * memory, the pins stay as they were. */
void disk_pins_update(struct disk_pins *made, const struct desired *desired);
