/* SPDX-License-Identifier: Apache-2.0
 *
 * Files for plan tests: parsed headers and contents, without a file system.
 */
#pragma once

#include "daemon/model/plan.h"
#include "proto/manifest.h"
#include "tests/lib/suite.h"

struct made_file {
        char *text; /* of the header */
        size_t size;
        FILE *stream; /* writes it */
        uint64_t end;
        struct st_header header;
        unsigned char *bytes; /* of the whole file */
};

static inline void file_begin(struct made_file *f)
{
        *f = (struct made_file){0};
        f->stream = open_memstream(&f->text, &f->size);
        fputc('{', f->stream);
}

/* A tensor of `bytes`, which the dtype's size divides. */
static inline void file_tensor(struct made_file *f, const char *name, enum dtype dtype, uint64_t bytes)
{
        fprintf(f->stream,
                "%s\"%s\":{\"dtype\":\"%s\",\"shape\":[%" PRIu64 "],\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                f->end > 0 || ftell(f->stream) > 1 ? "," : "", name, dtype_name(dtype), bytes * 8 / dtype_bits(dtype),
                f->end, f->end + bytes);
        f->end += bytes;
}

/* The data begins `residue` bytes behind a multiple of `modulus`. */
static inline void file_end(struct made_file *f, uint64_t modulus, uint64_t residue)
{
        struct st_error error;
        fputc('}', f->stream);
        while ((ST_PREFIX + (uint64_t)ftell(f->stream)) % modulus != residue)
                fputc(' ', f->stream);
        fclose(f->stream);
        if (st_parse(&f->header, f->text, f->size, ST_PREFIX + f->size + f->end, &error) < 0)
                ck_abort_msg("%s", error.text);
}

/* Removes tensor i, as one that the index takes from another file. */
static inline void file_remove(struct made_file *f, size_t i)
{
        struct st_header *h = &f->header;
        memmove(&h->tensors[i], &h->tensors[i + 1], (--h->n_tensors - i) * sizeof(*h->tensors));
}

static inline void file_free(struct made_file *f)
{
        st_header_deinit(&f->header);
        free(f->text);
        free(f->bytes);
}
