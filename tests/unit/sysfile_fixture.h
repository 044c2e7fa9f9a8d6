/* SPDX-License-Identifier: Apache-2.0
 *
 * Fixture of the tests of kernel files: begin_tree() replaces /proc and /sys by a tree of the test, of a machine with
 * huge pages of 2 MiB.
 */
#pragma once

#include "daemon/base/sys/machine.h"
#include "daemon/base/sys/sysfile.h"
#include "daemon/base/util.h"
#include "tests/lib/suite.h"

static char *tree;

static inline void begin_tree(void)
{
        sysfile_root = tree = suite_path("tree-%d", (int)getpid());
        must(mkdir(tree, 0755));
        machine_pages_set(machine_pages.small, 2 * MiB);
}

static inline void put(const char *path, const char *text)
{
        file_put(tree, path, text);
}
