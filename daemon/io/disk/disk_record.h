/* SPDX-License-Identifier: Apache-2.0
 *
 * What the disk cache keeps beside the bytes of an object: whose they are, in which version, and the digests with which
 * they are compared when they are read.
 *
 * In a file: a head of fixed size, three texts (each with its NUL), the digest of both, and the leaves' digests, whose
 * own digest the head has. So a scan reads the beginning alone. Integers are little-endian.
 */
#pragma once

#include "daemon/base/hash.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DISK_ID_SIZE 32       /* SHA-256 */
#define DISK_RECORD_TEXT 4096 /* bytes of a text, at most */
#define DISK_RECORD_SUMS_MAX (UINT64_C(1) << 26)
/* The head with its texts and their digest fits into so many bytes. */
#define DISK_RECORD_HEAD_MAX (3 * DISK_RECORD_TEXT + 512)

struct disk_record {
        unsigned char id[DISK_ID_SIZE];    /* of the object in this version */
        unsigned char place[DISK_ID_SIZE]; /* of the object in any version */
        uint64_t size;                     /* of the object */
        uint64_t header;                   /* of these, the bytes before the first tensor; of a text all */
        unsigned char header_sum[DIGEST_SIZE];
        uint64_t stored_s;                  /* seconds since 1970 */
        char *shown;                        /* the object as messages name it */
        char *etag;                         /* as the store said it; "": none */
        char *modified;                     /* likewise */
        uint64_t n_sums;                    /* one for each leaf of each tensor, in the order of their bytes */
        unsigned char (*sums)[DIGEST_SIZE]; /* NULL: not read */
};

/* malloc'd; NULL: no memory, or a text is too long (*size is 0 then). */
unsigned char *disk_record_encode(const struct disk_record *record, size_t *size);
uint64_t disk_record_size(const struct disk_record *record);

/* The head, of the first n bytes of a file. 0; STREAMER_EFAILED: it is none; STREAMER_ENOMEM. To be followed by
 * disk_record_deinit(). */
int disk_record_decode_head(struct disk_record *record, const unsigned char *bytes, size_t n);
/* All of it; likewise. */
int disk_record_decode(struct disk_record *record, const unsigned char *bytes, size_t n);
void disk_record_deinit(struct disk_record *record); /* accepts a zeroed one */
