/* SPDX-License-Identifier: Apache-2.0
 *
 * The limits of the configuration (`limits`), each with its default. A reload changes them.
 */
#pragma once

#include "daemon/base/quota.h"
#include "daemon/serve/conn/conn.h"

struct limits {
        uint64_t connections; /* 8192 */
        /* Root and the daemon's own uid are exempt. 4096 connections, 16384 leases, 32 loads running or waiting, 1024
         * models on each device and further names of them, 0 (any amount) bytes of models resident or loading. */
        uint64_t per_uid[QUOTA_SLOT_COUNT];
        uint64_t leases_per_client;   /* 4096: one connection's */
        uint64_t loads;               /* 64 running or waiting */
        uint64_t queued;              /* 16 that wait for memory */
        uint64_t requests_per_client; /* 64 unanswered */
        uint64_t fds_in_flight;       /* 4096 in all */
        uint64_t fds_per_client;      /* 256 in flight */
        struct conn_limits conn;
        uint64_t preload_loads;    /* 2 of `preload` at once */
        uint64_t preload_retry_ns; /* 1 s after the first failure, then twice as long each time */
        uint64_t failed_kept;      /* 64 failed loads stay visible */
};
