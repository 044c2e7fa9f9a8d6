/* SPDX-License-Identifier: Apache-2.0
 *
 * Parses the Hub's description of a revision: its commit and its files. Pure.
 */
#ifndef DAEMON_SOURCE_HF_HF_REPLY_H
#define DAEMON_SOURCE_HF_HF_REPLY_H

#include "daemon/base/error.h"

#include <stdint.h>

struct hf_file {
        const char *name;   /* below the repository, with its folders */
        const char *sha256; /* of a large file, in hexadecimal; "" if it is not given */
        uint64_t size;      /* UINT64_MAX if it is not given */
};

struct hf_info {
        char commit[65];
        struct hf_file *files; /* in byte order of their names, which are in the text */
        size_t n;
};

/* `text` is changed, must outlive the info, and has space for one more byte. */
int hf_info_parse(struct hf_info *info, char *text, size_t size, const char *shown, struct error *error);
const struct hf_file *hf_info_find(const struct hf_info *info, const char *name); /* NULL: none */
void hf_info_deinit(struct hf_info *info);                                        /* accepts a zeroed one */

#endif
