/* SPDX-License-Identifier: Apache-2.0
 *
 * A model that is cut by rank: which of its files belong to which rank, told from their names alone
 * by a pattern such as model-rank-{rank}-part-{part}.safetensors. Pure.
 *
 * {rank} and {part} stand for decimal numbers that count from 0; without {part} each rank is one
 * file. Names that do not match are not the model's. What is missing, twice, or more or fewer than
 * there are devices is an error with a name: half a model is none.
 */
#ifndef DAEMON_MODEL_RANKS_H
#define DAEMON_MODEL_RANKS_H

#include <stddef.h>
#include <stdint.h>

#define RANKS_PATTERN "model-rank-{rank}-part-{part}.safetensors"

struct ranks {
        uint32_t *files; /* numbers of names: by rank, then by part */
        uint32_t *first; /* by rank, and one more: where its files begin */
        size_t n;
};

struct ranks_error {
        char text[600];
};

/* 0, or -1 with *error: {rank} must stand in it once, {part} once at most, with text between. */
int ranks_check_pattern(const char *pattern, struct ranks_error *error);

/* 0, or -1 with *error. n_devices: how many ranks there must be. */
int ranks_make(struct ranks *ranks, const char *const *names, size_t n_names, const char *pattern, size_t n_devices,
               struct ranks_error *error);
void ranks_deinit(struct ranks *ranks); /* accepts a zeroed one */

#endif
