/* SPDX-License-Identifier: Apache-2.0
 *
 * What the Hub tells of a revision: its commit, and its files. Pure.
 */
#ifndef DAEMON_SOURCE_HUB_REPLY_H
#define DAEMON_SOURCE_HUB_REPLY_H

#include "daemon/base/error.h"

#include <stdint.h>

struct hub_file {
        const char *name;   /* below the repository, with its folders */
        const char *sha256; /* of a large file, in hexadecimal; "" if it is not told */
        uint64_t size;      /* UINT64_MAX if it is not told */
};

struct hub_info {
        char commit[65];
        struct hub_file *files; /* in byte order of their names, which are in the text */
        size_t n;
};

/* `text` is changed, must outlive the info, and has room for one more byte. */
int hub_info_parse(struct hub_info *info, char *text, size_t size, const char *shown, struct error *error);
const struct hub_file *hub_info_find(const struct hub_info *info, const char *name); /* NULL: none */
void hub_info_deinit(struct hub_info *info);                                         /* accepts a zeroed one */

#endif
