/* SPDX-License-Identifier: Apache-2.0
 *
 * The users for whom models are resident: models, and names, of one user share its ids and groups, which take more
 * memory than all else that is known of a small model. Owned by the loop thread.
 */
#pragma once

#include "daemon/base/tree.h"
#include "daemon/source/roots/caller.h"

/* Of struct known_caller; it begins empty. */
void callers_init(struct tree *callers);
/* A reference to an equal one, which does not change; NULL: no memory. */
const struct caller *callers_get(struct tree *callers, const struct caller *caller);
void callers_put(struct tree *callers, const struct caller *caller); /* accepts NULL */
