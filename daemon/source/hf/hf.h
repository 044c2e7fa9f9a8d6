/* SPDX-License-Identifier: Apache-2.0
 *
 * hf://org/name[@rev][/folder or file]: a model of the Hugging Face Hub, or of an endpoint with the same protocol.
 */
#pragma once

#include "daemon/source/listing.h"

struct hf; /* shared by threads */

/* `endpoint` NULL or "": https://huggingface.co; a host without a scheme is https. One that is invalid is an error, or,
 * if it is of a variable of other programs, that of each load from the Hub. `variable`: its name, or NULL.
 * `token`: a value, "file:PATH" or "credential:NAME"; NULL or "": the one that huggingface-cli has stored. */
int hf_new(struct hf **hf, const char *endpoint, const char *variable, const char *token, struct error *error);
struct hf *hf_free(struct hf *hf);

/* ---- for the fuzzer ---- */

#define HF_COMMIT 65

/* Parses the Hub's description of a revision: its commit, and its files below a folder ("" or "folder/"), which are
 * added to the list, each with the SHA-256 that the Hub has of a large file. Changes the text. */
int hf_reply_parse(char *text, size_t size, const char *folder, char commit[HF_COMMIT], struct listing *list,
                   struct error *error);
