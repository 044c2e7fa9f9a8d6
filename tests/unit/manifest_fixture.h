/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the manifest tests: a manifest of three tensors in two segments.
 */
#ifndef TESTS_UNIT_MANIFEST_FIXTURE_H
#define TESTS_UNIT_MANIFEST_FIXTURE_H

#include "proto/manifest.h"
#include "tests/lib/suite.h"

enum { ALPHA, BETA, GAMMA, N };

static unsigned char *base;
static size_t size;
static struct manifest_header *header;
static struct manifest_segment *segments;
static struct manifest_record *records;
static struct manifest_pair *metadata;
static uint64_t *shapes;
static char *strings;

static const struct manifest_counts counts = {
        .n_records = N, .n_shapes = 4, .strings_len = 11 + 10, .n_segments = 2, .n_metadata = 1};

static void set_pointers(void)
{
        segments = (void *)(base + header->segments_off);
        records = (void *)(base + header->records_off);
        metadata = (void *)(base + header->metadata_off);
        shapes = (void *)(base + header->shapes_off);
        strings = (char *)base + header->strings_off;
}

static void begin(void)
{
        size = (size_t)manifest_size(&counts);
        base = must_alloc(size);
        header = manifest_init(base, &counts);
        set_pointers();
        segments[0].size = 64;
        segments[1].size = 4;
        memcpy(strings, "a\0bb\0ccccc\0format\0pt", 21);
        memcpy(shapes, (uint64_t[]){2, 3, 4, 0}, sizeof(uint64_t) * 4);
        records[ALPHA] = (struct manifest_record){
                .name_off = 0, .name_len = 1, .dtype = DTYPE_F32, .rank = 2, .offset = 8, .bytes = 24};
        records[BETA] = (struct manifest_record){
                .name_off = 2, .name_len = 2, .dtype = DTYPE_U8, .shape_off = 2, .rank = 1, .segment = 1, .bytes = 4};
        records[GAMMA] = (struct manifest_record){
                .name_off = 5, .name_len = 5, .dtype = DTYPE_BF16, .shape_off = 3, .rank = 1, .offset = 64};
        metadata[0] = (struct manifest_pair){.key_off = 11, .key_len = 6, .value_off = 18, .value_len = 2};
}

static bool opens(void)
{
        struct manifest_view view;
        const char *why = NULL;
        int rc = manifest_open(&view, base, size, &why);
        ck_assert(rc == 0 || why != NULL);
        return rc == 0;
}

static struct manifest_view view_of(void)
{
        struct manifest_view view;
        const char *why;
        ck_assert_int_eq(manifest_open(&view, base, size, &why), 0);
        return view;
}

static bool holds(uint64_t i)
{
        struct manifest_view view = view_of();
        const char *why = NULL;
        int rc = manifest_check(&view, i, &why);
        ck_assert(rc == 0 || why != NULL);
        return rc == 0;
}

static int64_t find(const char *name)
{
        struct manifest_view view = view_of();
        const char *why;
        return manifest_find(&view, name, strlen(name), &why);
}

#endif
