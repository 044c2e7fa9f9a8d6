/* SPDX-License-Identifier: Apache-2.0
 *
 * hf://org/name[@rev]: a model of the Hugging Face Hub, or of an endpoint with the same protocol.
 */
#pragma once

#include "daemon/source/listing.h"

struct hf; /* shared by threads */

/* `endpoint` NULL or "": https://huggingface.co. `token`: a value, "file:PATH" or "credential:NAME"; NULL or "": the
 * one that huggingface-cli has stored. */
int hf_new(struct hf **hf, const char *endpoint, const char *token, struct error *error);
struct hf *hf_free(struct hf *hf);

/* ---- for the fuzzer ---- */

#define HF_COMMIT 65

/* Parses the Hub's description of a revision: its commit, and its files, which are added to the list, each with the
 * SHA-256 that the Hub has of a large file. Changes the text. */
int hf_reply_parse(char *text, size_t size, char commit[HF_COMMIT], struct listing *list, struct error *error);
