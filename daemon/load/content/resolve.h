/* SPDX-License-Identifier: Apache-2.0
 *
 * The blocking first part of a load: opens the source, reads and parses its headers, plans. Runs in the work lane of
 * the source's file system and touches no state of the daemon.
 */
#pragma once

#include "daemon/base/quota.h"
#include "daemon/crypt/encryption.h"
#include "daemon/device/device.h"
#include "daemon/model/plan.h"
#include "daemon/source/source.h"

struct reader;

/* What headers, and the tables of a plan, may take: of one load or diff, and of all of its user. */
#define RESOLVE_BYTES_MAX (512 * MiB)
struct resolve_budget {
        uint64_t bytes;             /* of this one, so far */
        struct quota_charge charge; /* the same, of the user; empty: nobody is charged */
        uint64_t user_max;          /* the user's share */
};

struct header_text {
        unsigned char *map;           /* the file's first bytes, page-aligned */
        uint64_t size;                /* mapped */
        uint64_t n;                   /* of the header itself, without its prefix */
        struct evp_md_ctx_st *sha256; /* of its 8 + n bytes, before they were parsed, which changes them; or NULL */
        uint32_t crc32c;              /* likewise, where sha256 is not NULL */
};

struct resolved {
        struct source_set set;
        bool borrowed; /* the set */
        struct source_notes
                *notes; /* to which tensors are added that the index lists in vain; NULL: not wanted; borrowed */
        struct header_text *texts;
        struct plan_file *files;           /* their headers, without tensors that the index takes from another file */
        struct encrypted_file **encrypted; /* of each; NULL: it is not encrypted */
        struct encryption *encryption;     /* of all; NULL: none is encrypted */
        bool refused;                      /* a file is encrypted, and cannot be read; there is an error */
        struct plan plan;
};

/* How a plan is made. */
struct resolve_opts {
        const struct plan_layout *layout;
        uint64_t block_size;
        bool sha256; /* the headers are hashed, for the check of files */
        bool whole;  /* files that the first read brings whole stay in memory, at `texts` */
        struct keyring *keyring;
        const char *encrypted_only; /* why files that are not encrypted are refused; NULL: they are not */
};

/* Of an open set. What it is going to read and to allocate is taken from the budget before: STREAMER_ELIMIT. The owner
 * gives it back with the tables. */
int resolve_plan(struct resolved *resolved, const struct resolve_opts *opts, struct resolve_budget *budget,
                 struct error *error);

void resolve_deinit(struct resolved *resolved); /* accepts a zeroed one */
/* The bytes of its files, and with them the names; the rest stays. */
void resolve_drop_texts(struct resolved *resolved);

/* ---- sha.c ---- */

/* The check of one file on one target, when all its bytes are in the device's segments. It borrows all it is given;
 * *stop is atomic. NULL: no memory. */
struct sha_check *sha_check_new(struct reader *reader, const struct resolved *resolved, struct device *device,
                                const struct segment *segments, size_t file, const bool *stop);
struct sha_check *sha_check_free(struct sha_check *check); /* accepts NULL */
/* A piece, on a worker, of a quarter of a second and the tensor that it is in; borrows slots of the reader's ring
 * meanwhile. SHA_MORE; 0: it is the file; STREAMER_EFAILED where the digest differs; STREAMER_ECANCELED once *stop is
 * true. */
#define SHA_MORE 1
int sha_check_run(struct sha_check *check, struct error *error);
