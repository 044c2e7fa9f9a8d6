/* SPDX-License-Identifier: Apache-2.0
 *
 * Shares: how much of what all users share one user may have. They follow from other settings, or are constant, so that
 * a user can neither use up what the daemon has nor make it grow without limit. Pure functions: who holds something
 * charges it (quota.h) and asks here.
 */
#pragma once

#include "daemon/serve/limits.h"

/* Of one connection, of which a user may have several times as much. */
#define SHARE_OPS_PER_CLIENT 256   /* watched loads */
#define SHARE_CLAIMS_PER_CLIENT 64 /* claims */

/* Of all users together. */
#define SHARE_FETCHED_OF_ALL (256 * MiB)

/* The most that the user may hold of a share. UINT64_MAX: any amount, for root and the daemon's own user. */
uint64_t share_max(const struct limits *limits, uid_t uid, enum quota_slot share);

/* Has the user less than its share, so that it may hold more? */
bool share_left(const struct quotas *users, const struct limits *limits, uid_t uid, enum quota_slot share);

/* May the user open one connection more, besides `open` ones of all users? The last eighth of limits.connections is for
 * users who have few. */
bool share_allows_connection(const struct quotas *users, const struct limits *limits, uid_t uid, uint64_t open);

/* May the user's file of so many bytes be fetched now, besides `held` ones of all users? It takes half of what is left
 * at the most, so that something is left for others, however many users fetch. */
bool share_allows_fetch(const struct quotas *users, const struct limits *limits, uid_t uid, uint64_t held,
                        uint64_t bytes);
