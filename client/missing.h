/* SPDX-License-Identifier: Apache-2.0
 *
 * The name that was meant where the daemon has no such model. It is looked for after the call has failed, by one more
 * request, and never with the client's lock held.
 */
#pragma once

#include "client/channel.h"

/* Of a call about `model` (NULL: none) that returned `rc`, whose text is kept: where that says that there is no such
 * model, and no more, adds the nearest name. Returns rc. */
int missing_model_explain(struct streamer_client *c, const char *model, int rc);

/* The same for a text that is not kept: the end of it, malloc'd; NULL: nothing to add. */
char *missing_model_hint(struct streamer_client *c, const char *model, const char *text);
