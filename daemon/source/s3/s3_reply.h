/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses an S3 store's lists (a page of ListObjectsV2) and checksums. Pure.
 */
#pragma once

#include "daemon/source/listing.h"

/* ---- lists ---- */

/* Adds the files below the prefix of a page, in encoding-type=url where it says so. *next: the token of the next page,
 * malloc'd; NULL: this is the last, or an error. */
int s3_page_parse(char **next, const char *text, size_t size, const char *prefix, struct listing *list,
                  struct error *error);

/* ---- checksums ---- */

/* From base64, as in a checksum header, to hexadecimal; false: it is of parts, or no SHA-256. */
bool s3_checksum_decode(const char *value, char hex[65]);
