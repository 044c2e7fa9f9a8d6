/* SPDX-License-Identifier: Apache-2.0
 *
 * A model of the daemon's own, to try a device with: a safetensors file in memory, which is loaded as
 * any other. It has tensors of several dtypes and odd sizes, an empty one among them.
 *
 * Its bytes follow from a seed, so that whoever reads them back needs no copy: in tensor "probe.N" the
 * 64-bit little-endian word k is splitmix64(seed + (N << 32) + k). docs/protocol.md has the function.
 */
#ifndef DAEMON_SOURCE_PROBE_H
#define DAEMON_SOURCE_PROBE_H

#include "daemon/source/source.h"

#define PROBE_SOURCE "probe:" /* also begins the names of these models */

/* Fills `bytes` of tensor `n`. */
void probe_fill(unsigned char *to, uint64_t bytes, uint64_t seed, uint64_t n);

/* As source_open(). */
int source_open_probe(uint64_t seed, struct source_set *set, struct error *error);

#endif
