/* SPDX-License-Identifier: Apache-2.0
 *
 * Tells the disk cache which of its entries belong to pinned models: of those that are resident, and of those that are
 * to be loaded. By their sources: an entry may be stored before its model is loaded.
 */
#pragma once

#include "daemon/serve/desired/desired.h"

/* About once a second. Does nothing without a disk cache; where there is no memory, the pins stay as they were. */
void disk_pins_update(const struct desired *desired);
