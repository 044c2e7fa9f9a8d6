/* SPDX-License-Identifier: Apache-2.0
 *
 * When devices may make memory ready for the next load: while none is under way, since that would take
 * processor and memory bandwidth from it. A load that begins ends it at once; about a second after the
 * last one it goes on, so that loads which follow one another are left alone. One that waits for room
 * holds up nothing.
 */
#include "daemon/load/load.h"

static void may_fill(const struct loads *loads, bool fill)
{
        for (size_t i = 0; i < loads->resident->n_devices; i++) {
                struct device *device = loads->resident->devices[i];
                if (device->ops->spare_fill != NULL)
                        device->ops->spare_fill(device, fill);
        }
}

static bool any_under_way(const struct loads *loads)
{
        list_each (pos, &loads->all) {
                const struct load *load = container_of(pos, struct load, link);
                if (!load_ended(load->state) && load->state != LOAD_QUEUED)
                        return true;
        }
        return false;
}

void loads_leave_spare(struct loads *loads)
{
        may_fill(loads, false);
}

void loads_fill_spare(struct loads *loads)
{
        may_fill(loads, !any_under_way(loads));
}
