/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that the scripted daemon hands out, three tensors in one segment:
 *
 *   "a" U8 [4] at 0, "AAAA" · "b" U8 [8] at 16, "BBBBBBBB" · "e" U8 [0]
 *
 * ready or loading, and wrong where a test changes it before it attaches.
 */
#pragma once

#include "proto/manifest.h"
#include "tests/lib/fake_daemon.h"

#define FAKE_SEGMENT 4096
#define FAKE_DIGEST "00112233445566778899aabbccddeeff"
#define FAKE_LEASE 7
#define FAKE_GENERATION 42

struct fake_model {
        int fds[3]; /* manifest, segment, arrival log: as they are numbered in the reply */
        struct manifest_header *manifest;
        struct manifest_record *records;
        char *segment;
        struct arrival_header *arrival;

        /* what the reply says */
        const char *kind, *state;
        uint64_t lease;    /* its number; FAKE_LEASE */
        const char *token; /* NULL: none */
        bool loading;
        uint64_t segment_size, n_segments;
        const void *handle; /* NULL, or the 64 bytes of a CUDA handle instead of a descriptor */
        const char *uuid;   /* with them */
        size_t n_fds;       /* that go with it while it loads */
};

void fake_model_init(struct fake_model *m);
/* As a later version might lay it out: each header and item has 16 more bytes. */
void fake_model_enlarge(struct fake_model *m);
void fake_model_arrive(struct fake_model *m, uint32_t i);

/* The fields of the reply to an attach, and the descriptors that go with it. The caller frees the text. */
char *fake_model_fields(const struct fake_model *m, int fds[3], size_t *n_fds);

/* Steps of a conversation. */
#define FAKE_ATTACH "> attach model=m\n< model\n"
#define FAKE_DETACH "> detach lease=7\n<\n"
#define FAKE_READY "* lease lease=7 state=ready digest=" FAKE_DIGEST "\n"
