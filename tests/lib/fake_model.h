/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that the scripted daemon hands out, three tensors in one segment:
 *
 *   "a" U8 [4] at 0, "AAAA" · "b" U8 [8] at 16, "BBBBBBBB" · "e" U8 [0]
 *
 * ready or loading, and wrong where a test changes it before it attaches.
 */
#ifndef TESTS_LIB_FAKE_MODEL_H
#define TESTS_LIB_FAKE_MODEL_H

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

/* The reply to an attach; the reply to the detach that must follow. */
void fake_model_attach(struct fake_daemon *f, const struct fake_model *m, uint64_t id);
void fake_model_detach(struct fake_daemon *f);

/* An event of the lease: state "ready" with the digest, or "failed" with code and text. */
void fake_model_ready(struct fake_daemon *f);
void fake_model_failed(struct fake_daemon *f, const char *code, const char *text);

#endif
