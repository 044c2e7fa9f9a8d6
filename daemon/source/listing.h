/* SPDX-License-Identifier: Apache-2.0
 *
 * The files of a folder, prefix or revision: the weights of the model, or its sidecars. Pure.
 *
 * Sidecars are the small files beside the weights, such as config.json and tokenizer.json. A sidecar's name is relative
 * to the directory of the source; the directory of a source that is one file is the one that holds it.
 */
#pragma once

#include "daemon/base/error.h"
#include "daemon/model/safetensors.h"
#include "proto/messages.h"

#define LISTING_INDEX "model.safetensors.index.json" /* the most frequent name of an index */
#define LISTING_WHOLE "model.safetensors"            /* a model in one file */
#define SIDECAR_FILES_MAX 1000                       /* in one list */
#define SIDECAR_NAME_MAX PROTO_FILE_MAX
#define LISTING_INDEXES_MAX 16

struct source_set;

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
        unsigned n_indexes;
        const char *index;            /* once it is chosen: its files are the model; NULL: the list is */
        const char *stale;            /* the index that was chosen, and of which no file exists; NULL: none was */
        struct listed_file *left_out; /* weights that the model does not use, and a stale index */
        size_t n_left_out;
};

/* Adds a file if it belongs to the list. Weights: indexes and *.safetensors of the directory itself. Sidecars: files
 * that are not hidden, hold no weights (unless `weights`) and have a valid name. STREAMER_EFAILED beyond
 * SOURCE_FILES_MAX, or SIDECAR_FILES_MAX. */
int listing_add(struct listing *list, const char *name, uint64_t bytes, const char *tag, struct error *error);
/* Whether listing_add() would, as far as the name tells. */
bool listing_takes(const struct listing *list, const char *name);
/* Of a list of weights, chooses the index, or the files of the model. STREAMER_ENOENT: "no safetensors files WHERE".
 * STREAMER_EFAILED: a file of a set "-0000i-of-0000n" (or "_0000i_of_0000n") is missing. */
int listing_choose(struct listing *list, const char *where, struct error *error);
/* The chosen index names these files: leaves out the others. An index of which no file exists beside a
 * model.safetensors is left from another download: that file is the model, and list->index becomes NULL. */
int listing_take_index(struct listing *list, const struct st_index *index, struct error *error);
/* The set's list of what is left out. */
int listing_report(const struct listing *list, struct source_set *set, struct error *error);
void listing_sort(struct listing *list);
const struct listed_file *listing_find(const struct listing *list, const char *name); /* a sorted one; NULL: none */
void listing_deinit(struct listing *list);                                            /* accepts a zeroed one */

/* 0, or STREAMER_EINVAL unless the name is relative and has no empty, "." or ".." component. */
int sidecar_check_name(const char *name, struct error *error);
