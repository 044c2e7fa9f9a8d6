/* SPDX-License-Identifier: Apache-2.0
 *
 * Local files of which the disk cache has copies: those of file systems that the configuration names as slower than the
 * cache's own.
 *
 * A file in its version is its path without links, inode, size and times. The numbers of devices and volumes differ
 * from boot to boot. A version that is not certain without them (file_version.h) has a sample of the bytes besides,
 * which is read when the file is opened. What the file is on its file system is looked at first, and again at the end
 * of the load, as without a copy.
 */
#pragma once

#include "daemon/io/disk/disk_cache.h"

/* An open file becomes one of these if it is below one of the folders; its copy is opened if there is one. */
int disk_local_init(struct object *object, struct disk_cache *cache, const char *const *folders, size_t n_folders,
                    struct error *error);
