/* SPDX-License-Identifier: Apache-2.0
 *
 * s3://bucket/key and s3://bucket/prefix/, taken literally: no percent-decoding, nothing collapsed. A
 * key ends in ".safetensors"; anything else is a prefix, in which files are chosen as in a folder.
 */
#ifndef DAEMON_SOURCE_S3_H
#define DAEMON_SOURCE_S3_H

#include "daemon/source/source.h"

extern const struct source_ops source_s3;

/* ---- parts, for the tests ---- */

struct s3_uri {
        char *bucket;
        const char *key; /* in the canonical text: a whole key, or a prefix that is empty or ends in '/' */
        bool prefix;
};
int s3_uri_init(struct s3_uri *uri, const char *canonical, struct error *error);
void s3_uri_deinit(struct s3_uri *uri);

#endif
