/* SPDX-License-Identifier: Apache-2.0
 *
 * The steps of plan_make().
 */
#ifndef DAEMON_MODEL_PLAN_STEPS_H
#define DAEMON_MODEL_PLAN_STEPS_H

#include "daemon/model/plan.h"

/* Gives every listed tensor its segment, offset and extent, and the segments their sizes. */
void plan_place(struct plan *plan, const struct plan_file *files, const struct plan_layout *layout);

/* Cuts the placed tensors into blocks. False: no memory. */
bool plan_cut(struct plan *plan, const struct plan_layout *layout, uint64_t block_size);

/* Whether file bytes at file_off may be read straight to `offset` of a segment. */
static inline bool plan_congruent(const struct plan_layout *layout, uint64_t file_off, uint64_t offset)
{
        return layout->page != 0 && file_off % layout->page == offset % layout->page;
}

#endif
