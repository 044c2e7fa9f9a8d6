/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of a folder, prefix or revision: the weights of the model, or its sidecars. Pure.
 *
 * Sidecars are the small files beside the weights, such as config.json and tokenizer.json. A sidecar's name is relative
 * to the directory of the source; the directory of a source that is one file is the one that holds it.
 */
#pragma once

#include "daemon/base/error.h"
#include "proto/messages.h"

#define LISTING_INDEX "model.safetensors.index.json"
#define SIDECAR_FILES_MAX 1000 /* in one list */
#define SIDECAR_NAME_MAX PROTO_FILE_MAX

struct listed_file {
        char *name;
        char *tag;      /* a store's ETag or, without one, its LastModified; the Hub's SHA-256; "": not given */
        uint64_t bytes; /* UINT64_MAX: unknown */
};

struct listing {
        const char *shown;     /* the source, for messages; borrowed */
        bool sidecars;         /* lists these, and not the weights of the model */
        bool weights;          /* of sidecars: those with weights, too */
        struct listed_file *v; /* in byte order of the names, once all are added */
        size_t n;
        /* of the weights */
        bool has_sums;
        bool has_index; /* LISTING_INDEX is listed: its files are the model */
};

/* Adds a file if it belongs to the list. Weights: the index and *.safetensors of the directory itself. Sidecars: files
 * that are not hidden, hold no weights (unless `weights`) and have a valid name. STREAMER_EFAILED beyond
 * SOURCE_FILES_MAX, or SIDECAR_FILES_MAX. */
int listing_add(struct listing *list, const char *name, uint64_t bytes, const char *tag, struct error *error);
/* In a list of weights, keeps only the files of the model, unless an index decides. STREAMER_ENOENT: "no safetensors
 * files WHERE". */
int listing_choose(struct listing *list, const char *where, struct error *error);
void listing_sort(struct listing *list);
const struct listed_file *listing_find(const struct listing *list, const char *name); /* a sorted one; NULL: none */
void listing_deinit(struct listing *list);                                            /* accepts a zeroed one */

/* 0, or STREAMER_EINVAL unless the name is relative and has no empty, "." or ".." component. */
int sidecar_check_name(const char *name, struct error *error);
