/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocking first part of a load: opens the source, reads and parses its headers, plans. Runs in the work lane of
 * the source's file system and touches no state of the daemon.
 */
#pragma once

#include "daemon/device/device.h"
#include "daemon/model/plan.h"
#include "daemon/source/source.h"

struct reader;

struct header_text {
        unsigned char *map;           /* the file's first bytes, page-aligned */
        uint64_t size;                /* mapped */
        uint64_t n;                   /* of the header itself, without its prefix */
        struct evp_md_ctx_st *sha256; /* of its 8 + n bytes, before they were parsed, which changes them; or NULL */
};

struct resolved {
        struct source_set set;
        bool borrowed; /* the set */
        struct header_text *texts;
        struct plan_file *files; /* their headers, without tensors that the index takes from another file */
        struct plan plan;
};

/* Of an open set. With sha256 the headers are hashed, for sha_check_file(). */
int resolve_plan(struct resolved *resolved, const struct plan_layout *layout, uint64_t block_size, bool sha256,
                 struct error *error);

void resolve_deinit(struct resolved *resolved); /* accepts a zeroed one */

/* ---- sha.c ---- */

/* On a worker, once for each file and target, when all its bytes are in the device's segments; borrows slots of the
 * reader's ring. STREAMER_EFAILED where the digest differs. */
int sha_check_file(struct reader *reader, const struct resolved *resolved, struct device *device,
                   const struct segment *segments, size_t file, struct error *error);
