/* SPDX-License-Identifier: Apache-2.0
 *
 * Private to the parts of `desired`: the reconciler (desired.c) and the origins of its models (configured.c,
 * restored.c).
 */
#pragma once

#include "daemon/serve/desired/desired.h"

/* Not in the list, and without `spec`. NULL: no memory. */
struct desired_model *desired_model_new(struct desired *desired, enum desired_origin origin);
void desired_model_free(struct desired_model *model);
void desired_insert(struct desired_model *model);
void desired_set_state(struct desired_model *model, enum desired_state state);
/* Whether nothing is left to be loaded. */
bool desired_is_complete(const struct desired_model *model);
void desired_notify(struct desired *desired);

/* Whether the model is desired, on all of its devices. */
static inline void desired_set_pins(struct model_record *spec, bool pin)
{
        for (size_t i = 0; i < spec->n_devices; i++)
                spec->devices[i].pinned = pin;
}
