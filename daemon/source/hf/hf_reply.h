/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the Hub's description of a revision: its commit and its files. Pure.
 */
#ifndef DAEMON_SOURCE_HF_HF_REPLY_H
#define DAEMON_SOURCE_HF_HF_REPLY_H

#include "daemon/source/listing.h"

#define HF_COMMIT 65

/* Adds the files to the list, each with the SHA-256 that the Hub has of a large file. `text` is changed, and has space
 * for one more byte. */
int hf_reply_parse(char *text, size_t size, char commit[HF_COMMIT], struct listing *list, struct error *error);

#endif
