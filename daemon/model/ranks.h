/* SPDX-License-Identifier: Apache-2.0
 *
 * Files of a model that is split by rank: which file belongs to which rank, by its name alone and a pattern such as
 * model-rank-{rank}-part-{part}.safetensors. Pure.
 *
 * {rank} and {part} are decimal numbers that count from 0; without {part} each rank is one file. Names that do not
 * match are not the model's. A missing or duplicate file, or more or fewer ranks than devices, is an error with a name.
 */
#pragma once

#include "daemon/base/error.h"

#include <stdint.h>

#define RANKS_PATTERN "model-rank-{rank}-part-{part}.safetensors"

struct rank_file {
        uint32_t rank, part;
        uint32_t file; /* the number of its name */
};

/* 0, or STREAMER_EINVAL: it must contain {rank} once, {part} once at most, with text between. */
int ranks_check_pattern(const char *pattern, struct error *error);

/* Lists the files of all ranks, by rank and then by part, in `files`, which has space for n_names. The pattern is a
 * valid one; n_devices: how many ranks there must be. 0, or STREAMER_EFAILED. */
int ranks_list(struct rank_file *files, size_t *n, const char *const *names, size_t n_names, const char *pattern,
               size_t n_devices, struct error *error);
