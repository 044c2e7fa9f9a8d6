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

struct ranks {
        uint32_t *files; /* numbers of names: by rank, then by part */
        uint32_t *first; /* by rank, and one more: where its files begin */
        size_t n;
};

/* 0, or STREAMER_EINVAL: it must contain {rank} once, {part} once at most, with text between. */
int ranks_check_pattern(const char *pattern, struct error *error);

/* 0, STREAMER_EFAILED, or _ENOMEM. n_devices: how many ranks there must be. */
int ranks_make(struct ranks *ranks, const char *const *names, size_t n_names, const char *pattern, size_t n_devices,
               struct error *error);
void ranks_deinit(struct ranks *ranks); /* accepts a zeroed one */
