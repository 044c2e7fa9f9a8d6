/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/serve/access/shares.h"

#include "daemon/base/util.h"
#include "daemon/serve/access/role.h"

/* Connections beyond limits.connections that are left to root and the daemon's own user, to resolve the situation. */
#define OWN_CONNECTIONS 16
/* Connections of a user who has few. */
#define FEW_CONNECTIONS 16

#define FETCHED_OF_USER (64 * MiB)
#define INPUT_OF_USER (32 * MiB)
#define TABLES_OF_USER GiB
#define TASKS_OF_USER 4u

uint64_t share_max(const struct limits *limits, uid_t uid, enum quota_slot share)
{
        bool own = role_is_own(uid);
        uint64_t half = limits->fds_in_flight / 2;
        switch (share) {
        case QUOTA_FDS:
                if (own)
                        return limits->fds_in_flight;
                return half < FRAME_FDS_MAX ? FRAME_FDS_MAX : half; /* of one reply, at the least */
        case QUOTA_DOCTOR:
        case QUOTA_VERIFY:
        case QUOTA_FETCH_LOCAL:
        case QUOTA_FETCH_REMOTE:
        case QUOTA_FIND_LOCAL:
        case QUOTA_FIND_REMOTE:
                return own ? 2 * TASKS_OF_USER : TASKS_OF_USER;
        default:
                break;
        }
        if (own)
                return UINT64_MAX;
        switch (share) {
        case QUOTA_REQUESTS:
                return 64 * limits->requests_per_client;
        case QUOTA_OUTPUT:
                return 8 * limits->conn.output;
        case QUOTA_INPUT:
                return INPUT_OF_USER;
        case QUOTA_FETCHED:
                return FETCHED_OF_USER;
        case QUOTA_TABLES:
                return TABLES_OF_USER;
        case QUOTA_OPS:
                return 16 * SHARE_OPS_PER_CLIENT;
        case QUOTA_CLAIMS:
                return 16 * SHARE_CLAIMS_PER_CLIENT;
        default:
                return UINT64_MAX; /* not a share: it has a limit (access_limits) */
        }
}

bool share_left(const struct quotas *users, const struct limits *limits, uid_t uid, enum quota_slot share)
{
        return quotas_held(users, uid, share) < share_max(limits, uid, share);
}

bool share_allows_connection(const struct quotas *users, const struct limits *limits, uid_t uid, uint64_t open)
{
        uint64_t max = limits->connections;
        if (role_is_own(uid))
                return open < max + OWN_CONNECTIONS;
        if (open >= max)
                return false;
        return open < max - max / 8 || quotas_held(users, uid, QUOTA_CONNECTIONS) < FEW_CONNECTIONS;
}

bool share_allows_fetch(const struct quotas *users, const struct limits *limits, uid_t uid, uint64_t held,
                        uint64_t bytes)
{
        uint64_t max = share_max(limits, uid, QUOTA_FETCHED), own = quotas_held(users, uid, QUOTA_FETCHED);
        uint64_t left = held < SHARE_FETCHED_OF_ALL ? SHARE_FETCHED_OF_ALL - held : 0;
        return bytes <= left / 2 && own <= max && bytes <= max - own;
}
