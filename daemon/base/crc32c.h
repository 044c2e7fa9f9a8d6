/* SPDX-License-Identifier: Apache-2.0
 *
 * CRC-32C (Castagnoli), as Google Cloud Storage publishes it.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Of the bytes that `crc` is of, and these after them; 0: of none. */
uint32_t crc32c(uint32_t crc, const void *data, size_t size);
