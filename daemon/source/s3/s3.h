/* SPDX-License-Identifier: Apache-2.0
 *
 * s3://bucket/key and s3://bucket/prefix/, taken literally: no percent-decoding, nothing collapsed. A
 * key ends in ".safetensors"; anything else is a prefix, in which files are chosen as in a folder.
 */
#ifndef DAEMON_SOURCE_S3_S3_H
#define DAEMON_SOURCE_S3_S3_H

#include "daemon/source/source.h"

extern const struct source_ops source_s3;

#endif
