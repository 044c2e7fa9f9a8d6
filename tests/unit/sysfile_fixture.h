/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of kernel files: begin_tree() replaces /proc and /sys by a tree of the test.
 */
#pragma once

#include "daemon/base/sys/sysfile.h"
#include "tests/lib/suite.h"

static char *tree;

static inline void begin_tree(void)
{
        sysfile_root = tree = suite_path("tree-%d", (int)getpid());
        must(mkdir(tree, 0755));
}

static inline void put(const char *path, const char *text)
{
        file_put(tree, path, text);
}
