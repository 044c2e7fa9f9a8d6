/* SPDX-License-Identifier: Apache-2.0
 *
 * A test model of the daemon's own: a safetensors file in memory, loaded like any other. It has tensors of several
 * dtypes and odd sizes, including an empty one.
 *
 * Its bytes follow from a seed, so a reader needs no copy to compare them: in tensor "probe.N" the 64-bit little-endian
 * word k is splitmix64(seed + (N << 32) + k). docs/protocol.md has the function.
 */
#pragma once

#include "daemon/source/source.h"

#define PROBE_SCHEME "probe:" /* "probe:SEED"; also begins the names of these models */

extern const struct source_ops source_probe;

/* Fills `bytes` of tensor `n`. */
void probe_fill(unsigned char *to, uint64_t bytes, uint64_t seed, uint64_t n);
